"""Data sets, from real files if TIGHTROPE_DATA is set and from generated ones; never from the network."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import generated_files as generated
import numpy as np
import pytest
from generated_files import REAL, needs_real_files

import tightrope as tr
from tightrope import datasets
from tightrope.datasets import SOURCES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with generated files that `tightrope.datasets` uses."""
    generated.install(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture(params=["real", "generated"])
def kind(request):
    """The source of the files: TIGHTROPE_DATA as it is, or `folder`."""
    if request.param == "generated":
        request.getfixturevalue("folder")
    elif not REAL:
        pytest.skip("TIGHTROPE_DATA names no folder with the real files")
    return request.param


REAL_EXAMPLES = {
    "a9a": (32_561, 16_281),
    "adult": (30_162, 15_060),
    "bank-additional": (27_459, 13_729),
    "bank-full": (30_141, 15_070),
    "compas": (4_115, 2_057),
    "loan": (28_357, 14_178),
    "mnist": (60_000, 10_000),
    "mushrooms": (5_416, 2_708),
    "phishing": (7_370, 3_685),
}
COMPLETE = generated.EXAMPLES - generated.INCOMPLETE
EXAMPLES = {
    "real": REAL_EXAMPLES,
    "generated": {
        **{"a9a": (200, 50), "adult": (COMPLETE, COMPLETE), "bank-additional": (80, 40), "bank-full": (80, 40)},
        **{"compas": (73, 37), "loan": (80, 40), "mnist": (100, 20), "mushrooms": (60, 30), "phishing": (60, 30)},
    },
}
SIZES = {
    "a9a": 123,
    "bank-additional": 54,
    "bank-full": 81,
    "compas": 16,
    "mnist": 784,
    "mushrooms": 112,
    "phishing": 68,
}
FEATURES = {
    "real": SIZES | {"adult": 5 + 7 + 16 + 7 + 14 + 6 + 5 + 41, "loan": 2 + 16 + 35 + 12 + 5 + 3 + 14 + 50},
    "generated": SIZES | {"adult": 5 + 2 + 3 + 2 + 3 + 2 + 2 + 2, "loan": 2 + 16 + 3 + 2 + 2 + 2 + 1 + 2},
}
GROUPS = {"a9a": "male", "adult": "male", "bank-additional": "age 25 to 60", "bank-full": "age 25 to 60"}


@pytest.mark.parametrize("name", datasets.names())
def test_arrays_have_the_documented_shapes_and_values(name, kind):
    data = datasets.load(name)
    keys = {"x", "y"} | ({"group"} if data.group_name else set())
    for arrays, count in zip((data.train, data.test), EXAMPLES[kind][name], strict=True):
        assert set(arrays) == keys
        assert arrays["x"].shape == (count, FEATURES[kind][name])
        assert arrays["x"].dtype == np.float32
        assert np.isfinite(arrays["x"]).all()
        assert set(np.unique(arrays["y"])) == (set(range(10)) if name == "mnist" else {-1.0, 1.0})
        assert all(arrays[key].shape == (count,) for key in keys - {"x"})
        assert data.group_name is None or set(np.unique(arrays["group"])) == {0.0, 1.0}
    assert len(set(data.features)) == data.train["x"].shape[1]
    assert data.group_name == (GROUPS | {"compas": "caucasian"}).get(name)
    assert data.all()["x"].shape[0] == sum(EXAMPLES[kind][name])
    assert data.note
    assert tr.Dataset(data.train, batch_size=8).size == EXAMPLES[kind][name][0]


STANDARDIZED = {"adult": 5, "bank-additional": 9, "bank-full": 6, "compas": 5, "loan": 16}


@pytest.mark.parametrize("name", STANDARDIZED)
def test_numbers_are_standardized_on_the_training_set_and_other_columns_are_zeros_and_ones(name, kind):
    x = datasets.load(name).train["x"].astype(float)
    flags = np.isin(x, (0.0, 1.0)).all(axis=0)
    assert np.sum(~flags) == STANDARDIZED[name]
    np.testing.assert_allclose(x[:, ~flags].mean(axis=0), 0.0, atol=1e-5)
    deviations = x[:, ~flags].std(axis=0)
    complete = ~np.isin(x[:, ~flags], 0.0).any(axis=0)  # a missing number is the mean, which is 0
    np.testing.assert_allclose(deviations[complete], 1.0, atol=1e-5)
    assert (deviations <= 1.0 + 1e-5).all()


def columns_of(data, prefix):
    return data.all()["x"][:, [name.startswith(prefix) for name in data.features]]


def test_one_hot_columns_sum_to_one_and_without_the_first_to_at_most_one(kind):
    assert (columns_of(datasets.load("bank-full"), "job=").sum(axis=1) == 1).all()
    jobs = columns_of(datasets.load("bank-additional"), "job=").sum(axis=1)
    assert set(np.unique(jobs)) == {0.0, 1.0}


def published(kind, name, index=0):
    """The content of a file, read without the package."""
    path = SOURCES[name].files[index].path
    return (
        generated.contents()[path]
        if kind == "generated"
        else gzip.decompress(Path(REAL or "", path + ".gz").read_bytes())
    )


def raw(kind, name):
    return published(kind, name).decode()


@pytest.mark.parametrize("name", ["a9a", "phishing"])
def test_libsvm_lines_become_examples(name, kind):
    data = datasets.load(name)
    lines = raw(kind, name).splitlines()[:100]
    rows = np.zeros((100, len(data.features)), np.float32)
    for row, line in zip(rows, lines, strict=False):
        for pair in line.split()[1:]:
            column, value = pair.split(":")
            row[int(column) - 1] = float(value)
    seen = {row.tobytes() for row in data.all()["x"]}
    assert all(row.tobytes() in seen for row in rows[: len(lines)])
    if name == "a9a":
        np.testing.assert_array_equal(data.train["x"][:100], rows)
        np.testing.assert_array_equal(data.train["group"][:100], [" 73:1 " in line for line in lines])
        assert data.features[71:73] == ("female", "male")


def test_images_are_the_published_bytes_divided_by_255(kind):
    pixels = np.frombuffer(published(kind, "mnist", index=2), np.uint8)[16:]
    np.testing.assert_allclose(datasets.load("mnist").test["x"].ravel() * 255, pixels, atol=1e-4)


@pytest.mark.parametrize("name", ["bank-additional", "bank-full"])
def test_counts_of_the_bank_data_match_the_file(name, kind):
    rows = list(csv.DictReader(io.StringIO(raw(kind, name)), delimiter=";"))
    data = datasets.load(name)
    arrays = data.all()
    assert np.sum(arrays["y"] == 1) == sum(row["y"] == "yes" for row in rows)
    assert arrays["group"].sum() == sum(25 <= float(row["age"]) <= 60 for row in rows)
    for title in ("job=student", "month=may", "poutcome=success"):
        column, value = title.split("=")
        assert arrays["x"][:, data.features.index(title)].sum() == sum(row[column] == value for row in rows)
    both = (arrays["x"][:, data.features.index("job=student")] == 1) & (arrays["y"] == 1)
    assert both.sum() == sum(row["job"] == "student" and row["y"] == "yes" for row in rows)


def test_selection_and_groups_of_compas_match_the_file(kind):
    data = datasets.load("compas")
    arrays = data.all()
    rows = [
        row
        for row in csv.DictReader(io.StringIO(raw(kind, "compas")))
        if row["days_b_screening_arrest"]
        and -30 <= float(row["days_b_screening_arrest"]) <= 30
        and row["is_recid"] != "-1"
        and row["c_charge_degree"] != "O"
        and row["score_text"] != "N/A"
    ]
    assert len(rows) == len(arrays["y"]) == (6172 if kind == "real" else generated.EXAMPLES - generated.DROPPED)
    caucasian = [row["race"] == "Caucasian" for row in rows]
    again = [row["two_year_recid"] == "1" for row in rows]
    assert arrays["group"].sum() == sum(caucasian)
    assert ((arrays["group"] == 1) & (arrays["y"] == 1)).sum() == np.sum(np.array(caucasian) & again)


def test_incomplete_examples_of_adult_are_dropped_and_sex_is_not_a_feature(kind):
    data = datasets.load("adult")
    lines = [line.split(", ") for line in raw(kind, "adult").splitlines() if line and "?" not in line]
    np.testing.assert_array_equal(data.train["group"], [line[9] == "Male" for line in lines])
    np.testing.assert_array_equal(data.train["y"] == 1, [line[14] == ">50K" for line in lines])
    assert not [name for name in data.features if name.startswith(("sex", "fnlwgt")) or name.endswith("ale")]


def test_information_from_after_the_loan_was_made_is_not_a_feature(kind):
    data = datasets.load("loan")
    leaks = ("total_pymnt", "total_rec", "recover", "last_", "out_prncp", "settlement", "hardship")
    assert not [name for name in data.features if name.startswith(leaks)]
    paid = sum("Charged Off" not in row["loan_status"] for row in csv.DictReader(io.StringIO(raw(kind, "loan"))))
    assert np.sum(data.all()["y"] == -1) == paid
    assert "SUBSTITUTE" in data.note


@needs_real_files
def test_a9a_has_the_same_sex_and_income_as_adult_in_every_example():
    lines = [line.split(", ") for line in raw("real", "adult").splitlines() if line]
    train = datasets.load("a9a").train
    np.testing.assert_array_equal(train["group"], [line[9] == "Male" for line in lines])
    np.testing.assert_array_equal(train["y"] == 1, [line[14] == ">50K" for line in lines])


@needs_real_files
def test_the_papers_splits_can_be_made():
    train, validation, test = datasets.split(datasets.load("adult").all(), 28_350, 3_150, 13_722)
    assert [len(part["y"]) for part in (train, validation, test)] == [28_350, 3_150, 13_722]
    every = datasets.load("a9a").all()
    assert len(every["y"]) == 48_842


# ---- split -------------------------------------------------------------------------------------------------------------


def test_parts_of_a_split_are_disjoint_and_keep_examples_together():
    arrays = {"x": np.arange(20).reshape(10, 2), "y": np.arange(10)}
    parts = datasets.split(arrays, 5, 3, seed=1)
    assert [len(part["y"]) for part in parts] == [5, 3]
    assert len({int(y) for part in parts for y in part["y"]}) == 8
    assert all((part["x"][:, 0] == 2 * part["y"]).all() for part in parts)
    assert not np.array_equal(parts[0]["y"], datasets.split(arrays, 5, 3, seed=2)[0]["y"])


@pytest.mark.parametrize("sizes", [(6, 5), (-1, 3)])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="sum to at most 10"):
        datasets.split({"y": np.arange(10)}, *sizes)
