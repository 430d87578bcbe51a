# %% [markdown]
# # Neyman–Pearson classification
#
# A screening test must find at least 90% of the ill, and should raise as few false alarms as it can. This is not a matter
# of weighing two losses: one of them has a bound. Neyman and Pearson wrote it as a problem with a constraint,
#
# - minimize the rate of false alarms,
# - subject to a rate of detection of at least 0.9.
#
# A rate is a mean over the ill (or the healthy) alone. Tightrope's functions are means over all examples of a batch, so the
# weights of the ill, one over their share, are part of the data.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr

rng = np.random.default_rng(0)
ill = rng.random(4000) < 0.2
markers = rng.normal(size=(4000, 2)).astype(np.float32)
angle, radius = rng.uniform(0, 2 * np.pi, 4000), 1.5 + 0.3 * rng.normal(size=4000)
ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
markers[ill] = 0.5 * markers[ill] + [1.0, 1.0]
markers[~ill] = 0.4 * markers[~ill] + ring[~ill]
data = tr.Dataset({"x": markers, "ill": ill / ill.mean(), "healthy": ~ill / (1 - ill.mean())}, batch_size=64)

# %% [markdown]
# The classifier is an Equinox model; its arrays are the parameters. The indicator of a positive test is smoothed by a
# sigmoid, so that it has gradients.


# %%
def positive(model, batch):
    return jax.nn.sigmoid(jax.vmap(model)(batch["x"])[:, 0])


def false_alarms(model, batch):
    return jnp.mean(batch["healthy"] * positive(model, batch))


def detection(model, batch):
    return jnp.mean(batch["ill"] * positive(model, batch))


model = eqx.nn.MLP(2, 1, width_size=32, depth=2, key=jax.random.key(0))
problem = tr.Problem(false_alarms, tr.at_least(detection, 0.9, data=data), data=data)
result = tr.solve(problem, model, steps=2000)
print(result)

# %% [markdown]
# AdaptiveLagrangian is what `method=None` chooses for a network on batches. The rate of false alarms alone would drive the
# network to where it answers "healthy" whatever the markers are, and all gradients vanish. The step size is estimated such that
# the multiplier has grown before that happens: `result.constants` has it.
#
# The certificate passed over all data: its numbers are exact for them. The multiplier is the price of the constraint: one
# more point of detection costs about that many points of false alarms.
#
# The picture shows the region in which the test is positive.

# %%
grid = np.linspace(-3.0, 3.0, 200)
points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2).astype(np.float32)
level = np.asarray(positive(result.x, {"x": points})).reshape(200, 200)
figure, axes = plt.subplots(figsize=(5.5, 5.0))
axes.contourf(grid, grid, level, levels=[0.5, 1.0], colors=["#0072b2"], alpha=0.2)
axes.scatter(*markers[~ill][:600].T, s=8, color="#777777", label="healthy")
axes.scatter(*markers[ill][:150].T, s=8, color="#d55e00", label="ill")
axes.set(xlabel="first marker", ylabel="second marker", title="The test is positive in the shaded region")
axes.legend(loc="lower left")
plt.show()

# %%
assert result.certificate.verdict == "feasible"
assert result.objective < 0.2
