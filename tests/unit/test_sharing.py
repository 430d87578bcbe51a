"""Common subexpressions: the same numbers and derivatives, computed once; what may differ is never merged."""

from __future__ import annotations

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles import oracle as oracles
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters
from tightrope.problems.sharing import share_subexpressions

X = jnp.array([0.3, -1.2, 2.0])
SHIFT = np.array([1.0, 2.0, 3.0], np.float32)
MATRIX = jnp.asarray(np.arange(9.0, dtype=np.float32).reshape(3, 3) / 9.0)


def count(closed) -> Counter[str]:
    """How often each primitive appears in a jaxpr and the jaxprs inside it."""
    found: Counter[str] = Counter()
    for equation in closed.eqns:
        found[equation.primitive.name] += 1
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(value, "eqns"):
                found += count(value)
    return found


def primitives(fn, *args) -> Counter[str]:
    return count(jax.make_jaxpr(fn)(*args))


def doubled(inner):
    """A function that calls `inner` twice and uses its results differently."""
    return lambda x: jnp.sum(inner(x)) + 2.0 * jnp.sum(inner(x) ** 2)


@jax.custom_jvp
def cube(x):
    return x**3


@cube.defjvp
def cube_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cube(x), 3.0 * x**2 * t


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.5, 0.5),))


def clipped_step(x, _):
    return clipped(x), None


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def power(x, exponent):
    return x**exponent


@power.defjvp
def power_jvp(exponent, primals, tangents):
    return power(primals[0], exponent), exponent * power(primals[0], exponent - 1) * tangents[0]


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def hidden_power(x, exponent):
    """Only the derivative uses the exponent."""
    return 1.0 * x


@hidden_power.defjvp
def hidden_power_jvp(exponent, primals, tangents):
    return primals[0], exponent * tangents[0]


def scanned(x):
    return jax.lax.scan(lambda carry, row: (jnp.tanh(carry + row @ x), carry), jnp.zeros(()), MATRIX)[1]


def branched(x):
    return jax.lax.cond(x[0] > 0, lambda y: jnp.sin(y), lambda y: y**2, x)


def looped(x):
    return jax.lax.while_loop(lambda y: jnp.sum(y**2) > 0.1, lambda y: jnp.tanh(0.5 * MATRIX @ y), x)


# a function, and a primitive that shows how often it is evaluated
CASES = {
    "plain": (lambda x: jnp.tanh(MATRIX @ x), "dot_general"),
    "jit": (jax.jit(lambda x: jnp.tanh(MATRIX @ x)), "dot_general"),
    "relu": (jax.nn.relu, "custom_jvp_call"),
    "softplus": (jax.nn.softplus, "custom_jvp_call"),
    "custom_jvp": (cube, "custom_jvp_call"),
    "argument that is not differentiated": (lambda x: power(x, 3), "custom_jvp_call"),
    "scan": (scanned, "scan"),
    "cond": (branched, "cond"),
    "while": (looped, "while"),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(jnp.exp(-x))), "sin"),
    "closed-over array": (lambda x: jnp.tanh(x - SHIFT), "tanh"),
    "new constant array": (lambda x: jnp.tanh(x - jnp.array([1.0, 2.0, 3.0])), "tanh"),
}


def close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_twice_is_computed_once_with_the_same_values_and_derivatives(name):
    inner, primitive = CASES[name]
    plain = doubled(inner)
    shared = share_subexpressions(plain)
    once = primitives(inner, X)[primitive]
    assert primitives(plain, X)[primitive] == 2 * once > 0
    assert primitives(shared, X)[primitive] == once
    close(found(shared, name), found(plain, name))


def found(fn, name):
    """Values and derivatives of a function, through every transformation."""
    points = jnp.stack([X, -X, 2.0 * X])

    def forward():
        return fn(X), jax.vmap(fn)(points), jax.lax.map(fn, points), jax.jvp(fn, (X,), (X,))

    def backward():
        closed_over = jax.grad(lambda x: share_subexpressions(lambda _: fn(x))(X))
        return jax.grad(fn)(X), jax.vmap(jax.grad(fn))(points), closed_over(X)

    return jax.jit(forward)(), jax.jit(backward)() if name != "while" else None


