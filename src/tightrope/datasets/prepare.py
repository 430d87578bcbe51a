"""Preprocessing: from files to arrays, with a test set, features, labels and groups."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..arguments import seed_number
from .formats import Column, read_idx, read_libsvm, read_table

Arrays = dict[str, np.ndarray]


class Prepared(NamedTuple):
    """The result of preprocessing: the fields of `Data` that depend on the files."""

    train: Arrays
    test: Arrays
    features: tuple[str, ...]
    group: str | None = None


def split(arrays: Mapping[str, np.ndarray], *sizes: int, seed: int = 0) -> tuple[Arrays, ...]:
    """Split examples into disjoint random parts.

    Args:
        arrays: arrays with one row per example, such as `data.all()`.
        sizes: number of examples in each part.
        seed: random seed.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> large, small = tr.datasets.split({"y": np.arange(9)}, 6, 3)
        >>> sorted([*large["y"], *small["y"]]) == list(range(9))
        True
    """
    count = len(next(iter(arrays.values())))
    if min(sizes, default=0) < 0 or sum(sizes) > count:
        raise ValueError(f"split: sizes must be ≥ 0 and sum to at most {count}, the number of examples, got {sizes}")
    order = np.random.default_rng(seed_number("split", "seed", seed)).permutation(count)
    parts = np.split(order, np.cumsum(sizes))[: len(sizes)]
    return tuple({key: array[part] for key, array in arrays.items()} for part in parts)


def a9a(train: bytes, test: bytes) -> Prepared:
    """LIBSVM's columns, of which the 72nd is female and the 73rd male."""
    (x, y), (x_test, y_test) = (read_libsvm(content, 123) for content in (train, test))
    x = np.concatenate([x, x_test])
    names = (*_numbered(71), "female", "male", *_numbered(123)[73:])
    return _parts({"x": x, "y": np.concatenate([y, y_test]), "group": x[:, 72]}, len(y), names, "male")


def phishing(content: bytes) -> Prepared:
    """LIBSVM's columns, with labels 0 and 1 as signs."""
    return _labeled(content, 68)


def mushrooms(content: bytes) -> Prepared:
    """LIBSVM's columns, with labels 2 and 1 as signs."""
    return _labeled(content, 112)


def mnist(images: bytes, labels: bytes, test_images: bytes, test_labels: bytes) -> Prepared:
    """Pixels from 0 to 1, in row-major order; labels are the digits."""

    def arrays(images: bytes, labels: bytes) -> Arrays:
        pixels = read_idx(images)
        x = pixels.reshape(len(pixels), -1).astype(np.float32)
        x /= 255
        return {"x": x, "y": read_idx(labels).astype(np.int32)}

    names = tuple(f"row {i} column {j}" for i in range(28) for j in range(28))
    return Prepared(arrays(images, labels), arrays(test_images, test_labels), names)


ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)


def adult(train: bytes, test: bytes) -> Prepared:
    """Complete examples; numbers standardized, categories one-hot; sex (the group) and the census weight are not features."""
    tables = [read_table(content, header=ADULT_COLUMNS) for content in (train, test)]
    complete = [np.all([column != "?" for column in table.values()], axis=0) for table in tables]
    first, second = (_selected(table, kept) for table, kept in zip(tables, complete, strict=True))
    table, count = {title: np.concatenate([first[title], second[title]]) for title in first}, len(first["age"])
    numbers = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    categories = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "native-country")
    x, names = _features(count, numbers=_columns(table, numbers), categories=_columns(table, categories))
    y, group = _signs(np.char.startswith(table["income"], ">50K")), table["sex"] == "Male"
    return _parts({"x": x, "y": y, "group": group}, count, names, "male")


def bank_additional(content: bytes) -> Prepared:
    """54 columns: a constant, contacted before or not, 9 numbers without `duration`, 43 categories without first ones."""
    table, train = _shuffled(read_table(content, ";"))
    before = table["pdays"] != "999"
    numbers = ("age", "campaign", "previous", "emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m")
    categories = ("job", "marital", "education", "default", "housing", "loan", "contact", "month", "day_of_week")
    x, names = _features(
        train,
        unscaled={"constant": np.ones(len(before)), "contacted before": before},
        numbers=_columns(table, (*numbers, "nr.employed")) | {"pdays": np.where(before, table["pdays"], "")},
        categories=_columns(table, (*categories, "poutcome")),
        drop_first=True,
    )
    arrays = {"x": x, "y": _signs(table["y"] == "yes"), "group": _from_25_to_60(table["age"])}
    return _parts(arrays, train, names, "age 25 to 60")


def bank_full(content: bytes) -> Prepared:
    """81 columns: 6 numbers, 44 categories, 31 days of the month."""
    table, train = _shuffled(read_table(content, ";"))
    numbers = ("age", "balance", "duration", "campaign", "pdays", "previous")
    categories = ("job", "marital", "education", "default", "housing", "loan", "contact", "day", "month", "poutcome")
    x, names = _features(train, numbers=_columns(table, numbers), categories=_columns(table, categories))
    arrays = {"x": x, "y": _signs(table["y"] == "yes"), "group": _from_25_to_60(table["age"])}
    return _parts(arrays, train, names, "age 25 to 60")


COMPAS_COLUMNS = (
    *("id", "sex", "age", "age_cat", "race", "juv_fel_count", "decile_score", "juv_misd_count", "juv_other_count"),
    *("priors_count", "days_b_screening_arrest", "c_charge_degree", "c_charge_desc", "is_recid", "is_violent_recid"),
    *("score_text", "v_decile_score", "v_score_text", "two_year_recid"),
)


