"""Generated bad input: every call either raises an error that names what is wrong, or agrees with a plain NumPy evaluation.

A case is a call of a public function in which one or two arguments are replaced by values that nobody should pass, or a
damaged file, or a command line. It is a finding if the error is not a ValueError or TypeError (for files also an OSError) that
names the function or the argument, if the call hangs, if it returns something else than NumPy computes, if a file is written
outside the case's folder, or if anything is unpickled or started.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typer.testing import CliRunner

import tightrope as tr

HANG_SECONDS = 60

# ---- what is passed ----------------------------------------------------------------------------------------------------


def wild(rng: random.Random) -> Any:
    """A value that few arguments allow."""
    return rng.choice(WILD)()


WILD: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 2,
    lambda: 1.5,
    lambda: -0.5,
    lambda: 10**400,
    lambda: 2**64,
    lambda: 1e300,
    lambda: 5e-324,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: -float("inf"),
    lambda: 1j,
    lambda: Decimal("1.5"),
    lambda: Fraction(1, 3),
    lambda: "text",
    lambda: "",
    lambda: "nul\0",
    lambda: "../outside",
    lambda: b"bytes",
    lambda: [],
    lambda: (),
    lambda: {},
    lambda: set(),
    lambda: [1.0, [2.0, 3.0]],
    lambda: [1.0, "a"],
    lambda: {"a": 1.0},
    lambda: {1: 1.0, "a": 2.0},
    lambda: [None, None],
    lambda: object(),
    lambda: object,
    lambda: lambda: 0,
    lambda: lambda x: x,
    lambda: lambda *args: "text",
    lambda: lambda *args, **options: 1 / 0,
    lambda: iter([1.0]),
    lambda: range(3),
    lambda: np.float16(1.0),
    lambda: np.int64(3),
    lambda: np.bool_(True),
    lambda: np.datetime64("2020-01-01"),
    lambda: np.array(np.nan),
    lambda: np.array([]),
    lambda: np.ones((0, 3)),
    lambda: np.ones(3),
    lambda: np.ones(5),
    lambda: np.ones((2, 3)),
    lambda: np.ones((3, 3), complex),
    lambda: np.arange(3),
    lambda: np.array(["a", "b"]),
    lambda: np.array([None, 1.0], object),
    lambda: np.array([1.0, np.nan, np.inf]),
    lambda: np.zeros(3, [("a", float)]),
    lambda: np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
    lambda: jnp.ones(3),
    lambda: jnp.float32(np.nan),
    lambda: jax.random.key(0),
    lambda: jax.ShapeDtypeStruct((3,), np.float32),
    lambda: tr.Stop(),
    lambda: tr.domains.Reals(),
]

POINTS = np.random.default_rng(0).normal(1.0, 1.0, size=(20, 3)).astype(np.float32)
X0 = np.full(3, 0.2, np.float32)


def distance(x: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum((x - batch) ** 2, axis=1))


DATA = tr.Dataset(POINTS, batch_size=4)
PROBLEM = tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=DATA)
METHOD = tr.methods.GradientDescentAscent(step_size=0.05, dual_step_size=0.05)


# ---- what NumPy computes -----------------------------------------------------------------------------------------------


def numpy_objective(x: Any) -> float:
    return float(np.mean(np.sum((np.asarray(x, float) - POINTS.astype(float)) ** 2, axis=1)))


def solved_right(result: tr.Result) -> bool:
    """Whether the result's objective and violation are those of its answer."""
    x = np.asarray(result.x, float)
    violation = max(float(np.sum(x)) - 1.0, 0.0)
    return bool(
        np.isclose(result.objective, numpy_objective(x), rtol=1e-4, atol=1e-5)
        and np.isclose(result.violation, violation, rtol=1e-3, atol=1e-5)
    )


