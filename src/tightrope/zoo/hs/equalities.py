"""Programs with equations only, in all of R^n."""

from math import asin, pi, sqrt

from jax.numpy import cos, exp, log, sin

from .program import Program

_GIBBS = (-6.089, -17.164, -34.054, -5.914, -24.721, -14.986, -24.1, -10.708, -26.662, -22.179)
"""Free energies of ten compounds in equilibrium, for `hs111`."""


def equilibrium(*x):
    """The free energy of a mixture with exp(x) moles of each compound."""
    total = log(sum(exp(xj) for xj in x))
    return sum(exp(xj) * (cj + xj - total) for cj, xj in zip(_GIBBS, x, strict=True))


def atoms(*x):
    """The amounts of three elements in the mixture, minus the available amounts."""
    x1, x2, x3, x4, x5, x6, x7, x8, x9, x10 = x
    return (
        exp(x1) + 2 * exp(x2) + 2 * exp(x3) + exp(x6) + exp(x10) - 2,
        exp(x4) + 2 * exp(x5) + exp(x6) + exp(x7) - 1,
        exp(x3) + exp(x7) + exp(x8) + 2 * exp(x9) + exp(x10) - 1,
    )


def hs100_objective(x1, x2, x3, x4, x5, x6, x7):
    """The objective of `hs100` and `hs100lnp`."""
    return (
        (x1 - 10) ** 2
        + 5 * (x2 - 12) ** 2
        + x3**4
        + 3 * (x4 - 11) ** 2
        + 10 * x5**6
        + 7 * x6**2
        + x7**4
        - 4 * x6 * x7
        - 10 * x6
        - 8 * x7
    )


