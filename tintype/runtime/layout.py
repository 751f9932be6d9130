"""How the ranks of a run share its weights: each has a copy (DDP), or a part of one (FSDP2), or both (HSDP).

The ranks form a grid of copies × pieces. The ranks of a row hold the pieces of one copy; the ranks of a column hold the
same piece. DDP has one column, FSDP2 one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.runtime.dist import ALONE, World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Distribution(Protocol):
    """How the ranks share the weights: `run.distribution` of a plan."""

    @property
    def kind(self) -> Literal["ddp", "fsdp"]: ...
    @property
    def shards(self) -> int | None: ...
    @property
    def reshard(self) -> bool: ...


@dataclass(frozen=True)
class Layout:
    world: World = ALONE
    pieces: int = 1
    mesh: DeviceMesh | None = None
    """Copies × pieces, where weights are cut into pieces."""

    @property
    def copies(self) -> int:
        return self.world.size // self.pieces

    @property
    def copy(self) -> int:
        """The row of this rank."""
        return self.world.rank // self.pieces

    @property
    def piece(self) -> int:
        """The column of this rank."""
        return self.world.rank % self.pieces

    @property
    def of_one_copy(self) -> dist.ProcessGroup | None:
        """The ranks that hold the pieces of this rank's copy; None for all ranks."""
        return None if self.mesh is None else self.mesh.get_group("pieces")

    @property
    def of_one_piece(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same piece as this one; None for all ranks."""
        return None if self.mesh is None else self.mesh.get_group("copies")


ONE = Layout()


def lay_out(settings: Distribution, world: World, device: torch.device) -> Layout:
    """The layout of this world, as the plan has it."""
    if settings.kind == "ddp" or not world.joined:
        return Layout(world)
    pieces = settings.shards or world.size
    if world.size % pieces:
        raise UserError(
            f"run.distribution.shards is {pieces}, which does not divide the {world.size} ranks; valid: "
            + ", ".join(str(count) for count in range(1, world.size + 1) if world.size % count == 0)
        )
    from torch.distributed.device_mesh import init_device_mesh

    names = ("copies", "pieces")
    mesh = init_device_mesh(device.type, (world.size // pieces, pieces), mesh_dim_names=names)
    return Layout(world, pieces, mesh)


def share_of_batch(batch: int, accumulate: int, world: World) -> int:
    """Return how many samples of a micro-batch each rank has; refuse what the ranks cannot share evenly."""
    micro = batch // accumulate
    if micro % world.size:
        raise UserError(
            f"train.batch {batch} in train.accumulate {accumulate} micro-batches gives {micro} samples at a time, "
            f"which {world.size} ranks cannot share evenly; take a batch that is a multiple of "
            f"{accumulate * world.size}, or another number of micro-batches or ranks"
        )
    return micro // world.size


def as_the_leader_has_it(modules: nn.Module, world: World) -> None:
    """Gives every rank the first one's weights: other processors may draw other last bits from the same seed."""
    for tensor in modules.state_dict().values() if world.size > 1 else ():
        dist.broadcast(tensor, 0)


def cut_into_pieces(denoiser: nn.Module, settings: Distribution, layout: Layout, gather: torch.dtype | None) -> None:
    """FSDP2, block by block. Inputs are never cast: timesteps and rotations stay what they are.

    Weights are gathered as they are stored, unless `gather` says otherwise; gradients are reduced in fp32 always.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    assert layout.mesh is not None
    for name, parameter in denoiser.named_parameters():
        if parameter.ndim > 1 and len(parameter) < layout.pieces:
            raise UserError(
                f"run.distribution.shards: {layout.pieces} ranks cannot share the {len(parameter)} rows of "
                f"denoiser.{name}; set it to {len(parameter)} or less, a divisor of the {layout.world.size} ranks, and "
                "there will be copies of the weights (HSDP)"
            )
    policy = MixedPrecisionPolicy(param_dtype=gather, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = layout.mesh if layout.copies > 1 else layout.mesh["pieces"]
    blocks = denoiser.get_submodule("blocks")
    for part in (*blocks.children(), denoiser):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=settings.reshard)


def is_cut(tensor: Tensor) -> bool:
    """Whether this rank holds a piece of it only."""
    if type(tensor) in (Tensor, nn.Parameter):  # asked of every weight; the other question takes a second to import
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: its piece, or all of it. It is no copy."""
    return tensor.to_local() if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor. Every rank must ask."""
    return tensor.full_tensor() if is_cut(tensor) else tensor  # type: ignore[attr-defined]


def rows_of_piece(rows: int, piece: int, pieces: int) -> int:
    """How many rows of a matrix FSDP2 gives to a piece: as torch.chunk does, the last ones may have fewer or none."""
    most = -(-rows // pieces)
    return max(0, min(rows - piece * most, most))
