"""What came out, for people: one HTML file with everything inside, and a summary of all claims in Markdown.

The page loads nothing: Plotly and the numbers are in it. Its layout and the code that draws are in `report.html`.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from . import plots
from .base import Experiment, Part
from .running import TUNING_SEED, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

X = ("samples", "seconds")
"""The horizontal axes."""
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
"""Plotly's names of line styles."""
CHOSEN_BY_PLOTLY = {"values": None, "texts": None}
"""Ticks."""
SHORT = 3
"""Powers of ten over which a logarithmic axis has ticks between them."""
DASH_ARRAYS = {"-": "none", "--": "6 3", "-.": "6 2 1 2", ":": "2 2"}


def page(outcome: Outcome, figures: Mapping[str, Figure]) -> str:
    """The report of an experiment: its example is that of `tightrope.experiments.running.run_experiment`.

    Args:
        outcome: what was run.
        figures: {caption: figure}, shown after the curves.
    """
    from plotly.offline import get_plotlyjs

    experiment = outcome.experiment
    data = [_curves(outcome, number, part) for number, part in enumerate(outcome.parts)]
    kind = ["Quick version: too short to judge the claims by"] * outcome.quick
    took = f"All runs took {outcome.seconds:,.0f} s, with tuning and compilation"
    subtitle = ". ".join([_capital(experiment.paper), *kind, took]) + "."
    return Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8")).substitute(
        title=_escape(experiment.title),
        subtitle=_escape(subtitle),
        about=_paragraphs(experiment.about),
        claims=_claims(outcome),
        panels="\n".join(map(_part, data)),
        figures=_figures(figures),
        numbers="\n".join(_numbers(outcome, part) for part in outcome.parts),
        settings="\n".join(_settings(part, outcome.runs[name]) for name, part in outcome.parts.items()),
        versions=_table("What it was run with", ("what", "version"), list(outcome.versions.items())),
        plotly=get_plotlyjs(),
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
    )


def finals(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """For each entry and column the mean and the standard deviation over seeds of the last values.

    Args:
        frame: the tidy frame of a part.
        columns: which; those that the frame does not have are left out.

    Example:
        >>> import pandas as pd
        >>> finals(pd.DataFrame({"entry": "a", "seed": [0, 0, 1], "objective": [9.0, 1.0, 3.0]}), ["objective"])["a"]
        {'objective': (2.0, 1.4142135623730951)}
    """
    present = [column for column in columns if column in frame]
    last: Any = frame.groupby(["entry", "seed"], sort=False)[present].last().groupby("entry", sort=False)
    means, spreads = last.mean().to_dict("index"), last.std().fillna(0.0).to_dict("index")
    return {entry: {c: (means[entry][c], spreads[entry][c]) for c in present} for entry in means}


def number(mean: float, spread: float = 0.0) -> str:
    """A mean and its standard deviation as text.

    Example:
        >>> number(0.12345678, 0.001), number(5000.0)
        ('0.1235 ± 0.001', '5,000')
    """
    return f"{in_words(mean)} ± {spread:.2g}" if spread else in_words(mean)


def in_words(measured: Any) -> str:
    """What was measured, in one line: numbers short, names before theirs.

    Example:
        >>> in_words({"SSG": 0.123456, "IPP": [1, 2.0]})
        'SSG: 0.1235; IPP: 1, 2'
    """
    if isinstance(measured, Mapping):
        return "; ".join(f"{name}: {in_words(value)}" for name, value in measured.items())
    if isinstance(measured, list | tuple | np.ndarray):
        return ", ".join(map(in_words, measured))
    if isinstance(measured, bool | np.bool_) or not isinstance(measured, int | float | np.number):
        return str(measured)
    return f"{measured:,.0f}" if 1e3 <= abs(measured) < 1e9 else f"{measured:.4g}"


def in_lines(measured: Any) -> str:
    """What was measured, a line for each name.

    Example:
        >>> print(in_lines({"a9a": {"SSG": 0.123456, "IPP": 1}, "bank": {"loss": {"SSG": 2, "IPP": 3}, "gap": 4}}))
        a9a: SSG: 0.1235; IPP: 1
        bank:
        loss: SSG: 2; IPP: 3
        gap: 4
    """
    if not isinstance(measured, Mapping):
        return in_words(measured)
    lines = []
    for name, value in measured.items():
        nested = isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values())
        lines.append(f"{name}:\n{in_lines(value)}" if nested else f"{name}: {in_words(value)}")
    return "\n".join(lines)