def onto_simplex(x: np.ndarray, total: float) -> np.ndarray:
    """The projection onto {x ≥ 0, Σx = total}, by sorting."""
    if total < np.finfo(np.float32).tiny:
        return np.zeros_like(x)
    ordered = np.sort(x)[::-1]
    shifts = (np.cumsum(ordered) - total) / np.arange(1, x.size + 1)
    return np.maximum(x - shifts[np.nonzero(ordered > shifts)[0][-1]], 0.0)


def onto_l1_ball(x: np.ndarray, radius: float) -> np.ndarray:
    if np.abs(x).sum() <= radius:
        return x
    radius = radius if radius > np.finfo(np.float32).tiny else 0.0
    return np.sign(x) * onto_simplex(np.abs(x), radius) if radius > 0 else np.zeros_like(x)


def onto_l2_ball(x: np.ndarray, radius: float, center: Any = None) -> np.ndarray:
    away = x - (0.0 if center is None else np.asarray(center, float))
    return x - away + away * min(1.0, radius / max(float(np.linalg.norm(away)), 1e-300))


def onto_plane(x: np.ndarray, A: Any, b: Any) -> np.ndarray:
    A, b = np.asarray(A, float), np.asarray(b, float)
    return x - np.linalg.lstsq(A, A @ x - b, rcond=None)[0]


PROJECTIONS: dict[str, Callable[..., np.ndarray]] = {
    "Box": lambda x, low, high: np.clip(x, np.asarray(low, float), np.asarray(high, float)),
    "L2Ball": onto_l2_ball,
    "L1Ball": lambda x, radius: onto_l1_ball(x, float(radius)),
    "Simplex": lambda x, total: onto_simplex(x, float(total)),
    "Affine": onto_plane,
}
AT = np.array([2.0, -0.5, 0.7], np.float32)


def projects_right(name: str) -> Callable[[Any, dict[str, Any]], bool]:
    """Whether a set of this name projects as NumPy does, or says that it does not fit x."""

    def check(domain: Any, arguments: dict[str, Any]) -> bool:
        try:
            domain.check(AT)
        except ValueError as error:
            return name in str(error)
        expected = PROJECTIONS[name](AT.astype(float), **arguments)
        if np.abs(expected).max() > np.finfo(np.float32).max:
            return True  # no float32 holds it
        return bool(np.allclose(domain.project(AT), expected, rtol=1e-3, atol=1e-4))

    return check


def bounds_right(constraint: tr.Constraint, arguments: dict[str, Any]) -> bool:
    """Whether the bounds are the numbers that were passed."""
    given = {"low": constraint.low, "high": constraint.high, "target": constraint.low}
    given["bound"] = constraint.high if constraint.kind == "at_most" else constraint.low
    named = {name: value for name, value in arguments.items() if name in given}
    return all(np.all(given[name] == np.asarray(value, float)) for name, value in named.items())


def holds_data(data: tr.Dataset, arguments: dict[str, Any]) -> bool:
    """Whether the data are the arrays that were passed."""
    pairs = zip(jax.tree.leaves(data.whole), jax.tree.leaves(arguments["arrays"]), strict=True)
    return all(np.allclose(np.asarray(a), np.asarray(b), rtol=1e-6) for a, b in pairs)


# ---- calls -------------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A public function, arguments that it takes, whether what it returned is right, and how often it is tried."""

    fn: Callable[..., Any]
    arguments: dict[str, Any]
    right: Callable[[Any, dict[str, Any]], bool] = lambda found, arguments: True
    weight: int = 10


def solve_short(**arguments: Any) -> tr.Result:
    problem, x0 = arguments.pop("problem"), arguments.pop("x0")
    return tr.solve(problem, x0, arguments.pop("method"), **arguments)


SOLVE: dict[str, Any] = {"problem": PROBLEM, "x0": X0, "method": METHOD, "steps": 4, "seed": 0, "record": 2}
SOLVE |= {"stop": None, "progress": False, "callback": None, "checkpoint": None, "warm_start": None, "mesh": None}
SWEEP: dict[str, Any] = {"problem": PROBLEM, "x0": X0, "methods": METHOD, "steps": 4, "seeds": [0], "record": 2}
SWEEP |= {"stop": None, "executor": None, "part_size": None, "checkpoint": None}


