"""Switching subgradients against a NumPy transcription of Huang, Lin 2023, Algorithms 1 and 2, on the same samples."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_paths import drive, follows, outputs, visited, which

import tightrope as tr
from tightrope.methods import SwitchingSubgradient
from tightrope.methods.base import Draw, as_arrays
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

T = 40
HALF = ("diminishing", "strongly_convex")  # recording from S = T/2: Theorem 4.3 and Theorem A.10, case II of each
POLYAK = {"switching": 1.0, "unbounded": 0.6}  # the factor of Polyak's step on J: 1 (Prop. 5.5), ν'/(2M) (A.8)


# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A problem by hand; samples are indices of examples, None if nothing is random."""

    subgradient: Callable  # of f, on a sample
    g: Callable  # all g_i, on a sample
    g_subgradients: Callable  # one row per g_i, on a sample
    project: Callable


class Transcribed(NamedTuple):
    """x^(0) … x^(T); for each t: whether it is in I (else J), η_t, the largest g_i, and its value."""

    x: np.ndarray
    in_I: np.ndarray
    eta: np.ndarray
    row: np.ndarray
    values: np.ndarray


def algorithm(p: Problem, rule: str, E1: float, E2: float, x0: np.ndarray, values: list, samples: list) -> Transcribed:
    """Algorithm 2 (Algorithm 1 where nothing is random): `values[t]` decides, `samples[t]` gives the subgradients."""
    x, path, flags, steps, which_row, found = x0, [x0], [], [], [], []
    for t in range(len(samples)):
        decay = 1 / np.sqrt(t + 1) if rule in HALF else 1.0
        epsilon, eta = 0.0 if rule == "strongly_convex" else E1 * decay, E2 * decay
        omega = p.g(x, values[t])
        i = int(np.argmax(omega))
        if omega[i] <= epsilon:
            direction = p.subgradient(x, samples[t])
        else:
            direction = p.g_subgradients(x, samples[t])[i]
            if rule in POLYAK:
                eta = POLYAK[rule] * omega[i] / (direction @ direction) if direction @ direction > 0 else 0.0
        x = p.project(x - eta * direction)
        path.append(x)
        flags.append(omega[i] <= epsilon)
        steps.append(eta)
        which_row.append(i)
        found.append(omega[i])
    return Transcribed(np.stack(path), np.array(flags), np.array(steps), np.array(which_row), np.array(found))


def ball(x: np.ndarray, radius: float) -> np.ndarray:
    norm = np.sqrt(x @ x)
    return x if norm <= radius else x * (radius / norm)


def nothing(steps: int) -> list:
    return [None] * steps


# ---- everything deterministic: two-sided and one-sided inequalities and an affine equality -------------------------------

AFFINE, RIGHT, RADIUS = np.array([[0.5, -1.0, 2.0]]), np.array([0.3]), 1.1
START = np.array([0.9, 0.5, -0.3])


def fixed_f(x):
    return jnp.abs(x[0] - 2.0) + 1.5 * jnp.abs(x[1] + x[2] - 0.7) - 0.3 * x[2]


@functools.cache
def fixed() -> tr.Problem:
    constraints = [
        tr.between(lambda x: x[0] ** 2 - x[1], -0.2, 0.3, name="band"),
        tr.affine(AFFINE, RIGHT, name="plane"),
        tr.at_most(lambda x: jnp.abs(x[1]) + jnp.abs(x[2]), 0.5, name="diamond"),
    ]
    return tr.Problem(fixed_f, constraints, domain=tr.domains.L2Ball(RADIUS))


def fixed_rows(x: np.ndarray, _: None) -> np.ndarray:
    band, plane = x[0] ** 2 - x[1], 0.5 * x[0] - x[1] + 2 * x[2]
    return np.array([band - 0.3, -0.2 - band, plane - 0.3, 0.3 - plane, abs(x[1]) + abs(x[2]) - 0.5])


def fixed_row_gradients(x: np.ndarray, _: None) -> np.ndarray:
    band, plane = np.array([2 * x[0], -1.0, 0.0]), np.array([0.5, -1.0, 2.0])
    return np.array([band, -band, plane, -plane, [0.0, np.sign(x[1]), np.sign(x[2])]])


