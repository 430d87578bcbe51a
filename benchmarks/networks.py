"""Networks: AdaptiveLagrangian against Adam descent-ascent over a grid, and the time of a step against plain Adam.

- answers: for each problem and number of epochs, certified objective and violation of AdaptiveLagrangian (three seeds) and of
  GradientDescentAscent over 3×3 settings (learning rates 1e-3, 3e-3, 1e-2; dual rates 3e-3, 3e-2, 3e-1; the same seeds). The
  best of the grid is the setting with the least mean objective among those certified feasible for every seed.
- steps: the time of a step of AdaptiveLagrangian over that of a hand-written Adam loop on the objective alone, on the same
  batches, in alternation; a network with about 1e7 parameters and 10 constraint functions.

Problems marked `chosen` are those that constants of the method were chosen on. Needs the data sets (TIGHTROPE_DATA).

Run: python benchmarks/networks.py [answers] [steps] [table] [--problems NAME ...] [--epochs 2 6 20] [--out FILE]
Other rows of the file are kept; `table` prints them for docs/adaptive-lagrangian.md.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

SEEDS, BATCH, GROUPS = (0, 1, 2), 64, 10_000
RATES, DUAL_RATES = (1e-3, 3e-3, 1e-2), (3e-3, 3e-2, 3e-1)
ZOO = (
    "a9a_network_parity",
    "bank_network_recall",
    "compas_network_equal_rates",
    "mnist_network_unit_norms",
    "mnist_network_worst_digit",
)
Case = tuple[tr.Problem, Any]


def weights(members: Any) -> np.ndarray:
    """Example weights with which a mean over all examples is the mean over the members."""
    return np.asarray(members / np.mean(members), np.float32)


def dense(random: np.random.Generator, *sizes: int) -> dict[str, Any]:
    """Layers with weights of variance 1/(number of inputs) and zero offsets."""
    layers: dict[str, Any] = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers[f"w{i}"] = jnp.asarray(random.normal(size=(inputs, outputs)) / math.sqrt(inputs), jnp.float32)
        layers[f"b{i}"] = jnp.zeros(outputs)
    return layers


def tanh_score(params: Any, x: Any) -> Any:
    return (jnp.tanh(x @ params["w0"] + params["b0"]) @ params["w1"] + params["b1"])[:, 0]


def log_loss(params: Any, batch: Any) -> Any:
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean(jax.nn.softplus(-batch["y"] * tanh_score(params, batch["x"]))) + 1e-3 * squares


def recall_and_alarms(name: str, recall: float, alarms: float) -> Case:
    """32 tanh units on tabular data, with a lower bound on recall and an upper one on false alarms."""
    train = tr.datasets.load(name).train
    x, y = train["x"], train["y"]
    data = tr.Dataset({"x": x, "y": y, "positive": weights(y == 1), "negative": weights(y == -1)}, BATCH)

    def rate(members: str) -> Callable[[Any, Any], Any]:
        return lambda params, batch: jnp.mean(batch[members] * jax.nn.sigmoid(tanh_score(params, batch["x"])))

    constraints = [
        tr.at_least(rate("positive"), recall, data=data, name="recall"),
        tr.at_most(rate("negative"), alarms, data=data, name="false_alarms"),
    ]
    return tr.Problem(log_loss, constraints, data=data), dense(np.random.default_rng(0), x.shape[1], 32, 1)


def many_groups(name: str) -> Case:
    """32 tanh units on tabular data; the mean probability of each group within 0.6 and 1.25 of the share of positives."""
    train = tr.datasets.load(name).train
    features = train["x"].shape[1]
    group = np.argmax(train["x"] @ np.random.default_rng(3).normal(size=(features, 50)), axis=1)
    large = [i for i in range(50) if np.mean(group == i) > 0.004]
    members = np.stack([weights(group == i) for i in large], axis=1)
    data = tr.Dataset({"x": train["x"], "y": train["y"], "groups": members}, BATCH)
    share = float(np.mean(train["y"] == 1))

    def rates(params: Any, batch: Any) -> Any:
        return jnp.mean(batch["groups"] * jax.nn.sigmoid(tanh_score(params, batch["x"]))[:, None], axis=0)

    problem = tr.Problem(log_loss, tr.between(rates, 0.6 * share, 1.25 * share, data=data), data=data)
    return problem, dense(np.random.default_rng(0), features, 32, 1)


def convolved(x: Any, kernel: Any, stride: int) -> Any:
    """A convolution without padding, and rectified units."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=numbers))


