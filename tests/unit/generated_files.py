"""Small generated files in the formats of the public data sets, for tests."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tightrope.datasets import SOURCES
from tightrope.datasets.prepare import ADULT_COLUMNS, COMPAS_COLUMNS

EXAMPLES = 120
REAL = os.environ.get("TIGHTROPE_DATA")
"""The folder with the real files."""
needs_real_files = pytest.mark.skipif(not REAL, reason="TIGHTROPE_DATA names no folder with the real files")

JOBS = (
    "admin. blue-collar entrepreneur housemaid management retired self-employed services student technician unemployed "
    "unknown"
)
MONTHS = "apr aug dec jul jun mar may nov oct sep"
ASKED = "no unknown yes"
BANK_ADDITIONAL = {
    **{"job": JOBS, "marital": "divorced married single unknown", "default": ASKED, "housing": ASKED, "loan": ASKED},
    "education": "basic.4y basic.6y basic.9y high.school illiterate professional.course university.degree unknown",
    **{"contact": "cellular telephone", "month": MONTHS, "day_of_week": "fri mon thu tue wed"},
    "poutcome": "failure nonexistent success",
}
BANK_FULL = {
    **{"job": JOBS, "marital": "divorced married single", "education": "primary secondary tertiary unknown"},
    **{"default": "no yes", "housing": "no yes", "loan": "no yes", "contact": "cellular telephone unknown"},
    **{"month": MONTHS + " jan feb", "poutcome": "failure other success unknown"},
}
RACES = ("African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other")
AGES = ("25 - 45", "Greater than 45", "Less than 25")
DROPPED = 10
"""Examples in the COMPAS file that ProPublica's selection drops."""
INCOMPLETE = 5
"""Examples in each Adult file with a missing entry."""


def _cycled(words: str, count: int = EXAMPLES) -> list[str]:
    values = words.split()
    return [values[i % len(values)] for i in range(count)]


def _csv(columns: dict[str, list], delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=quoting)
    writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    return text.getvalue().encode()


def _libsvm(random, count: int, columns: int, labels: str, value: str = "1", always: tuple[int, ...] = ()) -> bytes:
    """Lines with about ten columns each, one of them from `always`; trailing blanks as in LIBSVM's files."""
    lines = []
    for label in _cycled(labels, count):
        chosen = set(random.choice(np.arange(1, columns + 1), 10, replace=False)) - set(always)
        chosen |= {random.choice(always)} if always else set()
        lines.append(f"{label} {' '.join(f'{i}:{value}' for i in sorted(chosen))} ")
    return ("\n".join(lines) + "\n").encode()


