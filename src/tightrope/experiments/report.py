"""The report of an experiment: a single HTML file.

The page loads nothing from elsewhere: the numbers and Plotly, compressed, are part of it. Its layout and scripts are in
`report.html`.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import figures
from .base import Column, Part
from .entries import TUNING_SEED
from .formatting import capitalized, in_lines, in_words, with_deviation
from .outcome import Outcome
from .verdicts import BASES, tally

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

X_AXES = ("samples", "seconds")
PLOTLY_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
"""Plotly's names of Matplotlib's line styles."""
SVG_DASHES = {"-": "none", "--": "6 3", "-.": "6 2 1 2", ":": "2 2"}
"""The same as SVG dash arrays, for the legend."""
DEFAULT_TICKS = {"values": None, "texts": None}
"""Leaves the ticks to Plotly."""
ENDS = ("objective", "violation")
FEASIBLE = 1e-3
"""A mean final violation counts as feasible up to this times the one at the start, or times 1."""
SHORT_AXIS = 3
"""A logarithmic axis over at most this many powers of ten also has ticks at 2 and 5."""


def page(outcome: Outcome, figures: Mapping[str, Figure]) -> str:
    """The report of an experiment; see the example of `tightrope.experiments.running.run_experiment`.

    Args:
        outcome: the outcome to report.
        figures: {caption: figure}, shown after the curves.
    """
    from plotly.offline import get_plotlyjs

    experiment = outcome.experiment
    data = [_curves(outcome, number, part) for number, part in enumerate(outcome.parts)]
    quick = ["Quick version: too short to judge the claims"] * outcome.quick
    took = f"All runs took {outcome.seconds:,.0f} s, with tuning and compilation"
    paper = [capitalized(experiment.paper)] * bool(experiment.paper)
    subtitle = ". ".join([*paper, *quick, took]) + "."
    plotly = gzip.compress(get_plotlyjs().encode(), mtime=0)
    return Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8")).substitute(
        title=_escape(experiment.title),
        subtitle=_escape(subtitle),
        verdict=_verdict(outcome),
        about=_paragraphs(experiment.about),
        claims=_claims(outcome),
        panels="\n".join(map(_part, data)),
        figures=_figures(figures),
        numbers="\n".join(_numbers(outcome, part) for part in outcome.parts),
        settings="\n".join(_settings(part, outcome.runs[name]) for name, part in outcome.parts.items()),
        versions=_table("Software and hardware", ("name", "version"), list(outcome.versions.items())),
        plotly=base64.b85encode(plotly, pad=True).decode().replace("<", ","),  # no tag in a script
        plotly_size=len(plotly),
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
    )


def finals(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """The mean and the standard deviation over seeds of the final values, by entry and column.

    Args:
        frame: the tidy frame of a part.
        columns: names of columns; those that the frame does not have are left out.

    Example:
        >>> import pandas as pd
        >>> finals(pd.DataFrame({"entry": "a", "seed": [0, 0, 1], "objective": [9.0, 1.0, 3.0]}), ["objective"])["a"]
        {'objective': (2.0, 1.4142135623730951)}
    """
    present = [column for column in columns if column in frame]
    last: Any = frame.groupby(["entry", "seed"], sort=False)[present].last().groupby("entry", sort=False)
    means, spreads = last.mean().to_dict("index"), last.std().fillna(0.0).to_dict("index")
    return {entry: {c: (means[entry][c], spreads[entry][c]) for c in present} for entry in means}


def _escape(text: Any) -> str:
    return html.escape(str(text))


def _with_code(text: Any) -> str:
    """A text for the page, with what is between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape(text))


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_with_code(' '.join(p.split()))}</p>" for p in text.split("\n\n") if p.strip())