def sweep_in(folder: Path) -> tr.SweepResult:
    arguments: dict[str, Any] = SWEEP | {"checkpoint": folder}
    return tr.sweep(**arguments)


METHODS: dict[str, dict[str, Any]] = {
    "GradientDescentAscent": {"step_size": 0.1, "dual_step_size": 0.1, "decay": 0.5, "update": "simultaneous"},
    "TruncatedMomentum": {"step_size": 0.1, "penalty": 1.0, "momentum": 1.0, "estimator": "recursive"},
    "SwitchingSubgradient": {"step_size": 0.1, "tolerance": 0.1, "rule": "diminishing", "value_batch_size": None},
    "ExactPenalty": {"penalty": 1.0, "penalty_growth": 1.2, "setting": "auto"},
    "AdaptivePenalty": {"min_feasibility_share": 0.3, "noise_tolerance": 0.25},
    "StochasticSQP": {"merit_parameter": 1.0, "damping": 1.0, "shrink": 1e-6},
    "InexactALM": {"penalty": 1.0, "penalty_growth": 2.0, "inner_steps": 100},
}
CALLS: dict[str, Call] = {
    "equals": Call(
        tr.equals, {"fn": jnp.sum, "target": 1.0, "data": None, "name": "a", "scale": 1.0}, bounds_right, 60
    ),
    "at_most": Call(tr.at_most, {"fn": jnp.sum, "bound": 1.0, "data": None, "name": "a"}, bounds_right, 40),
    "at_least": Call(tr.at_least, {"fn": jnp.sum, "bound": 1.0, "data": None, "sample_range": None}, bounds_right, 40),
    "between": Call(tr.between, {"fn": jnp.sum, "low": -1.0, "high": 1.0, "data": DATA}, bounds_right, 60),
    "affine": Call(tr.affine, {"A": np.ones((2, 3)), "b": np.ones(2), "name": "a"}, weight=50),
    "Problem": Call(
        tr.Problem,
        {"objective": distance, "constraints": (), "domain": None, "data": DATA, "smooth": True},
        weight=60,
    ),
    "Dataset": Call(tr.Dataset, {"arrays": {"x": np.ones(3)}, "batch_size": 2}, holds_data, 60),
    "Batches": Call(tr.Batches, {"like": {"x": np.ones(3)}}, weight=20),
    "Sampler": Call(tr.Sampler, {"fn": lambda key, n: jax.random.normal(key, (n,)), "batch_size": 2}, weight=10),
    "Stream": Call(tr.Stream, {"make_iterator": lambda: iter([np.ones(3)]), "timeout": 5.0}, weight=20),
    "Box": Call(tr.domains.Box, {"low": 0.0, "high": 1.0}, projects_right("Box"), 50),
    "L2Ball": Call(tr.domains.L2Ball, {"radius": 1.0, "center": None}, projects_right("L2Ball"), 40),
    "L1Ball": Call(tr.domains.L1Ball, {"radius": 1.0}, projects_right("L1Ball"), 20),
    "Simplex": Call(tr.domains.Simplex, {"total": 1.0}, projects_right("Simplex"), 20),
    "Affine": Call(tr.domains.Affine, {"A": np.ones((1, 3)), "b": np.ones(1)}, projects_right("Affine"), 30),
    "NuclearBall": Call(tr.domains.NuclearBall, {"radius": 1.0}, weight=15),
    "Spectrahedron": Call(tr.domains.Spectrahedron, {"total": 1.0}, weight=15),
    "Product": Call(tr.domains.Product, {"parts": {"a": tr.domains.Reals()}}, weight=30),
    "Record": Call(tr.Record, {"every": 5, "metrics": {}, "data": None}, weight=40),
    "Stop": Call(tr.Stop, {"violation": 1e-3, "stationarity": 1e-2, "seconds": None, "gap": 1e-2}, weight=40),
    "Checkpoint": Call(tr.Checkpoint, {"folder": "run", "every": 60.0, "keep": 2}, weight=40),
    "by_name": Call(tr.methods.by_name, {"name": "AdaptivePenalty"}, weight=10),
    "split": Call(tr.datasets.split, {"arrays": {"x": np.ones(9)}, "sizes": 3, "seed": 0}, weight=0),
    **{name: Call(getattr(tr.methods, name), arguments, weight=15) for name, arguments in METHODS.items()},
    "solve": Call(solve_short, SOLVE, lambda found, _: solved_right(found), 40),
    "sweep": Call(
        lambda problem, x0, methods, **options: tr.sweep(problem, x0, methods, **options),
        SWEEP,
        lambda found, _: all(map(solved_right, found.results)),
        20,
    ),
    "certify": Call(
        tr.certify,
        {"problem": PROBLEM, "x": X0, "data": None, "tolerance": 1e-3, "confidence": 0.95, "seed": 0},
        lambda found, arguments: bool(np.isclose(found.objective.value, numpy_objective(arguments["x"]), rtol=1e-4)),
        20,
    ),
    "plan": Call(tr.plan, {"problem": "p", "x0": X0, "accuracy": 0.1, "method": None, "seed": 0}, weight=10),
    "Stepper": Call(
        lambda problem, x0, **options: tr.Stepper(problem, x0, **options),
        {"problem": PROBLEM, "x0": X0, "method": METHOD, "steps": 10, "warm_start": None},
        weight=20,
    ),
}
CLEAR_OF_JAX = ("pytree dictionary keys", "masked arrays are not supported", "PRNGKey dtype cannot be converted")
"""What JAX says of values that no pytree can hold, before an argument can be checked: clear, though it names no argument."""
ALSO_NAMED = {"by_name": "method", "sweep": "method"}
"""Other words that an error of a call may name."""


