"""What the processes of one run on many hosts must agree on, and which of them writes.

They take the same decisions because they compute the same numbers. Clocks and signals are their own, so these are shared.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh


def largest(mesh: Mesh | None, value: float) -> float:
    """The largest value of any process of the mesh, on all of them."""
    if mesh is None or not mesh.is_multi_process:
        return value
    return float(np.max(multihost_utils.process_allgather(np.float32(value))))


def writes(mesh: Mesh | None) -> bool:
    """Whether this process shows progress and writes files: the first one does."""
    return mesh is None or not mesh.is_multi_process or jax.process_index() == 0