def test_different_functions_under_jit_share_what_they_have_in_common():
    one, other = jax.jit(lambda x: jnp.sum(jnp.tanh(MATRIX @ x))), jax.jit(lambda x: jnp.max(jnp.tanh(MATRIX @ x)))
    shared = share_subexpressions(lambda x: one(x) * other(x))
    assert primitives(shared, X)["dot_general"] == 1
    close(jax.grad(shared)(X), jax.grad(lambda x: one(x) * other(x))(X))


def test_inputs_and_outputs_are_any_pytrees():
    def fn(given, index):
        picked = given["x"][index]
        return {"input": given["x"], "index": index, "constant": 3.0, "array": SHIFT, "twice": (picked, picked)}

    given, index = {"x": X}, jnp.array([2, 0])
    plain, shared = fn(given, index), share_subexpressions(fn)(given, index)
    assert jax.tree.structure(plain) == jax.tree.structure(shared)
    close(shared, plain)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(shared))
    assert [jnp.result_type(leaf) for leaf in jax.tree.leaves(shared)] == [
        jnp.result_type(leaf) for leaf in jax.tree.leaves(plain)
    ]
    integers = share_subexpressions(lambda n: (n // 2 + 1, n // 2 - 1))
    close(jax.vmap(integers)(index), (index // 2 + 1, index // 2 - 1))


def test_a_key_used_twice_gives_the_same_numbers_and_two_keys_do_not():
    def fn(key):
        first, second = jax.random.split(key)
        return [jax.random.normal(k, (3,)) for k in (first, second, first)]

    key = jax.random.key(1)
    drawn = share_subexpressions(fn)(key)
    close(drawn, fn(key))
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert (drawn[0] != drawn[1]).all()
    closed_over = share_subexpressions(
        lambda x: x + jnp.stack([jax.random.normal(k, (3,)) for k in jax.random.split(key)])
    )
    close(closed_over(X), X + jnp.stack(drawn[:2]))


def test_backward_passes_that_need_not_be_linear_are_not_merged():
    """A clipped gradient of a sum is not the sum of two clipped gradients, also in a loop, which JAX traces only once."""
    for inner in (clipped, jax.jit(clipped), lambda x: jax.lax.scan(clipped_step, x, None, length=2)[0]):
        plain = doubled(inner)
        close(jax.grad(share_subexpressions(plain))(X), jax.grad(plain)(X))


def with_slope(slope):
    """The identity with a derivative of its own."""
    rule = jax.custom_jvp(lambda x: 1.0 * x)
    rule.defjvp(lambda primals, tangents: (1.0 * primals[0], slope * tangents[0]))
    return rule


def test_equal_functions_with_different_custom_derivatives_are_not_merged():
    one, other = with_slope(1.0), with_slope(10.0)
    shared = share_subexpressions(lambda x: jnp.stack([one(x), other(x), one(x)]))
    np.testing.assert_array_equal(jax.jacrev(shared)(2.0), [1.0, 10.0, 1.0])
    assert primitives(shared, 2.0)["custom_jvp_call"] == 2


def test_one_rule_with_two_settings_is_not_merged():
    shared = share_subexpressions(lambda x: jnp.stack([hidden_power(x, 2), hidden_power(x, 3)]))
    np.testing.assert_array_equal(jax.jacfwd(shared)(2.0), [2.0, 3.0])


def test_almost_equal_equations_are_not_merged():
    def fn(x):
        zeros = jnp.stack([jnp.copysign(1.0, x * 0.0), jnp.copysign(1.0, x * -0.0)])
        types = [(jnp.float32(0.1) * x.astype("float16")).astype(float), (0.1 * x.astype("float16")).astype(float)]
        loops = [jax.lax.fori_loop(0, 3, lambda _, y, a=a: a * y, x) for a in (2.0, 3.0)]
        large = [jnp.sum(x * np.full(2000, a, np.float32)) for a in (1.0, 2.0)]
        axes = [jnp.sum(x * MATRIX, axis=a)[0] for a in (0, 1)]
        return jnp.stack([*zeros, *types, *loops, *large, *axes])

    np.testing.assert_allclose(share_subexpressions(fn)(jnp.float32(1.1)), fn(jnp.float32(1.1)), rtol=1e-6)
    integers, floats = share_subexpressions(lambda _: (jnp.zeros(3, "int32"), jnp.zeros(3, "float32")))(X)
    assert (integers.dtype, floats.dtype) == ("int32", "float32")


def test_effects_are_never_merged():
    seen = []

    def fn(x):
        for _ in range(3):
            jax.debug.callback(lambda v: seen.append(float(v)), x)
        cell = jax.new_ref(x)
        values = []
        for _ in range(2):
            cell[...] = cell[...] * 2.0
            values.append(cell[...])
        return values

    close(jax.jit(share_subexpressions(fn))(1.5), [3.0, 6.0])
    jax.effects_barrier()
    assert seen == [1.5] * 3


# ------------------------------------------------------------------ the oracle


def network(constraints, activation=jax.nn.relu, examples=64):
    """A problem with a network in the objective and in every constraint function, and a point."""
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(examples, 5)).astype(np.float32), random.integers(0, 3, examples)
    data = tr.Dataset((inputs, labels), batch_size=16)
    x0 = {"a": random.normal(size=(5, 4)).astype(np.float32), "b": random.normal(size=(4, 3)).astype(np.float32)}

    def logits(params, batch):
        return activation(batch[0] @ params["a"]) @ params["b"]

    def loss(params, batch):
        scores = logits(params, batch)
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, batch[1][:, None], axis=1)[:, 0])

    def rate(number):
        return lambda params, batch: jnp.mean(jax.nn.sigmoid(logits(params, batch)[:, number % 3] - 0.1 * number))

    rows = [tr.at_most(rate(i), 0.5, data=data, name=f"rate {i}") for i in range(constraints)]
    return tr.Problem(loss, rows, data=data), x0


def oracle_of(problem, x0):
    parameters = Parameters(x0)
    return oracle_for(problem, parameters), parameters.start


def lagrangian_gradient(oracle, sample):
    return jax.grad(lambda x: jnp.sum(oracle.value_and_rows(x, sample)))


def gradient_products(oracle, x):
    return primitives(lagrangian_gradient(oracle, oracle.everything()), x)["dot_general"]


@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.tanh])
def test_products_in_the_backward_pass_do_not_grow_with_the_number_of_functions(activation):
    products = []
    for constraints in (1, 10):
        oracle, x = oracle_of(*network(constraints, activation))
        sample = oracle.first()
        for functions in (oracle.value_and_rows, oracle.c):
            gradient = jax.grad(lambda x, of=functions, sample=sample: jnp.sum(of(x, sample)))
            products.append(primitives(gradient, x)["dot_general"])
    assert products == [5, 5, 5, 5]  # two forward, three backward