def bad_call(rng: random.Random, folder: Path) -> str | None:
    """One call with one or two arguments replaced; what is wrong about its outcome, or None."""
    name = rng.choices(list(CALLS), [call.weight for call in CALLS.values()])[0]
    call = CALLS[name]
    replaced = rng.sample(list(call.arguments), min(len(call.arguments), 1 + (rng.random() < 0.25)))
    arguments = call.arguments | {argument: wild(rng) for argument in replaced}
    came = f"{name}({', '.join(f'{argument}={arguments[argument]!r:.80}' for argument in replaced)})"
    try:
        found = call.fn(**arguments)
    except (ValueError, TypeError) as error:
        if is_clear(error, [name, *replaced, ALSO_NAMED.get(name, name)]):
            return None
        return f"{came}: unclear {type(error).__name__} from {origin(error)}: {str(error)[:200]}"
    except ZeroDivisionError as error:
        return None if getattr(error, "__notes__", None) else f"{came}: ZeroDivisionError without a note"
    except Hang:
        return f"{came}: hangs"
    except Exception as error:
        return f"{came}: {type(error).__name__} from {origin(error)}: {str(error)[:200]}"
    try:
        right = call.right(found, arguments)
    except Exception as error:
        return f"{came}: accepted, then {type(error).__name__} from {origin(error)}: {str(error)[:150]}"
    return None if right else f"{came}: returned something else than NumPy computes: {found!r:.200}"


def is_clear(error: Exception, words: list[str]) -> bool:
    """Whether an error names one of these words, or says where in the user's own function it happened."""
    said = str(error).lower()
    if any("tracing" in note for note in getattr(error, "__notes__", [])) or "1 / 0" in said:
        return True
    named = "tightrope" in origin(error) and any(word.lower() in said for word in words)
    return named or any(clear.lower() in said for clear in CLEAR_OF_JAX)


def origin(error: BaseException) -> str:
    """The file of the innermost frame that is not the standard library's."""
    frame, files = error.__traceback__, []
    while frame is not None:
        files.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    return "/".join(Path(files[-1]).parts[-3:])


