"""What a run survives: kills at random moments, full and read-only disks, bad input, and long use of one process.

    python benchmarks/reliability.py kills disk bad_input soak

Each section prints its figures and writes them to `results/reliability.json`, where the other sections stay as they were. A
section ends with an error if anything was lost.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the loader of compiled programs is talkative

import argparse
import json
import multiprocessing
import platform
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
STEPS, RECORD = 4_000, 20


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
        (folder / "begun").touch()
        time.sleep(0.005)

    checkpoint = tr.Checkpoint(folder / "run", every=0.0 if slow else 0.2)
    result = tr.solve(make(), X0, method, steps=STEPS, record=RECORD, callback=pause, checkpoint=checkpoint)
    history = {name: column for name, column in result.history.items() if name != "seconds"}
    found = {"x": result.x, **{f"multiplier {k}": v for k, v in result.multipliers.items()}, **history}
    np.savez(folder / "part.npz", **{name: np.asarray(value) for name, value in found.items()})
    os.replace(folder / "part.npz", folder / "answer.npz")


def spawn(case: str, folder: Path, programs: Path, slow: bool = False) -> Any:
    child = multiprocessing.get_context("forkserver").Process(target=run_child, args=(case, folder, programs, slow))
    child.start()
    return child


def answer(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "answer.npz", allow_pickle=False) as found:
        return dict(found)


def uninterrupted(case: str, folder: Path, programs: Path) -> tuple[dict[str, np.ndarray], float]:
    """The answer of a run that nobody kills, and its seconds."""
    folder.mkdir()
    began = time.monotonic()
    child = spawn(case, folder, programs)
    child.join()
    assert child.exitcode == 0
    return answer(folder), time.monotonic() - began


def trial(case: str, folder: Path, programs: Path, slow: bool, seconds: float, rng: random.Random) -> Counter[str]:
    """Kill a run at random moments of an uninterrupted one, and resume it, until it ends before it is killed."""
    folder.mkdir()
    hits: Counter[str] = Counter()
    while True:
        (folder / "begun").unlink(missing_ok=True)
        child = spawn(case, folder, programs, slow)
        child.join(rng.uniform(0.0, seconds))
        if child.exitcode is not None:
            assert child.exitcode == 0, f"a resumed run failed in {folder}"
            return hits
        child.kill()
        child.join()
        saving = any((folder / "run").glob("*orbax-checkpoint-tmp*"))
        hits["saving" if saving else "running" if (folder / "begun").exists() else "starting"] += 1


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Every run that was killed and resumed must equal the uninterrupted one to the bit."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tightrope", "orbax.checkpoint", "__main__"])
    rng, hits, cold_kills = random.Random(options.seed), Counter(), 0
    found: dict[str, dict[str, Any]] = {name: {"runs": 0, "identical": 0, "kills": 0} for name in CASES}
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        warm, truth, seconds = base / "programs", {}, {}
        for place, case in enumerate(CASES):
            _, seconds[case, True] = uninterrupted(case, base / f"cold {place}", warm)
            truth[case], seconds[case, False] = uninterrupted(case, base / f"warm {place}", warm)
        number = 0
        while hits.total() < options.kills:
            case, slow, cold = list(CASES)[number % len(CASES)], number % 2 == 1, number % 15 == 14
            programs = base / f"programs {number}" if cold else warm
            killed = trial(case, base / str(number), programs, slow, 1.05 * seconds[case, cold], rng)
            now, row = answer(base / str(number)), found[case]
            same = now.keys() == truth[case].keys() and all(
                np.array_equal(now[k], v, equal_nan=True) for k, v in truth[case].items()
            )
            row["runs"], row["identical"], row["kills"] = (
                row["runs"] + 1,
                row["identical"] + same,
                row["kills"] + killed.total(),
            )
            hits, cold_kills, number = hits + killed, cold_kills + cold * killed.total(), number + 1
            print(
                f"{hits.total():4d} kills, {number} runs, last: {case}, {dict(killed)}, identical: {same}", flush=True
            )
    runs, identical = (sum(row[name] for row in found.values()) for name in ("runs", "identical"))
    assert identical == runs, found
    return {
        "kills": hits.total(),
        "moments": dict(hits),
        "kills_of_runs_without_a_cache": cold_kills,
        "runs": runs,
        "identical": identical,
        "cases": found,
        "seconds_uninterrupted": {case: round(seconds[case, False], 1) for case in CASES},
    }


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"kills": kills}


def commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=list(SECTIONS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=300)
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
        options.out.write_text(json.dumps(stored | {name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