@pytest.mark.parametrize("piece", [oracles.PIECE, 24])
def test_the_oracle_computes_what_separate_functions_do(piece, monkeypatch):
    """With pieces of 24 examples the 64 are two pieces and a rest."""
    monkeypatch.setattr(oracles, "PIECE", piece)
    oracle, x = oracle_of(*network(3))
    everything = oracle.everything()
    halves = jax.tree.map(lambda a: a.reshape(2, 8), oracle.first())

    def everything_of():
        on_halves = jax.vmap(lambda half: oracle.value_and_rows(x, half))
        joint = oracle.value_and_rows(x, everything), lagrangian_gradient(oracle, everything)(x), on_halves(halves)
        return joint, oracle.jac(x, everything), oracle.f(x, everything), oracle.c(x, everything)

    shared, products = jax.jit(lambda: everything_of())(), gradient_products(oracle, x)
    monkeypatch.setattr(oracles, "share_subexpressions", lambda fn: fn)
    close(shared, jax.jit(lambda: everything_of())())
    np.testing.assert_allclose(shared[0][0], jnp.concatenate([shared[2][None], shared[3]]), rtol=1e-6)
    assert products < gradient_products(oracle, x)


def test_samples_of_different_sizes_and_functions_without_data_keep_their_places():
    large, small = (tr.Dataset(np.arange(n, dtype=np.float32), batch_size=4) for n in (12, 8))
    problem = tr.Problem(
        lambda x, batch: x[0] * jnp.mean(batch),
        [
            tr.at_most(lambda x: 100.0 * x[0], 0.0, name="exact"),
            tr.at_most(lambda x, batch: 10.0 * x[0] * jnp.mean(batch), 0.0, data=small, name="small"),
            tr.at_most(lambda x, batch: x[:2] + jnp.mean(batch), 0.0, data=large, name="large"),
        ],
        data=large,
    )
    oracle, x = oracle_of(problem, jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(oracle.value_and_rows(x, oracle.everything()), [5.5, 100.0, 35.0, 6.5, 7.5])