FIXED = Problem(
    subgradient=lambda x, _: np.array([
        np.sign(x[0] - 2), 1.5 * np.sign(x[1] + x[2] - 0.7), 1.5 * np.sign(x[1] + x[2] - 0.7) - 0.3
    ]),
    g=fixed_rows,
    g_subgradients=fixed_row_gradients,
    project=lambda x: ball(x, RADIUS),
)  # fmt: skip


@functools.cache
def strong() -> tr.Problem:
    """Strongly convex rows and no equality: ε_t = 0 would leave I empty with one."""
    bowls = lambda x: jnp.stack([x @ x + 2 * x[0], x @ x - x[1] + jnp.abs(x[2])])
    shell = tr.at_most(lambda x: 2 * (x @ x) + 1.5 * x[2], 1.2, name="shell")
    return tr.Problem(fixed_f, [tr.at_most(bowls, 1.0), shell], domain=tr.domains.L2Ball(RADIUS))


STRONG = FIXED._replace(
    g=lambda x, _: np.array([
        x @ x + 2 * x[0] - 1.0, x @ x - x[1] + abs(x[2]) - 1.0, 2 * (x @ x) + 1.5 * x[2] - 1.2
    ]),
    g_subgradients=lambda x, _: np.array([
        2 * x + np.array([2.0, 0, 0]), 2 * x + np.array([0, -1.0, np.sign(x[2])]), 4 * x + np.array([0, 0, 1.5])
    ]),
)  # fmt: skip
CONSTANTS = {"static": (0.2, 0.03), "diminishing": (0.3, 0.06), "switching": (0.1, 0.5)}
RULES = list(CONSTANTS)
CONSTANTS |= {"strongly_convex": (None, 0.2), "unbounded": (0.1, 0.5)}
ALL_RULES = list(CONSTANTS)


def method_of(rule: str, **choices) -> SwitchingSubgradient:
    tolerance, step_size = CONSTANTS[rule]
    factor = {"polyak_factor": POLYAK[rule]} if rule == "unbounded" else {}
    return SwitchingSubgradient(step_size=step_size, tolerance=tolerance, rule=rule, **factor, **choices)


@functools.cache
def deterministic(rule: str, seed: int = 0) -> tuple:
    """A run of a rule on a problem without data, and its transcription; the seed affects the output alone."""
    problem, by_hand = (strong(), STRONG) if rule == "strongly_convex" else (fixed(), FIXED)
    path = drive(problem, START, method_of(rule), steps=T, seed=seed)
    return path, algorithm(by_hand, rule, *CONSTANTS[rule], START, nothing(T), nothing(T))


@pytest.mark.parametrize("rule", ALL_RULES)
def test_deterministic_iterates_are_those_of_algorithm_1(rule):
    path, expected = deterministic(rule)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 5 < expected.in_I.sum() < T - 5
    worst = set(expected.row[~expected.in_I])
    if rule == "strongly_convex":
        assert len(worst) >= 2
    else:
        assert len(worst) >= 3
        assert {2, 3} & worst, "the affine equality is never the worst row"


@pytest.mark.parametrize("rule", ALL_RULES)
def test_only_the_subgradient_that_is_used_is_computed_and_counted(rule):
    path, expected = deterministic(rule)
    assert [tuple(info) for info in path.infos] == [(1, 1, 0, 0) if i else (0, 2, 1, 0) for i in expected.in_I]


@pytest.mark.parametrize(("x", "computed"), [(0.0, 1), (3.0, 0)], ids=["feasible", "infeasible"])
def test_the_objective_is_not_evaluated_if_the_step_is_along_the_constraint(x, computed):
    calls = []
    problem = tr.Problem(lambda x: calls.append(0) or jnp.sum(x), tr.at_most(lambda x: x[0], 1.0))
    method = as_arrays(method_of("static", values="exact"), jnp.float64)
    oracle = oracle_for(problem, Parameters(jnp.zeros(1)), form=method.accepts.form)
    draw = Draw({"subgradient": ()}, jnp.float64(0.5), jax.random.key(0), jnp.int32(1), jnp.int32(1))
    calls.clear()  # those of the oracle's own checks
    with jax.disable_jit():
        method.step(oracle, method.init(oracle, jnp.array([x]), draw, draw.steps), draw)
    assert len(calls) == computed


