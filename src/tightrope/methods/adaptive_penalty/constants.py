"""The numbers of the default method, each with its reason. Both methods read them here.

All but `FALLBACK_LENGTH` compare a quantity with another of the same kind, so they do not depend on the units of x, F
or h. The two numbers that a user may want to change are hyperparameters (`min_feasibility_share`, `noise_tolerance`).
"""

# ---- quasi-Newton --------------------------------------------------------------------------------------------------------

MEMORY_SIZE = 10
"""Pairs in the L-BFGS memory. The customary range is 3 to 20; a step costs inner products with twice this many vectors."""

MIN_COSINE = 0.1
"""Least cosine between a step and the change of the gradient. Smaller ones are raised to it, so every update is positive
definite and its condition is bounded, whatever the noise."""

MIN_USED_COSINE = 0.5 * MIN_COSINE
"""Least cosine of a pair that enters the matrix. Below MIN_COSINE, because rounding, and the projection of a pair onto a face,
may lower it; above zero, because it is divided by."""

STRAIGHT_FACTOR = 0.5
"""Factor of the initial curvature δ after a step along which the gradient did not change: the next step may be longer."""

FALLBACK_LENGTH = 1.0
"""Least length of the first step where neither curvature nor violation at x0 says how long it should be."""

# ---- damping -------------------------------------------------------------------------------------------------------------

MIN_RATIO = 0.1
"""Ratio of actual to predicted reduction that a step must exceed to be accepted. Customary values are below 1/4: only steps
that gain next to nothing, or lose, are rejected."""

POOR_RATIO, GOOD_RATIO = 0.4, 0.75
"""Ratios below which the damping σ grows, and above which it falls; between them it stays. Customary values are 1/4 and 3/4;
here σ grows slowly, so it may start earlier."""

GOOD_STEP_FACTOR, POOR_STEP_FACTOR = 0.3, 1.5
"""Factors of σ after a good and after a poor step. σ falls quickly, because a step that is too short never looks poor; it
grows slowly, because one that is too long is rejected anyway."""

MIN_GROWTH, MAX_GROWTH = 2.0, 10.0
"""Limits of the growth of σ after a rejected step; the second also counts from δ, so a tiny σ recovers at once."""

MIN_DAMPING, MAX_DAMPING = 1e-6, 1e12
"""Limits of σ as multiples of δ. Below the first σ changes no step; beyond the second steps are lost to rounding."""

# ---- rounding ------------------------------------------------------------------------------------------------------------

REDUCTION_ROUNDING = 10
"""In units of machine epsilon and of the terms that are added up: differences of the penalty function that mean nothing."""

VIOLATION_ROUNDING = 100
"""In units of machine epsilon and of the row: violations that do not count. Larger than the above, since a row is itself a
sum whose terms may be larger than it is."""

# ---- penalties -----------------------------------------------------------------------------------------------------------

INITIAL_PENALTY_FACTOR = 2.0
"""First penalties as a multiple of the first multipliers: an exact penalty must exceed them."""

INITIAL_RIDGE = 1e-3
"""Ridge of the least squares for the first multipliers, for rows of length one: dependent rows share theirs."""

MIN_SCALED_PENALTY = 0.1
"""Least scaled penalty ρ_i‖∇h_i‖, at the start and when penalties fall, as a share of ‖∇F‖: smaller ones would hold nothing."""

RAISE_FACTOR = 4.0
"""Factor by which the lowest scaled penalty is raised: less takes more subproblems, more overshoots."""

MAX_SUBPROBLEMS = 6
"""Subproblems per step that steering may solve, the restoration step included: penalties may grow 4⁵-fold in one step."""

RESTORATION_EXPONENT = -0.5
"""Penalties of the restoration step in units of what moves the rows: this power of machine epsilon. Half of the digits make
the penalty large, half are left for the solution."""

NEGLIGIBLE_SHARE, NEGLIGIBLE_SAMPLED_SHARE = 1e-6, 0.01
"""A step that removes less than this share of the violation makes no progress towards feasibility: for deterministic rows (or
VIOLATION_ROUNDING, if that is more) and where rows are sampled, since noise in the Jacobian feigns progress. On the way to a
solution of bilinear equations a step may have to remove as little as 1e-5; where no point is feasible, this share bounds the
penalties: they grow like its inverse root."""

RESTORATION_FACTOR = 0.25
"""Factor from one part of a restoration step to the next after which the rows are evaluated: down to the negligible share,
since where the violation falls in proportion to the step, shorter parts remove less than that."""

RELAX_FACTOR = 0.8
"""Factor by which a penalty falls per accepted step: slowly, since raising it again costs subproblems."""

AMPLE_FACTOR = 10.0
"""A penalty falls only to this multiple of what the hardest row needs, so that it does not rise and fall in turn."""

# ---- second-order correction ---------------------------------------------------------------------------------------------

MAX_CORRECTION_SQ = 0.25
"""Largest square of a correction as a share of the step's, both in the norm of M: at most half as long. A longer one says that
the linearization does not hold there."""

CORRECTION_PRODUCTS = 50
"""Products with the Jacobian for a matrix-free correction: its error is second order, so an approximate one is enough."""

# ---- sets ----------------------------------------------------------------------------------------------------------------

MAX_FACES = 4
"""Faces of X on which a quasi-Newton step is tried before the proximal step is taken: each costs a subproblem."""

MAX_OUTSIDE = 1e-6
"""A step ends in X if it is outside by at most this share of its length: more than rounding, and too little to matter, since
the trial is projected anyway."""

# ---- noise ---------------------------------------------------------------------------------------------------------------

NOISE_MEMORY = 20
"""Steps over which measurements of noise are averaged: each is the square of one difference of two halves, with a relative
error of order one."""

SIGNIFICANT_SQ = 9.0
"""Square of a violation in units of its variance beyond which noise does not explain it: three standard deviations."""

INFEASIBLE_SHARE = 0.5
"""Share of late steps without feasible descent beyond which the problem is called infeasible: on the way to a solution such
points are passed, not stayed at."""

# ---- full passes ---------------------------------------------------------------------------------------------------------

MAX_PASS_EXAMPLES = 2**20
"""Finite data of at most this many examples are passed over in full. For larger data a run may end before a pass would pay."""

PASS_COST = 4
"""A full pass every N/(4b) steps. Each step has two gradients per example of its batch b, so a pass costs twice as much as
the steps between two passes."""

RISE_FACTOR, FALL_FACTOR = 2.0, 0.9
"""Factors of κ after a full pass that found the penalty function risen or fallen: caution is learned quickly, lost slowly."""
