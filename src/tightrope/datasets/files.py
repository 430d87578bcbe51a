"""Files with a known content: found in the user's folder or downloaded, unpacked, and checked."""

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
        path: where it lies in the user's folder, as it is or with .gz behind; the download itself may lie beside it instead.
        sha256: of the uncompressed content, after `derive`.
        address: its public home, compressed or not; None where it has none.
        member: its name within the archive at that address.
        derive: makes the content from what is published there.
    """

    path: str
    sha256: str
    address: str | None
    member: str | None = None
    derive: Callable[[bytes], bytes] = bytes


def content(name: str, file: File, folder: str | None) -> bytes:
    """The file's uncompressed content, checked."""
    if folder is None:
        path = _downloaded(name, file)
        try:
            return _from_download(name, file, path)
        except ValueError:
            path.unlink()  # so that the next call downloads it anew
            raise
    for path in (Path(folder, file.path), Path(folder, file.path + ".gz")):
        if path.is_file():
            return _checked(name, file, path, _unpacked(path))
    download = Path(file.path).with_name(Path(file.address or file.path).name)
    if Path(folder, download).is_file():
        return _from_download(name, file, Path(folder, download))
    lacks = " nor ".join(dict.fromkeys([file.path, file.path + ".gz", download.as_posix()]))
    raise FileNotFoundError(
        f"load({name!r}): the folder in TIGHTROPE_DATA, {folder}, has neither {lacks}; {_advice(file)}"
    )


def _from_download(name: str, file: File, path: Path) -> bytes:
    return _checked(name, file, path, file.derive(_unpacked(path, file.member)))


def _advice(file: File) -> str:
    if file.address is None:
        return "this file has no public address: docs/datasets.md says how it was made"
    return f"put {file.address} there, or unset TIGHTROPE_DATA to have it downloaded"


def _downloaded(name: str, file: File) -> Path:
    """The cached download, fetched where there is none."""
    if file.address is None:
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
        # No hash for Pooch: the archives are repacked now and then, their content is what is checked.
        return Path(pooch.retrieve(file.address, known_hash=None, fname=Path(file.address).name, path=cache))
    except OSError as error:
        raise OSError(
            f"load({name!r}): could not download {file.address}: {error}; or set TIGHTROPE_DATA to a folder with "
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


def _checked(name: str, file: File, path: Path, content: bytes) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"load({name!r}): the uncompressed content of {path} has sha256 {found}, expected {file.sha256}; "
            "the file is damaged, or another version"
        )
    return content
