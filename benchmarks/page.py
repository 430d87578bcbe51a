"""Writes docs/performance.md and a table in README.md from the results of the benchmarks; a test compares them.

Run: python benchmarks/page.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, README = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- benchmarks/page.py writes this table -->\n", "<!-- end of the table -->"

HEAD = """# Performance

`benchmarks/page.py` writes this page from the results in `benchmarks/results`, and a test compares the two. Every ratio is of
two programs that ran in turn; numbers in parentheses are the least and the greatest of the repeats. No test asserts a time.
"""


def load(name: str) -> Any:
    """The results of a benchmark; None if it has none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def spread(values: Any, digits: int = 1) -> str:
    """The median of values, and their range; or of a dict that has them."""
    if isinstance(values, dict):
        middle, least, most = values["median"], values["least"], values["largest"]
    else:
        middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def peers() -> str:
    """A step against other libraries."""
    found = load("peers")
    steps, machine = found["steps"], found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    times, ratios = steps["microseconds"], steps["ratios to GradientDescentAscent"]
    rows = [[name, spread(times[name]), spread(ratios[name])] for name in times]
    return f"""## A step, against other libraries

Descent-ascent with the same step sizes on the same batches: logistic loss in 100 dimensions with one constraint, batches of 64,
on one core. All but humancompatible-train end at the same point. The machine was busy: ratios are worth more than times.
{versions}; Python {machine["python"]}.

{table(["program", "µs a step", "over GradientDescentAscent"], rows)}

The default takes more time for a step and needs fewer of them.

{_good_answers(found["answers"])}"""


def _good_answers(found: dict[str, Any]) -> str:
    """The table of the time to a good answer."""
    rows, beside = [], []
    for name, row in found["rows"].items():
        ratios, call = row.get("ratios", {}).values(), row.get("milliseconds of the call")
        beside += [call["median"] - row["milliseconds"]["median"]] if call else []
        rows.append(
            [
                name,
                ", ".join(map(str, row["rates"])) if "rates" in row else "none",
                f"{row['steps']:.0f}",
                spread(row["milliseconds"]),
                spread(call) if call else "",
                ", ".join(f"{ratio['median']:.1f}" for ratio in ratios),
            ]
        )
    head = [
        "program",
        "rates",
        "steps",
        "ms to a good answer",
        "ms of the call",
        "over the default, GradientDescentAscent",
    ]
    sizes = "×".join(str(len(values)) for values in found["grid"].values())
    more = " or ".join(f"{milliseconds:.0f}" for milliseconds in sorted(beside))
    return f"""Until the violation is at most 1e-3 and the objective within 1% of the optimum, on all examples.
Each program with rates got the best of {sizes} of them for this; trying them is not counted. 'Call' is the whole of
`tr.solve`, with checks, records and the certificate, which the others do not have. The last column has the time over that of
the loop and of the call of our default, and of our GradientDescentAscent.

{table(head, rows)}

A call of `tr.solve` costs {more} ms beside its loop: on a problem this small that is most of the time.
"""


def overhead() -> str:
    """A step against a hand-written loop."""
    found = load("overhead")
    rows = [
        [
            f"{row['features']:,}",
            f"{row['steps']:,}",
            str(row["records"]),
            f"{row['microseconds per step']['tightrope']:.1f}",
            f"{row['microseconds per step']['hand-written']:.1f}",
            f"{row['ratio to hand-written']:.2f}",
        ]
        for row in found["overhead"]
    ]
    head = ["parameters", "steps", "records", "µs a step", "hand-written", "ratio"]
    differ = max(row["largest difference of last iterates"] for row in found["overhead"])
    agree = f"differ by {differ:.0e} at most" if differ else "are equal to the bit"
    return f"""## A step, against a hand-written loop

TruncatedMomentum against the same method written as one loop of JAX, with the same random numbers: the last iterates
{agree}. {found["machine"].get("clock", "Fastest runs on one core")}, JAX {found["machine"]["jax"]}.

{table(head, rows)}
"""


