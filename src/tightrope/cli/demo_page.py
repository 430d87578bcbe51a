"""The page of the demo: people, a decision boundary, and a slider over the bound, in one HTML file that loads nothing."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

import numpy as np

from .demo_figure import DRAWN
from .demo_problem import Demo


def page(demo: Demo) -> str:
    """The page as HTML.

    Args:
        demo: the runs.
    """
    crowd = demo.test_half[:DRAWN]
    people = np.column_stack([crowd.features.round(3), crowd.in_b, crowd.accepted]).tolist()
    points = [
        {
            "bound": float(bound),
            "weights": np.asarray(result.x, float).round(5).tolist(),
            "accuracy": outcome.accuracy,
            "p_rule": outcome.p_rule,
            "selected": outcome.selected,
            "loss": result.objective,
            "multiplier": abs(result.multipliers[demo.curve.constraint]),
            "verdict": result.certificate.verdict,
        }
        for bound, result, outcome in zip(demo.curve.bounds, demo.curve.results, demo.along, strict=True)
    ]
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(data=json.dumps({"people": people, "points": points}).replace("<", "\\u003c"))
