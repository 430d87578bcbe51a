"""Measurements as text, for reports, tables and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def with_deviation(mean: float, deviation: float = 0.0) -> str:
    """A mean and its standard deviation as text.

    Example:
        >>> with_deviation(0.12345678, 0.001), with_deviation(5000.0)
        ('0.1235 ± 0.001', '5,000')
    """
    return f"{in_words(mean)} ± {deviation:.2g}" if deviation else in_words(mean)


def in_words(measured: Any) -> str:
    """A measurement in one line, with numbers rounded.

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
    """A measurement with one line per name.

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


def capitalized(text: str) -> str:
    """The text with its first letter in upper case.

    Example:
        >>> capitalized("paper 4, Figure 1")
        'Paper 4, Figure 1'
    """
    return text[:1].upper() + text[1:]
