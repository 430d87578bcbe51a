"""The data sets: their files, the URLs of these, and the functions that preprocess them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import prepare
from .files import File


class Source(NamedTuple):
    """The files of a data set, the function that turns them into arrays, and a note for users."""

    files: tuple[File, ...]
    prepare: Callable[..., prepare.Prepared]
    note: str


LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"

SOURCES: dict[str, Source] = {
    "a9a": Source(
        (
            File("a9a/a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", LIBSVM + "a9a"),
            File("a9a/a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", LIBSVM + "a9a.t"),
        ),
        prepare.a9a,
        "LIBSVM's binarized UCI Adult (CC BY 4.0). y = 1: income above 50,000. Unchanged.",
    ),
    "adult": Source(
        (
            File(
                "adult/adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                UCI + "adult/adult.data",
            ),
            File(
                "adult/adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                UCI + "adult/adult.test",
            ),
        ),
        prepare.adult,
        "UCI Adult (CC BY 4.0). y = 1: income above 50,000. Incomplete examples dropped; categories one-hot, numbers "
        "standardized; sex is the group, not a feature; the census weight is dropped.",
    ),
    "bank-additional": Source(
        (
            File(
                "bank/bank-additional-full.csv",
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
                UCI + "00222/bank-additional.zip",
                "bank-additional/bank-additional-full.csv",
            ),
        ),
        prepare.bank_additional,
        "UCI Bank Marketing (CC BY 4.0). y = 1: the client subscribed. Categories one-hot, without the first of each; numbers "
        "standardized; a constant; whether the client was contacted before. Without the call's duration, which leaks the "
        "label.",
    ),
    "bank-full": Source(
        (
            File(
                "bank/bank-full.csv",
                "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
                UCI + "00222/bank.zip",
                "bank-full.csv",
            ),
        ),
        prepare.bank_full,
        "UCI Bank Marketing, older release (CC BY 4.0). y = 1: the client subscribed. Categories and the day of the month "
        "one-hot, numbers standardized. This includes the call's duration, which leaks the label.",
    ),
    "compas": Source(
        (
            File(
                "compas/compas-two-years-noid.csv",
                "f3cf1834d15da4d1bc77f6744309d849e01f99a0d73f191a66a12d7bb9397170",
                "https://raw.githubusercontent.com/propublica/compas-analysis/master/compas-scores-two-years.csv",
                derive=prepare.without_names,
            ),
        ),
        prepare.compas,
        "ProPublica 2016 (no license stated). y = 1: charged again within two years. ProPublica's selection; numbers "
        "standardized, age and race classes one-hot; COMPAS's own scores are not features.",
    ),
    "loan": Source(
        (
            File(
                "loan/lendingclub_2007_2011_derived.csv",
                "2866318df992409f8b1b5eaa3e3bf72cac45dd2d0a0ba18a0aa13b2af74a1536",
                None,
            ),
        ),
        prepare.loan,
        "SUBSTITUTE: LendingClub's public statistics for 2007 to 2011, not the 'loan' set of paper 3 (128,375 x 250), which is "
        "unavailable. y = 1: charged off. Only features known when the loan was made.",
    ),
    "mnist": Source(
        tuple(
            File(f"mnist/{name}", sha256, f"{MNIST}{name}.gz")
            for name, sha256 in (
                ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
                ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
                ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
                ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
            )
        ),
        prepare.mnist,
        "MNIST (CC BY-SA 3.0). y: the digit. Pixels divided by 255.",
    ),
    "mushrooms": Source(
        (
            File(
                "mushrooms/mushrooms",
                "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
                LIBSVM + "mushrooms",
            ),
        ),
        prepare.mushrooms,
        "LIBSVM's one-hot UCI Mushroom. y = 1: poisonous. Otherwise unchanged.",
    ),
    "phishing": Source(
        (
            File(
                "phishing/phishing",
                "48bcea643233b42db820c601781db2a32e720e01f7e23be5e9b7326f32dc6503",
                LIBSVM + "phishing",
            ),
        ),
        prepare.phishing,
        "LIBSVM's UCI Phishing Websites. y = 1: its label 1. Otherwise unchanged.",
    ),
}
