"""Read arrays from foreign pickles without executing their code. No other module opens a pickle.

A pickle can call any function that it names, so names outside of a short table of constructors are refused. The result
is a flat dictionary with dotted paths as keys.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tintype.errors import UserError, as_user_error

Leaf = TypeVar("Leaf", Tensor, npt.NDArray[np.floating])
_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError, ImportError)
"""Errors that reading a damaged or hostile pickle can raise."""


def read_arrays(data: bytes, where: str) -> dict[str, Tensor]:
    """Read a pickle of nested dictionaries of float numpy arrays."""
    with as_user_error(_ERRORS, f"{where} is not a pickle that contains only numpy arrays, so it was not loaded"):
        found = dict(_leaves(_Arrays(io.BytesIO(data)).load(), np.ndarray))
        return {path: torch.from_numpy(np.array(array, dtype=np.float32)) for path, array in found.items()}


def read_torchscript(data: bytes, where: str) -> dict[str, Tensor]:
    """Read the tensors of a TorchScript archive. The archive's code is not read."""
    refused = f"{where} is not a TorchScript archive of tensors, and was not read"
    with as_user_error((*_ERRORS, zipfile.BadZipFile), refused), zipfile.ZipFile(io.BytesIO(data)) as archive:
        (index,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        reader = _Archive(io.BytesIO(archive.read(index)))
        reader.storage = lambda key: archive.read(index.removesuffix(".pkl") + "/" + key)
        return dict(_leaves(reader.load(), Tensor))


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a torch checkpoint (.pth, .pt) that maps names to tensors, with torch's own restricted reader."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (RuntimeError, *_ERRORS) as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"{path} is not a checkpoint that contains only tensors, so it was not loaded: {first}"
        ) from None
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} is not a state dictionary: the file contains more than named tensors")
    return dict(found)


class _Table(pickle.Unpickler):
    """An unpickler that accepts only the names in `known`."""

    known: ClassVar[Mapping[tuple[str, str], object]] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self.known[module, name]


def _blank_array(kind: type, shape: tuple[int, ...], code: bytes) -> npt.NDArray[np.int8]:
    """Return an empty array. numpy's pickles create it first, and then set its shape and values."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("the pickle contains an object that is not a plain array")
    return np.ndarray((0,), dtype=np.int8)


def _float_type(code: str, align: bool = False, copy: bool = False) -> np.dtype[np.floating]:
    if code not in ("f2", "f4", "f8"):
        raise pickle.UnpicklingError(f"the pickle has an array of the type {code!r:.20}, which is not a float type")
    return np.dtype(code)


class _Arrays(_Table):
    known: ClassVar[Mapping[tuple[str, str], object]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _float_type,
        ("numpy.core.multiarray", "_reconstruct"): _blank_array,
        ("numpy._core.multiarray", "_reconstruct"): _blank_array,
    }


class _Module:
    """A substitute for every class of a TorchScript archive. The substitute holds the object's attributes."""

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def _tensor(flat: Tensor, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return torch.as_strided(flat, shape, stride, offset).clone()


class _Archive(_Table):
    storage: Callable[[str], bytes]
    known: ClassVar[Mapping[tuple[str, str], object]] = {
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch.jit._pickle", "build_intlist"): list,
        ("torch", "FloatStorage"): "float32",
        ("collections", "OrderedDict"): OrderedDict,
    }

    def find_class(self, module: str, name: str) -> object:
        return _Module if module.split(".")[0] == "__torch__" else super().find_class(module, name)

    def persistent_load(self, pid: tuple[str, str, str, str, int]) -> Tensor:
        tag, kind, key, _, count = pid
        if tag != "storage" or kind != "float32" or not str(key).isdigit():
            raise pickle.UnpicklingError(f"the checkpoint refers to {pid!r:.60}, which is not a storage of floats")
        return torch.frombuffer(bytearray(self.storage(str(key))), dtype=torch.float32, count=count)


def _leaves(node: object, kind: type[Leaf], path: str = "") -> list[tuple[str, Leaf]]:
    """Return each array in a dictionary or module, at any depth, with its path; raise for other values."""
    if isinstance(node, kind):
        return [(path, node)]
    if isinstance(node, _Module):
        inside = {name: value for name, value in vars(node).items() if isinstance(value, _Module | kind)}
    elif isinstance(node, Mapping):
        inside = dict(node)
    else:
        raise ValueError(f"the entry '{path}' has the type {type(node).__name__}")
    return [leaf for name, value in inside.items() for leaf in _leaves(value, kind, f"{path}.{name}".lstrip("."))]
