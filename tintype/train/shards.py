"""Store sharded tensors on disk by torch.distributed.checkpoint with safetensors files.

Each rank writes its own shards, and replicated tensors are written once. Any number of ranks can read the files, and
each rank reads only what it needs. The header of a shard's file describes the position of the shard as JSON; torch's
own format would use a pickle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Place = Callable[[str, torch.Size, torch.dtype], Tensor]
"""Function from a name, full shape and dtype to an empty tensor for the data, either full or sharded."""


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Write this rank's shards. Every rank must call this function; an error of one rank raises OSError on all."""
    from torch.distributed.checkpoint import api, hf_storage, state_dict_saver

    try:
        writer = hf_storage.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        state_dict_saver.save(dict(tensors), storage_writer=writer, process_group=group)
    except api.CheckpointException as error:
        raise OSError(_reasons(error)) from error


def read_shards(folder: Path, place: Place, alone: bool) -> dict[str, Tensor]:
    """Read a folder's tensors into those that `place` returns; raise if shards are missing.

    Unless `alone` is true, every rank must call this function.
    """
    from torch.distributed.checkpoint import api, hf_storage, metadata, state_dict_loader

    reader = hf_storage.HuggingFaceStorageReader
    stored = reader(str(folder)).read_metadata().state_dict_metadata
    about = {name: one for name, one in stored.items() if isinstance(one, metadata.TensorStorageMetadata)}
    for name, one in about.items():
        if sum(chunk.sizes.numel() for chunk in one.chunks) != one.size.numel():  # the rest would stay uninitialised
            raise OSError(f"{folder}: the shards of {name} do not add up to {list(one.size)}")
    tensors = {name: place(name, one.size, one.properties.dtype) for name, one in about.items()}
    try:
        with warnings.catch_warnings():  # torch warns that a single process is alone
            warnings.simplefilter("ignore", UserWarning)
            state_dict_loader.load(tensors, storage_reader=reader(str(folder)), no_dist=alone)
    except api.CheckpointException as error:
        raise OSError(_reasons(error)) from error
    return tensors


def _reasons(error: Any) -> str:
    return "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())


def whole_place(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)
