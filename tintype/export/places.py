"""Places that `tintype sync` reads and writes. A place is a folder, or a prefix of an object store.

A place never shows half-written files. In a folder, files and whole checkpoints are written under another name and then
renamed. In an object store, a file appears when its upload has ended. The manifest of a checkpoint is written last, and
a checkpoint without a manifest counts as missing.

Object stores are accessed through fsspec, with the credentials that fsspec's packages find by themselves. Addresses
must not contain credentials, and credentials are never printed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from tintype.errors import UserError, as_user_error
from tintype.pretrained.packages import optional_package
from tintype.runtime.files import flush, read_checked, scratch_folder, sha256_of, write_checked, written_beside
from tintype.runtime.locks import locked
from tintype.wording import again

INDEX = ".tintype-sync.json"
"""The file with the size and SHA-256 of each file. The file is at the root of an object store's prefix."""
EXTRA = "sync"
STORES = ("s3", "gs", "gcs", "memory")
"""Protocols of object stores. In an object store, a file appears only after its upload has ended."""
_SAVE_BYTES, _SAVE_FILES = 64 << 20, 100
"""The index is written after this many uploaded bytes or files. So a kill causes at most this many repeated uploads."""
_LOGIN = re.compile(r"(?<=://)\S+@")  # a secret key may contain a slash
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)


class Place(Protocol):
    """A folder, or a prefix of an object store. File names are relative paths with `/` as the separator."""

    address: str
    moves: bool
    """Whether `write` moves the given files. The files must then be in the scratch folder of `writing`."""

    def sizes(self) -> Mapping[str, int]:
        """Return the names and sizes of all files. Hidden and half-written files are left out."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a local path."""

    def in_place(self, name: str) -> Path | None:
        """Return the path of a local file; None in an object store."""

    def recorded(self, name: str) -> str:
        """Return the SHA-256 that was recorded when a file was stored; empty if none was recorded."""

    def present(self, name: str) -> str:
        """Return the SHA-256 of a file in this place; empty if the file is missing or its SHA-256 is unknown."""

    def write(self, content: Mapping[str, tuple[Path, str]], folder: str = "") -> None:
        """Write files in this order, from a local path with its SHA-256. With `folder`, all files appear at once."""

    def writing(self) -> Any:
        """Return a context that yields a scratch folder for the files that will be written."""


