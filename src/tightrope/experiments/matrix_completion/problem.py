"""Completion of a low-rank matrix in a nuclear ball, from mostly nonzero observed entries (paper 5, problem (59))."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...domains import NuclearBall
from ...problems.constraints import at_most
from ...problems.data import Dataset
from ...problems.problem import Problem
from . import config

Matrix = Float[np.ndarray, "rows columns"]


class Instance(NamedTuple):
    """X*, M = X* + noise, the mask of observed entries, α = ‖X*‖_* and β = ½ Σ X*² over the unobserved entries."""

    truth: Matrix
    noisy: Matrix
    observed: Bool[np.ndarray, "rows columns"]
    radius: float
    bound: float


@cache
def instance(rows: int = config.ROWS, columns: int = config.COLUMNS, rank: int = config.RANK) -> Instance:
    """The data, generated once."""
    rng = np.random.default_rng(config.DATA_SEED)

    def factor(shape: tuple[int, int], zeros: float) -> Matrix:
        return np.where(rng.random(shape) < zeros, 0.0, rng.random(shape))

    truth = factor((rows, rank), config.ZEROS_LEFT) @ factor((rank, columns), config.ZEROS_RIGHT)
    observed = rng.random(truth.shape) < np.where(truth == 0, config.OBSERVED_ZEROS, config.OBSERVED_OTHERS)
    noise = rng.normal(size=truth.shape)
    noisy = truth + config.NOISE * np.linalg.norm(truth) / np.linalg.norm(noise) * noise
    radius = float(np.linalg.svd(truth, compute_uv=False).sum())
    return Instance(truth, noisy, observed, radius, float(0.5 * np.sum(truth[~observed] ** 2)))


def misfit(x: Float[Array, "rows columns"], batch: dict[str, Array]) -> Float[Array, ""]:
    """Mean of ½ (X − M)² over observed entries."""
    return 0.5 * jnp.mean((x[batch["row"], batch["column"]] - batch["value"]) ** 2)


def unobserved(x: Float[Array, "rows columns"], batch: dict[str, Array]) -> Float[Array, ""]:
    """Mean of ½ X² over unobserved entries."""
    return 0.5 * jnp.mean(x[batch["row"], batch["column"]] ** 2)


def entries(where: Bool[np.ndarray, "rows columns"]) -> dict[str, np.ndarray]:
    """The row and column indices of the selected entries."""
    row, column = np.nonzero(where)
    return {"row": row.astype(np.int32), "column": column.astype(np.int32)}


@cache
def make(batch: int, *shape: int) -> tuple[Problem, Matrix]:
    """The problem with `batch` entries of each kind per step, and X = 0; cached to keep its compiled programs."""
    case = instance(*shape)
    values = case.noisy[case.observed].astype(np.float32)
    seen = Dataset(entries(case.observed) | {"value": values}, batch)
    hidden = Dataset(entries(~case.observed), batch)
    limit = at_most(unobserved, case.bound / hidden.size, data=hidden)
    return Problem(misfit, limit, domain=NuclearBall(case.radius), data=seen), np.zeros_like(case.truth, np.float32)