def answers() -> str:
    """Time to an answer against SLSQP."""
    found = load("answer")
    rows = [
        [
            f"{row['examples']:,}",
            str(row["cores"]),
            f"{row['median milliseconds']['loop']:.0f}",
            f"{row['median milliseconds']['call']:.0f}",
            f"{row['median milliseconds']['SLSQP']:.0f}",
            f"{row['median milliseconds']['SLSQP, plain']:.0f}",
            f"{row['median ratios']['SLSQP / call']:.2f}, {row['median ratios']['SLSQP, plain / call']:.2f}",
        ]
        for row in found["answer"]
    ]
    head = ["examples", "cores", "loop", "call", "SLSQP, float32", "SLSQP, plain", "SLSQP over call"]
    return f"""## Time to an answer, against SLSQP

Milliseconds until the objective is within 1e-4 of the optimum and the violation below 1e-4: logistic loss in 100 dimensions
with one constraint; the default, without compilation. 'Call' is the whole of `solve`, with records and certificate. SLSQP gets
compiled or vectorized functions, whichever is faster, and is stopped as soon as it is as accurate; 'plain' is as most people
call it. A ratio below 1 says that SLSQP was faster. On one core times are CPU times.
Medians of {len(found["answer"][0]["rounds"])} rounds, JAX {found["machine"]["jax"]}.

{table(head, rows)}

SLSQP needs few passes over such data, so it wins on one core and small data. It cannot take data in batches.
"""


def growth() -> str:
    """How the time of a step grows."""
    found = load("growth")
    if found is None:
        return ""
    names = ("examples", "parameters", "rows", "batch")
    rows = [
        [
            row["method"],
            *(f"{row[name]:,}" for name in names),
            f"{statistics.median(row['microseconds']):,.1f}",
            spread(row["ratios"], 2),
            f"{row['state']:.1f}",
        ]
        for row in found["growth"]
    ]
    head = ["method", *names, "µs a step", "over the first", "copies of the parameters"]
    long = load("reliability")["long_run"]
    early, late = (long[when]["megabytes"] for when in ("after_10_percent", "at_the_end"))
    half_spaces = [
        ["yes" if row["common point"] else "no", spread([time / 1000 for time in row["microseconds"]], 2)]
        for row in found["half-spaces"]
    ]
    first, *larger = (statistics.median(row["microseconds"]) for row in found["reading"])
    least, *sizes = (row["examples"] for row in found["reading"])
    reads = " and ".join(f"{time / first:.1f}" for time in larger)
    return f"""## How a step grows

Logistic loss; each row changes one number of the first row of its method. The last column is the size of all that a
run carries from step to step; AdaptivePenalty carries the last batch, so a batch of 64 is 64 copies. CPU time on one core,
jaxlib {found["machine"]["jaxlib"]}.

{table(head, rows)}

Nothing in a step is of the size of the data. But its batch lies anywhere in memory, and more data are farther from the
processor: a loop that only reads batches takes {first:.1f} µs for each in {least:,} examples, and {reads} times that in
{" and ".join(f"{size:,}" for size in sizes)}.

With the number of steps memory does not grow: a run of {long["steps"]:,} had {early:.0f} MB after a tenth of them, and
{late:.0f} MB at the end.

Many inequality rows: the first 300 steps of the default with 150 half-spaces in ten dimensions.

{table(["a point lies in all of them", "ms a step"], half_spaces)}
"""


def sweeps() -> str:
    """A sweep against single calls."""
    found = load("sweep")
    if found is None:
        return ""
    rows = [[row["method"], str(row["lanes"]), spread(row["cpu"]), spread(row["wall"])] for row in found["rows"]]
    return f"""## Sweeps

`sweep` over many seeds as lanes of one program, over one warm call of `solve`: README's problem, {found["steps"]:,} steps,
whole calls.
{found["machine"]["cores"]} cores, jaxlib {found["machine"]["jaxlib"]}.

{table(["method", "seeds", "CPU time, over one call", "clock, over one call"], rows)}
"""