PROGRAMS = {
    "hs6": Program(
        lambda x1, x2: (1 - x1) ** 2,
        equalities=lambda x1, x2: (10 * (x2 - x1**2),),
        start=(-1.2, 1),
        x=(1, 1),
        value=0,
    ),
    "hs7": Program(
        lambda x1, x2: log(1 + x1**2) - x2,
        equalities=lambda x1, x2: ((1 + x1**2) ** 2 + x2**2 - 4,),
        start=(2, 2),
        x=(0, sqrt(3)),
        value=-sqrt(3),
    ),
    "hs8": Program(
        lambda x1, x2: -1,
        equalities=lambda x1, x2: (x1**2 + x2**2 - 25, x1 * x2 - 9),
        start=(2, 1),
        x=(sqrt((25 + sqrt(301)) / 2), 9 / sqrt((25 + sqrt(301)) / 2)),
        value=-1,
        unique=False,
    ),
    "hs9": Program(
        lambda x1, x2: sin(pi * x1 / 12) * cos(pi * x2 / 16),
        equalities=lambda x1, x2: (4 * x1 - 3 * x2,),
        start=(0, 0),
        x=(-3, -4),
        value=-0.5,
        unique=False,
    ),
    "hs26": Program(
        lambda x1, x2, x3: (x1 - x2) ** 2 + (x2 - x3) ** 4,
        equalities=lambda x1, x2, x3: ((1 + x2**2) * x1 + x3**4 - 3,),
        start=(-2.6, 2, 2),
        x=(1, 1, 1),
        value=0,
        unique=False,
    ),
    "hs27": Program(
        lambda x1, x2, x3: 0.01 * (x1 - 1) ** 2 + (x2 - x1**2) ** 2,
        equalities=lambda x1, x2, x3: (x1 + x3**2 + 1,),
        start=(2, 2, 2),
        x=(-1, 1, 0),
        value=0.04,
    ),
    "hs28": Program(
        lambda x1, x2, x3: (x1 + x2) ** 2 + (x2 + x3) ** 2,
        equalities=lambda x1, x2, x3: (x1 + 2 * x2 + 3 * x3 - 1,),
        start=(-4, 1, 1),
        x=(0.5, -0.5, 0.5),
        value=0,
    ),
    "hs39": Program(
        lambda x1, x2, x3, x4: -x1,
        equalities=lambda x1, x2, x3, x4: (x2 - x1**3 - x3**2, x1**2 - x2 - x4**2),
        start=(2, 2, 2, 2),
        x=(1, 1, 0, 0),
        value=-1,
    ),
    "hs40": Program(
        lambda x1, x2, x3, x4: -x1 * x2 * x3 * x4,
        equalities=lambda x1, x2, x3, x4: (x1**3 + x2**2 - 1, x1**2 * x4 - x3, x4**2 - x2),
        start=(0.8, 0.8, 0.8, 0.8),
        x=(2 ** (-1 / 3), 2**-0.5, 2 ** (-11 / 12), 2**-0.25),
        value=-0.25,
        unique=False,
    ),
    "hs42": Program(
        lambda x1, x2, x3, x4: (x1 - 1) ** 2 + (x2 - 2) ** 2 + (x3 - 3) ** 2 + (x4 - 4) ** 2,
        equalities=lambda x1, x2, x3, x4: (x1 - 2, x3**2 + x4**2 - 2),
        start=(1, 1, 1, 1),
        x=(2, 2, 0.6 * sqrt(2), 0.8 * sqrt(2)),
        value=28 - 10 * sqrt(2),
    ),
    "hs46": Program(
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        equalities=lambda x1, x2, x3, x4, x5: (x1**2 * x4 + sin(x4 - x5) - 1, x2 + x3**4 * x4**2 - 2),
        start=(sqrt(2) / 2, 1.75, 0.5, 2, 2),
        x=(1, 1, 1, 1, 1),
        value=0,
    ),
    "hs48": Program(
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x2 - x3) ** 2 + (x4 - x5) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + x2 + x3 + x4 + x5 - 5, x3 - 2 * (x4 + x5) + 3),
        start=(3, 5, -3, 2, -2),
        x=(1, 1, 1, 1, 1),
        value=0,
    ),
    "hs49": Program(
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + x2 + x3 + 4 * x4 - 7, x3 + 5 * x5 - 6),
        start=(10, 7, 2, -3, 0.8),
        x=(1, 1, 1, 1, 1),
        value=0,
    ),
    "hs50": Program(
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 - x3) ** 2 + (x3 - x4) ** 4 + (x4 - x5) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1 + 2 * x2 + 3 * x3 - 6,
            x2 + 2 * x3 + 3 * x4 - 6,
            x3 + 2 * x4 + 3 * x5 - 6,
        ),
        start=(35, -31, 11, 5, -5),
        x=(1, 1, 1, 1, 1),
        value=0,
    ),
    "hs51": Program(
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + 3 * x2 - 4, x3 + x4 - 2 * x5, x2 - x5),
        start=(2.5, 0.5, 2, -1, 0.5),
        x=(1, 1, 1, 1, 1),
        value=0,
    ),
    "hs52": Program(
        lambda x1, x2, x3, x4, x5: (4 * x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + 3 * x2, x3 + x4 - 2 * x5, x2 - x5),
        start=(2, 2, 2, 2, 2),
        x=(-33 / 349, 11 / 349, 180 / 349, -158 / 349, 11 / 349),
        value=1859 / 349,
    ),
    "hs56": Program(
        lambda x1, x2, x3, x4, x5, x6, x7: -x1 * x2 * x3,
        equalities=lambda x1, x2, x3, x4, x5, x6, x7: (
            x1 - 4.2 * sin(x4) ** 2,
            x2 - 4.2 * sin(x5) ** 2,
            x3 - 4.2 * sin(x6) ** 2,
            x1 + 2 * x2 + 2 * x3 - 7.2 * sin(x7) ** 2,
        ),
        start=(1, 1, 1, *3 * (asin(sqrt(1 / 4.2)),), asin(sqrt(5 / 7.2))),
        x=(2.4, 1.2, 1.2, asin(sqrt(4 / 7)), asin(sqrt(2 / 7)), asin(sqrt(2 / 7)), pi / 2),
        value=-3.456,
        unique=False,
    ),
    "hs61": Program(
        lambda x1, x2, x3: 4 * x1**2 + 2 * x2**2 + 2 * x3**2 - 33 * x1 + 16 * x2 - 24 * x3,
        equalities=lambda x1, x2, x3: (3 * x1 - 2 * x2**2 - 7, 4 * x1 - x3**2 - 11),
        start=(0, 0, 0),
        x=(5.326770135563928, -2.118998632218976, 3.2104642253505506),
        value=-143.6461421978,
    ),
    "hs77": Program(
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1**2 * x4 + sin(x4 - x5) - 2 * sqrt(2),
            x2 + x3**4 * x4**2 - 8 - sqrt(2),
        ),
        start=(2, 2, 2, 2, 2),
        x=(1.1661721897092985, 1.1821113888027044, 1.3802570431454597, 1.5060362736230457, 0.6109201960430908),
        value=0.2415051287902,
    ),
    "hs78": Program(
        lambda x1, x2, x3, x4, x5: x1 * x2 * x3 * x4 * x5,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1**2 + x2**2 + x3**2 + x4**2 + x5**2 - 10,
            x2 * x3 - 5 * x4 * x5,
            x1**3 + x2**3 + 1,
        ),
        start=(-2, 1.5, 2, -1, -1),
        x=(-1.7171435703943823, 1.5957096901835546, 1.8272457529271946, -0.7636430781841305, -0.7636430781841305),
        value=-2.919700408964,
        unique=False,
    ),
    "hs79": Program(
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x2 - x3) ** 2 + (x3 - x4) ** 4 + (x4 - x5) ** 4,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1 + x2**2 + x3**3 - 2 - 3 * sqrt(2),
            x2 - x3**2 + x4 + 2 - 2 * sqrt(2),
            x1 * x5 - 2,
        ),
        start=(2, 2, 2, 2, 2),
        x=(1.1911274563110514, 1.3626031649617423, 1.472817931512088, 1.6350166191679931, 1.6790814361664077),
        value=0.07877682087106,
    ),
    "hs100lnp": Program(
        hs100_objective,
        equalities=lambda x1, x2, x3, x4, x5, x6, x7: (
            127 - 2 * x1**2 - 3 * x2**4 - x3 - 4 * x4**2 - 5 * x5,
            -4 * x1**2 - x2**2 + 3 * x1 * x2 - 2 * x3**2 - 5 * x6 + 11 * x7,
        ),
        start=(1, 2, 0, 4, 0, 1, 1),
        x=(
            2.33049937287957,
            1.951372372896889,
            -0.4775413923888715,
            4.365726233655811,
            -0.6244869705268175,
            1.0381310186079582,
            1.5942267116118685,
        ),
        value=680.6300573744,
    ),
    "hs111lnp": Program(
        equilibrium,
        equalities=atoms,
        start=10 * (-2.3,),
        x=(
            -3.202311588551216,
            -1.912366597080987,
            -0.24442674775038198,
            -6.561177271658376,
            -0.7230979632953048,
            -7.2742322801881425,
            -3.5972374223277757,
            -4.020316730690854,
            -3.288376881360262,
            -2.334371739220627,
        ),
        value=-47.76109085937,
    ),
    "bt1": Program(
        lambda x1, x2: 100 * x1**2 + 100 * x2**2 - x1 - 100,
        equalities=lambda x1, x2: (x1**2 + x2**2 - 1,),
        start=(0.08, 0.06),
        x=(1, 0),
        value=-1,
    ),
    "bt2": Program(
        lambda x1, x2, x3: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x2 - x3) ** 4,
        equalities=lambda x1, x2, x3: (x1 * (1 + x2**2) + x3**4 - 4 - 3 * sqrt(2),),
        start=(10, 10, 10),
        x=(1.1048590197333166, 1.1966741822882572, 1.535262260325326),
        value=0.03256820025507,
    ),
    "bt3": Program(
        lambda x1, x2, x3, x4, x5: (x1 - x2) ** 2 + (x2 + x3 - 2) ** 2 + (x4 - 1) ** 2 + (x5 - 1) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + 3 * x2, x3 + x4 - 2 * x5, x2 - x5),
        start=(20, 20, 20, 20, 20),
        x=(-33 / 43, 11 / 43, 27 / 43, -5 / 43, 11 / 43),
        value=176 / 43,
    ),
    "bt4": Program(
        lambda x1, x2, x3: x1 - x2 + x2**3,
        equalities=lambda x1, x2, x3: (x1**2 + x2**2 + x3**2 - 25, x1 + x2 + x3 - 1),
        start=(4.0382, -2.947, -0.09115),
        x=(2.284496601170847, -3.720893255758813, 2.4363966545879654),
        value=-45.51055073989,
    ),
    "bt6": Program(
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x3 - 1) ** 2 + (x4 - 1) ** 4 + (x5 - 1) ** 6,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1**2 * x4 + sin(x4 - x5) - 2 * sqrt(2),
            x2 + x3**4 * x2**2 - 8 - sqrt(2),
        ),
        start=(2, 2, 2, 2, 2),
        x=(1.2869318973474277, 1.4802353052688126, 1.3794544746808048, 1.321948145930954, 0.6287182232159736),
        value=0.2770447887679,
    ),
    "bt7": Program(
        lambda x1, x2, x3, x4, x5: 100 * (x2 - x1**2) ** 2 + (x1 - 1) ** 2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 * x2 - x3**2 - 1, x2**2 - x4**2 + x1, x1 + x5**2 - 0.5),
        start=(-2, 1, 1, 1, 1),
        x=(0.5, 2, 0, sqrt(4.5), 0),
        value=306.5,
        unique=False,
    ),
    "bt8": Program(
        lambda x1, x2, x3, x4, x5: x1**2 + x2**2 + x3**2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + x2**2 - x4**2 - 1, x1**2 + x2**2 - x5**2 - 1),
        start=(1, 1, 1, 0, 0),
        x=(1, 0, 0, 0, 0),
        value=1,
        unique=False,
    ),
    "bt10": Program(
        lambda x1, x2: -x1,
        equalities=lambda x1, x2: (x2 - x1**3, x1**2 - x2),
        start=(2, 2),
        x=(1, 1),
        value=-1,
    ),
    "bt11": Program(
        lambda x1, x2, x3, x4, x5: (x1 - 1) ** 2 + (x1 - x2) ** 2 + (x2 - x3) ** 2 + (x3 - x4) ** 4 + (x4 - x5) ** 4,
        equalities=lambda x1, x2, x3, x4, x5: (
            x1 + x2**2 + x3**3 + 2 - sqrt(18),
            x2 - x3**2 + x4 + 2 - sqrt(8),
            x1 - x5 - 2,
        ),
        start=(2, 2, 2, 2, 2),
        x=(1.2675759591939144, 0.9653004612773713, 0.3510438155573083, -0.013641576090147562, -0.7324240408060856),
        value=0.8248917782877,
    ),
    "bt12": Program(
        lambda x1, x2, x3, x4, x5: 0.01 * x1**2 + x2**2,
        equalities=lambda x1, x2, x3, x4, x5: (x1 + x2 - x3**2 - 25, x1**2 + x2**2 - x4**2 - 25, x1 - x5**2 - 2),
        start=(15.811, 1.5811, 0, 15.083, 3.7164),
        x=(2500 / 101, 25 / 101, 0, sqrt((2500**2 + 25**2) / 101**2 - 25), sqrt(2500 / 101 - 2)),
        value=625 / 101,
        unique=False,
    ),
    "byrdsphr": Program(
        lambda x1, x2, x3: -x1 - x2 - x3,
        equalities=lambda x1, x2, x3: (x1**2 + x2**2 + x3**2 - 9, (x1 - 1) ** 2 + x2**2 + x3**2 - 9),
        start=(5, 0.0001, -0.0001),
        x=(0.5, sqrt(4.375), sqrt(4.375)),
        value=-0.5 - 2 * sqrt(4.375),
    ),
    "genhs28": Program(
        lambda *x: sum((x[i] + x[i + 1]) ** 2 for i in range(9)),
        equalities=lambda *x: tuple(x[i] + 2 * x[i + 1] + 3 * x[i + 2] - 1 for i in range(8)),
        start=(-4, *9 * (1,)),
        x=(
            0.16421222513617115,
            -0.05204760944119431,
            0.3132943312487392,
            0.14181964898123867,
            0.1343554569295945,
            0.1964898123865241,
            0.15755497276578578,
            0.16280008069396812,
            0.17228162194875932,
            0.16421222513617106,
        ),
        value=0.9271736937664,
    ),
    "maratos": Program(
        lambda x1, x2: -x1 + 1e-6 * (x1**2 + x2**2 - 1),
        equalities=lambda x1, x2: (x1**2 + x2**2 - 1,),
        start=(1.1, 0.1),
        x=(1, 0),
        value=-1,
    ),
    "s316": Program(
        lambda x1, x2: (x1 - 20) ** 2 + (x2 + 20) ** 2,
        equalities=lambda x1, x2: (0.01 * x1**2 + 0.01 * x2**2 - 1,),
        start=(0, 0),
        x=(sqrt(50), -sqrt(50)),
        value=900 - 400 * sqrt(2),
    ),
    "s321": Program(
        lambda x1, x2: (x1 - 20) ** 2 + (x2 + 20) ** 2,
        equalities=lambda x1, x2: (0.01 * x1**2 + x2**2 - 1,),
        start=(0, 0),
        x=(9.816029251396484, -0.19093375122614006),
        value=496.1123658567,
    ),
    "s335": Program(
        lambda x1, x2, x3: -0.001 * x1 - x2,
        equalities=lambda x1, x2, x3: (1000 * x1**2 + 100 * x2**2 - x3, 100 * x1**2 + 400 * x2**2 + x3 - 0.01),
        start=(1, 1, 1),
        x=(2.0327886084569955e-06, 0.0044721349386053905, 0.002000003223139031),
        value=-0.004472136971394,
    ),
    "s336": Program(
        lambda x1, x2, x3: 7 * x1 - 6 * x2 + 4 * x3,
        equalities=lambda x1, x2, x3: (x1**2 + 2 * x2**2 + 3 * x3**2 - 1, 5 * x1 + 5 * x2 - 3 * x3 - 6),
        start=(0, 0, 0),
        x=(0.5345944366074571, 0.5339705085400279, -0.21905842475419168),
        value=-0.3378956940047,
    ),
    "s338": Program(
        lambda x1, x2, x3: -(x1**2) - x2**2 - x3**2,
        equalities=lambda x1, x2, x3: (0.5 * x1 + x2 + x3 - 1, x1**2 + 2 / 3 * x2**2 + 0.25 * x3**2 - 4),
        start=(0, 0, 0),
        x=(-0.3665301177595682, -1.6620759498698183, 2.8453410087496023),
        value=-10.99280624643,
    ),
    "s394": Program(
        lambda *x: sum(i * (xi**2 + xi**4) for i, xi in enumerate(x, 1)),
        equalities=lambda *x: (sum(xi**2 for xi in x) - 1,),
        start=20 * (2,),
        x=(sqrt(5 / 6), sqrt(1 / 6), *18 * (0,)),
        value=23 / 12,
        unique=False,
    ),
}