# ---- files -------------------------------------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file with a byte flipped, cut, stretched, or replaced."""
    place, kind = rng.randrange(max(len(content), 1)), rng.randrange(5)
    if kind == 0 or not content:
        return rng.randbytes(rng.randrange(64))
    if kind == 1:
        return content[:place]
    if kind == 2:
        return content[:place] + rng.randbytes(3) + content[place:]
    if kind == 3:
        return content[:place] + bytes(min(32, len(content) - place)) + content[place + 32 :]
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


class Files:
    """A saved result and a folder of checkpoints, which cases damage copies of."""

    def __init__(self, folder: Path):
        self.result = folder / "result.npz"
        self.run = folder / "run"
        self.answer = tr.solve(PROBLEM, X0, METHOD, steps=20, record=10, checkpoint=self.run)
        self.longer = tr.solve(PROBLEM, X0, METHOD, steps=30, record=10)
        self.answer.save(self.result)
        self.sweep = folder / "sweep"
        self.swept = sweep_in(self.sweep)

    def bad_result(self, rng: random.Random, folder: Path) -> str | None:
        """One damaged file of a result."""
        path = folder / "result.npz"
        if rng.random() < 0.5:
            path.write_bytes(damaged(self.result.read_bytes(), rng))
        else:
            self._forge(path, rng)
        try:
            found = tr.load(path)
        except (ValueError, TypeError, OSError) as error:
            return None if "load" in str(error) else f"load: unclear {type(error).__name__}: {str(error)[:200]}"
        except Exception as error:
            return f"load: {type(error).__name__} from {origin(error)}: {str(error)[:200]}"
        same = np.array_equal(found.x, self.answer.x) and found.objective == self.answer.objective
        return None if same else f"load: accepted a damaged file: {found!r:.100}"

    def _forge(self, path: Path, rng: random.Random) -> None:
        """Write the file with a field of its text replaced, or one of its arrays."""
        with np.load(self.result, allow_pickle=False) as archive:
            arrays = dict(archive)
        text = json.loads(str(arrays["json"]))
        field = rng.choice([*text, "x0"])
        if field == "x0":
            arrays["x0"] = rng.choice([np.array([print], object), np.array(["a"]), np.ones(7), np.ones((2, 2))])
        elif rng.random() < 0.5:
            del text[field]
        else:
            text[field] = rng.choice([None, [], {}, "text", -1, [1.0, "a"], {"a": None}])
        arrays["json"] = np.array(json.dumps(text))
        np.savez(path, **arrays)

    def bad_checkpoint(self, rng: random.Random, folder: Path) -> str | None:
        """One damaged file of a checkpoint."""
        shutil.copytree(self.run, folder / "run")
        newest = max(path for path in (folder / "run").iterdir() if path.name == "20")
        file = rng.choice(sorted(path for path in newest.rglob("*") if path.is_file()))
        file.write_bytes(damaged(file.read_bytes(), rng))
        try:
            found = tr.solve(PROBLEM, X0, METHOD, steps=30, record=10, checkpoint=folder / "run")
        except ValueError as error:
            return None if "checkpoint" in str(error) else f"checkpoint: unclear ValueError: {str(error)[:200]}"
        except Exception as error:
            return f"checkpoint {file.name}: {type(error).__name__} from {origin(error)}: {str(error)[:200]}"
        return (
            None if np.array_equal(found.x, self.longer.x) else f"checkpoint: {file.name} was damaged, another answer"
        )

    def bad_sweep(self, rng: random.Random, folder: Path) -> str | None:
        """One damaged file of a sweep."""
        shutil.copytree(self.sweep, folder / "sweep")
        file = rng.choice(sorted((folder / "sweep").iterdir()))
        file.write_bytes(damaged(file.read_bytes(), rng))
        try:
            found = sweep_in(folder / "sweep")
        except ValueError as error:
            clear = str(folder / "sweep") in str(error)
            return None if clear else f"sweep: unclear ValueError: {str(error)[:200]}"
        except Exception as error:
            return f"sweep {file.name}: {type(error).__name__} from {origin(error)}: {str(error)[:200]}"
        same = np.array_equal(found.results[0].x, self.swept.results[0].x)
        return None if same else f"sweep: {file.name} was damaged, another answer"


