"""Data sets: real files where TIGHTROPE_DATA has them, generated ones everywhere, through the same code; never the network."""

from __future__ import annotations

import csv
import gzip
import http.server
import io
import os
import sys
import threading
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import generated_files as generated
import numpy as np
import pytest

import tightrope as tr
from tightrope import datasets
from tightrope.datasets import SOURCES
from tightrope.datasets.files import content
from tightrope.datasets.prepare import without_names

REAL = os.environ.get("TIGHTROPE_DATA")
KINDS = ["real", "generated"]

files = cache(generated.contents)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with generated files, which TIGHTROPE_DATA names and whose sums are expected."""
    generated.write(tmp_path, files())
    generated.expect(monkeypatch, files())
    monkeypatch.setenv("TIGHTROPE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(params=KINDS)
def kind(request):
    """Where files come from: TIGHTROPE_DATA as it is, or `folder`."""
    if request.param == "generated":
        request.getfixturevalue("folder")
    elif not REAL:
        pytest.skip("TIGHTROPE_DATA names no folder with the real files")
    return request.param


REAL_ROWS = {
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
COMPLETE = generated.ROWS - generated.INCOMPLETE
ROWS = {
    "real": REAL_ROWS,
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
    for arrays, rows in zip((data.train, data.test), ROWS[kind][name], strict=True):
        assert set(arrays) == keys
        assert arrays["x"].shape == (rows, FEATURES[kind][name])
        assert arrays["x"].dtype == np.float32
        assert np.isfinite(arrays["x"]).all()
        assert set(np.unique(arrays["y"])) == (set(range(10)) if name == "mnist" else {-1.0, 1.0})
        assert all(arrays[key].shape == (rows,) for key in keys - {"x"})
        assert data.group_name is None or set(np.unique(arrays["group"])) == {0.0, 1.0}
    assert len(set(data.features)) == data.train["x"].shape[1]
    assert data.group_name == (GROUPS | {"compas": "caucasian"}).get(name)
    assert data.all()["x"].shape[0] == sum(ROWS[kind][name])
    assert data.note
    assert tr.Dataset(data.train, batch_size=8).size == ROWS[kind][name][0]


STANDARDIZED = {"adult": 5, "bank-additional": 9, "bank-full": 6, "compas": 5, "loan": 16}


@pytest.mark.parametrize("name", STANDARDIZED)
def test_numbers_are_standardised_on_the_training_rows_and_other_columns_are_zeros_and_ones(name, kind):
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


def test_one_hot_columns_have_one_one_a_row_and_without_the_first_at_most_one(kind):
    assert (columns_of(datasets.load("bank-full"), "job=").sum(axis=1) == 1).all()
    jobs = columns_of(datasets.load("bank-additional"), "job=").sum(axis=1)
    assert set(np.unique(jobs)) == {0.0, 1.0}


def published(kind, name, index=0):
    """The content of a file, read without the package."""
    path = SOURCES[name].files[index].path
    return files()[path] if kind == "generated" else gzip.decompress(Path(REAL or "", path + ".gz").read_bytes())


def raw(kind, name):
    return published(kind, name).decode()


@pytest.mark.parametrize("name", ["a9a", "phishing"])
def test_libsvm_lines_become_rows(name, kind):
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


def test_pictures_are_the_published_bytes_over_255(kind):
    pixels = np.frombuffer(published(kind, "mnist", index=2), np.uint8)[16:]
    np.testing.assert_allclose(datasets.load("mnist").test["x"].ravel() * 255, pixels, atol=1e-4)


@pytest.mark.parametrize("name", ["bank-additional", "bank-full"])
def test_counts_of_the_bank_sets_are_those_of_the_file(name, kind):
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


def test_selection_and_groups_of_compas_are_those_of_the_file(kind):
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
    assert len(rows) == len(arrays["y"]) == (6172 if kind == "real" else generated.ROWS - generated.DROPPED)
    caucasian = [row["race"] == "Caucasian" for row in rows]
    again = [row["two_year_recid"] == "1" for row in rows]
    assert arrays["group"].sum() == sum(caucasian)
    assert ((arrays["group"] == 1) & (arrays["y"] == 1)).sum() == np.sum(np.array(caucasian) & again)


def test_incomplete_rows_of_adult_are_left_out_and_sex_is_no_feature(kind):
    data = datasets.load("adult")
    lines = [line.split(", ") for line in raw(kind, "adult").splitlines() if line and "?" not in line]
    np.testing.assert_array_equal(data.train["group"], [line[9] == "Male" for line in lines])
    np.testing.assert_array_equal(data.train["y"] == 1, [line[14] == ">50K" for line in lines])
    assert not [name for name in data.features if name.startswith(("sex", "fnlwgt")) or name.endswith("ale")]


def test_what_is_learnt_after_the_loan_was_made_is_no_feature(kind):
    data = datasets.load("loan")
    leaks = ("total_pymnt", "total_rec", "recover", "last_", "out_prncp", "settlement", "hardship")
    assert not [name for name in data.features if name.startswith(leaks)]
    paid = sum("Charged Off" not in row["loan_status"] for row in csv.DictReader(io.StringIO(raw(kind, "loan"))))
    assert np.sum(data.all()["y"] == -1) == paid
    assert "SUBSTITUTE" in data.note


@pytest.mark.skipif(not REAL, reason="TIGHTROPE_DATA names no folder with the real files")
def test_a9a_tells_sex_and_income_as_adult_does_row_by_row():
    lines = [line.split(", ") for line in raw("real", "adult").splitlines() if line]
    train = datasets.load("a9a").train
    np.testing.assert_array_equal(train["group"], [line[9] == "Male" for line in lines])
    np.testing.assert_array_equal(train["y"] == 1, [line[14] == ">50K" for line in lines])


@pytest.mark.skipif(not REAL, reason="TIGHTROPE_DATA names no folder with the real files")
def test_papers_splits_can_be_made():
    train, validation, test = datasets.split(datasets.load("adult").all(), 28_350, 3_150, 13_722)
    assert [len(part["y"]) for part in (train, validation, test)] == [28_350, 3_150, 13_722]
    every = datasets.load("a9a").all()
    assert len(every["y"]) == 48_842


# ---- files ---------------------------------------------------------------------------------------------------------


def test_altered_content_is_refused(folder):
    path = folder / "a9a" / "a9a"
    path.write_bytes(path.read_bytes().replace(b"-1 ", b"+1 ", 1))
    with pytest.raises(ValueError, match=r"load\('a9a'\).*a9a.*sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        datasets.load("a9a")


def test_altered_content_in_a_sound_archive_is_refused(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(ValueError, match="sha256"):
        datasets.load("a9a")


def test_another_compression_of_the_same_content_is_taken(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    assert len(datasets.load("a9a").test["y"]) == 50


@pytest.mark.skipif(not REAL, reason="TIGHTROPE_DATA names no folder with the real files")
def test_real_sums_refuse_a_real_file_with_one_byte_changed(tmp_path, monkeypatch):
    text = bytearray(raw("real", "mushrooms").encode())
    text[0] ^= 3  # the first label, 1, becomes 2
    (tmp_path / "mushrooms").mkdir()
    (tmp_path / "mushrooms" / "mushrooms").write_bytes(text)
    monkeypatch.setenv("TIGHTROPE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="sha256"):
        datasets.load("mushrooms")


def test_a_torn_archive_is_refused_by_name(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a9a\.t\.gz cannot be unpacked"):
        datasets.load("a9a")


def test_a_missing_file_is_named_with_the_way_to_get_it(folder):
    next(folder.glob("bank/bank-full.csv*")).unlink()
    message = r"TIGHTROPE_DATA.*neither bank/bank-full.csv nor bank/bank-full.csv.gz nor bank/bank.zip; put https://.*bank.zip"
    with pytest.raises(FileNotFoundError, match=message):
        datasets.load("bank-full")


def test_a_download_lying_in_the_folder_is_taken_as_it_is(folder):
    for name, path in (("bank-full", "bank/bank-full.csv"), ("compas", "compas/compas-two-years-noid.csv")):
        before = datasets.load(name)
        for written in folder.glob(path + "*"):
            written.unlink()
        datasets._loaded.cache_clear()
        lay_download(folder / Path(path).parent, name)
        np.testing.assert_array_equal(datasets.load(name).train["x"], before.train["x"])


def test_the_substitute_without_an_address_is_said_to_have_none(folder, monkeypatch):
    for path in folder.glob("loan/*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"loan/lendingclub.*no public address"):
        datasets.load("loan")
    monkeypatch.delenv("TIGHTROPE_DATA")
    with pytest.raises(FileNotFoundError, match=r"no public address.*set TIGHTROPE_DATA"):
        datasets.load("loan")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"name must be one of a9a, .*phishing, got 'A9A'"):
        datasets.load("A9A")


def test_arrays_cannot_be_changed_under_the_next_caller(folder):
    first = datasets.load("phishing")
    with pytest.raises(ValueError, match="read-only"):
        first.train["x"][0, 0] = 7.0
    first.train["x"] = np.zeros(1)
    assert datasets.load("phishing").train["x"].shape == (60, 68)


def test_names_are_removed_from_the_compas_table():
    derived = files()["compas/compas-two-years-noid.csv"]
    columns = generated.columns_of(derived)
    published = generated.published_compas(columns)
    assert b"Jane Roe" in published
    assert without_names(published) == derived


# ---- downloads, from a server on this machine ------------------------------------------------------------------------


def lay_download(folder, name):
    """Write a set's files as their public home has them; return their names."""
    file = SOURCES[name].files[0]
    text = files()[file.path]
    published = generated.published_compas(generated.columns_of(text)) if name == "compas" else text
    target = folder / Path(file.address or "").name
    if file.member:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(file.member, published)
    else:
        target.write_bytes(gzip.compress(published) if target.suffix == ".gz" else published)
    return target


