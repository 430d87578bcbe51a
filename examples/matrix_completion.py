# %% [markdown]
# # Matrix completion with a promise about the average
#
# Users have rated some films, and we want to predict the ratings that are missing. A matrix of low rank that agrees with
# the known ratings is found by bounding the nuclear norm. The site also promises that its predictions are not inflated: the
# mean of all predictions must not exceed 3.1.
#
# - minimize the mean squared error on known ratings, sampled in batches,
# - subject to mean prediction ≤ 3.1,
# - in the set of matrices with a nuclear norm of at most `radius`.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr

rng = np.random.default_rng(0)
USERS, FILMS, RANK = 60, 40, 3
truth = 3.0 + 0.7 * rng.normal(size=(USERS, RANK)) @ rng.normal(size=(RANK, FILMS)) / np.sqrt(RANK)
# High ratings are more likely to be given, so known ratings are too high on average.
known = rng.random((USERS, FILMS)) < 0.15 + 0.35 * (truth > 3.0)
users, films = np.nonzero(known)
ratings = truth[known] + 0.1 * rng.normal(size=len(users))
train = rng.random(len(users)) < 0.9
print(f"{len(users)} ratings are known; their mean is {ratings.mean():.2f}, that of all {truth.mean():.2f}")

# %%
data = tr.Dataset({"user": users[train], "film": films[train], "rating": ratings[train]}, batch_size=64)


def error(matrix, batch):
    return jnp.mean((matrix[batch["user"], batch["film"]] - batch["rating"]) ** 2)


def problem(radius):
    average = tr.at_most(jnp.mean, 3.1, name="mean prediction")
    return tr.Problem(error, average, domain=tr.domains.NuclearBall(radius), data=data)


# %% [markdown]
# The radius is chosen on the ratings that were kept aside. Another radius is another number, so nothing is compiled again.

# %%
start = jnp.zeros((USERS, FILMS))
radii, errors, answers = np.array([130.0, 160.0, 190.0, 220.0]), [], []
for radius in radii:
    answer = tr.solve(problem(radius), start, steps=600)
    kept = np.asarray(answer.x)[users[~train], films[~train]]
    errors.append(float(np.sqrt(np.mean((kept - ratings[~train]) ** 2))))
    answers.append(answer)
    print(f"radius {radius:.0f}: error on kept ratings {errors[-1]:.3f}, {answer.certificate.verdict}")
best = answers[int(np.argmin(errors))]
print(best)

# %%
singular = np.linalg.svd(np.asarray(best.x), compute_uv=False)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
left.plot(radii, errors, "o-")
left.set(xlabel="radius of the nuclear ball", ylabel="error on kept ratings")
right.semilogy(np.arange(1, 21), np.maximum(singular[:20], 1e-6), "o")
right.set(xlabel="number", xticks=[1, 5, 10, 15, 20], ylabel="singular value of the answer")
plt.show()

# %%
assert best.certificate.verdict == "feasible"
assert np.asarray(best.x).mean() <= 3.1 + 1e-3
assert min(errors) < np.std(ratings)