def kernel(random: np.random.Generator, size: int, inputs: int, outputs: int, variance: float = 1.0) -> Any:
    """A square kernel whose weights have this variance over the number of inputs."""
    scale = math.sqrt(variance / (size * size * inputs))
    return jnp.asarray(scale * random.normal(size=(size, size, inputs, outputs)), jnp.float32)


def digits() -> tuple[tr.Dataset, np.ndarray]:
    """Images of digits, and the share of each digit."""
    train = tr.datasets.load("mnist").train
    images, y = train["x"].reshape(-1, 28, 28, 1).astype(np.float32), train["y"]
    return tr.Dataset({"x": images, "y": y}, BATCH), np.array([np.mean(y == i) for i in range(10)], np.float32)


def cross_entropy(logits: Any, y: Any) -> Any:
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]


def convolution(bound: float = 0.06) -> Case:
    """A convolutional network for ten digits, with an upper bound on the mean loss of each."""
    data, share = digits()
    random = np.random.default_rng(0)
    start = {"first": kernel(random, 5, 1, 8), "second": kernel(random, 5, 8, 16), **dense(random, 256, 10)}

    def losses(params: Any, batch: Any) -> Any:
        hidden = convolved(convolved(batch["x"], params["first"], 2), params["second"], 2)
        return cross_entropy(hidden.reshape(len(hidden), -1) @ params["w0"] + params["b0"], batch["y"])

    def by_digit(params: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.one_hot(batch["y"], 10) / share * losses(params, batch)[:, None], axis=0)

    problem = tr.Problem(lambda p, batch: jnp.mean(losses(p, batch)), tr.at_most(by_digit, bound, data=data), data=data)
    return problem, start