@pytest.fixture
def server(tmp_path, folder, monkeypatch):
    """A public home on this machine: its folder, the addresses of the sets' first files pointing to it, an empty cache."""
    pooch = pytest.importorskip("pooch")
    home = tmp_path / "home"
    home.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=home)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{listening.server_address[1]}/"
        for name, source in SOURCES.items():
            moved = [f.address and replace(f, address=base + Path(f.address).name) for f in source.files]
            monkeypatch.setitem(SOURCES, name, source._replace(files=tuple(moved)))
        monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("TIGHTROPE_DATA")
        yield home
        listening.shutdown()


@pytest.mark.parametrize("name", ["mushrooms", "mnist", "bank-additional", "compas"])
def test_a_download_is_unpacked_checked_and_cached(server, name):
    file = SOURCES[name].files[0]
    target = lay_download(server, name)
    assert content(name, file, None) == files()[file.path]
    target.unlink()
    assert content(name, file, None) == files()[file.path]


def test_a_wrong_download_is_refused_and_fetched_anew_the_next_time(server):
    target = lay_download(server, "bank-full")
    sound = target.read_bytes()
    file = SOURCES["bank-full"].files[0]
    target.write_bytes(b"<html>The site has moved</html>")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        content("bank-full", file, None)
    target.write_bytes(sound)
    assert content("bank-full", file, None) == files()[file.path]


def test_a_download_that_fails_says_what_else_can_be_done(server):
    with pytest.raises(OSError, match=r"could not download http.*mushrooms.*TIGHTROPE_DATA.*mushrooms/mushrooms"):
        content("mushrooms", SOURCES["mushrooms"].files[0], None)


def test_without_pooch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'tightrope\[report\]'.*TIGHTROPE_DATA"):
        content("a9a", SOURCES["a9a"].files[0], None)


# ---- split -------------------------------------------------------------------------------------------------------------


def test_parts_of_a_split_are_disjoint_and_keep_rows_together():
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