def _section(name: str, title: str, content: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{content}\n</section>'


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table without its empty columns; narrow screens show its rows as blocks with titled cells."""
    rows = [tuple(map(str, row)) for row in rows]
    kept = [any(column) for column in zip(*rows, strict=True)] or [True] * len(titles)
    titles, *rows = [list(itertools.compress(line, kept)) for line in (titles, *rows)]
    head = "".join(f'<th role="columnheader" scope="col">{_escape(title)}</th>' for title in titles)
    body = "".join(f'<tr role="row">{"".join(map(_td, titles, row))}</tr>' for row in rows)
    return (
        f'<table role="table"><caption>{_escape(caption)}</caption><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _td(title: str, content: str) -> str:
    """A cell; long words may be broken if there is no room, numbers may not."""
    kind = "no" if content == "no" else "words" if len(content) > 20 else ""
    text = re.sub(r"(?<=\w)\((?!\))", "(<wbr>", _with_code(content))
    return f'<td role="cell" class="{kind}" data-title="{_escape(title)}">{text}</td>'


def _verdict(outcome: Outcome) -> str:
    """How many claims hold, or if there are none which curve ends lowest; nothing if the runs were too short to judge."""
    if outcome.quick:
        return ""
    lines = [str(tally(outcome.checks))] if outcome.checks else _leaders(outcome)
    return "\n".join(f'<p class="verdict">{_escape(line)}</p>' for line in lines)


def _leaders(outcome: Outcome) -> list[str]:
    """For each part the curves with the lowest mean objective among the feasible ones, or with the least violation."""
    lines = []
    for name, frame in outcome.frames.items():
        if not {"objective", "violation"} <= set(frame):
            continue
        most = FEASIBLE * max(1.0, float(frame.loc[frame["step"] == 0, "violation"].max()))
        ends = {label: (end["objective"][0], end["violation"][0]) for label, end in finals(frame, ENDS).items()}
        feasible = {label: objective for label, (objective, violation) in ends.items() if violation <= most}
        what = f"lowest objective with a violation of at most {in_words(most)}" if feasible else "least violation"
        numbers = feasible or {label: violation for label, (_, violation) in ends.items()}
        least = in_words(min(numbers.values()))
        best = [label for label, number in numbers.items() if in_words(number) == least]
        lines.append(f"{name}: {what}: {least}, by {' and '.join(best)}")
    return lines


def _claims(outcome: Outcome) -> str:
    checks = outcome.checks
    if not checks:
        return ""
    rows = [
        (c.claim, c.basis, in_lines(c.measured), "yes" if c.holds else "no", f"{c.detail} {c.why}".strip())
        for c in checks
    ]
    titles = ("claim", "basis", "measured", "holds", "details")
    return _section("claims", "Claims", f"<p>{_escape(BASES)}</p>\n{_table(str(tally(checks)), titles, rows)}")


def _curves(outcome: Outcome, number: int, name: str) -> dict[str, Any]:
    """The data of a part for the page's script: its panels, and the labels and styles of the curves."""
    frame, experiment = outcome.frames[name], outcome.experiment
    labels = figures.legend(frame).values()
    columns = [column for column in experiment.columns if column.name in frame]
    return {
        "name": name,
        "panels": [_panel(frame, f"panel-{number}-{i}", name, column) for i, column in enumerate(columns)],
        "styles": [
            {"label": _escape(label), "color": color, "dash": PLOTLY_DASHES[line], "array": SVG_DASHES[line]}
            for label, (color, line) in zip(labels, map(figures.style, range(len(labels))), strict=True)
        ],
        "titles": {against: figures.axis(frame, against)[1] for against in X_AXES},
        "logSamples": experiment.log_samples,
    }


def _panel(frame: pd.DataFrame, identifier: str, part: str, column: Column) -> dict[str, Any]:
    """The data of one panel: the curves of a column, its ticks, and a description for screen readers."""
    fields = {against: figures.axis(frame, against)[0] for against in X_AXES}
    found, floor = figures.bands(frame, column)
    curves = [
        {against: getattr(band, field).tolist() for against, field in fields.items()}
        | {key: getattr(band, key).tolist() for key in ("mean", "low", "high")}
        for band in found.values()
    ]
    ends = finals(frame, [column.name])
    final = "; ".join(f"{label} ends at {in_words(end[column.name][0])}" for label, end in ends.items())
    logarithmic = column.log and floor != 0
    return {
        "id": identifier,
        "label": "<br>".join(map(_escape, figures.wrapped(column.label))),
        "log": logarithmic,
        "ticks": _ticks(floor, curves) if logarithmic else DEFAULT_TICKS,
        "curves": curves,
        "description": f"{part}: {column.label} against {figures.axis(frame, 'samples')[1]} or wall time. {final}.",
    }


def _ticks(floor: float, curves: Sequence[Mapping[str, list[float]]]) -> dict[str, Any]:
    """The ticks of a logarithmic axis: powers of ten, also 2 and 5 on a short axis; the lowest reads 0 if there are zeros."""
    drawn = [value for curve in curves for key in ("low", "high") for value in curve[key]]
    if not drawn:
        return DEFAULT_TICKS
    first, last = int(np.floor(np.log10(min(drawn)))), int(np.ceil(np.log10(max(drawn))))
    if floor < 0 and last - first <= SHORT_AXIS:
        values = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
        return {"values": values, "texts": [f"{value:g}" for value in values]}
    powers = (
        figures.powers_above(floor, max(drawn)) if floor > 0 else range(first, last + 1, max(1, (last - first) // 4))
    )
    zero = [floor] * (floor > 0)
    texts = ["0"] * len(zero) + [f"10<sup>{power}</sup>" for power in powers]
    return {"values": [*zero, *(10.0**power for power in powers)], "texts": texts}


def _part(part: Mapping[str, Any]) -> str:
    name, buttons = _escape(part["name"]), []
    for i, style in enumerate(part["styles"]):
        stroke = f'stroke="{style["color"]}" stroke-width="4" stroke-dasharray="{style["array"]}"'
        swatch = f'<svg width="28" height="8" aria-hidden="true"><line x1="0" y1="4" x2="28" y2="4" {stroke}/></svg>'
        buttons.append(
            f'<button type="button" aria-pressed="true" data-curve="{name} {i}">{swatch}{style["label"]}</button>'
        )
    panels = [
        f'<figure><div class="panel" id="{panel["id"]}" role="img" aria-label="{_escape(panel["description"])}"></div></figure>'
        for panel in part["panels"]
    ]
    return (
        f'<h3>{name}</h3>\n<div class="legend" role="group" aria-label="Curves of {name}: press to hide or show">'
        f'{"".join(buttons)}</div>\n<div class="panels" style="--panels: {min(max(len(panels), 2), 4)}">{"".join(panels)}</div>'
    )


def _figures(figures: Mapping[str, Figure]) -> str:
    if not figures:
        return ""
    shown = []
    for caption, figure in figures.items():
        file = io.BytesIO()
        figure.savefig(file, format="svg")
        text, source = _escape(capitalized(caption)), base64.b64encode(file.getvalue()).decode()
        shown.append(
            f'<figure><figcaption>{text}</figcaption><div class="picture" tabindex="0">'
            f'<img alt="{text}" src="data:image/svg+xml;base64,{source}"></div></figure>'
        )
    return _section("figures", "Figures", "\n".join(shown))


def _numbers(outcome: Outcome, part: str) -> str:
    frame, columns = outcome.frames[part], outcome.experiment.columns
    titles = {c.name: c.label for c in columns} | {figures.axis(frame, x)[0]: figures.axis(frame, x)[1] for x in X_AXES}
    ends = finals(frame, list(titles))
    present = list(next(iter(ends.values())))
    rows = [(entry, *(with_deviation(*end[column]) for column in present)) for entry, end in ends.items()]
    return _table(f"{part}: mean ± standard deviation over seeds", ("curve", *(titles[c] for c in present)), rows)


def _settings(part: Part, runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The choice of the settings of a part, in words and as tables."""
    rows = []
    for label, run in runs.items():
        ends = ", ".join(f"{status} ({count})" for status, count in run.get("statuses", {}).items())
        drawn = in_words(float(np.mean(run["samples"]))) if "samples" in run else ""
        tried = max(len(run["tuning"]), 1)
        cells = label, run["chosen"], tried, f"{run['steps']:,}", drawn, f"{run['seconds']:,.0f}", ends, run["note"]
        rows.append(cells)
    titles = (
        "curve",
        "chosen",
        "settings tried",
        "steps",
        "samples drawn",
        "time (s)",
        "status",
        "source of the settings",
    )
    details = [_tuning_details(label, run) for label, run in runs.items() if run["tuning"]]
    return "\n".join([f"<p>{_escape(_tuning_text(part))}</p>", _table(part.name, titles, rows), *details])


def _tuning_text(part: Part) -> str:
    sizes = {entry.label: len(entry.grid) for entry in part.entries}
    budget = f"{part.steps:,} steps" if part.samples is None else f"{part.samples:,} samples"
    text = f"{part.name}: every run has a budget of {budget}; {part.seeds} final seed{'s' * (part.seeds > 1)}"
    if part.measure is None:
        text += ", one at a time" if part.lanes == 1 else ", in one sweep: wall time is that of all of them together"
    if max(sizes.values()) == 1:
        return f"{text}. Nothing was tuned."
    same = len(set(sizes.values())) == 1
    tried = f"{sizes[part.entries[0].label]} for every method" if same else f"not equally many: {in_words(sizes)}"
    return (
        f"{text}. Settings tried: {tried}, each in one run with the same budget and seed {TUNING_SEED}, which is not one of "
        f"the final seeds. Chosen: {part.score_text}."
    )


def _tuning_details(label: str, run: Mapping[str, Any]) -> str:
    titles = ("settings", "score", "status", "steps", "samples drawn")
    rows = [
        (t["settings"], in_words(t["score"]), t["status"], f"{t['steps']:,}", f"{t['samples']:,}")
        for t in run["tuning"]
    ]
    table = _table(f"{label}: the smallest score was chosen", titles, rows)
    return f"<details><summary>All {len(rows)} settings tried for {_escape(label)}</summary>{table}</details>"
