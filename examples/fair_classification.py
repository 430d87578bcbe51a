# %% [markdown]
# # Fair classification
#
# A bank predicts who repays. Its past data favor one group, and so does a classifier that is fitted to them. The law asks for
# equal opportunity: among those who repay, both groups must be accepted at rates that differ by at most 5 points.
#
# The rates in question count decisions, so they are step functions of the parameters. `tr.rates` gives the steps of a method a
# smooth surrogate, and certifies the counts themselves.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tightrope as tr
from tightrope.sklearn import ConstrainedClassifier

rng = np.random.default_rng(0)
PEOPLE = 6000
group = rng.choice(["A", "B"], PEOPLE, p=[0.65, 0.35])
skill = rng.normal(size=PEOPLE)
repaid = skill + 0.5 * rng.logistic(size=PEOPLE) > 0
income = skill + 0.9 * (group == "A") + 0.8 * rng.normal(size=PEOPLE)  # favors group A at equal skill
record = skill + 1.5 * rng.normal(size=PEOPLE)
features = np.stack([income, record, np.ones(PEOPLE)], axis=1).astype(np.float32)
half = PEOPLE // 2


def dataset(part):
    """The people of a part, with the weights of their groups."""
    label = np.where(repaid, 1.0, -1.0)[part]
    fields = {"x": features[part], "y": label, "group": tr.rates.groups(group[part], repaid[part])}
    return tr.Dataset(fields, batch_size=64)


train, test = dataset(slice(0, half)), dataset(slice(half, None))

# %% [markdown]
# ## The constraint


# %%
def score(w, batch):
    return batch["x"] @ w


def loss(w, batch):
    return jnp.mean(jax.nn.softplus(-batch["y"] * score(w, batch)))


def problem(bound):
    return tr.Problem(loss, tr.rates.equal_opportunity(score, "group", train, bound=bound), data=train)


plain = tr.solve(tr.Problem(loss, data=train), jnp.zeros(3), steps=300)
fair = tr.rates.solve(problem(0.05), jnp.zeros(3), steps=300)
print(fair)

# %% [markdown]
# ## What it costs, and whether it holds for others
#
# Each bound is a number of the same program. On people that were not trained on, rates have a sampling error: the certificate
# on the test set judges them with the groups' shares there.


# %%
def accuracy(w, part):
    return float(np.mean((features[part] @ np.asarray(w) > 0) == repaid[part]))


bounds, answers = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2], []
for bound in bounds:
    answers.append(tr.rates.solve(problem(bound), jnp.zeros(3), steps=300).x)
unseen = slice(half, None)
differences = [tr.certify(problem(0.0), w, data=test).violation["equal_opportunity"].value for w in (*answers, plain.x)]
accuracies = [100 * accuracy(w, unseen) for w in (*answers, plain.x)]
figure, axes = plt.subplots(figsize=(5.5, 4.0), layout="constrained")
axes.plot(differences[:-1], accuracies[:-1], "o-", label="constrained")
axes.plot(differences[-1], accuracies[-1], "kx", markersize=9, label="unconstrained")
for bound, x, y in zip(bounds, differences, accuracies, strict=False):
    axes.annotate(f"≤ {bound:g}", (x, y), textcoords="offset points", xytext=(6, -10), fontsize=8)
axes.set(xlabel="difference of true positive rates, unseen people", ylabel="accuracy, unseen people (%)")
axes.legend()
plt.show()

# %% [markdown]
# The same for users of scikit-learn:

# %%
model = ConstrainedClassifier({"equal_opportunity": 0.05}, random_state=0)
model.fit(features[:half, :2], repaid[:half], sensitive_features=group[:half])
print(
    f"accuracy {model.score(features[half:, :2], repaid[half:]):.3f}, {model.certificate_.verdict} on the training set"
)

# %%
assert fair.certificate.verdict == "feasible"
assert differences[2] < 0.5 * differences[-1]
assert accuracy(fair.x, unseen) > accuracy(plain.x, unseen) - 0.1
