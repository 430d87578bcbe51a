"""Readers of the file formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection

import numpy as np
from jaxtyping import Float, Shaped

Column = Shaped[np.ndarray, " examples"]


def read_libsvm(content: bytes, features: int) -> tuple[Float[np.ndarray, "examples features"], Column]:
    """(x, labels) from lines `label column:value ...`, with columns counted from 1."""
    numbers = np.array(content.replace(b":", b" ").split(), float)
    pairs = np.array([line.count(b":") for line in content.splitlines()])
    starts = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)
    entries = np.delete(numbers, starts).reshape(-1, 2)
    x = np.zeros((pairs.size, features), np.float32)
    x[np.repeat(np.arange(pairs.size), pairs), entries[:, 0].astype(int) - 1] = entries[:, 1]
    return x, numbers[starts]


def read_table(
    content: bytes, delimiter: str = ",", header: tuple[str, ...] | None = None, only: Collection[str] | None = None
) -> dict[str, Column]:
    """The columns of a CSV file as text, by the titles in its first line or in `header`; incomplete lines are skipped.

    `only` selects columns, to save time: text is slow to convert to arrays.
    """
    lines = csv.reader(io.StringIO(content.decode()), delimiter=delimiter, skipinitialspace=True)
    titles = header or tuple(next(lines))
    rows = [line for line in lines if len(line) == len(titles)]
    columns = zip(titles, zip(*rows, strict=True), strict=True)
    return {title: np.array(column) for title, column in columns if only is None or title in only}


def read_idx(content: bytes) -> np.ndarray:
    """An array in MNIST's format: two zeros, the type (8: bytes), the number of axes, their lengths, the entries."""
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
