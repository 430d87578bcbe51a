"""Files with known content: read from the user's folder or downloaded, unpacked, and verified."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A published file.

    Attributes:
        path: path in the user's folder, optionally followed by .gz; the download itself may be next to it instead.
        sha256: hash of the uncompressed content, after `derive`.
        url: public URL, compressed or not; None if there is none.
        member: name within the archive at that URL.
        derive: makes the content from the published content.
    """

    path: str
    sha256: str
    url: str | None
    member: str | None = None
    derive: Callable[[bytes], bytes] = bytes


def content(name: str, file: File, folder: str | None) -> bytes:
    """The uncompressed content of the file, verified."""
    if folder is None:
        path = _downloaded(name, file)
        try:
            return _from_download(name, file, path)
        except ValueError:
            path.unlink()  # so that the next call downloads it again
            raise
    for path in (Path(folder, file.path), Path(folder, file.path + ".gz")):
        if path.is_file():
            return _verified(name, file, path, _unpacked(path))
    download = Path(file.path).with_name(Path(file.url or file.path).name)
    if Path(folder, download).is_file():
        return _from_download(name, file, Path(folder, download))
    missing = " nor ".join(dict.fromkeys([file.path, file.path + ".gz", download.as_posix()]))
    raise FileNotFoundError(
        f"load({name!r}): the folder in TIGHTROPE_DATA, {folder}, has neither {missing}; {_advice(file)}"
    )


def _from_download(name: str, file: File, path: Path) -> bytes:
    return _verified(name, file, path, file.derive(_unpacked(path, file.member)))


def _advice(file: File) -> str:
    if file.url is None:
        return "this file has no public URL: docs/datasets.md says how it was made"
    return f"put {file.url} there, or unset TIGHTROPE_DATA to have it downloaded"


def _downloaded(name: str, file: File) -> Path:
    """The cached download, downloaded if missing."""
    if file.url is None:
        raise FileNotFoundError(
            f"load({name!r}): {_advice(file)}; set TIGHTROPE_DATA to a folder with {file.path} in it"
        )
    try:
        import pooch
    except ImportError:
        raise ImportError(
            f"load({name!r}): downloading needs Pooch: pip install 'tightrope[report]'; or set TIGHTROPE_DATA to a folder "
            f"with {file.path} in it"
        ) from None
    cache = Path(pooch.os_cache("tightrope"), name)
    try:
        # No hash for Pooch: archives are repacked now and then; their content is verified instead.
        return Path(pooch.retrieve(file.url, known_hash=None, fname=Path(file.url).name, path=cache))
    except OSError as error:
        raise OSError(
            f"load({name!r}): could not download {file.url}: {error}; or set TIGHTROPE_DATA to a folder with "
            f"{file.path} in it"
        ) from None


def _unpacked(path: Path, member: str | None = None) -> bytes:
    try:
        if member is not None:
            with zipfile.ZipFile(path) as archive:
                return archive.read(member)
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (zipfile.BadZipFile, KeyError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        expected = f"a zip archive with {member} in it" if member else "gzip"
        raise ValueError(f"load: {path} cannot be unpacked: {error}; expected {expected}") from error


def _verified(name: str, file: File, path: Path, content: bytes) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"load({name!r}): the uncompressed content of {path} has sha256 {found}, expected {file.sha256}; "
            "the file is damaged or a different version"
        )
    return content
