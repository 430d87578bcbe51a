"""The first call in a fresh process, against another checkout: README's problem, import apart.

    python benchmarks/cold.py ../other-checkout               # the default method
    python benchmarks/cold.py ../other-checkout --methods     # every method that accepts the problem

Each repeat runs this checkout and the other one in turn, each in a process of its own. The ratio of a repeat compares two calls
that ran one after the other; the table has the medians and the spread of all repeats. `--cached` also times a process that
finds its programs in a persistent cache, which only this checkout has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "benchmarks" / "results" / "cold.json"
STEPS = 2_000

CALL = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
import tightrope as tr

method, folder = sys.argv[1], sys.argv[2]
if folder:
    tr.cache(folder)
rng = np.random.default_rng(0)
group = rng.integers(0, 2, 2000)
features = np.stack([rng.normal(size=2000) + group, rng.normal(size=2000), np.ones(2000)], axis=1)
label = np.sign(features @ [1.0, 1.0, -0.5] + 0.5 * rng.normal(size=2000))


def loss(w, batch):
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def covariance(w, batch):
    return jnp.mean(batch["s"] * (batch["x"] @ w))


began, cpu = time.perf_counter(), time.process_time()
data = tr.Dataset({"x": features, "y": label, "s": group - group.mean()}, batch_size=64)
constraint = tr.between(covariance, -0.05, 0.05, data=data)
problem = tr.Problem(loss, [constraint], domain=tr.domains.L2Ball(10.0), data=data)
result = tr.solve(problem, jnp.zeros(3), method or None, steps=int(sys.argv[3]))
str(result)
took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
print(json.dumps(took | {"objective": result.objective}))
"""

ACCEPTED = """
import json
import jax.numpy as jnp, tightrope as tr
from tightrope.methods.registry import available
from tightrope.methods.selection import refusal

data = tr.Dataset({"x": jnp.ones((8, 3))}, batch_size=4)
mean = lambda w, batch: jnp.mean(batch["x"] @ w)
constraint = tr.between(mean, -1.0, 1.0, data=data)
problem = tr.Problem(mean, [constraint], domain=tr.domains.L2Ball(10.0), data=data)
print(json.dumps([name for name, cls in available().items() if refusal(problem, cls) is None]))
"""


def run(code: str, checkout: Path, *arguments: str) -> Any:
    """What a fresh process prints, as JSON."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(method: str, other: Path, repeats: int) -> dict[str, Any]:
    """The times of both checkouts in turn, and the ratios of their pairs."""
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(run(CALL, other, method, "", str(STEPS)))
        ours.append(run(CALL, HERE, method, "", str(STEPS)))
    row: dict[str, Any] = {"method": method or "the default"}
    for name in ("seconds", "cpu_seconds"):
        pairs = list(zip(*([call[name] for call in calls] for calls in (ours, theirs)), strict=True))
        row[name] = {"ours": [a for a, _ in pairs], "other": [b for _, b in pairs], "ratio": [a / b for a, b in pairs]}
    return row


def measure_cached(repeats: int) -> list[float]:
    """Seconds of a call whose programs an earlier process compiled."""
    with tempfile.TemporaryDirectory() as folder:
        run(CALL, HERE, "", folder, str(STEPS))
        return [run(CALL, HERE, "", folder, str(STEPS))["seconds"] for _ in range(repeats)]


def spread(values: list[float]) -> str:
    """Median, least and greatest value."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"


def commit(checkout: Path) -> str:
    """The commit of a checkout."""
    git = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="another checkout of this repository")
    parser.add_argument("--methods", action="store_true", help="every method that accepts the problem")
    parser.add_argument("--cached", action="store_true", help="also with a persistent cache")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    other, names = options.other.resolve(), ["", *(run(ACCEPTED, HERE) if options.methods else [])]
    print(f"{'method':24s} {'seconds, here':>24s} {'there':>24s} {'ratio':>24s} {'of CPU time':>24s}")
    rows = []
    for name in names:
        row = measure(name, other, options.repeats)
        wall, cpu = row["seconds"], row["cpu_seconds"]
        columns = [wall["ours"], wall["other"], wall["ratio"], cpu["ratio"]]
        print(f"{row['method']:24s} " + " ".join(f"{spread(values):>24s}" for values in columns), flush=True)
        rows.append(row)
    found: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("jax", "jaxlib")}},
        "commit": commit(HERE),
        "other_commit": commit(other),
        "steps": STEPS,
        "rows": rows,
    }
    if options.cached:
        found["cached_seconds"] = measure_cached(options.repeats)
        print(f"{'from a persistent cache':24s} {spread(found['cached_seconds']):>24s}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
