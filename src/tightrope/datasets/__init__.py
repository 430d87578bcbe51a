"""Public data sets by name: fetched or read from a folder, checked, and prepared for learning.

Where the environment variable `TIGHTROPE_DATA` names a folder, files are read from it and nothing is fetched; otherwise Pooch
downloads them once into its cache. Either way the sha256 of the uncompressed content must be the published one, so that a name
always means the same numbers. `docs/datasets.md` says what is in each set and what was done to it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from .files import content
from .prepare import Arrays, split
from .sources import SOURCES

__all__ = ["Data", "load", "names", "split"]


@dataclass(frozen=True, eq=False)
class Data:
    """A prepared data set; its arrays are shared between calls and cannot be written to.

    Attributes:
        name: as given to `load`.
        train: `x`, one row an example; `y`, ±1, or 0 to 9 for MNIST; `group`, 1 or 0, where the set has two groups.
        test: the same for the rows held out: the publisher's test file, else a third of the rows, drawn with a fixed seed.
        features: the names of the columns of `x`.
        group_name: what `group` = 1 means; None without groups.
        note: where the numbers come from and what was done to them.
    """

    name: str
    train: Arrays
    test: Arrays
    features: tuple[str, ...]
    group_name: str | None
    note: str

    def all(self) -> Arrays:
        """All rows, those of `train` first."""
        return {key: np.concatenate([rows, self.test[key]]) for key, rows in self.train.items()}

    def __repr__(self) -> str:
        rows = f"{len(self.train['y'])} + {len(self.test['y'])} rows"
        return f"Data({self.name!r}, {rows}, {len(self.features)} features, group {self.group_name!r})"


def names() -> tuple[str, ...]:
    """The data sets that `load` knows.

    Example:
        >>> import tightrope as tr
        >>> tr.datasets.names()
        ('a9a', 'adult', 'bank-additional', 'bank-full', 'compas', 'loan', 'mnist', 'mushrooms', 'phishing')
    """
    return tuple(SOURCES)


def load(name: str) -> Data:
    """A data set, ready for `tightrope.Dataset(data.train, batch_size)`.

    Args:
        name: one of `names()`.

    Raises:
        FileNotFoundError: `TIGHTROPE_DATA` is set and the folder lacks a file, or the set has no public address.
        ValueError: a file's content is not the published one.

    Example:
        >>> import tightrope as tr
        >>> data = tr.datasets.load("a9a")  # doctest: +SKIP
        >>> data.train["x"].shape, data.group_name  # doctest: +SKIP
        ((32561, 123), 'male')
        >>> tr.datasets.load("iris")
        Traceback (most recent call last):
        ...
        ValueError: load: name must be one of a9a, adult, ..., got 'iris'
    """
    if name not in SOURCES:
        raise ValueError(f"load: name must be one of {', '.join(SOURCES)}, got {name!r}")
    loaded = _loaded(name, os.environ.get("TIGHTROPE_DATA") or None)
    return replace(loaded, train=dict(loaded.train), test=dict(loaded.test))


@lru_cache
def _loaded(name: str, folder: str | None) -> Data:
    source = SOURCES[name]
    prepared = source.prepare(*(content(name, file, folder) for file in source.files))
    for array in [*prepared.train.values(), *prepared.test.values()]:
        array.flags.writeable = False
    return Data(name, prepared.train, prepared.test, prepared.features, prepared.group, source.note)
