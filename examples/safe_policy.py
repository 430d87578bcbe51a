# %% [markdown]
# # A safe policy
#
# A cart must be brought to rest at the origin by pushes of limited strength, under random gusts. Every push costs energy.
# The rail ends at ±1.5, and a cart that hits the end is lost: this may happen in at most 2% of all steps.
#
# The simulator is a JAX function, so that a policy's expected energy and its expected share of unsafe steps have gradients
# through the simulation: they are means over simulated episodes, and a `Sampler` starts fresh ones in every step.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr

STEPS, DT, RAIL = 40, 0.1, 1.5


def push(policy, state):
    hidden = jnp.tanh(policy["in"] @ state + policy["shift"])
    return 3.0 * jnp.tanh(policy["out"] @ hidden)


def episode(policy, start):
    """Positions and pushes of one episode; `start` has the first state and all gusts."""

    def advance(state, gust):
        force = push(policy, state)
        speed = state[1] + DT * (force + gust)
        return jnp.stack([state[0] + DT * speed, speed]), (state[0] + DT * speed, force)

    return jax.lax.scan(advance, start["state"], start["gusts"])[1]


def starts(key, n):
    first, second = jax.random.split(key)
    state = jax.random.normal(first, (n, 2)) * jnp.array([0.5, 1.2])
    return {"state": state, "gusts": 1.0 * jax.random.normal(second, (n, STEPS))}


# %% [markdown]
# The objective weighs distance from the origin and energy. The indicator |position| > rail is smoothed for gradients; below
# we count the true share.


# %%
def cost(policy, batch):
    positions, pushes = jax.vmap(lambda start: episode(policy, start))(batch)
    return jnp.mean(0.3 * positions**2 + pushes**2)


def unsafe(policy, batch):
    positions, _ = jax.vmap(lambda start: episode(policy, start))(batch)
    return jnp.mean(jax.nn.sigmoid((jnp.abs(positions) - RAIL) / 0.05))


rng = np.random.default_rng(0)
policy = {
    "in": jnp.asarray(rng.normal(size=(16, 2)), jnp.float32),
    "shift": jnp.zeros(16),
    "out": jnp.asarray(rng.normal(size=16) / 16, jnp.float32),
}
simulator = tr.Sampler(starts, batch_size=64)
safe = tr.Problem(cost, tr.at_most(unsafe, 0.02, data=simulator), data=simulator)
result = tr.solve(safe, policy, steps=600)
print(result)

# %%
careless = tr.solve(tr.Problem(cost, data=simulator), policy, steps=600)
fresh = starts(jax.random.key(99), 5000)
figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6), sharey=True, layout="constrained")
shares = []
for axis, (title, answer) in zip(axes, {"without the constraint": careless, "with it": result}.items(), strict=True):
    positions, pushes = jax.vmap(lambda start, x=answer.x: episode(x, start))(fresh)
    shares.append(float(jnp.mean(jnp.abs(positions) > RAIL)))
    axis.plot(DT * np.arange(1, STEPS + 1), np.asarray(positions[:60]).T, color="#0072b2", alpha=0.3, linewidth=0.8)
    axis.axhspan(RAIL, 4.0, color="#d55e00", alpha=0.2)
    axis.axhspan(-4.0, -RAIL, color="#d55e00", alpha=0.2)
    axis.set(
        xlabel="time", title=f"{title}: {shares[-1]:.1%} unsafe, energy {float(jnp.mean(pushes**2)):.2f}", ylim=(-4, 4)
    )
axes[0].set_ylabel("position")
plt.show()

# %%
assert result.certificate.verdict in ("feasible", "undecided")
assert shares[1] < 0.025 < shares[0]
print(result.certificate.decision)
