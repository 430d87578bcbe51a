"""The settings on the loan data: ExactPenalty has those of bank-full, the others are tuned again."""

from __future__ import annotations

from itertools import product

from ...methods import Method
from ..exact_penalty_bank import config as bank

# Initial penalties and first step sizes, as for bank-full.
TWO_PHASE_GRID = (0.03, 0.06, 0.12), (7.5, 15.0, 30.0)
ALM_GRID = (4e-3, 8e-3, 1.6e-2), (0.5, 1.0, 2.0)

GRIDS: dict[str, tuple[Method, ...]] = {
    bank.EXACT: (bank.CHOSEN[bank.EXACT],),
    bank.TWO_PHASE: tuple(bank.two_phase(*numbers) for numbers in product(*TWO_PHASE_GRID)),
    bank.ALM: tuple(bank.inexact_alm(*numbers) for numbers in product(*ALM_GRID)),
    bank.PENALTY: bank.GRIDS[bank.PENALTY],
}
"""The settings tried."""

CHOSEN: dict[str, Method] = {
    bank.EXACT: bank.CHOSEN[bank.EXACT],
    bank.TWO_PHASE: bank.two_phase(0.06, 15.0),
    bank.ALM: bank.inexact_alm(8e-3, 1.0),
    bank.PENALTY: bank.CHOSEN[bank.PENALTY],
}
"""The best settings; sensitivity is measured around them."""