def convolution_recall(bound: float = 0.975) -> Case:
    """Three convolutions and two dense layers for ten digits, with a lower bound on the mean probability of each."""
    data, share = digits()
    random = np.random.default_rng(1)
    start = {
        "first": kernel(random, 3, 1, 8, 2.0),
        "second": kernel(random, 3, 8, 16, 2.0),
        "third": kernel(random, 3, 16, 16, 2.0),
        **dense(random, 16 * 2 * 2, 32, 10),
    }

    def logits(params: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for name in ("first", "second", "third"):
            hidden = convolved(hidden, params[name], 2)
        hidden = jax.nn.relu(hidden.reshape(len(hidden), -1) @ params["w0"] + params["b0"])
        return hidden @ params["w1"] + params["b1"]

    def loss(params: Any, batch: Any) -> Any:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return jnp.mean(cross_entropy(logits(params, batch), batch["y"])) + 1e-4 * squares

    def recall(params: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.one_hot(batch["y"], 10) / share * jax.nn.softmax(logits(params, batch)), axis=0)

    return tr.Problem(loss, tr.at_least(recall, bound, data=data), data=data), start


def pendulum() -> Case:
    """A physics-informed network: u″ = −2 sin u on [0, 1], with both ends and the mean of u as equations."""
    random = np.random.default_rng(0)
    data = tr.Dataset({"t": random.uniform(size=4096).astype(np.float32)}, BATCH)

    def u(params: Any, t: Any) -> Any:
        hidden = jnp.tanh(t * params["w0"][0] + params["b0"])
        return jnp.dot(jnp.tanh(hidden @ params["w1"] + params["b1"]), params["w2"][:, 0]) + params["b2"][0]

    def residual(params: Any, batch: Any) -> Any:
        second = jax.vmap(lambda t: jax.grad(jax.grad(lambda s: u(params, s)))(t) + 2.0 * jnp.sin(u(params, t)))
        return jnp.mean(second(batch["t"]) ** 2)

    constraints = [
        tr.equals(lambda params: u(params, jnp.float32(0.0)), 0.0, name="left"),
        tr.equals(lambda params: u(params, jnp.float32(1.0)), 1.0, name="right"),
        tr.equals(
            lambda params, batch: jnp.mean(jax.vmap(lambda t: u(params, t))(batch["t"])), 0.6, data=data, name="mean"
        ),
    ]
    return tr.Problem(residual, constraints, data=data), dense(random, 1, 32, 32, 1)


PROBLEMS: dict[str, tuple[Callable[[], Case], bool]] = {
    **{name: (lambda name=name: tr.zoo.learning.available()[name](batch_size=BATCH)[:2], True) for name in ZOO},
    "a9a, recall 0.7, alarms 0.12": (lambda: recall_and_alarms("a9a", 0.7, 0.12), True),
    "loan, recall 0.6, alarms 0.3": (lambda: recall_and_alarms("loan", 0.6, 0.3), True),
    "phishing, recall 0.93, alarms 0.1": (lambda: recall_and_alarms("phishing", 0.93, 0.1), True),
    "bank-full, recall 0.65, alarms 0.15": (lambda: recall_and_alarms("bank-full", 0.65, 0.15), False),
    "adult, recall 0.6, alarms 0.1": (lambda: recall_and_alarms("adult", 0.6, 0.1), False),
    "a9a, fifty groups": (lambda: many_groups("a9a"), True),
    "adult, fifty groups": (lambda: many_groups("adult"), False),
    "bank-full, fifty groups": (lambda: many_groups("bank-full"), False),
    "convolution, ten digits": (convolution, True),
    "convolution, recall of ten digits": (convolution_recall, False),
    "pendulum": (pendulum, False),
}
"""Each problem, and whether constants were chosen on it."""


def row_of(results: list[tr.Result]) -> dict[str, Any]:
    """The mean objective, the largest violation, and whether all are certified feasible."""
    return {
        "objective": float(np.mean([r.objective for r in results])),
        "objectives": [float(r.objective) for r in results],
        "violation": float(max(r.violation for r in results)),
        "feasible": all(r.certificate.verdict == "feasible" for r in results),
        "samples": results[0].samples,
    }


def grid_rows(problem: tr.Problem, start: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of GradientDescentAscent with each setting of the grid."""
    grid = [
        tr.methods.GradientDescentAscent(step_size=rate, dual_step_size=dual, decay=0.0)
        for rate, dual in product(RATES, DUAL_RATES)
    ]
    found = tr.sweep(problem, start, grid, **options).results
    return [row_of(found[i : i + len(SEEDS)]) for i in range(0, len(found), len(SEEDS))]


def answers(name: str, epochs: float, grid: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A row of answers; `grid` are those of GradientDescentAscent where they are known."""
    make, chosen = PROBLEMS[name]
    problem, start = make()
    source = problem.sources[0]
    assert isinstance(source, tr.Dataset)
    steps = int(epochs * source.size / BATCH)
    options: dict[str, Any] = {"steps": steps, "seeds": SEEDS, "record": max(steps // 5, 1)}
    began = time.perf_counter()
    ours = row_of(tr.sweep(problem, start, tr.methods.AdaptiveLagrangian(), **options).results)
    took = time.perf_counter() - began
    rows = grid or grid_rows(problem, start, options)
    feasible = [row for row in rows if row["feasible"]]
    best = min(feasible, key=lambda row: row["objective"]) if feasible else None
    over = ours["objective"] / best["objective"] - 1.0 if best else None
    print(f"{name}, {epochs:g} epochs: {ours['objective']:.4f}, feasible: {ours['feasible']}, "
          f"violation {ours['violation']:.1e}; grid: {best['objective'] if best else math.nan:.4f} "
          f"({len(feasible)} of 9 feasible), {took:.0f} s", flush=True)  # fmt: skip
    return {"section": "answers", "case": name, "epochs": epochs, "steps": steps, "chosen": chosen, "ours": ours,
            "grid": rows, "best of the grid": best, "over the grid": over}  # fmt: skip


def network_of(sizes: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """The cross-entropy of each example, from a network of rectified units with these sizes."""

    def losses(params: Any, examples: Any) -> Any:
        hidden = examples["x"]
        for i in range(len(sizes) - 2):
            hidden = jax.nn.relu(hidden @ params[f"w{i}"] + params[f"b{i}"])
        logits = hidden @ params[f"w{len(sizes) - 2}"] + params[f"b{len(sizes) - 2}"]
        return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, examples["y"][:, None], axis=1)[:, 0]

    return losses


def ten_functions(losses: Callable[[Any, Any], Any], data: tr.Batches) -> list[Any]:
    """A bound on the loss of each of ten classes, as ten functions."""

    def of_class(label: int) -> Callable[[Any, Any], Any]:
        return lambda params, examples: jnp.mean((examples["y"] == label) * losses(params, examples)) * 10.0

    return [tr.at_most(of_class(i), 0.1, data=data, name=f"class {i}") for i in range(10)]


def many_values(losses: Callable[[Any, Any], Any], data: tr.Batches) -> list[Any]:
    """A bound on the loss of each of 10,000 groups of examples, as one function."""

    def of_groups(params: Any, examples: Any) -> Any:
        values = losses(params, examples)
        return jax.ops.segment_sum(values, examples["group"], GROUPS) * (GROUPS / len(values))

    return [tr.at_most(of_groups, 0.1, data=data)]


def copies_of(step: Any, state: Any, examples: Any, numbers: int) -> float:
    """The memory of a compiled step, its donated state and all it needs on the way, in copies of the parameters."""
    compiled = jax.jit(step, donate_argnums=0).lower(state, examples).compile()
    found: Any = compiled.memory_analysis()
    size = (
        found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    )
    return (size - sum(leaf.nbytes for leaf in jax.tree.leaves(examples))) / (4.0 * numbers)


def step_times(
    constraints: Callable[..., list[Any]],
    sizes: tuple[int, ...] = (1024, 2688, 2688, 10),
    batch: int = 256,
    repeats: int = 7,
) -> dict[str, Any]:
    """Microseconds per step, medians of alternating runs, and memory."""
    random, examples = np.random.default_rng(0), 8192
    arrays = {
        "x": jnp.asarray(random.normal(size=(examples, sizes[0])), jnp.float32),
        "y": jnp.asarray(random.integers(0, sizes[-1], examples), jnp.int32),
        "group": jnp.asarray(random.integers(0, GROUPS, examples), jnp.int32),
    }
    start, losses, count = dense(random, *sizes), network_of(sizes), 96

    def loss(params: Any, drawn: Any) -> Any:
        return jnp.mean(losses(params, drawn))

    first = jax.tree.map(lambda a: a[:batch], arrays)
    data = tr.Batches(like=first)
    problem = tr.Problem(loss, constraints(losses, data), data=data)
    stepper = tr.Stepper(problem, start, "AdaptiveLagrangian", steps=10_000)
    drawn = jnp.asarray(random.integers(0, examples, (count, batch)), jnp.int32)

    def adam_step(carry: Any, index: Any) -> tuple[Any, None]:
        params, mean, square, k = carry
        gradient = jax.grad(loss)(params, jax.tree.map(lambda a: a[index], arrays))
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradient)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / (1 - 0.9**k) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-8), params, mean, square
        )
        return (params, mean, square, k + 1.0), None

    def our_step(state: Any, index: Any) -> tuple[Any, None]:
        return stepper.step(state, jax.tree.map(lambda a: a[index], arrays))[0], None

    zeros = jax.tree.map(jnp.zeros_like, start)
    ours = jax.jit(lambda state: jax.lax.scan(our_step, state, drawn)[0])
    later = ours(stepper.init(first, seed=0))  # the first steps measure more
    runs: dict[str, tuple[Any, Any]] = {
        "adam": (jax.jit(lambda carry: jax.lax.scan(adam_step, carry, drawn)[0]), (start, zeros, zeros, 1.0)),
        "ours": (ours, later),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, (run, at) in runs.items():
            began = time.perf_counter()
            jax.block_until_ready(run(at))
            if repeat:
                times[name].append(1e6 * (time.perf_counter() - began) / count)
    ratios = [one / other for one, other in zip(times["ours"], times["adam"], strict=True)]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(start))
    kind = constraints.__name__.replace("_", " ")
    row = {
        "section": "steps",
        "case": f"{parameters:,} parameters, {kind}, batch {batch}, {jax.default_backend()}",
        "adam": float(np.median(times["adam"])),
        "ours": float(np.median(times["ours"])),
        "ratio": float(np.median(ratios)),
        "least and largest ratio": [min(ratios), max(ratios)],
        "copies of the parameters": copies_of(lambda *a: stepper.step(*a)[0], later, first, parameters),
    }
    print(row, flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of docs/adaptive-lagrangian.md that show the answers."""

    def shown(row: dict[str, Any]) -> str:
        ours, best = row["ours"], row["best of the grid"]
        mark = " \\*" if row["chosen"] else ""
        grid = f"{best['objective']:.4f}" if best else "none feasible"
        verdict = "feasible" if ours["feasible"] else f"violation {ours['violation']:.0e}"
        return f"| {row['case']}{mark} | {row['epochs']:g} | {ours['objective']:.4f} | {verdict} | {grid} |"

    answered = [row for row in rows if row["section"] == "answers"]
    ordered = sorted(answered, key=lambda row: (list(PROBLEMS).index(row["case"]), row["epochs"]))
    return [
        "| problem | epochs | objective | certificates | best of the grid |",
        "|---|---|---|---|---|",
        *map(shown, ordered),
    ]


def known(name: str, epochs: float) -> list[dict[str, Any]] | None:
    """The rows of the grid among the committed results."""
    rows = json.loads((Path(__file__).parent / "results" / "networks.json").read_text())["rows"]
    return next((row["grid"] for row in rows if (row["case"], row.get("epochs")) == (name, epochs)), None)


def write(row: dict[str, Any], out: Path) -> None:
    """Add a row to the file, in place of the one of the same case."""
    device = jax.devices()[0].device_kind
    row |= {"machine": {"jax": jax.__version__, "python": platform.python_version(), "device": device}}
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    same = ("section", "case", "epochs")
    kept = [old for old in rows if any(old.get(name) != row.get(name) for name in same)]
    out.write_text(json.dumps({"rows": [*kept, row]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["steps", "answers"])
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--epochs", type=float, nargs="+", default=[2.0, 6.0, 20.0])
    parser.add_argument("--small", action="store_true", help="a network of 25,000 parameters for the time of a step")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "networks.json")
    parser.add_argument("--keep-grid", action="store_true", help="do not run the grid where the results have it")
    options = parser.parse_args()
    if "table" in options.sections:
        print("\n".join(table(json.loads(options.out.read_text())["rows"])))
    if "steps" in options.sections:
        for constraints in (ten_functions, many_values):
            sizes = {"sizes": (784, 32, 10), "batch": 64} if options.small else {}
            write(step_times(constraints, **sizes), options.out)
    if "answers" in options.sections:
        for name in options.problems:
            for epochs in options.epochs:
                write(answers(name, epochs, known(name, epochs) if options.keep_grid else None), options.out)


if __name__ == "__main__":
    main()