def summary(reports: Mapping[str, tuple[Experiment, Mapping[str, Any]]]) -> str:
    """All claims with their numbers as Markdown, from what the full runs wrote.

    Args:
        reports: {name: (experiment, contents of its checks.json)}.

    Example:
        >>> from tightrope.experiments.base import committed
        >>> summary(committed()).splitlines()[0]
        '# What the papers claim, and what was measured'
    """
    counts = [(len(checks), sum(c["holds"] for c in checks)) for checks in (r["checks"] for _, r in reports.values())]
    text = [
        "# What the papers claim, and what was measured",
        f"{sum(held for _, held in counts)} of {sum(claims for claims, _ in counts)} claims hold. Written by `make reproduce` "
        "from the `checks.json` of each experiment's folder in `src/tightrope/experiments/`, which also say how each number "
        "was measured; not edited by hand. `tightrope reproduce NAME` runs one of them and writes a report with its curves.",
        "```python\nfrom tightrope.experiments.base import available\n\n"
        'for name, experiment in available().items():\n    print(f"{name}: {experiment.title} ({experiment.paper})")\n```',
    ]
    for (name, (experiment, report)), (claims, held) in zip(reports.items(), counts, strict=True):
        versions = ", ".join(f"{what} {version}" for what, version in report["versions"].items())
        checks = report["checks"]
        rows = [
            f"| {_cell(c['claim'])} | {_cell(in_words(c['measured']))} | {'yes' if c['holds'] else '**no**'} |"
            for c in checks
        ]
        text += [
            f"## {name}: {experiment.title}",
            f"{_capital(experiment.paper)}. {held} of {claims} claims hold. The runs took "
            f"{report['seconds']:,} s ({versions}).",
            "\n".join(["| claim | measured | holds |", "|---|---|---|", *rows]),
        ]
        missed = [f"- {c['claim']}: {c['detail']}" for c in checks if not c["holds"]]
        text += ["Where a claim does not hold:", "\n".join(missed)] if missed else []
    return "\n\n".join(text) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _escape(text: Any) -> str:
    return html.escape(str(text))


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_escape(' '.join(p.split()))}</p>" for p in text.split("\n\n") if p.strip())


