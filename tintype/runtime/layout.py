"""Place the weights of a run on its ranks as replicas (DDP), as shards (FSDP2), or as sharded replicas (HSDP).

The ranks form a grid of replicas × shards. The ranks of one row hold the shards of one replica. The ranks of one column
hold the same shard. A DDP grid has one column, and an FSDP2 grid has one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.runtime.dist import ALONE, World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Layout:
    world: World = ALONE
    shards: int = 1
    mesh: DeviceMesh | None = None
    """The mesh of replicas × shards; None if weights are not sharded."""

    @property
    def replicas(self) -> int:
        return self.world.size // self.shards

    @property
    def replica(self) -> int:
        """Return the index of this rank's replica, its row in the grid."""
        return self.world.rank // self.shards

    @property
    def shard(self) -> int:
        """Return the index of this rank's shard, its column in the grid."""
        return self.world.rank % self.shards

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """Return the group of ranks that together hold this rank's replica; None for all ranks."""
        return None if self.mesh is None else self.mesh.get_group("shards")

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """Return the group of ranks that hold the same shard as this rank; None for all ranks."""
        return None if self.mesh is None else self.mesh.get_group("replicas")


ONE = Layout()


def sharded_layout(shards: int, world: World, device: torch.device) -> Layout:
    if world.size % shards:
        raise UserError(
            f"run.distribution.shards is {shards}, but must divide the number of ranks, {world.size}",
            "valid: " + ", ".join(str(count) for count in range(1, world.size + 1) if world.size % count == 0),
        )
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicas", "shards")
    mesh = init_device_mesh(device.type, (world.size // shards, shards), mesh_dim_names=names)
    return Layout(world, shards, mesh)


def share_of_batch(batch: int, accumulate: int, world: World) -> int:
    """Return how many samples of a micro-batch each rank gets; raise if the batch cannot be divided evenly."""
    micro = batch // accumulate
    if micro % world.size:
        raise UserError(
            f"train.batch {batch} in train.accumulate {accumulate} micro-batches gives {micro} samples per "
            f"micro-batch, which cannot be split evenly over {world.size} ranks",
            f"use a batch that is a multiple of {accumulate * world.size}, or another number of micro-batches or ranks",
        )
    return micro // world.size


def broadcast_weights(modules: nn.Module, world: World) -> None:
    """Broadcast the first rank's weights. The same seed on different processors can give different last bits."""
    for tensor in modules.state_dict().values() if world.size > 1 else ():
        dist.broadcast(tensor, 0)


def shard_blocks(denoiser: nn.Module, layout: Layout, gather: torch.dtype | None, reshard: bool) -> None:
    """Shard the denoiser with FSDP2, block by block. Inputs are never cast, so timesteps and rotations stay exact.

    Weights are gathered in their stored dtype, or in `gather` if given. Gradients are always reduced in fp32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    assert layout.mesh is not None
    for name, parameter in denoiser.named_parameters():
        if parameter.ndim > 1 and len(parameter) < layout.shards:
            raise UserError(
                f"run.distribution.shards: {layout.shards} shards are too many for the {len(parameter)} rows of "
                f"denoiser.{name}",
                f"choose a number of shards that divides {layout.world.size} and is at most {len(parameter)}; the "
                f"weights are then also replicated (HSDP)",
            )
    policy = MixedPrecisionPolicy(param_dtype=gather, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = layout.mesh if layout.replicas > 1 else layout.mesh["shards"]
    blocks = denoiser.get_submodule("blocks")
    reshard = reshard and can_reshard(layout.mesh.device_type)
    for part in (*blocks.children(), denoiser):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def can_reshard(device_type: str) -> bool:
    """Return whether gathered weights can be released after the forward pass.

    On the CPU, torch before 2.13 cannot release them; the backward pass fails with `setStorage: ... out of bounds for
    storage of size 0`. Weights that stay gathered take memory, but do not change the results.
    """
    return device_type != "cpu" or tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def is_sharded(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, nn.Parameter):  # fast path for most weights: importing DTensor takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if replicated. Nothing is copied."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor, gathered from all shards. Every rank must call this function."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def rows_of_shard(rows: int, shard: int, shards: int) -> int:
    """Return FSDP2's rows of a matrix for a shard. As in torch.chunk, the last shards may get fewer rows or none."""
    most = -(-rows // shards)
    return max(0, min(rows - shard * most, most))