def without_names(content: bytes) -> bytes:
    """ProPublica's table without names, birth dates and case numbers; of repeated columns, the first."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    kept = [rows[0].index(title) for title in COMPAS_COLUMNS]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([row[i] for i in kept] for row in rows)
    return text.getvalue().encode()


def compas(content: bytes) -> Prepared:
    """ProPublica's selection; 16 columns: male, felony, 5 numbers, 3 age classes and 6 of race."""
    table = read_table(content)
    days = _numbers(table["days_b_screening_arrest"])
    kept = (np.abs(days) <= 30) & (table["is_recid"] != "-1")
    kept &= (table["c_charge_degree"] != "O") & (table["score_text"] != "N/A")
    table, train = _shuffled(_selected(table, kept))
    numbers = ("age", "priors_count", "juv_fel_count", "juv_misd_count", "juv_other_count")
    x, names = _features(
        train,
        unscaled={"male": table["sex"] == "Male", "felony": table["c_charge_degree"] == "F"},
        numbers=_columns(table, numbers),
        categories=_columns(table, ("age_cat", "race")),
    )
    arrays = {"x": x, "y": _signs(table["two_year_recid"] == "1"), "group": table["race"] == "Caucasian"}
    return _parts(arrays, train, names, "caucasian")


def loan(content: bytes) -> Prepared:
    """Features known when the loan was made: 16 numbers, whether there was ever a delinquency or record, categories."""
    numbers = (
        *("loan_amnt", "funded_amnt_inv", "term", "int_rate", "installment", "annual_inc", "dti", "delinq_2yrs"),
        *("inq_last_6mths", "open_acc", "pub_rec", "revol_bal", "revol_util", "total_acc", "pub_rec_bankruptcies"),
    )
    categories = ("sub_grade", "emp_length", "home_ownership", "verification_status", "purpose", "addr_state")
    events = ("mths_since_last_delinq", "mths_since_last_record")
    others = ("issue_d", "earliest_cr_line", "loan_status")
    table, train = _shuffled(read_table(content, only=(*numbers, *categories, *events, *others)))
    issued, first_credit = (table[title].astype("datetime64[M]") for title in ("issue_d", "earliest_cr_line"))
    years = np.where(np.isnat(first_credit), np.nan, (issued - first_credit).astype(float) / 12)
    x, names = _features(
        train,
        unscaled={f"{title} known": table[title] != "" for title in events},
        numbers=_columns(table, numbers) | {"years of credit": years},
        categories=_columns(table, categories),
    )
    return _parts({"x": x, "y": _signs(np.char.endswith(table["loan_status"], "Charged Off"))}, train, names)


# ---------------------------------------------------------------------- shared steps


def _parts(arrays: Arrays, train: int, features: tuple[str, ...], group: str | None = None) -> Prepared:
    """The first `train` examples for training, the others for testing."""
    arrays = {key: np.asarray(array, np.float32) for key, array in arrays.items()}
    first, second = ({key: array[part] for key, array in arrays.items()} for part in np.s_[:train, train:])
    return Prepared(first, second, features, group)


def _shuffled(table: Mapping[str, np.ndarray]) -> tuple[Arrays, int]:
    """The examples in random order, and the number of training examples: two thirds."""
    count = len(next(iter(table.values())))
    return split(table, count)[0], round(2 * count / 3)


def _labeled(content: bytes, features: int) -> Prepared:
    """LIBSVM data with two labels, of which 1 is positive."""
    x, label = read_libsvm(content, features)
    arrays, train = _shuffled({"x": x, "y": _signs(label == 1)})
    return _parts(arrays, train, _numbered(features))


def _features(
    train: int,
    *,
    unscaled: Mapping[str, Column] | None = None,
    numbers: Mapping[str, Column],
    categories: Mapping[str, Column],
    drop_first: bool = False,
) -> tuple[Float[np.ndarray, "examples features"], tuple[str, ...]]:
    """The matrix of all columns, and their names.

    Numbers are standardized to mean 0 and variance 1 on the first `train` examples, with missing ones set to the mean. Each
    category becomes a column of zeros and ones; `drop_first` drops the alphabetically first category of each column.
    """
    columns = {name: np.asarray(column, float) for name, column in (unscaled or {}).items()}
    for name, column in numbers.items():
        values = _numbers(column)
        deviation = np.nanstd(values[:train])
        columns[name] = np.nan_to_num((values - np.nanmean(values[:train])) / (deviation if deviation > 0 else 1.0))
    for name, column in categories.items():
        values, which = np.unique(column, return_inverse=True)
        columns |= {f"{name}={values[i]}": which == i for i in range(int(drop_first), len(values))}
    return np.stack([*columns.values()], axis=1).astype(np.float32), tuple(columns)


def _columns(table: Mapping[str, Column], titles: Iterable[str]) -> dict[str, Column]:
    return {title: table[title] for title in titles}


def _selected(table: Mapping[str, Column], kept: Column) -> dict[str, Column]:
    return {title: column[kept] for title, column in table.items()}


def _numbers(column: Column) -> Float[np.ndarray, " examples"]:
    """Text as numbers, with nan for empty text."""
    return np.where(column == "", "nan", column).astype(float) if column.dtype.kind == "U" else column


def _signs(condition: Any) -> Float[np.ndarray, " examples"]:
    return np.where(condition, 1.0, -1.0)


def _from_25_to_60(age: Column) -> Column:
    return (_numbers(age) >= 25) & (_numbers(age) <= 60)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"column {i + 1}" for i in range(count))