@pytest.mark.parametrize("rule", ALL_RULES)
def test_multipliers_are_the_steps_along_each_row_over_the_steps_along_the_objective(rule):
    path, expected = deterministic(rule)
    recorded = np.arange(T) >= (T // 2 if rule in HALF else 0)
    rows = len(np.asarray(path.oracle.rows.sign))
    weights = [expected.eta[recorded & ~expected.in_I & (expected.row == i)].sum() for i in range(rows)]
    weights = np.array(weights) / expected.eta[recorded & expected.in_I].sum()
    raw = np.asarray(path.oracle.rows.to_raw(path.method.multipliers(path.states[-1])))
    signed = weights if rows == 3 else [weights[0] - weights[1], weights[2] - weights[3], weights[4]]
    np.testing.assert_allclose(raw, signed, rtol=1e-9, atol=1e-12)
    assert np.count_nonzero(weights) >= 2


@pytest.mark.parametrize("rule", ALL_RULES)
def test_each_rule_has_its_own_output(rule):
    """Output I or II as in the rule's theorem, by reservoir sampling: x_t is picked with probability η_t / Σ η."""
    everywhere, kept = rule in ("switching", "strongly_convex"), []
    for seed in range(5):
        path, expected = deterministic(rule, seed)
        total, picked = 0.0, -1
        for t in range(T // 2 if rule in HALF else 0, T):
            weight = expected.eta[t] if expected.in_I[t] or everywhere else 0.0
            total += weight
            if path.uniforms[t + 1] * total < weight:
                picked = t
        np.testing.assert_allclose(path.method.output(path.states[-1]), expected.x[picked], rtol=1e-9)
        kept.append(expected.in_I[picked])
    assert any(kept)
    assert all(kept) != everywhere, "the other output would do as well: this proves nothing"


@pytest.mark.parametrize("tolerance", [0.0, 0.25])
def test_a_value_equal_to_the_tolerance_counts_as_nearly_feasible(tolerance):
    edge = tr.Problem(lambda x: -3.0 * x[0], tr.at_most(lambda x: x[0], 1.0))
    method = SwitchingSubgradient(step_size=0.5, tolerance=tolerance, rule="static")
    path = drive(edge, np.array([1.0 + tolerance]), method, steps=2)
    np.testing.assert_allclose(path.x[:, 0] - tolerance, [1.0, 2.5, 2.0], rtol=1e-12)


# ---- stochastic f and g --------------------------------------------------------------------------------------------------

N, DIM, BATCH, VALUE_BATCH = 50, 3, 2, 6
RNG = np.random.default_rng(11)
A, B, C = RNG.normal(size=(N, DIM)), RNG.normal(size=N) + 1.0, RNG.normal(size=(N, DIM)) + np.array([1.0, 0, 0])


@functools.cache
def random_problem() -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "c": C}, batch_size=BATCH)
    constraint = tr.at_most(lambda x, batch: jnp.mean(jnp.abs(batch["c"] @ x)), 0.6, data=data, name="spread")
    objective = lambda x, batch: jnp.mean(jnp.abs(batch["a"] @ x - batch["b"]))
    return tr.Problem(objective, constraint, domain=tr.domains.L2Ball(RADIUS), data=data)


def mean_over(examples: np.ndarray, term: Callable[[int], np.ndarray]) -> np.ndarray:
    return sum(term(i) for i in examples) / len(examples)


RANDOM = Problem(
    subgradient=lambda x, examples: mean_over(examples, lambda i: A[i] * np.sign(A[i] @ x - B[i])),
    g=lambda x, examples: np.array([mean_over(examples, lambda i: abs(C[i] @ x)) - 0.6]),
    g_subgradients=lambda x, examples: mean_over(examples, lambda i: C[i] * np.sign(C[i] @ x))[None],
    project=lambda x: ball(x, RADIUS),
)
ALL = np.arange(N)


def drawn(path, role: str, t: int) -> list[np.ndarray]:
    """The examples of a role in the steps t = 0, 1, …; step t is the loop's step t + 1."""
    return [entry[0] for entry in path.samples[role][1 : t + 1]]