# ---- command lines -----------------------------------------------------------------------------------------------------

WORDS = (
    "solve",
    "compare",
    "methods",
    "problems",
    "reproduce",
    "lens",
    "Lens",
    "nothing.py:problem",
    "-1",
    "0",
    "1e3",
    "",
)
WORDS += (
    "nan",
    "--steps",
    "--seed",
    "--x0",
    "--out",
    "--checkpoint",
    "--methods",
    "--grid",
    "--quick",
    "--list",
    "../x",
    "a:b",
    ":",
    "--",
)


def bad_command(rng: random.Random, folder: Path) -> str | None:
    """One command line: it ends with an exit code, and an error has a message."""
    from tightrope.cli import app

    command = rng.choice(["solve", "compare", "reproduce", "nothing", "--version", "methods"])
    arguments = [command, *rng.choices(WORDS, k=rng.randrange(4))]
    if command in ("solve", "compare", "reproduce") and not {"--quick", "--list"} & set(arguments):
        arguments += ["--steps" if command != "reproduce" else "--nothing", "none"]  # never a whole run
    outcome = CliRunner().invoke(app, arguments)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        return f"tightrope {arguments}: {type(outcome.exception).__name__}: {outcome.exception}"
    said = outcome.output.strip()
    return None if outcome.exit_code == 0 or said else f"tightrope {arguments}: exit code without a message"


# ---- all of it ---------------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A case took too long."""


class Watch:
    """Notes files that are opened for writing outside a folder, and everything that is unpickled or started."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.found: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            self.found.append(f"{event} {arguments!r:.200}")
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] is not None:
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            path = Path(os.fsdecode(arguments[0])).absolute()
            if writes and not path.is_relative_to(self.folder) and path != Path(os.devnull):
                self.found.append(f"wrote {path}")


def run_cases(count: int, seed: int, base: Path, minutes: float = math.inf) -> dict[str, Any]:
    """Run this many cases, or as many as there is time for; what was tried, and what was found."""
    began = time.monotonic()
    rng, tried, refused = random.Random(seed), Counter[str](), []
    (base / "truth").mkdir()
    files, watch, here = Files(base / "truth"), Watch(), Path.cwd()
    kinds: dict[str, tuple[Callable[[random.Random, Path], str | None], float]] = {
        "calls": (bad_call, 0.62),
        "result files": (files.bad_result, 0.28),
        "sweep files": (files.bad_sweep, 0.02),
        "checkpoint files": (files.bad_checkpoint, 0.03),
        "command lines": (bad_command, 0.05),
    }

    def alarm(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        for number in range(count):
            kind = rng.choices(list(kinds), [share for _, share in kinds.values()])[0]
            folder = base / "case"
            folder.mkdir()
            os.chdir(folder)
            watch.folder = folder
            signal.alarm(HANG_SECONDS)
            try:
                with warnings.catch_warnings(action="ignore"):
                    found = kinds[kind][0](rng, folder)
            except Hang:
                found = f"{kind}: hangs"
            finally:
                signal.alarm(0)
                watch.folder = None
                os.chdir(here)
                shutil.rmtree(folder)
            tried[kind] += 1
            for finding in [*([found] if found else []), *watch.found]:
                refused.append(f"case {number}: {finding}")
                print(refused[-1], flush=True)
            watch.found.clear()
            if time.monotonic() - began > 60 * minutes:
                break
    finally:
        signal.signal(signal.SIGALRM, before)
    return {"cases": tried.total(), "kinds": dict(tried), "seed": seed, "findings": refused}
