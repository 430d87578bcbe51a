"""Components of machines and structures, of least cost or weight, with formulas and units as printed in the literature."""

from math import pi, sqrt

from jax.numpy import sqrt as root

from ..hs.program import Program


def welded_beam_rows(h, length, t, b):
    """Shear and bending stress, geometry, cost of the weld, size, deflection, and the load at which the bar buckles."""
    load, arm, shear_modulus, young = 6000.0, 14.0, 12e6, 30e6
    direct = load / (sqrt(2.0) * h * length)
    radius = root(0.25 * length**2 + 0.25 * (h + t) ** 2)
    inertia = 2.0 * sqrt(2.0) * h * length * (length**2 / 12.0 + 0.25 * (h + t) ** 2)
    twisting = load * (arm + 0.5 * length) * radius / inertia
    shear = root(direct**2 + direct * twisting * length / radius + twisting**2)
    buckling = 4.013 * young * t * b**3 / (6.0 * arm**2) * (1.0 - t / (2.0 * arm) * sqrt(young / (4.0 * shear_modulus)))
    return (
        13600.0 - shear,
        30000.0 - 6.0 * load * arm / (b * t**2),
        b - h,
        5.0 - 0.10471 * h**2 - 0.04811 * t * b * (14.0 + length),
        h - 0.125,
        0.25 - 4.0 * load * arm**3 / (young * t**3 * b),
        buckling - load,
    )


def spring_rows(d, coil, turns):
    """Deflection, shear stress, surge frequency and outer diameter."""
    return (
        coil**3 * turns / (71785.0 * d**4) - 1.0,
        1.0 - (4.0 * coil**2 - d * coil) / (12566.0 * (coil * d**3 - d**4)) - 1.0 / (5108.0 * d**2),
        140.45 * d / (coil**2 * turns) - 1.0,
        1.5 - coil - d,
    )


def speed_reducer_weight(width, module, teeth, length1, length2, shaft1, shaft2):
    """The weight of the gear face, the shafts and their bearings."""
    face = 0.7854 * width * module**2 * (3.3333 * teeth**2 + 14.9334 * teeth - 43.0934)
    bearings = -1.508 * width * (shaft1**2 + shaft2**2) + 7.4777 * (shaft1**3 + shaft2**3)
    return face + bearings + 0.7854 * (length1 * shaft1**2 + length2 * shaft2**2)


def speed_reducer_rows(width, module, teeth, length1, length2, shaft1, shaft2):
    """Bending and contact stress of the teeth, deflection and stress of both shafts, and space."""
    stress1 = root((745.0 * length1 / (module * teeth)) ** 2 + 16.9e6)
    stress2 = root((745.0 * length2 / (module * teeth)) ** 2 + 157.5e6)
    return (
        1.0 - 27.0 / (width * module**2 * teeth),
        1.0 - 397.5 / (width * module**2 * teeth**2),
        1.0 - 1.93 * length1**3 / (module * teeth * shaft1**4),
        1.0 - 1.93 * length2**3 / (module * teeth * shaft2**4),
        1.0 - stress1 / (110.0 * shaft1**3),
        1.0 - stress2 / (85.0 * shaft2**3),
        1.0 - module * teeth / 40.0,
        width / (5.0 * module) - 1.0,
        12.0 - width / module,
        1.0 - (1.5 * shaft1 + 1.9) / length1,
        1.0 - (1.1 * shaft2 + 1.9) / length2,
    )


def three_bar_rows(outer, inner):
    """Stresses of the three bars under a load of 2, at most 2."""
    total = sqrt(2.0) * outer**2 + 2.0 * outer * inner
    return (
        2.0 - 2.0 * (sqrt(2.0) * outer + inner) / total,
        2.0 - 2.0 * inner / total,
        2.0 - 2.0 / (outer + sqrt(2.0) * inner),
    )


def bulkhead_rows(width, depth, length, thickness):
    """Section modulus, moment of inertia, thicknesses and slope of a corrugated bulkhead."""
    share = 8.94 * (width + root(length**2 - depth**2))
    return (
        depth * thickness * (0.4 * width + length / 6.0) - share,
        depth**2 * thickness * (0.2 * width + length / 12.0) - 2.2 * share ** (4.0 / 3.0),
        thickness - 0.0156 * width - 0.15,
        thickness - 0.0156 * length - 0.15,
        thickness - 1.05,
        length - depth,
    )


def beam_rows(height, width, web, flange):
    """Area and bending stress of an I-beam with two loads."""
    inner = height - 2.0 * flange
    sideways = inner * web**3 + 2.0 * flange * width**3
    upright = web * inner**3 + 2.0 * width * flange * (4.0 * flange**2 + 3.0 * height * inner)
    return (
        300.0 - 2.0 * width * flange - web * inner,
        6.0 - 18e4 * height / upright - 15e3 * width / sideways,
    )


def beam_deflection(height, width, web, flange):
    """The deflection of the I-beam."""
    inner = height - 2.0 * flange
    return 5000.0 / (web * inner**3 / 12.0 + width * flange**3 / 6.0 + 0.5 * width * flange * (height - flange) ** 2)


