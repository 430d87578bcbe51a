"""What holds for every method: it takes what it says it takes, in every dtype and structure, alone or as a lane."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import loss, parity, points, unit_norm
from tightrope.reformulate import refusal

METHODS = sorted(tr.methods.every())


class Corner(tr.domains.Domain):
    """The unit simplex's corners and what lies between them, known only through its minimisers."""

    def lmo(self, gradient):
        return jax.nn.one_hot(jnp.argmin(gradient), gradient.size)

    def contains(self, x, tolerance=None):
        return jnp.bool_(True)


def data():
    return tr.Dataset(points(), batch_size=8)


KINDS = {  # name: (constraints, domain, deterministic objective)
    "no constraints": ((), None),
    "deterministic equality": ((tr.equals(unit_norm, 1.0),), None),
    "deterministic inequality": ((tr.at_most(unit_norm, 1.0),), tr.domains.Box(-1.0, 1.0)),
    "affine equality": ((tr.affine(np.ones((1, 4)), [1.0]),), tr.domains.L2Ball(2.0)),
    "vector between": ((tr.between(lambda w: w[:3], -0.2, 0.2, name="each"),), None),
    "stochastic inequality": ("stochastic", tr.domains.L1Ball(3.0)),
    "stochastic equality": ("stochastic equality", None),
    "a set without projection": ((tr.at_most(unit_norm, 1.0),), Corner()),
}


@cache
def problem(kind):
    constraints, domain = KINDS[kind]
    source = data()
    if constraints == "stochastic":
        constraints = (tr.at_most(parity, 0.02, data=source),)
    elif constraints == "stochastic equality":
        constraints = (tr.equals(parity, 0.0, data=source),)
    return tr.Problem(loss, constraints, domain=domain, data=source)


TAKES = {  # what each method says in its docstring
    "TruncatedMomentum": {
        "no constraints",
        "deterministic equality",
        "deterministic inequality",
        "affine equality",
        "vector between",
    },
    "SwitchingSubgradient": {
        "no constraints",
        "deterministic inequality",
        "affine equality",
        "vector between",
        "stochastic inequality",
    },
    "GradientDescentAscent": set(KINDS) - {"a set without projection"},
}

PAIRS = [(name, kind) for name in METHODS for kind in sorted(TAKES.get(name, ()))]


def test_every_method_says_here_what_it_takes():
    assert sorted(TAKES) == METHODS


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_method_takes_is_what_it_says_and_the_rest_it_refuses(name, kind):
    reason = refusal(problem(kind), tr.methods.by_name(name))
    assert (reason is None) == (kind in TAKES[name]), reason
    if reason:
        with pytest.raises(ValueError, match="cannot take this problem"):
            tr.solve(problem(kind), jnp.full(4, 0.1), name, steps=1)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_runs_with_no_arguments_improves_and_stays_in_the_set(name, kind):
    x0 = jnp.full(4, 0.1)
    result = tr.solve(problem(kind), x0, tr.methods.by_name(name)(), steps=600, record=200)
    domain = problem(kind).domain
    assert result.status == "budget"
    assert result.x.shape == (4,)
    assert result.x.dtype == jnp.float32
    assert bool(domain.contains(result.x))
    assert set(result.multipliers) == {c.name for c in problem(kind).constraints}
    assert len(result.constants) >= 2
    assert all(np.isfinite(value) and value > 0 for value in result.constants.values())
    start = result.history["objective"][0] + 2.0 * result.history["violation"][0]
    assert result.objective + 2.0 * result.violation < start


@pytest.mark.parametrize("name", METHODS)
def test_a_lane_of_a_sweep_equals_the_single_run(name):
    case = problem("deterministic inequality")
    method = tr.methods.by_name(name)()
    lanes = tr.sweep(case, jnp.full(4, 0.1), method, steps=300, seeds=[3, 8], record=100).results
    for lane in lanes:
        single = tr.solve(case, jnp.full(4, 0.1), method, steps=300, seed=lane.seed, record=100)
        for column in ("objective", "violation", "samples"):
            np.testing.assert_allclose(lane.history[column], single.history[column], rtol=2e-3, atol=1e-5)
        assert lane.calls == single.calls
    assert not np.allclose(lanes[0].history["objective"][1:], lanes[1].history["objective"][1:], rtol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_it_runs_in_float64_to_another_precision_than_float32(name):
    """Iterates of the two precisions agree to float32's, and float64 is kept to the end."""
    kind = "deterministic inequality"
    single = tr.solve(problem(kind), jnp.full(4, 0.1), name, steps=60, record=60)
    with jax.enable_x64(True):
        x0 = jnp.full(4, 0.1, jnp.float64)
        case = tr.Problem(loss, KINDS[kind][0], domain=KINDS[kind][1], data=data())
        double = tr.solve(case, x0, name, steps=60, record=60)
        assert double.x.dtype == jnp.float64
    np.testing.assert_allclose(single.history["objective"], double.history["objective"], rtol=1e-3)
    assert not np.array_equal(single.history["objective"], double.history["objective"].astype(np.float32).astype(float))


@pytest.mark.parametrize("name", METHODS)
def test_a_pytree_runs_like_the_flat_vector_it_stands_for(name):
    flat = problem("deterministic inequality")

    def tree_loss(w, batch):
        return loss(jnp.concatenate([w["a"].ravel(), w["b"]]), batch)

    def tree_norm(w):
        return unit_norm(jnp.concatenate([w["a"].ravel(), w["b"]]))

    tree = tr.Problem(tree_loss, tr.at_most(tree_norm, 1.0), domain=tr.domains.Box(-1.0, 1.0), data=data())
    one = tr.solve(flat, jnp.full(4, 0.1), name, steps=200, record=50)
    two = tr.solve(tree, {"a": jnp.full((1, 3), 0.1), "b": jnp.full(1, 0.1)}, name, steps=200, record=50)
    assert two.x["a"].shape == (1, 3)
    np.testing.assert_allclose(one.history["objective"], two.history["objective"], rtol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_it_declares_what_the_table_of_methods_prints(name):
    method = tr.methods.by_name(name)
    assert method.reference
    assert method.guarantee
    assert method.cost
