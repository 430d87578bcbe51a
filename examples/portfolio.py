# %% [markdown]
# # A portfolio whose worst days are bounded
#
# An investor wants the largest expected return, and bounds what she loses on bad days: the conditional value at risk at
# 95%, the mean loss of the worst 5% of all days, must not exceed 2%. Weights are at least 0 and sum to 1.
#
# Returns have heavy tails and a common factor. We take 10,000 simulated days as the data.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr

rng = np.random.default_rng(0)
ASSETS, DAYS = 8, 10_000
mean = np.linspace(0.01, 0.08, ASSETS)  # in percent a day
volatility = np.linspace(0.2, 2.2, ASSETS)
market = rng.standard_t(4, DAYS)[:, None]
returns = mean + volatility * (0.6 * market + 0.8 * rng.standard_t(4, (DAYS, ASSETS))) / np.sqrt(2)
days = tr.Dataset(returns.astype(np.float32), batch_size=500)

# %% [markdown]
# `cvar_at_most` takes a function that returns one loss per example. Rockafellar and Uryasev showed that the conditional
# value at risk is a minimum over a threshold: Tightrope adds that variable, and takes it out of the answer again.


# %%
def gain(weights, batch):
    return -jnp.mean(batch @ weights)


def losses(weights, batch):
    return -batch @ weights


risk = tr.cvar_at_most(losses, 0.95, 2.0, data=days, name="risk")
problem = tr.Problem(gain, risk, domain=tr.domains.Simplex(), data=days)
start = jnp.ones(ASSETS) / ASSETS
result = tr.solve(problem, start, steps=1500)
print(result)
print("weights:", np.round(np.asarray(result.x), 3))

# %% [markdown]
# What does safety cost? `tr.tradeoff` solves for several bounds with the same compiled program. The slope of the frontier
# is the multiplier: the expected return that one more percent of tail loss buys.

# %%
frontier = tr.tradeoff(problem, start, "risk", [1.0, 1.5, 2.0, 2.5, 3.0, 3.5], steps=1500)
print(frontier)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
left.plot(frontier.bounds, -frontier.objective, "o-")
left.set(xlabel="mean loss of the worst 5% of days (%)", ylabel="expected return (% a day)")
weights = np.stack([np.asarray(point.x) for point in frontier.results], axis=1)
right.stackplot(frontier.bounds, weights, labels=[f"asset {i + 1}" for i in range(ASSETS)])
right.set(xlabel="bound of the risk (%)", ylabel="weights", ylim=(0, 1))
right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
plt.show()

# %%
worst = np.sort(-returns @ np.asarray(result.x, float))[-DAYS // 20 :]
print(f"mean loss of the worst 5% of days, by NumPy: {worst.mean():.4f}%; the answer is {result.certificate.verdict}")
assert result.certificate.verdict == "feasible"
assert worst.mean() < 2.0 + 0.01
assert (np.diff(frontier.objective) < -1e-3).all()
assert abs(frontier.objective[2] - result.objective) < 1e-3
