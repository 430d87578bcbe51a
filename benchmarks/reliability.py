"""What a run survives: kills at random moments, bad input, and long use of one process.

    python benchmarks/reliability.py kills bad_input long_run many_solves

Each section prints its figures and writes them to `results/reliability.json`, where the other sections stay as they were. A
section ends with an error if anything was lost.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the loader of compiled programs is talkative
os.environ["TIGHTROPE_CACHE"] = ""  # the command line keeps nothing

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import platform
import random
import subprocess
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

RESULTS = Path(__file__).with_name("results") / "reliability.json"

# ---- problems ----------------------------------------------------------------------------------------------------------

POINTS = np.random.default_rng(0).normal(1.0, 1.0, size=(200, 4)).astype(np.float32)
X0 = np.full(4, 0.3, np.float32)
STEPS, RECORD = 1_600, 20


def distance(x: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum((x - batch) ** 2, axis=1))


def mean(x: Any, batch: Any) -> Any:
    return jnp.mean(batch @ x)


def on_data() -> tr.Problem:
    data = tr.Dataset(POINTS, batch_size=8)
    return tr.Problem(distance, tr.between(mean, -0.5, 0.5, data=data), domain=tr.domains.L2Ball(5.0), data=data)


def on_a_sampler() -> tr.Problem:
    source = tr.Sampler(lambda key, n: 1.0 + jax.random.normal(key, (n, 4)), 8)
    return tr.Problem(distance, tr.equals(lambda x: x @ x, 1.0, name="sphere"), data=source)


def on_a_stream() -> tr.Problem:
    def batches(first: int) -> Iterator[np.ndarray]:
        for number in range(first, 10**9):
            yield POINTS[np.random.default_rng(number).integers(0, len(POINTS), 8)]

    source = tr.Stream(batches)
    return tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=source)


CASES: dict[str, tuple[Callable[[], tr.Problem], str]] = {
    "GradientDescentAscent on a Dataset": (on_data, "GradientDescentAscent"),
    "TruncatedMomentum on a Sampler": (on_a_sampler, "TruncatedMomentum"),
    "GradientDescentAscent on a Stream": (on_a_stream, "GradientDescentAscent"),
    "AdaptivePenalty on a Sampler": (on_a_sampler, "AdaptivePenalty"),
}

# ---- kills -------------------------------------------------------------------------------------------------------------

SLOWED = ("mkdir", "rename", "replace", "rmdir", "unlink")
"""Functions of `os` that wait in children with slow saves, so that kills hit each part of a save."""


def slowed(name: str) -> Any:
    original = getattr(os, name)

    def wait(*args: Any, **options: Any) -> Any:
        time.sleep(0.02)
        return original(*args, **options)

    return wait


def run_child(case: str, folder: Path, programs: Path, slow: bool) -> None:
    """A run with frequent checkpoints; its answer is written last."""
    if slow:
        for name in SLOWED:
            setattr(os, name, slowed(name))
    tr.cache(programs)
    make, method = CASES[case]

    def pause(row: dict[str, Any]) -> None:
        if not (folder / "started").exists():
            (folder / "started").touch()
        time.sleep(0.03)

    checkpoint = tr.Checkpoint(folder / "run", every=0.0 if slow else 0.2)
    result = tr.solve(make(), X0, method, steps=STEPS, record=RECORD, callback=pause, checkpoint=checkpoint)
    history = {name: column for name, column in result.history.items() if name != "seconds"}
    found = {"x": result.x, **{f"multiplier {k}": v for k, v in result.multipliers.items()}, **history}
    columns: Any = {name: np.asarray(value) for name, value in found.items()}
    np.savez(folder / "part.npz", **columns)
    os.replace(folder / "part.npz", folder / "answer.npz")


def spawn(case: str, folder: Path, programs: Path, slow: bool = False) -> Any:
    child = multiprocessing.get_context("forkserver").Process(target=run_child, args=(case, folder, programs, slow))
    child.start()
    return child


def answer(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "answer.npz", allow_pickle=False) as found:
        return dict(found)


def uninterrupted(case: str, folder: Path, programs: Path) -> tuple[dict[str, np.ndarray], float, float]:
    """The answer of a run that nobody kills, the seconds to its first record, and those after it."""
    folder.mkdir()
    began = time.time()
    child = spawn(case, folder, programs)
    child.join()
    assert child.exitcode == 0
    first = (folder / "started").stat().st_mtime
    return answer(folder), first - began, time.time() - first


def trial(
    case: str, folder: Path, programs: Path, cold: bool, seconds: list[float], rng: random.Random
) -> Counter[str]:
    """Kill a run at random moments and resume it, until it ends before it is killed.

    Half of the moments are uniform over the time to the first record, which is mostly compilation; the others are uniform over
    a third of the time after it, so that a run is killed several times. `cold`: no attempt finds compiled programs.
    """
    folder.mkdir()
    slow, moments = rng.random() < 0.5, Counter[str]()
    for attempt in range(10**6):
        (folder / "started").unlink(missing_ok=True)
        child = spawn(case, folder, folder / f"programs {attempt}" if cold else programs, slow)
        if rng.random() < 0.5:
            child.join(rng.uniform(0.0, seconds[0]))
        else:
            while child.exitcode is None and not (folder / "started").exists():
                time.sleep(0.01)
            child.join(rng.uniform(0.0, seconds[1] / 3))
        if child.exitcode is not None:
            assert child.exitcode == 0, f"a resumed run failed in {folder}"
            break
        child.kill()
        child.join()
        saving = any((folder / "run").glob("*orbax-checkpoint-tmp*"))
        moments["while saving" if saving else "running" if (folder / "started").exists() else "starting"] += 1
    return moments


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Every run that was killed and resumed must equal the uninterrupted one to the bit."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tightrope", "orbax.checkpoint", "__main__"])
    began, moments, without_cache = time.monotonic(), Counter[str](), 0
    cases = {case: {"runs": 0, "identical": 0, "kills": 0} for case in CASES}
    truth: dict[str, dict[str, np.ndarray]] = {}
    seconds: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        base = Path(name)

        def unharmed(case: str) -> None:
            _, *seconds[case, True] = uninterrupted(case, base / f"{case}, cold", base / "programs")
            truth[case], *seconds[case, False] = uninterrupted(case, base / case, base / "programs")
            print(f"{case}: {seconds[case, True]} s without a cache, {seconds[case, False]} s with one", flush=True)

        list(pool.map(unharmed, CASES))

        def one(number: int) -> tuple[str, bool, Counter[str], bool]:
            case, cold, folder = list(CASES)[number % len(CASES)], number % 11 == 5, base / str(number)
            rng = random.Random(f"{options.seed}, {number}")
            killed = trial(case, folder, base / "programs", cold, seconds[case, cold], rng)
            return case, cold, killed, identical(answer(folder), truth[case])

        for first in range(0, 10**6, 2 * options.jobs):
            for case, cold, killed, same in pool.map(one, range(first, first + 2 * options.jobs)):
                moments, without_cache = moments + killed, without_cache + cold * killed.total()
                for column, more in {"runs": 1, "identical": int(same), "kills": killed.total()}.items():
                    cases[case][column] += more
                print(f"{moments.total():4d} kills: {case}, {dict(killed)}, identical: {same}", flush=True)
            if moments.total() >= options.kills or time.monotonic() - began > 60 * options.minutes:
                break
    runs, equal = (sum(row[column] for row in cases.values()) for column in ("runs", "identical"))
    assert equal == runs, cases
    return {
        "seeds": [options.seed],
        "kills": moments.total(),
        "moments": dict(moments),
        "kills_of_runs_without_a_cache": without_cache,
        "runs": runs,
        "identical": equal,
        "cases": cases,
        "seconds_uninterrupted": {case: [round(s, 1) for s in seconds[case, False]] for case in CASES},
    }


def added(stored: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The figures of kills with other seeds together."""
    counts = Counter(stored["moments"]) + Counter(more["moments"])
    cases = {case: Counter(stored["cases"][case]) + Counter(more["cases"][case]) for case in more["cases"]}
    names = "kills", "kills_of_runs_without_a_cache", "runs", "identical"
    sums = {name: stored[name] + more[name] for name in names}
    return more | sums | {"moments": dict(counts), "cases": cases, "seeds": stored["seeds"] + more["seeds"]}