def column_rows(diameter, thickness):
    """Yield and buckling of a tubular column under a load of 2500."""
    square = diameter**2 + thickness**2
    return (
        1.0 - 2500.0 / (pi * diameter * thickness * 500.0),
        1.0 - 8.0 * 2500.0 * 250.0**2 / (pi**3 * 0.85e6 * diameter * thickness * square),
    )


def two_bar_rows(area, half):
    """Stresses of two bars that meet above the middle of their span."""
    length = 0.124 * root(1.0 + half**2)
    return 1.0 - length * (8.0 / area + 1.0 / (area * half)), 1.0 - length * (8.0 / area - 1.0 / (area * half))


PROGRAMS = {
    "welded_beam": Program(
        lambda h, length, t, b: 1.10471 * h**2 * length + 0.04811 * t * b * (14.0 + length),
        start=(0.4, 6.0, 9.0, 0.5),
        x=(0.20572963978607944, 3.4704886656280025, 9.036623910357633, 0.20572963978607944),
        value=1.724852308597365,
        inequalities=welded_beam_rows,
        low=(0.1, 0.1, 0.1, 0.1),
        high=(2.0, 10.0, 10.0, 2.0),
    ),
    "pressure_vessel": Program(
        lambda shell, head, r, length: (
            0.6224 * shell * r * length + 1.7781 * head * r**2 + 3.1661 * shell**2 * length + 19.84 * shell**2 * r
        ),
        start=(1.0, 1.0, 50.0, 100.0),
        x=(0.7781686413751053, 0.3846491626279018, 40.31961872409872, 200.0),
        value=5885.332773616459,
        inequalities=lambda shell, head, r, length: (
            shell - 0.0193 * r,
            head - 0.00954 * r,
            pi * r**2 * length + 4.0 / 3.0 * pi * r**3 - 1296000.0,
        ),
        low=(0.0625, 0.0625, 10.0, 10.0),
        high=(6.1875, 6.1875, 200.0, 200.0),
    ),
    "tension_spring": Program(
        lambda d, coil, turns: (turns + 2.0) * coil * d**2,
        start=(0.1, 0.6, 8.0),
        x=(0.051689061082763464, 0.35671773979944105, 11.288965751613329),
        value=0.012665232788319417,
        inequalities=spring_rows,
        low=(0.05, 0.25, 2.0),
        high=(2.0, 1.3, 15.0),
    ),
    "speed_reducer": Program(
        speed_reducer_weight,
        start=(3.2, 0.75, 22.0, 8.0, 8.0, 3.5, 5.2),
        x=(3.5, 0.7, 17.0, 7.3, 7.715319911478246, 3.350214666096447, 5.286654464980222),
        value=2994.4710661468202,
        inequalities=speed_reducer_rows,
        low=(2.6, 0.7, 17.0, 7.3, 7.3, 2.9, 5.0),
        high=(3.6, 0.8, 28.0, 8.3, 8.3, 3.9, 5.5),
    ),
    "cantilever_beam": Program(
        lambda *sides: 0.0624 * sum(sides),
        start=(5.0, 5.0, 5.0, 5.0, 5.0),
        x=(6.016015894150591, 5.309173857413238, 4.494329573323155, 3.5014749704253205, 2.1526653296728657),
        value=1.3399563605990743,
        inequalities=lambda a, b, c, d, e: (1.0 - 61.0 / a**3 - 37.0 / b**3 - 19.0 / c**3 - 7.0 / d**3 - 1.0 / e**3,),
        low=0.01,
        high=100.0,
    ),
    "three_bar_truss": Program(
        lambda outer, inner: 100.0 * (2.0 * sqrt(2.0) * outer + inner),
        start=(0.5, 0.5),
        x=(0.788675134594813, 0.4082482904638628),
        value=263.8958433764684,
        inequalities=three_bar_rows,
        low=1e-3,
        high=1.0,
    ),
    "two_bar_truss": Program(
        lambda area, half: area * root(1.0 + half**2),
        start=(1.5, 0.5),
        x=(1.4116311366913556, 0.3770724337244881),
        value=1.5086524175018008,
        inequalities=two_bar_rows,
        low=(0.2, 0.1),
        high=(4.0, 1.6),
    ),
    "tubular_column": Program(
        lambda diameter, thickness: 9.8 * diameter * thickness + 2.0 * diameter,
        start=(7.0, 0.4),
        x=(5.451156234254859, 0.2919654771436777),
        value=26.499496891515463,
        inequalities=column_rows,
        low=(2.0, 0.2),
        high=(14.0, 0.8),
    ),
    "i_beam": Program(
        beam_deflection,
        start=(40.0, 30.0, 1.0, 1.0),
        x=(80.0, 50.0, 0.9, 2.3217922606924644),
        value=0.013074118905223335,
        inequalities=beam_rows,
        low=(10.0, 10.0, 0.9, 0.9),
        high=(80.0, 50.0, 5.0, 5.0),
    ),
    "corrugated_bulkhead": Program(
        lambda width, depth, length, thickness: (
            5.885 * thickness * (width + length) / (width + root(length**2 - depth**2))
        ),
        start=(50.0, 30.0, 50.0, 1.0),
        x=(57.69230769230769, 34.1476203486744, 57.69230769230769, 1.05),
        value=6.842958010080774,
        inequalities=bulkhead_rows,
        low=0.0,
        high=(100.0, 100.0, 100.0, 5.0),
    ),
}
