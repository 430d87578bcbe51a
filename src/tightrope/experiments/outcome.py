"""The outcome of an experiment: its runs, its checks and the versions it ran with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from .. import __version__
from .base import Check, Experiment, Part


def versions() -> dict[str, str]:
    """Versions of the library, its main dependencies and the machine.

    Example:
        >>> "jax" in versions()
        True
    """
    device = jax.devices()[0]
    return {
        "tightrope": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": f"{device.platform} ({device.device_kind})",
    }


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment.

    Attributes:
        experiment: the experiment.
        quick: whether it was the short version.
        folder: folder with all files.
        parts: the parts by name.
        frames: by part, a tidy frame: one row per entry, seed and record.
        runs: by part and entry, the contents of the JSON file next to its runs.
        checks: the claims with their verdicts.
        versions: versions it ran with.
    """

    experiment: Experiment
    quick: bool
    folder: Path
    parts: dict[str, Part]
    frames: dict[str, pd.DataFrame]
    runs: dict[str, dict[str, dict[str, Any]]]
    checks: list[Check]
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def seconds(self) -> float:
        """Time of all runs, with tuning and compilation."""
        return sum(run["seconds"] for entries in self.runs.values() for run in entries.values())
