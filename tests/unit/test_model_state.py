"""Model state: carried from step to step by the objective, never trained, and held fixed where answers are evaluated."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

RANDOM = np.random.default_rng(0)
X = (RANDOM.normal(size=(600, 4)) * [1.0, 5.0, 0.2, 2.0] + [0.0, 3.0, -1.0, 10.0]).astype(np.float32)
Y = (X[:, 1] > 3.0).astype(np.float32)
DATA = tr.Dataset({"x": X, "y": Y}, batch_size=20)
START = tr.WithState(
    {"weight": jnp.asarray(RANDOM.normal(size=4) / 2, jnp.float32), "shift": jnp.zeros(())},
    {"mean": jnp.zeros(4), "variance": jnp.ones(4)},
)


def normalized(batch, state, key):
    """A batch norm: the inputs by their own statistics in a step and by the running ones in evaluation, and the new state."""
    if key is None:
        return (batch["x"] - state["mean"]) / jnp.sqrt(state["variance"] + 1e-5), state
    mean, variance = jnp.mean(batch["x"], axis=0), jnp.var(batch["x"], axis=0)
    new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "variance": 0.9 * state["variance"] + 0.1 * variance}
    return (batch["x"] - mean) / jnp.sqrt(variance + 1e-5), new


def score(params, batch, state, key):
    inputs, new = normalized(batch, state, key)
    return inputs @ params["weight"] + params["shift"], new


def loss(params, batch, state, key=None):
    logits, new = score(params, batch, state, key)
    return jnp.mean(jnp.logaddexp(0.0, logits) - batch["y"] * logits), new


def rate(params, batch, state, key=None):
    return jnp.mean(jax.nn.sigmoid(score(params, batch, state, key)[0]))


def size(params):
    return jnp.sum(params["weight"] ** 2)


def batch_norm_problem(data: tr.Dataset | tr.Batches = DATA, **options):
    return tr.Problem(loss, [tr.at_most(rate, 0.4, data=data), tr.at_most(size, 20.0)], data=data, **options)


PROBLEM = batch_norm_problem()


def evaluated(x):
    """The loss and the rate on all data by the running statistics, in NumPy."""
    weight, shift, mean, variance = (np.asarray(a, float) for a in (*_ordered(x.params), *_ordered(x.state)))
    logits = (X - mean) / np.sqrt(variance + 1e-5) @ weight + shift
    return np.mean(np.logaddexp(0.0, logits) - Y * logits), np.mean(1.0 / (1.0 + np.exp(-logits)))


def _ordered(tree):
    return [tree[name] for name in ("weight", "shift", "mean", "variance") if name in tree]


def statistics_after(draws, parts):
    """Running statistics after these batches, each the mean over its parts."""
    mean, variance = np.zeros(4), np.ones(4)
    for draw in draws:
        pieces = X[np.asarray(draw)].reshape(parts, -1, 4)
        mean = 0.9 * mean + 0.1 * pieces.mean(axis=1).mean(axis=0)
        variance = 0.9 * variance + 0.1 * pieces.var(axis=1).mean(axis=0)
    return {"mean": mean, "variance": variance}


METHODS = [
    (tr.methods.AdaptiveLagrangian(), "step", 2),
    (tr.methods.GradientDescentAscent(), "joint", 1),
    pytest.param(tr.methods.GradientDescentAscent(update="extragradient"), "joint", 1, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("method", "role", "parts"), METHODS)
def test_the_state_is_that_of_the_steps_batches(method, role, parts):
    stepper = tr.Stepper(PROBLEM, START, method, steps=30)
    step, draw, state = jax.jit(stepper.step), jax.jit(stepper.draw), jax.jit(stepper.init)()
    for _ in range(30):
        state, _ = step(state)
    expected = statistics_after([draw(k).samples[role][0] for k in range(1, 31)], parts)
    for name, value in expected.items():
        np.testing.assert_allclose(state.x.state[name], value, rtol=1e-4, atol=1e-5)
    assert isinstance(state.x, tr.WithState)
    assert np.abs(state.x.params["weight"] - START.params["weight"]).max() > 1e-2


@pytest.fixture(scope="module")
def trained():
    return tr.solve(PROBLEM, START, steps=400, record=tr.Record(100, {"rate": rate, "size": lambda p, b: size(p)}))


def test_a_result_is_evaluated_by_the_running_statistics(trained):
    objective, share = evaluated(trained.x)
    assert trained.method == "AdaptiveLagrangian"
    assert "model state" in trained.message
    assert trained.objective == pytest.approx(objective, rel=1e-4)
    assert trained.violation == pytest.approx(max(0.0, share - 0.4), abs=1e-5)
    assert trained.certificate.verdict == "feasible"
    assert objective < 0.5 < evaluated(START)[0]
    assert {"rate", "size"} <= set(trained.history)
    again = tr.certify(PROBLEM, trained.x)
    assert again.objective.value == pytest.approx(objective, rel=1e-4)
    assert again.stationarity.value == pytest.approx(trained.stationarity, rel=1e-3)


def test_fresh_samples_are_evaluated_by_the_running_statistics_too():
    def centered(params, batch, state, key=None):
        mean = jnp.mean(batch)
        return params**2 + mean - (state if key is None else mean), 0.9 * state + 0.1 * mean

    data = tr.Sampler(lambda key, n: 3.0 + jax.random.normal(key, (n,)), 16)
    certificate = tr.certify(tr.Problem(centered, data=data), tr.WithState(jnp.zeros(()), jnp.ones(())))
    assert certificate.objective.value == pytest.approx(2.0, abs=0.1)


def test_saved_results_and_warm_starts_keep_the_state(trained, tmp_path):
    trained.save(tmp_path / "result.npz")
    loaded = tr.load(tmp_path / "result.npz")
    assert isinstance(loaded.x, tr.WithState)
    jax.tree.map(np.testing.assert_array_equal, loaded.x, trained.x)
    stepper = tr.Stepper(PROBLEM, START, "AdaptiveLagrangian", steps=10, warm_start=loaded)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(stepper.init)().x, trained.x)


def test_checkpoints_resume_with_the_state(tmp_path):
    whole = tr.solve(PROBLEM, START, "GradientDescentAscent", steps=40, record=1)
    tr.solve(PROBLEM, START, "GradientDescentAscent", steps=20, record=1, checkpoint=tmp_path)
    resumed = tr.solve(PROBLEM, START, "GradientDescentAscent", steps=40, record=1, checkpoint=tmp_path)
    jax.tree.map(np.testing.assert_array_equal, whole.x, resumed.x)
    assert "resumed at step 20" in resumed.message

    def slower(params, batch, state, key=None):
        value, new = loss(params, batch, state, key)
        return value, jax.tree.map(lambda a, b: 0.5 * (a + b), new, state)

    other = tr.Problem(slower, [tr.at_most(rate, 0.4, data=DATA), tr.at_most(size, 20.0)], data=DATA)
    with pytest.raises(ValueError, match="the objective"):
        tr.solve(other, START, "GradientDescentAscent", steps=40, record=1, checkpoint=tmp_path)


def test_seeds_of_a_sweep_have_states_of_their_own():
    results = list(tr.sweep(PROBLEM, START, "GradientDescentAscent", steps=30, seeds=[0, 1]).results)
    first, second = (result.x.state["mean"] for result in results)
    assert np.abs(first - second).max() > 1e-3
    for result in results:
        assert result.objective == pytest.approx(evaluated(result.x)[0], rel=1e-4)


def test_derivatives_by_the_state_are_zero_and_held_state_leaves_the_others():
    oracle = replace(oracle_for(PROBLEM, Parameters(START)), training=True)
    x, sample = oracle.parameters.start, oracle.first()
    held, trained = oracle.hold_state(x)
    for here in (oracle, replace(oracle, training=False)):
        gradient, jacobian = here.grad(x, sample), here.jac(x, sample)
        assert trained.size == 5
        assert np.any(gradient[:5])
        assert np.any(jacobian[:, :5])
        assert not np.any(gradient[5:])
        assert not np.any(jacobian[:, 5:])
    np.testing.assert_array_equal(held.grad(trained, sample), oracle.grad(x, sample)[:5])
    (rows, pullback, state), (_, new) = (
        held.lagrangian_vjp_and_state(trained, sample),
        loss(START.params, jax.tree.map(lambda a: a[:20], DATA.arrays), START.state, jax.random.key(0)),
    )
    np.testing.assert_allclose(state, np.concatenate([new["mean"], new["variance"]]), rtol=1e-5)
    assert pullback(rows).shape == (5,)


def test_the_domain_applies_to_the_parameters_alone():
    problem = batch_norm_problem(domain=tr.domains.Box(-0.1, 0.1))
    start = tr.WithState(jax.tree.map(jnp.ones_like, START.params), START.state)
    stepper = tr.Stepper(problem, start, "AdaptiveLagrangian", steps=20)
    state = jax.jit(stepper.init)()
    np.testing.assert_allclose(state.x.params["weight"], 0.1)
    np.testing.assert_array_equal(state.x.state["variance"], 1.0)
    state, _ = jax.jit(stepper.step)(state)
    assert np.abs(state.x.params["weight"]).max() <= 0.1
    assert state.x.state["mean"][3] > 0.5


@pytest.mark.parametrize("domain", [None, pytest.param(tr.domains.L2Ball(2.0), marks=pytest.mark.full)])
def test_certificates_and_constants_do_not_depend_on_the_size_of_the_state(domain):
    def ignored(params, batch, state):
        return jnp.mean((batch["x"] @ params["weight"] - batch["y"]) ** 2), state

    problem = tr.Problem(ignored, tr.at_most(size, 0.1), data=DATA, domain=domain, smooth=False)
    small, large = START._replace(state=jnp.zeros(3)), START._replace(state=1e6 * jnp.ones(3))
    assert tr.certify(problem, small) == tr.certify(problem, large)
    for method in ("AdaptiveLagrangian", "GradientDescentAscent"):
        steppers = [tr.Stepper(problem, x0, method, steps=9) for x0 in (small, large)]
        first, second = (np.array(jax.tree.leaves(jax.jit(stepper.init)().method)) for stepper in steppers)
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()


def test_batches_of_the_users_own():
    problem = batch_norm_problem(tr.Batches(like=jax.tree.map(lambda a: a[:20], DATA.arrays)))
    stepper = tr.Stepper(problem, START, steps=5)
    batches = [jax.tree.map(lambda a, i=i: a[20 * i : 20 * i + 20], DATA.arrays) for i in range(6)]
    state, step = jax.jit(stepper.init)(batches[0]), jax.jit(stepper.step)
    for batch in batches[1:]:
        state, _ = step(state, batch)
    expected = statistics_after([range(20 * i, 20 * i + 20) for i in range(1, 6)], 2)
    np.testing.assert_allclose(state.x.state["variance"], expected["variance"], rtol=1e-4)
    answer = stepper.answer(state, DATA)
    assert answer.objective == pytest.approx(evaluated(answer.x)[0], rel=1e-4)


def test_other_methods_refuse_and_say_which_do_not():
    with pytest.raises(
        ValueError, match=r"AdaptivePenalty cannot take .* methods that can: Adaptive.*, GradientDescentAsc"
    ):
        tr.solve(PROBLEM, START, "AdaptivePenalty", steps=5)


def returning(change):
    def changed(params, batch, state, key=None):
        value, new = loss(params, batch, state, key)
        return change(value, new)

    return changed


BAD = {
    "no state in x0": (loss, START.params, ValueError, "objective takes `state`, but x0 has none.*WithState"),
    "not taken": (
        lambda p, b: jnp.sum(p["weight"]),
        START,
        ValueError,
        "x0 has model state, but the objective does not",
    ),
    "not returned": (
        returning(lambda value, new: value),
        START,
        TypeError,
        r"return a pair \(value, new_state\), got a v",
    ),
    "structure": (
        returning(lambda value, new: (value, new["mean"])),
        START,
        ValueError,
        r"state f32\[4\]; expected",
    ),
    "shape": (returning(lambda v, new: (v, {**new, "mean": new["mean"][:2]})), START, ValueError, r"'mean': f32\[2\]"),
    "dtype": (
        returning(lambda v, new: (v, jax.tree.map(lambda a: a.astype("bfloat16"), new))),
        START,
        ValueError,
        r"bf16\[4\]",
    ),
    "integers": (
        loss,
        START._replace(state={"count": jnp.arange(3)}),
        TypeError,
        r"x0\.state\['count'\] has dtype int32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    objective, start, error, message = BAD[case]
    with pytest.raises(error, match=message):
        tr.Stepper(tr.Problem(objective, data=DATA), start, "AdaptiveLagrangian", steps=5)


def test_a_constraint_that_takes_state_needs_one_and_a_batch_may_have_that_name():
    problem = tr.Problem(lambda p, state: jnp.mean(state["y"]) * p, tr.at_most(rate, 0.4, data=DATA), data=DATA)
    with pytest.raises(ValueError, match="the constraint 'rate' takes `state`, but x0 has none"):
        tr.Stepper(problem, jnp.ones(()), steps=5)
    assert tr.Stepper(tr.Problem(problem.objective, data=DATA), jnp.ones(()), steps=5).method