class Folder:
    moves = True

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)
        self._scratch = path

    def sizes(self) -> dict[str, int]:
        """Return the names and sizes of all files. Links are left out, since they may lead anywhere."""
        if not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder", "give the folder of a study or a run")
        found: dict[str, int] = {}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            with suppress(FileNotFoundError):  # removed while the folder is listed
                if is_wanted(name) and path.is_file() and not path.is_symlink():
                    found[name] = path.stat().st_size
        return found

    def fetch(self, name: str, path: Path) -> None:
        shutil.copyfile(self.path / name, path)

    def in_place(self, name: str) -> Path | None:
        return self.path / name

    def recorded(self, name: str) -> str:
        return ""

    def present(self, name: str) -> str:
        path = self.path / name
        return sha256_of(path) if path.is_file() else ""

    def write(self, content: Mapping[str, tuple[Path, str]], folder: str = "") -> None:
        if not folder:
            for name, (source, _) in content.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                with written_beside(self.path / name) as temporary:
                    source.replace(temporary)
            return
        target = self.path / folder
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(target, durable=True) as temporary:
            temporary.mkdir()
            for name, (source, _) in content.items():
                flush(source.replace(temporary / Path(name).name))
            if target.exists():
                target.rename(self._scratch / f"before-{target.name}")

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Lock the folder against other processes, and remove temporary files that a killed process has left in it."""
        with locked(self.path, "choose another target"), scratch_folder(self.path) as scratch:
            self._scratch = scratch
            yield scratch


class ObjectStore:
    """A prefix of an object store, such as `s3://bucket/studies/mini`."""

    moves = False

    def __init__(self, address: str) -> None:
        protocol = address.partition("://")[0]
        fsspec = optional_package("fsspec", EXTRA, f"{protocol}://")
        self.address = address.rstrip("/")
        with self._errors():
            try:
                self._system = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False)
            except ImportError as error:
                raise UserError(
                    f"addresses with {protocol}:// need a package that is not installed ({error})",
                    f"pip install 'tintype[{EXTRA}]'",
                ) from None
        self._root: str = self._system._strip_protocol(self.address)
        self._sizes: dict[str, int] = {}
        self._index: dict[str, dict[str, Any]] = {}
        self._unsaved_bytes = self._unsaved_files = 0

    def sizes(self) -> dict[str, int]:
        with self._errors():
            found: dict[str, dict[str, Any]] = self._system.find(self._root, detail=True)
        names = {path[len(self._root) :].lstrip("/"): about for path, about in found.items()}
        self._index = self._read_index() if INDEX in names else {}
        for name in names:
            if not is_safe(name):
                raise UserError(
                    f"{self.address} has a file named {name!r}, which points outside the folder", "remove this file"
                )
        self._sizes = {name: about["size"] for name, about in sorted(names.items()) if is_wanted(name)}
        return self._sizes

    def fetch(self, name: str, path: Path) -> None:
        with self._errors():
            self._system.get_file(self._path(name), str(path))

    def in_place(self, name: str) -> Path | None:
        return None

    def recorded(self, name: str) -> str:
        return str(self._index.get(name, {}).get("sha256", ""))

    def present(self, name: str) -> str:
        known = self._index.get(name, {})
        return str(known["sha256"]) if known and self._sizes.get(name) == known["size"] else ""

    def write(self, content: Mapping[str, tuple[Path, str]], folder: str = "") -> None:
        self._forget(list(content), folder)
        for name, (source, digest) in content.items():
            self._put(source, name)
            size = source.stat().st_size
            self._sizes[name], self._index[name] = size, {"size": size, "sha256": digest}
            self._unsaved_bytes, self._unsaved_files = self._unsaved_bytes + size, self._unsaved_files + 1
            if self._unsaved_bytes >= _SAVE_BYTES or self._unsaved_files >= _SAVE_FILES:
                self._save_index()

    def _forget(self, names: Sequence[str], folder: str) -> None:
        """Remove files from the index before they are overwritten, and a manifest before its checkpoint changes."""
        known = [name for name in names if self._index.pop(name, None) is not None]
        if known:
            self._save_index()
        manifest = f"{folder}/manifest.json"
        if folder and manifest in names and manifest in self._sizes:
            with self._errors():
                self._system.rm_file(self._path(manifest))
            del self._sizes[manifest]

    @contextmanager
    def writing(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                yield Path(scratch)
            finally:
                if self._unsaved_files:
                    self._save_index()

    def _put(self, source: Path, name: str) -> None:
        with self._errors():
            self._system.put_file(str(source), self._path(name))
            size = self._system.info(self._path(name))["size"]
        if size != source.stat().st_size:
            raise UserError(
                f"{self.address}/{name} has {size} bytes after the upload, but the local file has "
                f"{source.stat().st_size}"
            )

    def _read_index(self) -> dict[str, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as scratch:
            self.fetch(INDEX, Path(scratch) / INDEX)
            remake = f"remove {self.address}/{INDEX} and sync again: all files are then uploaded anew"
            found: dict[str, dict[str, Any]] = read_checked(Path(scratch) / INDEX, remake).get("files", {})
        return found

    def _save_index(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            write_checked(Path(scratch) / INDEX, {"files": self._index})
            self._put(Path(scratch) / INDEX, INDEX)
        self._unsaved_bytes = self._unsaved_files = 0

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of fsspec's packages into a `UserError` whose message contains no credentials."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            reason = without_secrets(f"{type(error).__name__}: {error}")
            raise UserError(
                f"{self.address} cannot be used ({reason})",
                f"check the address, the credentials and the network, then {again()} again to resume",
            ) from None


def open_place(address: str) -> Place:
    protocol, found, rest = address.partition("://")
    if _LOGIN.search(address):
        raise UserError(
            f"{without_secrets(address)} contains a user name or password",
            "remove both, and use the environment variables or files that the object store's own tools read "
            "(AWS_ACCESS_KEY_ID, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS)",
        )
    if not found or protocol == "file":
        with as_user_error(ValueError, f"cannot read {address!r}"):
            return Folder(Path(rest if found else address))
    if protocol not in STORES:
        valid = ", ".join(f"{one}://" for one in (*STORES, "file"))
        raise UserError(f"the protocol {protocol}:// is not supported", f"give a folder, or an address with {valid}")
    if not rest.strip("/"):
        raise UserError(f"{address} names no bucket", f"give an address such as {protocol}://bucket/studies/mini")
    return ObjectStore(address)


def is_wanted(name: str) -> bool:
    """Return whether a file belongs to a study's or run's content, unlike leases, locks and temporary files."""
    parts = name.split("/")
    return not any(part.startswith((".", "damaged-")) or part == "leases" for part in parts)


def is_safe(name: str) -> bool:
    """Return whether a file with this name would be inside of the target folder."""
    return "\\" not in name and "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def without_secrets(text: str) -> str:
    """Return the text without logins in addresses, and without environment variables' credentials."""
    text = _LOGIN.sub("(login)@", text)
    secrets = [value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 8]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "(secret)")
    return text