@pytest.mark.parametrize("rule", RULES)
def test_with_exact_values_only_the_subgradients_are_sampled(rule):
    path = drive(random_problem(), START, method_of(rule, values="exact"), steps=T, seed=3)
    assert set(path.samples) == {"subgradient"}
    expected = algorithm(RANDOM, rule, *CONSTANTS[rule], START, [ALL] * T, drawn(path, "subgradient", T))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 5 < expected.in_I.sum() < T - 5
    assert [tuple(info) for info in path.infos] == [
        (1, 1, 0, N + BATCH) if i else (0, 2, 1, N + BATCH) for i in expected.in_I
    ]


@pytest.mark.parametrize("rule", ALL_RULES)
def test_with_sampled_values_one_sample_decides_and_another_gives_the_subgradient(rule):
    path = drive(random_problem(), START, method_of(rule, value_batch_size=VALUE_BATCH), steps=T, seed=4)
    values, samples = drawn(path, "value", T), drawn(path, "subgradient", T)
    expected = algorithm(RANDOM, rule, *CONSTANTS[rule], START, values, samples)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 5 < expected.in_I.sum() < T - 5
    assert {info.samples for info in path.infos} == {VALUE_BATCH + BATCH}
    swapped = algorithm(RANDOM, rule, *CONSTANTS[rule], START, samples, samples)
    assert not np.allclose(path.x, swapped.x), "one sample for both would give the same iterates: this proves nothing"


def test_the_two_samples_have_their_own_sizes_and_are_independent():
    path = drive(random_problem(), START, method_of("static", value_batch_size=BATCH), steps=T, seed=4)
    values, samples = np.stack(drawn(path, "value", T)), np.stack(drawn(path, "subgradient", T))
    assert values.shape == samples.shape == (T, BATCH)
    assert (values == samples).mean() < 0.15
    assert abs(np.corrcoef(values.ravel(), samples.ravel())[0, 1]) < 0.3
    other = drive(random_problem(), START, method_of("static", value_batch_size=VALUE_BATCH), steps=T, seed=4)
    assert np.stack(drawn(other, "value", T)).shape == (T, VALUE_BATCH)


def test_solve_visits_the_iterates_of_algorithm_2():
    method = method_of("switching", value_batch_size=VALUE_BATCH)
    path = drive(random_problem(), START, method, steps=T, seed=4)
    values, samples = drawn(path, "value", T), drawn(path, "subgradient", T)
    expected = algorithm(RANDOM, "switching", *CONSTANTS["switching"], START, values, samples)
    seen = visited(random_problem(), START, method, steps=T, seed=4)
    np.testing.assert_allclose(seen, expected.x, rtol=1e-9, atol=1e-12)


# ---- several stochastic constraints: which one a step follows --------------------------------------------------------------

TWO = np.stack([C, RNG.normal(size=(N, DIM)) + np.array([0.8, 0.3, 0])])


@functools.cache
def two_random_constraints() -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "c": TWO[0], "d": TWO[1]}, batch_size=BATCH)
    spread = lambda x, batch: jnp.stack([jnp.mean(jnp.abs(batch[name] @ x)) for name in "cd"])
    objective = lambda x, batch: jnp.mean(jnp.abs(batch["a"] @ x - batch["b"]))
    limits = [tr.at_most(spread, 0.6, data=data, name="spread")]
    return tr.Problem(objective, limits, domain=tr.domains.L2Ball(RADIUS), data=data)


TWO_RANDOM = RANDOM._replace(
    g=lambda x, examples: np.array([mean_over(examples, lambda i, d=d: abs(d[i] @ x)) - 0.6 for d in TWO]),
    g_subgradients=lambda x, examples: np.array(
        [mean_over(examples, lambda i, d=d: d[i] * np.sign(d[i] @ x)) for d in TWO]
    ),
)


@pytest.mark.parametrize("values", ["exact", "sampled"])
def test_a_step_follows_the_row_whose_value_decided(values):
    method = method_of("static", values=values, value_batch_size=VALUE_BATCH)
    path = drive(two_random_constraints(), START, method, steps=T, seed=4)
    deciding = [ALL] * T if values == "exact" else drawn(path, "value", T)
    expected = algorithm(TWO_RANDOM, "static", *CONSTANTS["static"], START, deciding, drawn(path, "subgradient", T))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)


# ---- Outputs I and II ------------------------------------------------------------------------------------------------------

