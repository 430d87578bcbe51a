"""The second-order correction, against the Maratos effect: constraints are curved, and a step along them leaves them.

References:
    R. Fletcher. Second order corrections for non-differentiable optimization. Numerical Analysis, Dundee 1981, Springer 1982.
    J. Nocedal and S. J. Wright. Numerical Optimization, 2nd edition, Springer 2006, Sections 15.5 and 15.6.
"""

from __future__ import annotations

import jax.numpy as jnp

from .constants import MAX_CORRECTION_SQ
from .model import PenaltyModel, Trial


def second_order_correction(model: PenaltyModel, trial: Trial) -> Trial:
    """Return the trial moved back to the rows that its step was to hold at an end of their range, and into X.

    A correction that is long compared with the step is left out.
    """
    oracle, x = model.oracle, trial.x
    if model.value.size:
        y, rows = trial.multipliers, oracle.rows
        held = (y != 0) & (jnp.abs(y) < trial.penalty)
        miss = jnp.where(held, model.miss(x, jnp.where(y > 0, rows.high, rows.low)), 0.0)
        step, square = trial.face.restore(jnp.where(jnp.isfinite(miss), miss, 0.0), held)
        x = x + jnp.where(square <= MAX_CORRECTION_SQ * trial.square, step, 0.0)
    return trial._replace(x=x if oracle.whole_space else oracle.project(x))
