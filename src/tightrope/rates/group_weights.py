"""The group and the label of each example, as weights with which the rate of a group is a mean over all examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class Groups(NamedTuple):
    """The group and the label of each example, as fields of a batch; made by `groups`.

    Attributes:
        every: one column a group: 1 / share for the examples of the group, else 0.
        positives: the same for the examples of the group with label 1; None without labels.
        negatives: for those with label 0.
        label: 1 or 0.
    """

    every: Any
    positives: Any = None
    negatives: Any = None
    label: Any = None


def groups(group: Any = None, label: Any = None) -> Groups:
    """Groups and labels in the form that rates need; put them into your `Dataset` under a name of your choice.

    Args:
        group: the group of each example: numbers or strings, one column, or several whose combinations are the groups. None:
            all examples are one group.
        label: 1 or True for positive examples, 0, -1 or False for the others; None for rates that need no label.

    Returns:
        A `Groups`, whose columns are the groups in sorted order. Pass data of another set through `groups` too: shares are
        those of the set.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> sex, y = np.array(["f", "m", "f", "f"]), np.array([1, 1, 0, 0])
        >>> tr.rates.groups(sex, y).every.mean(axis=0)
        array([1., 1.], dtype=float32)
    """
    if group is None and label is None:
        raise ValueError("groups: both group and label are missing; expected at least one of them")
    labels = None if label is None else _labels(label)
    index = np.zeros(labels.size, int) if group is None and labels is not None else _index(group)
    if labels is not None and labels.size != index.size:
        raise ValueError(f"groups: group has {index.size} examples and label {labels.size}; they must match")
    member = index[:, None] == np.arange(index.max() + 1)
    if labels is None:
        return Groups(_weights(member))
    positive = labels[:, None] > 0
    return Groups(_weights(member), _weights(member & positive), _weights(member & ~positive), labels)


def _labels(label: Any) -> Float[np.ndarray, " examples"]:
    labels = np.asarray(label)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf" or not np.isin(labels, (-1, 0, 1)).all():
        raise ValueError("groups: label must be a vector of 1 (positive) and 0 or -1 (negative)")
    return (labels > 0).astype(np.float32)


def _index(group: Any) -> np.ndarray:
    """The number of each example's group, in sorted order."""
    columns = np.asarray(group)
    if columns.ndim not in (1, 2) or not columns.size:
        raise ValueError(
            f"groups: group must have one entry per example, or one row of entries, got an array of shape {columns.shape}"
        )
    columns = columns.reshape(len(columns), -1)
    parts = [np.unique(c.astype(str) if c.dtype == object else c, return_inverse=True)[1] for c in columns.T]
    return np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1].ravel()


def _weights(member: np.ndarray) -> Float[np.ndarray, "examples groups"]:
    share = member.mean(axis=0)
    return (member / np.where(share > 0, share, 1.0)).astype(np.float32)
