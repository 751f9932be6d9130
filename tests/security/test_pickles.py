"""A hostile pickle is refused before anything that it names is run."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tintype.errors import UserError
from tintype.pretrained.pickles import read_arrays, read_state_dict, read_torchscript
from tintype.pretrained.weights import fetch
from tintype.vision.inception import WEIGHTS as INCEPTION
from tintype.vision.lpips import WEIGHTS as LPIPS


class Hostile:
    """Makes a folder when it is unpickled by a reader that trusts it."""

    def __init__(self, path: Path, call: Any = os.mkdir) -> None:
        self.path, self.call = path, call

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return self.call, (str(self.path),)


def archive(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("net/data.pkl", content)
    return file.getvalue()


@pytest.mark.promise(17, control="a reader that trusts pickles")
def test_control_the_pickle_does_harm_to_a_reader_that_trusts_it(tmp_path: Path) -> None:
    """Unpickle the attack."""
    pickle.loads(pickle.dumps({"a": Hostile(tmp_path / "made")}))
    assert (tmp_path / "made").exists()


@pytest.mark.promise(17)
@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused(tmp_path: Path, protocol: int) -> None:
    """Give hostile pickles of each protocol to the readers of published weights."""
    trap = tmp_path / "made"
    content = pickle.dumps({"a": Hostile(trap), "b": np.ones(3, np.float32)}, protocol)
    with pytest.raises(UserError, match=r"lpips\.ckpt .*was not loaded: it names posix\.mkdir"):
        read_arrays(content, "lpips.ckpt")
    with pytest.raises(UserError, match=r"net\.pt .*was not read: it names posix\.mkdir"):
        read_torchscript(archive(pickle.dumps({"b": Hostile(trap)}, protocol)), "net.pt")
    torch.save({"a": Hostile(trap)}, tmp_path / "net.pth")
    with pytest.raises(UserError, match=r"was not (read|loaded)"):
        read_state_dict(tmp_path / "net.pth")
    assert not trap.exists()


@pytest.mark.promise(17)
@pytest.mark.parametrize("call", [eval, getattr, np.load, torch.load, pickle.loads, np.fromfile, torch.hub.load])
def test_names_near_the_known_ones_are_refused(tmp_path: Path, call: Any) -> None:
    """Give them pickles that name other functions of numpy, torch and Python."""
    for reader in (read_arrays, read_torchscript):
        content = pickle.dumps({"a": Hostile(tmp_path, call)})
        with pytest.raises(UserError, match="it names"):
            reader(content if reader is read_arrays else archive(content), "file")


@pytest.mark.parametrize(
    "held",
    [np.array([{}], object), np.array(["a"]), np.arange(3), [np.ones(3)], "text", 1.0, None],
    ids=["objects", "texts", "integers", "list", "text", "number", "nothing"],
)
def test_anything_but_arrays_of_floats_is_refused(held: Any) -> None:
    with pytest.raises(UserError, match="not a pickle that contains only numpy arrays"):
        read_arrays(pickle.dumps({"a": held}), "file")


@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", pickle.dumps({"a": np.ones(9)})[:-20]])
def test_what_is_no_pickle_is_named(content: bytes) -> None:
    with pytest.raises(UserError, match=r"weights\.ckpt is not a pickle"):
        read_arrays(content, "weights.ckpt")
    with pytest.raises(UserError, match=r"net\.pt is not a TorchScript archive"):
        read_torchscript(content, "net.pt")


def test_arrays_are_read_with_their_paths() -> None:
    content = pickle.dumps({"net": {"conv": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "b": np.ones(2)}})
    found = read_arrays(content, "file")
    assert list(found) == ["net.conv.kernel", "net.b"]
    assert torch.equal(found["net.conv.kernel"], torch.arange(6.0).view(2, 3))


def test_a_storage_outside_the_archives_numbers_is_refused() -> None:
    """A persistent id must not become a path."""

    class Writer(pickle.Pickler):
        def persistent_id(self, held: Any) -> Any:
            return ("storage", "float32", "../../secret", "cpu", 1) if held is Ellipsis else None

    file = io.BytesIO()
    Writer(file).dump({"a": Ellipsis})
    with pytest.raises(UserError, match="not a storage of floats"):
        read_torchscript(archive(file.getvalue()), "net.pt")


@pytest.mark.promise(17)
def test_a_users_own_hostile_file_is_refused_by_every_encoder(tmp_path: Path) -> None:
    """Name hostile files as the weights of LPIPS and Inception."""
    trap = tmp_path / "made"
    (tmp_path / "vgg16.ckpt").write_bytes(pickle.dumps({"a": Hostile(trap)}))
    (tmp_path / "net.pt").write_bytes(archive(pickle.dumps({"a": Hostile(trap)})))
    torch.save({"a": Hostile(trap)}, tmp_path / "net.pth")
    for known, name in ((LPIPS["vgg16"], "vgg16.ckpt"), (INCEPTION, "net.pt"), (INCEPTION, "net.pth")):
        with pytest.raises(UserError, match=r"was not (read|loaded)"):
            fetch(known, str(tmp_path / name))
    assert not trap.exists()


def test_a_checkpoint_with_more_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}}, tmp_path / "net.pth")
    with pytest.raises(UserError, match="is not a state dictionary"):
        read_state_dict(tmp_path / "net.pth")
    with pytest.raises(UserError, match="cannot read"):
        read_state_dict(tmp_path / "gone.pth")
