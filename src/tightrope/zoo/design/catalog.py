"""Ten-bar trusses, lattices of square cells with both diagonals, and a space truss with two loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .trusses import Truss


def lattice(
    bays: int, rows: int, load: Mapping[tuple[int, int], Sequence[float]], side: float = 1.0, **rest: Any
) -> Truss:
    """Squares with both diagonals between a wall and a free end; `load` is given by column and row of the joint."""

    def joint(column: int, row: int) -> int:
        return column * (rows + 1) + row

    bars = []
    for i in range(bays):
        bars += [(joint(i, j), joint(i + 1, j)) for j in range(rows + 1)]
        bars += [(joint(i + 1, j), joint(i + 1, j + 1)) for j in range(rows)]
        for j in range(rows):
            bars += [(joint(i, j), joint(i + 1, j + 1)), (joint(i, j + 1), joint(i + 1, j))]
    return Truss(
        joints=[(side * i, side * j) for i in range(bays + 1) for j in range(rows + 1)],
        bars=bars,
        supports=range(rows + 1),
        loads=[{joint(*place): force for place, force in load.items()}],
        **rest,
    )


INCHES: dict[str, Any] = {
    "side": 360.0,
    "modulus": 1e7,
    "density": 0.1,
    "tension": 25e3,
    "compression": 25e3,
    "reach": 2.0,
    "areas": (0.1, 100.0),
    "start": 10.0,
}
"""Aluminum in inches and pounds."""

UNITS: dict[str, Any] = {
    "modulus": 1.0,
    "density": 1.0,
    "tension": 0.1,
    "compression": 0.1,
    "areas": (0.01, 100.0),
    "start": 1.0,
}
"""Young's modulus, density, side and load are 1."""

LEAST = 0.01

SPACE_GROUPS = (
    ((0, 1),),
    ((0, 3), (1, 2), (0, 4), (1, 5)),
    ((1, 4), (1, 3), (0, 2), (0, 5)),
    ((2, 5), (3, 4)),
    ((2, 3), (4, 5)),
    ((2, 9), (5, 6), (3, 8), (4, 7)),
    ((2, 7), (3, 6), (5, 8), (4, 9)),
    ((2, 6), (3, 7), (4, 8), (5, 9)),
)
SPACE_COMPRESSION = (35.092, 11.590, 17.305, 35.092, 35.092, 6.759, 6.959, 11.082)

TRUSSES = {
    "ten_bar": lattice(
        2,
        1,
        {(1, 0): (0.0, -1e5), (2, 0): (0.0, -1e5)},
        **INCHES,
        best=(
            23.19988791718654, 30.521806666353395, 0.1, 21.03642789760313, 7.457200301036001, 15.22290712320598, 0.1,
            0.5513555936079149, 0.1, 21.528441712383902,
        ),
        weight=5060.853660338461,
    ),
    "ten_bar_four_loads": lattice(
        2,
        1,
        {(1, 0): (0.0, -1.5e5), (2, 0): (0.0, -1.5e5), (1, 1): (0.0, 5e4), (2, 1): (0.0, 5e4)},
        **INCHES,
        best=(
            25.28510950228539, 23.530731493354352, 0.1, 12.827700048246195, 12.3905964966313, 14.374490117067792, 0.1,
            1.9697298584602785, 0.1, 20.32859887575529,
        ),
        weight=4676.922703989108,
    ),
    "ten_bar_in_units": lattice(
        2,
        1,
        {(1, 0): (0.0, -1.0), (2, 0): (0.0, -1.0)},
        **UNITS,
        reach=2.0,
        best=(
            20.006213203435596, 19.993786796564404, LEAST, 14.133348827166547, 14.150922420295354, 9.993786796564404,
            LEAST, LEAST, LEAST, 14.133348827166547,
        ),
        weight=110.02550252531694,
    ),
    "lattice_2_by_2": lattice(
        2,
        2,
        {(2, 0): (0.0, -1.0)},
        **UNITS | {"tension": 0.2, "compression": 0.2},
        reach=2.0,
        best=(
            4.99337823877807, LEAST, 0.014996882519149303, LEAST, LEAST, LEAST, LEAST, LEAST, 7.049610872035959,
            4.982859369629179, LEAST, LEAST, 0.01714063037082098, LEAST, LEAST, 7.046827299927437, LEAST, LEAST,
        ),
        weight=30.088601978984048,
    ),
    "lattice_3_by_2": lattice(
        3,
        2,
        {(3, 0): (0.0, -1.0)},
        **UNITS,
        reach=3.0,
        best=(
            10.00528595479209, LEAST, 11.911064041630082, LEAST, 2.1815249449117116, 5.716003734268541, LEAST,
            2.702652686236805, 5.716003734268541, 9.989763107293781, LEAST, 5.907411013458204, LEAST, LEAST,
            0.014477152501692134, 4.168146697601769, 4.171716923641322, 5.7877948499861676, 4.092588986541795, LEAST,
            LEAST, 5.907411013458204, LEAST, 4.171716923641322, 5.7877948499861676, LEAST, 4.175287149680873,
        ),
        weight=110.08238576250848,
    ),
    "cantilever_of_5_bays": lattice(
        5,
        1,
        {(5, 0): (0.0, -1.0)},
        **UNITS,
        reach=3.0,
        best=(
            58.326264251500405, 46.6737357484996, LEAST, LEAST, 16.489161036284454, 35.00706346463625,
            46.659603202030425, LEAST, 16.489168980200184, LEAST, 34.99296365758858, 23.34036967574476, LEAST, LEAST,
            16.489207336818378, 11.673577668588738, 23.326422331411266, LEAST, 16.48938459503832, LEAST,
            11.660333739938398, LEAST, LEAST, LEAST, 16.49020211681748,
        ),
        weight=408.3888854496618,
    ),
    "space_truss_of_25_bars": Truss(
        joints=(
            (-37.5, 0, 200), (37.5, 0, 200), (-37.5, 37.5, 100), (37.5, 37.5, 100), (37.5, -37.5, 100),
            (-37.5, -37.5, 100), (-100, 100, 0), (100, 100, 0), (100, -100, 0), (-100, -100, 0),
        ),
        bars=[bar for group in SPACE_GROUPS for bar in group],
        supports=(6, 7, 8, 9),
        loads=(
            {0: (1, 10, -5), 1: (0, 10, -5), 2: (0.5, 0, 0), 5: (0.5, 0, 0)},
            {0: (0, 20, -5), 1: (0, -20, -5)},
        ),
        modulus=1e4,
        density=0.1,
        tension=40.0,
        compression=[limit for limit, group in zip(SPACE_COMPRESSION, SPACE_GROUPS, strict=True) for _ in group],
        reach=0.35,
        areas=(LEAST, 10.0),
        start=2.0,
        best=(
            LEAST, 1.987042552762917, 2.993481276384195, LEAST, LEAST, 0.6839619331651173, 1.6768911401685058,
            2.662140476562942,
        ),
        weight=545.162710241483,
        groups=[number for number, group in enumerate(SPACE_GROUPS) for _ in group],
    ),
}  # fmt: skip