def _section(name: str, title: str, content: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{content}\n</section>'


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table that a narrow screen shows as blocks, each cell with its title; the roles keep it a table there."""
    head = "".join(f'<th role="columnheader" scope="col">{_escape(title)}</th>' for title in titles)
    body = "".join(f'<tr role="row">{"".join(map(_td, titles, row))}</tr>' for row in rows)
    return (
        f'<table role="table"><caption>{_escape(caption)}</caption><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _td(title: str, content: Any) -> str:
    """A cell; words may be broken where there is no room for them, numbers not."""
    text = str(content)
    kind = "no" if text == "no" else "words" if len(text) > 20 else ""
    content = re.sub(r"(?<=\w)\(", "(<wbr>", _escape(text))
    return f'<td role="cell" class="{kind}" data-title="{_escape(title)}">{content}</td>'


def _claims(outcome: Outcome) -> str:
    checks = outcome.checks
    if not checks:
        return ""
    rows = [(c.claim, in_lines(c.measured), "yes" if c.holds else "no", c.detail) for c in checks]
    caption = f"{sum(c.holds for c in checks)} of {len(checks)} hold"
    return _section(
        "claims", "Claims", _table(caption, ("claim", "measured", "holds", "how, and what was tried"), rows)
    )


def _curves(outcome: Outcome, number: int, name: str) -> dict[str, Any]:
    """What the page draws of a part: its panels, and the styles and names of their curves."""
    frame, experiment = outcome.frames[name], outcome.experiment
    labels = plots.legend(frame)
    styles = [plots.style(i) for i in range(len(labels))]
    field = {against: plots.axis(frame, against) for against in X}
    panels = []
    for column in (c for c in experiment.columns if c.name in frame):
        found, floor = plots.bands(frame, column)
        curves = [
            {against: getattr(band, place).tolist() for against, (place, _) in field.items()}
            | {key: getattr(band, key).tolist() for key in ("mean", "low", "high")}
            for band in found.values()
        ]
        ends = finals(frame, [column.name])
        said = "; ".join(f"{label} ends at {in_words(end[column.name][0])}" for label, end in ends.items())
        panels.append(
            {
                "id": f"panel-{number}-{len(panels)}",
                "label": "<br>".join(map(_escape, plots.wrapped(column.label))),
                "log": column.log and floor != 0,
                "ticks": _ticks(floor, curves) if column.log and floor != 0 else CHOSEN_BY_PLOTLY,
                "curves": curves,
                "description": f"{name}: {column.label} against {field['samples'][1]} or wall time. {said}.",
            }
        )
    return {
        "name": name,
        "panels": panels,
        "styles": [
            {"label": _escape(label), "color": color, "dash": DASHES[line], "array": DASH_ARRAYS[line]}
            for label, (color, line) in zip(labels.values(), styles, strict=True)
        ],
        "titles": {against: title for against, (_, title) in field.items()},
        "logSamples": experiment.log_samples,
    }


def _ticks(floor: float, curves: Sequence[Mapping[str, list[float]]]) -> dict[str, Any]:
    """The ticks of a logarithmic axis: powers of ten, the lowest reads 0 if there are zeros; 1, 2, 5 on a short one."""
    drawn = [value for curve in curves for key in ("low", "high") for value in curve[key]]
    if not drawn:
        return CHOSEN_BY_PLOTLY
    first, last = int(np.floor(np.log10(min(drawn)))), int(np.ceil(np.log10(max(drawn))))
    if floor < 0 and last - first <= SHORT:
        values = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
        return {"values": values, "texts": [f"{value:g}" for value in values]}
    powers = plots.powers_above(floor, max(drawn)) if floor > 0 else range(first, last + 1, max(1, (last - first) // 4))
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
        text, source = _escape(_capital(caption)), base64.b64encode(file.getvalue()).decode()
        shown.append(
            f'<figure><figcaption>{text}</figcaption><div class="picture" tabindex="0">'
            f'<img alt="{text}" src="data:image/svg+xml;base64,{source}"></div></figure>'
        )
    return _section("figures", "Figures", "\n".join(shown))


def _numbers(outcome: Outcome, part: str) -> str:
    frame, columns = outcome.frames[part], outcome.experiment.columns
    titles = {c.name: c.label for c in columns} | {plots.axis(frame, x)[0]: plots.axis(frame, x)[1] for x in X}
    ends = finals(frame, list(titles))
    present = list(next(iter(ends.values())))
    rows = [(entry, *(number(*end[column]) for column in present)) for entry, end in ends.items()]
    return _table(f"{part}: mean ± standard deviation over seeds", ("curve", *(titles[c] for c in present)), rows)


def _settings(part: Part, runs: Mapping[str, Mapping[str, Any]]) -> str:
    """How the settings of a part were chosen, in words, and a table of them."""
    rows = []
    for label, run in runs.items():
        ends = ", ".join(f"{status} ({count})" for status, count in run.get("statuses", {}).items())
        drawn = in_words(float(np.mean(run["rows"]))) if "rows" in run else ""
        tried = max(len(run["tuning"]), 1)
        cells = label, run["chosen"], tried, f"{run['steps']:,}", drawn, f"{run['seconds']:,.0f}", ends, run["note"]
        rows.append(cells)
    titles = (
        "curve",
        "chosen",
        "settings tried",
        "steps",
        "rows drawn",
        "time (s)",
        "ended",
        "where settings come from",
    )
    details = [_tuning(label, run) for label, run in runs.items() if run["tuning"]]
    return "\n".join([f"<p>{_escape(_how(part))}</p>", _table(part.name, titles, rows), *details])


def _how(part: Part) -> str:
    sizes = {entry.label: len(entry.grid) for entry in part.entries}
    budget = f"{part.steps:,} steps" if part.samples is None else f"{part.samples:,} rows drawn"
    said = f"{part.name}: every run has a budget of {budget}; {part.seeds} final seed{'s' * (part.seeds > 1)}"
    if part.measure is None:
        said += (
            ", one after the other" if part.lanes == 1 else ", side by side: wall time is that of all of them together"
        )
    if max(sizes.values()) == 1:
        return f"{said}. Nothing was tuned."
    same = len(set(sizes.values())) == 1
    tried = f"{sizes[part.entries[0].label]} for every method" if same else f"not as many for each: {in_words(sizes)}"
    return (
        f"{said}. Settings tried: {tried}, each in one run with the same budget and seed {TUNING_SEED}, which is none of the "
        f"final ones. Chosen: {part.score_text}."
    )


def _tuning(label: str, run: Mapping[str, Any]) -> str:
    titles = ("settings", "score", "ended", "steps", "rows drawn")
    rows = [
        (t["settings"], in_words(t["score"]), t["status"], f"{t['steps']:,}", f"{t['rows']:,}") for t in run["tuning"]
    ]
    table = _table(f"{label}: the smallest score was chosen", titles, rows)
    return f"<details><summary>All {len(rows)} settings tried for {_escape(label)}</summary>{table}</details>"