STEEP = 2.3
PICK = {"static": (0.05, 0.3), "diminishing": (0.6, 0.7), "switching": (0.05, 0.3)}
CLIMB = Problem(
    subgradient=lambda z, _: np.array([-1.0, -1.0]),
    g=lambda z, _: np.array([STEEP * z[0] - 1.0]),
    g_subgradients=lambda z, _: np.array([[STEEP, 0.0]]),
    project=lambda z: z,
)


@functools.cache
def climb() -> tr.Problem:
    """Max x + y, 2.3 x ≤ 1: y counts the steps in I, so that x^(t) identifies t."""
    return tr.Problem(lambda z: -z[0] - z[1], tr.at_most(lambda z: STEEP * z[0], 1.0))


@pytest.mark.parametrize("output_rule", ["I", "II"])
@pytest.mark.parametrize("rule", RULES)
def test_outputs_are_drawn_with_probability_proportional_to_the_steps_recorded(rule, output_rule):
    steps = 12
    expected = algorithm(CLIMB, rule, *PICK[rule], np.zeros(2), nothing(steps), nothing(steps))
    recorded = np.arange(steps) >= (steps // 2 if rule == "diminishing" else 0)
    if output_rule == "I":
        recorded &= expected.in_I
    probabilities = np.where(recorded, expected.eta, 0.0) / expected.eta[recorded].sum()
    assert 2 < recorded.sum() < steps or (output_rule == "II" and rule != "diminishing")
    assert (~expected.in_I).sum() >= 2
    tolerance, step_size = PICK[rule]
    method = SwitchingSubgradient(step_size=step_size, tolerance=tolerance, rule=rule, output_rule=output_rule)
    points = outputs(climb(), np.zeros(2), method, steps=steps, seeds=6000)
    counts = np.bincount(which(points, expected.x), minlength=steps + 1)
    assert counts[steps] == 0, "the iterate after the last step is none of x^(0) … x^(T-1)"
    assert follows(counts[:steps], probabilities), (counts, probabilities)


@pytest.mark.parametrize("rule", ["static", "diminishing"])
def test_if_no_iterate_is_nearly_feasible_the_output_is_the_least_violated_one_and_the_note_says_so(rule):
    never = tr.Problem(lambda z: z[1], tr.at_most(lambda z: jnp.abs(z[0]) + jnp.abs(z[1] - 0.1) + 1.0, 0.0))
    by_hand = Problem(
        subgradient=lambda z, _: np.array([0.0, 1.0]),
        g=lambda z, _: np.array([abs(z[0]) + abs(z[1] - 0.1) + 1.0]),
        g_subgradients=lambda z, _: np.array([[np.sign(z[0]), np.sign(z[1] - 0.1)]]),
        project=lambda z: z,
    )
    x0, steps = np.array([1.03, 0.4]), 12
    path = drive(never, x0, method_of(rule), steps=steps)
    expected = algorithm(by_hand, rule, *CONSTANTS[rule], x0, nothing(steps), nothing(steps))
    assert not expected.in_I.any()
    least = int(np.argmin(expected.values))
    np.testing.assert_allclose(np.asarray(path.method.output(path.states[-1])), expected.x[least], rtol=1e-9)
    assert "least violation" in path.method.note(path.states[-1])
    np.testing.assert_array_equal(np.asarray(path.method.multipliers(path.states[-1])), [0.0])


def test_a_run_with_nearly_feasible_iterates_has_no_note():
    path = drive(climb(), np.zeros(2), method_of("static"), steps=12)
    assert path.method.note(path.states[-1]) is None


@pytest.mark.parametrize("rule", ["static", "switching"])
def test_a_zero_subgradient_of_g_means_no_step(rule):
    bowl = tr.Problem(lambda z: z[0], tr.at_most(lambda z: z[0] ** 2 + 1.0, 0.0))
    path = drive(bowl, np.zeros(1), method_of(rule, output_rule="II"), steps=4)
    np.testing.assert_array_equal(path.x, np.zeros((5, 1)))
    np.testing.assert_array_equal(np.asarray(path.method.output(path.states[-1])), [0.0])


def test_without_constraints_every_step_is_along_the_objective():
    path = drive(tr.Problem(lambda z: jnp.abs(z[0] - 1.0)), np.zeros(1), method_of("static"), steps=5)
    np.testing.assert_allclose(path.x[:, 0], 0.03 * np.arange(6), rtol=1e-12)
