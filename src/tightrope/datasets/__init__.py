"""Public data sets by name: downloaded or read from a folder, verified, and preprocessed.

If the environment variable `TIGHTROPE_DATA` names a folder, files are read from it and nothing is downloaded; otherwise Pooch
downloads them once into its cache. In both cases the sha256 of the uncompressed content is verified, so that a name always
means the same numbers. `docs/datasets.md` describes each data set and its preprocessing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..arguments import did_you_mean
from .files import content
from .prepare import Arrays, split
from .sources import SOURCES

__all__ = ["Data", "load", "names", "split"]


@dataclass(frozen=True, eq=False)
class Data:
    """A preprocessed data set; its arrays are shared between calls and read-only.

    Attributes:
        name: as given to `load`.
        train: training set: `x`, one row per example; `y`, ±1, or 0 to 9 for MNIST; `group`, 1 or 0, if there are two groups.
        test: test set: the publisher's test file, else a third of the examples, drawn with a fixed seed.
        features: names of the columns of `x`.
        group_name: the meaning of `group` = 1; None without groups.
        note: source and preprocessing.
    """

    name: str
    train: Arrays
    test: Arrays
    features: tuple[str, ...]
    group_name: str | None
    note: str

    def all(self) -> Arrays:
        """All examples, those of `train` first."""
        return {key: np.concatenate([array, self.test[key]]) for key, array in self.train.items()}

    def __repr__(self) -> str:
        examples = f"{len(self.train['y'])} + {len(self.test['y'])} examples"
        return f"Data({self.name!r}, {examples}, {len(self.features)} features, group {self.group_name!r})"


def names() -> tuple[str, ...]:
    """The names of all data sets.

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
        FileNotFoundError: `TIGHTROPE_DATA` is set and a file is missing, or the data set has no public URL.
        ValueError: the name is unknown, or the content of a file is not the published one.

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
        raise ValueError(
            f"load: name must be one of {', '.join(SOURCES)}, got {name!r}{did_you_mean(str(name), SOURCES)}"
        )
    loaded = _loaded(name, os.environ.get("TIGHTROPE_DATA") or None)
    return replace(loaded, train=dict(loaded.train), test=dict(loaded.test))


@lru_cache
def _loaded(name: str, folder: str | None) -> Data:
    source = SOURCES[name]
    prepared = source.prepare(*(content(name, file, folder) for file in source.files))
    for array in [*prepared.train.values(), *prepared.test.values()]:
        array.flags.writeable = False
    return Data(name, prepared.train, prepared.test, prepared.features, prepared.group, source.note)