def streams() -> str:
    """Streams."""
    found = load("stream")
    rows = [
        [
            str(row["batch_size"]),
            f"{row['ratio']:.2f}",
            f"{row['share_waited']:.1%}",
            f"{row['share_waited_for_a_slow_iterator']:.0%}",
        ]
        for row in found["rows"]
    ]
    head = ["batch", "step, over one in memory", "waited", "waited for a slow iterator"]
    return f"""## Streams

A run on a `Stream`, and the share of its time that it waited for batches. On two cores the thread that reads takes one of them,
which is where the ratio comes from.

{table(head, rows)}
"""


def networks() -> str:
    """A step of a network."""
    rows = [
        [
            row["case"],
            f"{row['ours']:.0f}",
            f"{row['adam']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['copies of the parameters']:.1f}",
        ]
        for row in load("networks")["rows"]
        if row["section"] == "steps"
    ]
    head = ["case", "µs a step", "Adam alone", "ratio", "copies of the parameters"]
    return f"""## Networks

AdaptiveLagrangian against a hand-written Adam loop on the objective alone, on an H200.

{table(head, rows)}

[Networks](adaptive-lagrangian.md) has its answers.
"""


def first_calls() -> str:
    """The first call in a fresh process."""
    found = load("cold")
    if found is None:
        return ""
    rows = [
        [
            row["method"],
            spread(row["seconds"]["ours"], 2),
            spread(row["seconds"]["other"], 2),
            spread(row["seconds"]["ratio"], 2),
            spread(row["cpu_seconds"]["ratio"], 2),
        ]
        for row in found["rows"]
    ]
    head = ["method", "seconds", f"at {found['other_commit']}", "ratio", "of CPU time"]
    cached = found.get("cached_seconds")
    more = f"\nFrom a persistent cache (`tr.cache`): {spread(cached, 2)} seconds.\n" if cached else ""
    return f"""## The first call

README's problem in a fresh process, without the import: tracing, compiling and solving, against an early version of the
library.
{found["machine"]["cores"]} cores, jaxlib {found["versions"]["jaxlib"]}.

{table(head, rows)}
{more}"""


def page() -> str:
    """The whole page."""
    parts = (HEAD, first_calls(), peers(), overhead(), answers(), sweeps(), growth(), networks(), streams())
    return "\n".join(part for part in parts if part)


def compared() -> str:
    """The table of README: what each library can do, and measured numbers."""
    micro = {name: f"{found['median']:,.0f} µs" for name, found in load("peers")["steps"]["microseconds"].items()}
    large = next(row for row in load("answer")["answer"] if row["examples"] == 200_000 and row["cores"] == 1)
    call, plain, fast = (large["median milliseconds"][name] / 1000 for name in ("call", "SLSQP, plain", "SLSQP"))
    head = ["", "Tightrope", "Cooper 1.0", "humancompatible-train 0.4", "Fairlearn 0.15", "SciPy SLSQP"]
    ours = f"{micro['tr.solve, GradientDescentAscent']} (the default: {micro['tr.solve, default']})"
    rows = [
        [
            "constraints",
            "any expectations",
            "any expectations",
            "any expectations",
            "rates and losses of groups",
            "any functions",
        ],
        ["from batches of samples", "yes", "yes", "yes", "no", "no"],
        ["models", "JAX, Equinox, Flax, PyTorch", "PyTorch", "PyTorch", "any with sample weights", "NumPy functions"],
        ["to tune", "nothing", "rates of multipliers", "rates, penalties", "nothing", "nothing"],
        ["simple sets as domains", "ten", "no", "no", "no", "boxes"],
        ["certificate with intervals", "yes", "no", "no", "no", "no"],
        ["guarantee on unseen data", "yes", "no", "no", "no", "no"],
        ["one step of descent-ascent", ours, micro["Cooper"], micro["humancompatible-train"], "–", "–"],
        [
            "200,000 examples to 1e-4, one core",
            f"{call:.2f} s",
            "–",
            "–",
            "–",
            f"{plain:.2f} s as usually called, {fast:.2f} s with compiled functions",
        ],
    ]
    return table(head, rows) + "\n"


def with_table(readme: str) -> str:
    """README with the table."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + compared() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)} is written")
