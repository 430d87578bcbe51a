"""The files of data sets: verified, unpacked, downloaded from a server on this machine; and the errors if one is missing."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import generated_files as generated
import numpy as np
import pytest
from generated_files import REAL, needs_real_files

from tightrope import datasets
from tightrope.datasets import SOURCES
from tightrope.datasets.files import content
from tightrope.datasets.prepare import without_names


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with generated files that `tightrope.datasets` uses."""
    generated.install(tmp_path, monkeypatch)
    return tmp_path


def test_altered_content_is_refused(folder):
    path = folder / "a9a" / "a9a"
    path.write_bytes(path.read_bytes().replace(b"-1 ", b"+1 ", 1))
    with pytest.raises(ValueError, match=r"load\('a9a'\).*a9a.*sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        datasets.load("a9a")


def test_altered_content_in_a_valid_archive_is_refused(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(ValueError, match="sha256"):
        datasets.load("a9a")


def test_another_compression_of_the_same_content_is_accepted(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    assert len(datasets.load("a9a").test["y"]) == 50


@needs_real_files
def test_the_real_checksums_refuse_a_real_file_with_one_byte_changed(tmp_path, monkeypatch):
    text = bytearray(gzip.decompress(Path(REAL or "", "mushrooms", "mushrooms.gz").read_bytes()))
    text[0] ^= 3  # the first label, 1, becomes 2
    (tmp_path / "mushrooms").mkdir()
    (tmp_path / "mushrooms" / "mushrooms").write_bytes(text)
    monkeypatch.setenv("TIGHTROPE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="sha256"):
        datasets.load("mushrooms")


def test_a_truncated_archive_is_refused_by_name(folder):
    path = folder / "a9a" / "a9a.t.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a9a\.t\.gz cannot be unpacked"):
        datasets.load("a9a")


def test_a_missing_file_is_named_with_its_url(folder):
    next(folder.glob("bank/bank-full.csv*")).unlink()
    message = r"TIGHTROPE_DATA.*neither bank/bank-full.csv nor bank/bank-full.csv.gz nor bank/bank.zip; put https://.*bank.zip"
    with pytest.raises(FileNotFoundError, match=message):
        datasets.load("bank-full")


def test_a_download_in_the_folder_is_used(folder):
    for name, path in (("bank-full", "bank/bank-full.csv"), ("compas", "compas/compas-two-years-noid.csv")):
        before = datasets.load(name)
        for written in folder.glob(path + "*"):
            written.unlink()
        datasets._loaded.cache_clear()
        write_download(folder / Path(path).parent, name)
        np.testing.assert_array_equal(datasets.load(name).train["x"], before.train["x"])


def test_the_substitute_without_a_url_says_so(folder, monkeypatch):
    for path in folder.glob("loan/*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"loan/lendingclub.*no public URL"):
        datasets.load("loan")
    monkeypatch.delenv("TIGHTROPE_DATA")
    with pytest.raises(FileNotFoundError, match=r"no public URL.*set TIGHTROPE_DATA"):
        datasets.load("loan")


def test_an_unknown_name_lists_the_known_ones_and_suggests_one():
    with pytest.raises(ValueError, match=r"name must be one of a9a, .*phishing, got 'A9A'; did you mean 'a9a'\?"):
        datasets.load("A9A")


def test_arrays_cannot_be_changed_under_the_next_caller(folder):
    first = datasets.load("phishing")
    with pytest.raises(ValueError, match="read-only"):
        first.train["x"][0, 0] = 7.0
    first.train["x"] = np.zeros(1)
    assert datasets.load("phishing").train["x"].shape == (60, 68)


def test_names_are_removed_from_the_compas_table():
    derived = generated.contents()["compas/compas-two-years-noid.csv"]
    columns = generated.columns_of(derived)
    published = generated.published_compas(columns)
    assert b"Jane Roe" in published
    assert without_names(published) == derived


# ---- downloads, from a server on this machine ------------------------------------------------------------------------


def write_download(folder, name):
    """Write the first file of a data set as it is published; return its path."""
    file = SOURCES[name].files[0]
    text = generated.contents()[file.path]
    published = generated.published_compas(generated.columns_of(text)) if name == "compas" else text
    target = folder / Path(file.url or "").name
    if file.member:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(file.member, published)
    else:
        target.write_bytes(gzip.compress(published) if target.suffix == ".gz" else published)
    return target


@pytest.fixture
def server(tmp_path, folder, monkeypatch):
    """A web server on this machine that all URLs point to, and an empty cache; yields its folder."""
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
            moved = [f.url and replace(f, url=base + Path(f.url).name) for f in source.files]
            monkeypatch.setitem(SOURCES, name, source._replace(files=tuple(moved)))
        monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("TIGHTROPE_DATA")
        yield home
        listening.shutdown()


@pytest.mark.parametrize("name", ["mushrooms", "mnist", "bank-additional", "compas"])
def test_a_download_is_unpacked_verified_and_cached(server, name):
    file = SOURCES[name].files[0]
    target = write_download(server, name)
    assert content(name, file, None) == generated.contents()[file.path]
    target.unlink()
    assert content(name, file, None) == generated.contents()[file.path]


def test_a_wrong_download_is_refused_and_downloaded_again_the_next_time(server):
    target = write_download(server, "bank-full")
    correct = target.read_bytes()
    file = SOURCES["bank-full"].files[0]
    target.write_bytes(b"<html>The site has moved</html>")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        content("bank-full", file, None)
    target.write_bytes(correct)
    assert content("bank-full", file, None) == generated.contents()[file.path]


def test_a_failed_download_suggests_a_folder(server):
    with pytest.raises(OSError, match=r"could not download http.*mushrooms.*TIGHTROPE_DATA.*mushrooms/mushrooms"):
        content("mushrooms", SOURCES["mushrooms"].files[0], None)


def test_without_pooch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'tightrope\[report\]'.*TIGHTROPE_DATA"):
        content("a9a", SOURCES["a9a"].files[0], None)