def _idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def _adult(random, end: str) -> bytes:
    columns = {
        **{title: random.integers(1, 60, EXAMPLES).tolist() for title in ADULT_COLUMNS},
        **{"workclass": _cycled("Private State-gov"), "education": _cycled("HS-grad Masters 9th")},
        **{"marital-status": _cycled("Divorced Widowed"), "occupation": _cycled("Sales Tech-support Other-service")},
        **{"relationship": _cycled("Husband Wife"), "race": _cycled("White Black"), "sex": _cycled("Male Male Female")},
        **{
            "native-country": _cycled("Cuba Peru"),
            "income": [word + end for word in _cycled("<=50K <=50K <=50K >50K")],
        },
    }
    columns["occupation"][:INCOMPLETE] = ["?"] * INCOMPLETE
    lines = [", ".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return ("\n".join(["|1x3 Cross validator"] * bool(end) + lines) + "\n\n").encode()


def _bank(random, categories: dict[str, str], numbers: tuple[str, ...], **fixed: list) -> bytes:
    columns = {"age": random.integers(18, 90, EXAMPLES).tolist()}
    columns |= {title: _cycled(words) for title, words in categories.items()}
    columns |= {title: np.round(random.normal(size=EXAMPLES), 2).tolist() for title in numbers}
    return _csv(columns | fixed | {"y": _cycled("no no no yes")}, ";", csv.QUOTE_NONNUMERIC)


def _compas(random) -> dict[str, list]:
    columns = {title: random.integers(0, 9, EXAMPLES).tolist() for title in COMPAS_COLUMNS}
    columns |= {"id": list(range(EXAMPLES)), "age": random.integers(18, 70, EXAMPLES).tolist()}
    columns |= {"sex": _cycled("Male Female"), "race": [RACES[i % 6] for i in range(EXAMPLES)]}
    columns |= {"age_cat": [AGES[i % 3] for i in range(EXAMPLES)], "c_charge_degree": _cycled("F M")}
    columns |= {"c_charge_desc": ['Poss 3,4 "MDMA"', "Theft"] * (EXAMPLES // 2), "is_recid": [0] * EXAMPLES}
    columns |= {"days_b_screening_arrest": [-1, 30] * (EXAMPLES // 2), "two_year_recid": [0, 1] * (EXAMPLES // 2)}
    columns |= {"score_text": ["Low"] * EXAMPLES}
    for row, (title, value) in enumerate(
        [("days_b_screening_arrest", value) for value in ("", 31, -31, 400)]
        + [("is_recid", -1), ("c_charge_degree", "O"), ("score_text", "N/A")]
        + [("days_b_screening_arrest", "")] * 3
    ):
        columns[title][row] = value
    return columns


def columns_of(table: bytes) -> dict[str, list]:
    """The columns of a CSV file."""
    titles, *rows = csv.reader(io.StringIO(table.decode()))
    return {title: list(column) for title, column in zip(titles, zip(*rows, strict=True), strict=True)}


def published_compas(columns: dict[str, list]) -> bytes:
    """The table as published by ProPublica: with names and dates, and some columns twice."""
    titles = ["name", *COMPAS_COLUMNS, "dob", "decile_score", "priors_count"]
    values = [
        ["Jane Roe"] * EXAMPLES,
        *(columns[title] for title in COMPAS_COLUMNS),
        *([["1900-01-01"] * EXAMPLES] * 3),
    ]
    text = io.StringIO()
    csv.writer(text).writerows([titles, *zip(*values, strict=True)])
    return text.getvalue().encode()


def _loan(random) -> bytes:
    numbers = (
        *("loan_amnt", "funded_amnt_inv", "term", "int_rate", "installment", "annual_inc", "dti", "delinq_2yrs"),
        *("inq_last_6mths", "open_acc", "pub_rec", "revol_bal", "revol_util", "total_acc", "pub_rec_bankruptcies"),
        *("mths_since_last_delinq", "mths_since_last_record", "total_pymnt", "recoveries"),
    )
    columns = {title: np.round(random.normal(size=EXAMPLES), 2).tolist() for title in numbers}
    for title in ("annual_inc", "mths_since_last_delinq", "mths_since_last_record"):
        columns[title][::3] = [""] * (EXAMPLES // 3)
    columns |= {
        "sub_grade": _cycled("A1 A2 B1"),
        "emp_length": _cycled("n/a 10+"),
        "home_ownership": _cycled("RENT OWN"),
    }
    columns |= {
        "verification_status": _cycled("Verified No"),
        "purpose": _cycled("car"),
        "addr_state": _cycled("NY CA"),
    }
    columns |= {
        "issue_d": ["2010-07-01", "2011-12-01"] * (EXAMPLES // 2),
        "earliest_cr_line": ["2000-01-01", "", "1999-08-01"] * (EXAMPLES // 3),
    }
    refused = "Does not meet the credit policy. Status:Charged Off"
    return _csv(columns | {"loan_status": ["Fully Paid", "Charged Off", refused, "Fully Paid"] * (EXAMPLES // 4)})


@cache
def contents() -> dict[str, bytes]:
    """The contents of the generated files, by path."""
    random = np.random.default_rng(0)
    numbers = ("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed")
    pdays = [3, 6, *[999] * 8] * (EXAMPLES // 10)
    counts = {
        title: random.integers(0, 9, EXAMPLES).tolist() for title in ("duration", "campaign", "previous", "balance")
    }
    days = [1 + i % 31 for i in range(EXAMPLES)]
    images = {part: random.integers(0, 256, (rows, 28, 28)) for part, rows in (("train", 100), ("t10k", 20))}
    digits = {part: np.arange(len(pixels)) % 10 for part, pixels in images.items()}
    mnist = {f"mnist/{part}-images-idx3-ubyte": _idx(pixels) for part, pixels in images.items()}
    mnist |= {f"mnist/{part}-labels-idx1-ubyte": _idx(values) for part, values in digits.items()}
    return mnist | {
        "a9a/a9a": _libsvm(random, 200, 123, "-1 -1 +1", always=(72, 73)),
        "a9a/a9a.t": _libsvm(random, 50, 123, "-1 -1 +1", always=(72, 73)),
        "adult/adult.data": _adult(random, ""),
        "adult/adult.test": _adult(random, "."),
        "bank/bank-additional-full.csv": _bank(random, BANK_ADDITIONAL, numbers, pdays=pdays, **counts),
        "bank/bank-full.csv": _bank(random, BANK_FULL, (), day=days, pdays=pdays, **counts),
        "compas/compas-two-years-noid.csv": _csv(_compas(random)),
        "loan/lendingclub_2007_2011_derived.csv": _loan(random),
        "mushrooms/mushrooms": _libsvm(random, 90, 112, "1 2 2"),
        "phishing/phishing": _libsvm(random, 90, 68, "0 1", "0.18257"),
    }


def install(folder: Path, monkeypatch) -> None:
    """Write the files to the folder, every other one compressed, and make `tightrope.datasets` use them."""
    for i, (path, content) in enumerate(sorted(contents().items())):
        target = folder / (path + ".gz" * (i % 2))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(content) if i % 2 else content)
    for name, source in SOURCES.items():
        sums = [hashlib.sha256(contents()[file.path]).hexdigest() for file in source.files]
        expected = tuple(replace(file, sha256=each) for file, each in zip(source.files, sums, strict=True))
        monkeypatch.setitem(SOURCES, name, source._replace(files=expected))
    monkeypatch.setenv("TIGHTROPE_DATA", str(folder))