def identical(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> bool:
    """Whether two answers have the same parts, to the bit."""
    same = (np.array_equal(found[name], value, equal_nan=True) for name, value in truth.items() if name in found)
    return found.keys() == truth.keys() and all(same)


# ---- soak --------------------------------------------------------------------------------------------------------------

LINKS: tuple[Callable[[Any], Any], ...] = (jnp.sin, jnp.tanh, jnp.cosh, lambda x: x * jnp.exp(-(x**2)))
"""What different problems are composed of."""


class MallocInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "in_use",
            "free",
            "keepcost",
        )
    ]


def allocated() -> float:
    """The megabytes that are allocated; the rest of a process is what its allocator keeps, and files."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallocInfo
    found = library.mallinfo2()
    return (found.in_use + found.hblkhd) / 2**20


def process() -> dict[str, float]:
    """The megabytes of this process, and those that are allocated, its threads, open files and maps of memory."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "megabytes": int(status["VmRSS"].split()[0]) / 1024,
        "megabytes_allocated": allocated(),
        "threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
        "memory_maps": Path("/proc/self/maps").read_bytes().count(b"\n"),
    }


def different_problem(number: int) -> tr.Problem:
    """A problem whose objective and constraint no other number has."""
    chain = [LINKS[number // 4**place % 4] for place in range(4)]

    def composed(x: Any) -> Any:
        for link in chain:
            x = link(x) + 0.1
        return x

    budget = tr.at_most(lambda x: jnp.sum(composed(x)), 1.0, name="budget")
    return tr.Problem(lambda x: jnp.sum((composed(x) - 1.0) ** 2), budget)


def long_run(options: argparse.Namespace) -> dict[str, Any]:
    """Memory, threads and open files of one long run; noise keeps it from coming to rest."""
    steps, seen = options.steps, list[dict[str, float]]()
    source = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), 1)
    problem = tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=source)
    method = tr.methods.GradientDescentAscent(step_size=0.01, dual_step_size=0.01)

    def look(row: dict[str, Any]) -> None:
        seen.append(process())

    result = tr.solve(problem, jnp.zeros(2), method, steps=steps, record=steps // 100, callback=look)
    assert result.steps == steps, result.message
    return {
        "steps": steps,
        "seconds": round(result.seconds, 1),
        "after_10_percent": seen[10],
        "at_the_end": seen[-1],
        "most_megabytes_after_10_percent": max(now["megabytes"] for now in seen[10:]),
    }


def many_solves(options: argparse.Namespace) -> dict[str, Any]:
    """Memory, threads and open files after many solves of different problems, of which nothing else keeps any."""
    from tightrope.problems.compiling import MAX_EXECUTABLES, _cache

    began, seen, problems, executables = time.monotonic(), list[dict[str, float]](), [], []
    for number in range(options.solves):
        problem = different_problem(number)
        result = tr.solve(problem, X0, "GradientDescentAscent", steps=200, record=100)
        assert result.steps == 200, result.message
        problems.append(weakref.ref(problem))
        executables.append(len(_cache._found))
        del problem, result
        gc.collect()
        seen.append(process())
        if number % 10 == 9:
            print(f"{number + 1} solves: {seen[-1]}, {executables[-1]} executables", flush=True)
        if time.monotonic() - began > 60 * options.minutes:
            break
    warm_up = len(seen) // 4
    after = seen[warm_up:]
    slope = np.polyfit(np.arange(len(after)), [now["megabytes"] for now in after], 1)[0]
    alive = sum(ref() is not None for ref in problems)
    assert alive == 0, f"{alive} of {len(problems)} problems are still alive"
    assert max(executables) <= MAX_EXECUTABLES
    return {
        "solves": len(seen),
        "problems_alive": alive,
        "most_executables": max(executables),
        "warm_up": warm_up,
        "after_warm_up": after[0],
        "at_the_end": after[-1],
        "megabytes_a_solve_after_warm_up": round(float(slope), 3),
        "megabytes_by_10_solves": [round(now["megabytes"]) for now in seen[9::10]],
        "megabytes_allocated_by_10_solves": [round(now["megabytes_allocated"]) for now in seen[9::10]],
    }


def bad_input(options: argparse.Namespace) -> dict[str, Any]:
    """Generated bad input; nothing may be found."""
    from bad_input import run_cases

    with tempfile.TemporaryDirectory() as folder:
        return run_cases(options.cases, options.seed, Path(folder), options.minutes)


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "kills": kills,
    "bad_input": bad_input,
    "long_run": long_run,
    "many_solves": many_solves,
}


def commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1, help="runs to kill at the same time")
    parser.add_argument("--add", action="store_true", help="add the kills to those that are stored, of other seeds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most for a section")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--solves", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10**7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for name in options.sections:
        began = time.monotonic()
        figures = SECTIONS[name](options)
        figures |= {
            "commit": commit(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in ("jax", "numpy", "orbax-checkpoint")},
            "took_seconds": round(time.monotonic() - began),
        }
        print(name, json.dumps(figures, indent=1), flush=True)
        stored = json.loads(options.out.read_text()) if options.out.exists() else {}
        if options.add and name == "kills" and name in stored:
            figures = added(stored[name], figures)
        options.out.write_text(json.dumps(stored | {name: figures}, indent=1) + "\n")
        if figures.get("findings"):
            raise SystemExit(f"{name}: {len(figures['findings'])} findings")


if __name__ == "__main__":
    main()
