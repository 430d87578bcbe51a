# %% [markdown]
# # A physics-informed network with hard boundary conditions
#
# A pendulum of unit length obeys u″ = −2 sin u. We know its angle at two times, u(0) = 0 and u(1) = 1, and want the motion
# between them. A network u(t) is trained to make the residual of the equation small.
#
# Usually the boundary conditions are terms of the loss, with weights that have to be tuned: too small, and the ends are
# off; too large, and the equation is. Here they are constraints, and hold to rounding.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_bvp

import tightrope as tr

rng = np.random.default_rng(0)


def layer(inputs, outputs):
    return {"w": jnp.asarray(rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)), "b": jnp.zeros(outputs)}


network = [layer(1, 32), layer(32, 32), layer(32, 1)]


def angle(network, t):
    hidden = jnp.tanh(t * network[0]["w"][0] + network[0]["b"])
    hidden = jnp.tanh(hidden @ network[1]["w"] + network[1]["b"])
    return (hidden @ network[2]["w"] + network[2]["b"])[0]


# %% [markdown]
# The objective is an expectation over random times, which a `Sampler` draws anew in every step. The boundary conditions are
# deterministic: functions of the parameters alone.


# %%
def residual(network, times):
    acceleration = jax.grad(jax.grad(angle, argnums=1), argnums=1)
    return jnp.mean(jax.vmap(lambda t: acceleration(network, t) + 2.0 * jnp.sin(angle(network, t)))(times) ** 2)


times = tr.Sampler(lambda key, n: jax.random.uniform(key, (n,)), batch_size=64)
problem = tr.Problem(
    residual,
    [
        tr.equals(lambda network: angle(network, 0.0), 0.0, name="start"),
        tr.equals(lambda network: angle(network, 1.0), 1.0, name="end"),
    ],
    data=times,
)
result = tr.solve(problem, network, steps=3000)
print(result)

# %% [markdown]
# SciPy's solver for boundary value problems gives the solution to compare with.

# %%
mesh = np.linspace(0.0, 1.0, 101)
exact = solve_bvp(
    lambda t, u: np.stack([u[1], -2.0 * np.sin(u[0])]),
    lambda left, right: np.array([left[0], right[0] - 1.0]),
    mesh,
    np.stack([mesh, np.ones_like(mesh)]),
).sol(mesh)[0]
found = np.asarray(jax.vmap(lambda t: angle(result.x, t))(jnp.asarray(mesh, jnp.float32)))
figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
left.plot(mesh, exact, color="black", label="SciPy")
left.plot(mesh, found, "--", color="#d55e00", linewidth=2, label="network")
left.set(xlabel="time", ylabel="angle")
left.legend()
right.semilogy(mesh, np.abs(found - exact) + 1e-9)
right.set(xlabel="time", ylabel="error of the network")
plt.show()
print(
    f"largest error {np.max(np.abs(found - exact)):.1e}, at the ends {abs(found[0]):.1e} and {abs(found[-1] - 1):.1e}"
)

# %%
assert result.certificate.verdict == "feasible"
assert np.max(np.abs(found - exact)) < 0.03
