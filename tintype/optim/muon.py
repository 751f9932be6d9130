"""Muon: the 2-D weights of the blocks are updated by their orthogonalised momentum, all others by AdamW (arXiv
2502.16982).

The Newton-Schulz iteration replaces the singular values of a matrix by numbers near one. The iteration runs on batches
of matrices of equal shape. Optional settings are the coefficients of Polar Express (arXiv 2505.16932), NorMuon's equal
step sizes for all rows (arXiv 2510.05491, `optim/row_norm.py`), and cautious weight decay (arXiv 2510.12402). Cautious
weight decay only applies to weights that the step also shrinks.

N: matrices of a batch, R: rows, C: columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Self, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils._triton import has_triton

from tintype.errors import UserError
from tintype.optim.adamw import AdamWSettings, adamw_slots, step_adamw
from tintype.optim.part import OptimizerPart
from tintype.optim.replay import Replay
from tintype.optim.row_norm import even_rows, row_slot
from tintype.optim.spread import Spread
from tintype.optim.storage import EXACT, Storage
from tintype.optim.symmetric import bracket, gram
from tintype.runtime.forms import Form, form_of
from tintype.runtime.layout import ONE, Layout, is_sharded, local

T = TypeVar("T")

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x -> a x + b x^3 + c x^5, which is steepest at zero. Five steps map [0.01, 1] to about [0.7, 1.2]."""
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
"""Coefficients of each step's polynomial (algorithm 1).

Each polynomial is optimal on the interval to which the earlier steps map [0.001, 1].
"""
_SAFETY = 1.01
"""Factor by which rounding may raise a singular value over its bound. The last polynomial needs no margin."""
_SMALLEST_NORM = 1e-7
_LARGE_NUMBERS = 1 << 25
"""Number of values in a batch. Larger batches are limited by memory traffic, and smaller batches by kernel launches."""
_FUSED = {"img_qkv_proj.weight": 3, "txt_kv_proj.weight": 2, "modulation.lin.weight": 6}
"""Parameters in which several matrices are stacked by rows, with the number of matrices."""


class MuonSettings(OptimizerPart):
    kind: Literal["muon"] = "muon"
    lr: float = Field(1e-3, gt=0, description="Learning rate of Muon after the warm-up; the section adamw has its own")
    momentum: float = Field(0.95, ge=0, lt=1, description="Decay of the running mean of the gradients")
    nesterov: bool = Field(True, description="Use Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled")
    scaling: Literal["matched", "original"] = Field(
        "matched",
        description="Factor of the orthogonal matrix: 0.2 sqrt(max(rows, columns)), which matches AdamW's step "
        "size, or sqrt(max(1, rows / columns)) (original)",
    )
    newton_schulz_steps: int = Field(5, ge=1, le=20, description="Number of iterations of the orthogonalisation")
    compute: Literal["bf16", "fp32"] = Field("bf16", description="Compute type of the orthogonalisation")
    iteration: Literal["newton-schulz", "polar-express"] = Field(
        "newton-schulz",
        description="Polynomial of the orthogonalisation: the same in all iterations "
        "(newton-schulz), or another one in each (polar-express)",
    )
    row_decay: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="NorMuon: decay of the running mean square of each row's steps; its root divides the row. "
        "null: not used",
    )
    cautious: bool = Field(False, description="Apply weight decay only to weights that the update moves towards zero")
    fused: Literal["whole", "parts"] = Field(
        "whole",
        description="Orthogonalise fused projections (QKV, KV, modulation) as one matrix (whole), or "
        "each projection separately (parts)",
    )
    modulation: bool = Field(True, description="Update the modulation matrices with Muon; otherwise AdamW updates them")
    matrices: tuple[str, ...] = Field(
        ("denoiser.blocks.",), min_length=1, description="Name prefixes of the 2-D weights that Muon updates"
    )
    adamw: AdamWSettings = Field(AdamWSettings(), description="Settings of AdamW, which updates all other parameters")

    def problems(self) -> Iterator[str]:
        if self.cautious and not self.weight_decay:
            yield "cautious is about weight decay, and weight_decay is 0; set it too"

    @property
    def smallest_gradient(self) -> float:
        return self.adamw.smallest_gradient

    def scaled(self, factor: float) -> Self:
        return super().scaled(factor).model_copy(update={"adamw": self.adamw.scaled(factor)})

    def build(
        self, named: Iterable[tuple[str, nn.Parameter]], storage: Storage = EXACT, layout: Layout = ONE
    ) -> torch.optim.Optimizer:
        named = list(named)
        taken = self.taken(dict(named))
        matrices = [(name, parameter) for name, parameter in named if name in taken]
        return Muon(self, matrices, [parameter for name, parameter in named if name not in taken], storage, layout)

    def matrix_products(self, named: Mapping[str, nn.Parameter]) -> tuple[float, torch.dtype]:
        return newton_schulz_flops(self, named), _TYPES[self.compute]

    def groups(self, named: Mapping[str, nn.Parameter]) -> dict[str, list[str]]:
        taken = self.taken(named)
        return {self.kind: [n for n in named if n in taken], self.adamw.kind: [n for n in named if n not in taken]}

    def taken(self, named: Mapping[str, Tensor]) -> set[str]:
        """Return the parameters to orthogonalise. A matrix with only one row or column is not among them."""
        found = {name for name, parameter in named.items() if name.startswith(self.matrices) and _is_matrix(parameter)}
        if not self.modulation:
            found = {name for name in found if not name.endswith("modulation.lin.weight")}
        for beginning in self.matrices:
            if not any(name.startswith(beginning) for name in found):
                raise UserError(
                    f"optimizer.matrices: no 2-D weight has a name that begins with '{beginning}'",
                    "names begin with " + ", ".join(sorted({".".join(name.split(".")[:2]) + "." for name in named})),
                )
        return found


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) > 1


class Muon(torch.optim.Optimizer):
    """Muon. The first group has the matrices. The second group, if any, has AdamW's parameters."""

    found_inf: Tensor | None = None
    update_number: int = 0

    def __init__(
        self,
        settings: MuonSettings,
        matrices: Sequence[tuple[str, nn.Parameter]],
        others: Sequence[nn.Parameter],
        storage: Storage,
        layout: Layout,
    ) -> None:
        groups: list[dict[str, Any]] = [{"params": [parameter for _, parameter in matrices], "lr": settings.lr}]
        groups += [{"params": list(others), "lr": settings.adamw.lr}] if others else []
        super().__init__(groups, {"fused": True})  # by which torch loads AdamW's step counts as they must be
        self.settings, self.storage, self._layout = settings, storage, layout
        self._portions = _portions(_batches_of(settings, matrices, layout))
        self._lr = torch.zeros((), dtype=torch.float64, device=matrices[0][1].device)  # multiplied as the host would
        self._replays = {
            at: self._replay(*portion) for at, portion in enumerate(self._portions) if self._same(*portion)
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step with all parameters. As in torch's fused optimizers, nothing changes if `found_inf` is 1."""
        if closure is not None:
            raise NotImplementedError("this optimizer does not support closures")
        matrices, *others = self.param_groups
        for group in others:
            step_adamw(self, self.settings.adamw, group["params"], group["lr"], self.storage)
        device = matrices["params"][0].device
        # Other numbers than AdamW's part draws.
        kinds = {batches[0].is_sharded for batches, _ in self._portions}
        generators = {cut: self.storage.generator(device, -1 - self.update_number, cut) for cut in kinds}
        lr = self._lr.fill_(matrices["lr"])
        skipped = torch.zeros((), device=device) if self.found_inf is None else self.found_inf
        for at, (batches, fused) in enumerate(self._portions):
            gradients = [local(one.grad) for batch in batches for one in batch.parameters if one.grad is not None]
            if len(gradients) < sum(len(batch.parameters) for batch in batches):
                raise RuntimeError("muon: a matrix that Muon should update has no gradient")
            if at in self._replays:
                self._replays[at]([lr, skipped, *gradients])
            else:
                self._move(batches, fused, lr, skipped, gradients, generators[batches[0].is_sharded])

    def slots(self, parameter: Tensor) -> dict[str, Form]:
        if any(parameter is matrix for matrix in self.param_groups[0]["params"]):
            rows = {} if self.settings.row_decay is None else {ROWS: row_slot(parameter)}
            return {"momentum": form_of(parameter), **rows, **self.storage.slots(parameter)}
        return adamw_slots(parameter, self.storage)

    def _same(self, batches: Sequence[_Batch], fused: bool) -> bool:
        """Return whether every step starts the same kernels, which holds without communication and random numbers."""
        on_gpu = all(parameter.is_cuda for batch in batches for parameter in batch.parameters)
        return on_gpu and not fused and self._layout.world.size == 1 and self.storage.rounding == "nearest"

    def _replay(self, batches: Sequence[_Batch], fused: bool) -> Replay:
        parameters = [parameter for batch in batches for parameter in batch.parameters]

        def work(inputs: list[Tensor]) -> None:
            lr, skipped, *gradients = inputs
            self._move(batches, fused, lr, skipped, gradients, None)

        def anchors() -> list[Tensor]:
            states = [self.state[one] for one in parameters]
            held = [state[slot] for slot in ("momentum", ROWS) for state in states if slot in state]
            return [*parameters, *held]

        return Replay(work, anchors)

    def _move(
        self,
        batches: Sequence[_Batch],
        fused: bool,
        lr: Tensor,
        skipped: Tensor,
        gradients: list[Tensor],
        generator: torch.Generator | None,
    ) -> None:
        """Update this rank's shards of the matrices. For each matrix, the rank that gathered it computes the step."""
        settings = self.settings
        parameters = [parameter for batch in batches for parameter in batch.parameters]
        moves = 1 - skipped
        states = [self.state[parameter] for parameter in parameters]
        momenta = [local(_momentum(state, parameter)) for state, parameter in zip(states, parameters, strict=True)]
        # Sent to other ranks, or by the fused kernel, in the iteration's type; else each batch is converted at once.
        kind = _TYPES[settings.compute] if fused or self._layout.world.size > 1 else torch.float32
        take = _fused(aim) if fused else aim_at_once
        aims = take(gradients, momenta, moves, settings.momentum, settings.nesterov, kind)
        weights = self.storage.open(parameters, states)
        first = 0
        for batch in batches:
            mine = slice(first, first := first + len(batch.parameters))
            steps = batch.spread.work(partial(batch.orthogonalise, settings, kind), aims[mine])
            if settings.row_decay is not None:
                squares = [_rows(state, one) for state, one in zip(states[mine], parameters[mine], strict=True)]
                steps = even_rows(steps, squares, batch.parts, settings.row_decay, moves, batch.spread)
            keep = (1 - lr * settings.weight_decay * moves).float() if settings.weight_decay else None
            move = partial(go, cautious=settings.cautious)
            (_fused(go_cautiously if settings.cautious else go) if fused else move)(
                weights[mine], steps, (-lr * batch.scale * moves).float(), keep
            )
        self.storage.close(parameters, weights, states, generator, skipped)


def _momentum(state: dict[str, Tensor], parameter: Tensor) -> Tensor:
    if "momentum" not in state:
        state["momentum"] = torch.zeros_like(parameter)
    return state["momentum"]


ROWS = "rows"


def _rows(state: dict[str, Tensor], parameter: Tensor) -> Tensor:
    if ROWS not in state:
        state[ROWS] = local(parameter).new_zeros(parameter.shape[0])
    return state[ROWS]


def aim(
    gradients: list[Tensor], momenta: list[Tensor], moves: Tensor, momentum: float, nesterov: bool, dtype: torch.dtype
) -> list[Tensor]:
    """Add the gradients to the momenta unless `moves` is 0, and return the matrices to orthogonalise."""
    # A gradient that is not finite times zero is not zero, but its bits are.
    bits = torch._foreach_mul([gradient.float().view(torch.int32) for gradient in gradients], moves.to(torch.int32))
    given = [one.view(torch.float32) for one in bits]
    moved = [one.float() for one in momenta]
    towards = torch._foreach_sub(given, moved)
    torch._foreach_mul_(towards, (1 - momentum) * moves)
    moved = list(torch._foreach_add(moved, towards))
    torch._foreach_copy_(momenta, moved)
    aims = torch._foreach_lerp(given, moved, momentum) if nesterov else moved
    return [one.to(dtype) for one in aims]


def aim_at_once(
    gradients: list[Tensor], momenta: list[Tensor], moves: Tensor, momentum: float, nesterov: bool, dtype: torch.dtype
) -> list[Tensor]:
    """Do the same as `aim` for all matrices together, with few kernels however many matrices there are."""
    given = torch.where(moves > 0, _flatten_dense_tensors(gradients).float(), 0.0)
    moved = _flatten_dense_tensors(momenta).float()
    moved = moved + (given - moved) * ((1 - momentum) * moves)
    torch._foreach_copy_(momenta, _unflatten_dense_tensors(moved, momenta))
    aims = given.lerp(moved, momentum) if nesterov else moved
    return list(_unflatten_dense_tensors(aims.to(dtype), gradients))


def go(weights: list[Tensor], steps: list[Tensor], size: Tensor, keep: Tensor | None, cautious: bool = False) -> None:
    """Multiply the weights by the decay factor `keep`, then add the steps times `size`.

    With `cautious`, the decay applies only to weights with the sign of their step. The step also shrinks these weights,
    since `size` is negative.
    """
    if keep is not None and cautious:
        shrinks = [weight * step >= 0 for weight, step in zip(weights, steps, strict=True)]
        torch._foreach_mul_(weights, [torch.where(one, keep, 1.0) for one in shrinks])
    elif keep is not None:
        torch._foreach_mul_(weights, keep)
    torch._foreach_add_(weights, torch._foreach_mul([step.float() for step in steps], size))


def go_cautiously(weights: list[Tensor], steps: list[Tensor], size: Tensor, keep: Tensor | None) -> None:
    go(weights, steps, size, keep, cautious=True)


@lru_cache(maxsize=4)
def _fused(function: Callable[..., T]) -> Callable[..., T]:
    """Compile the function to one kernel per batch, so that each number is read and written only once."""
    from tintype.model.transformer import allow_shapes

    allow_shapes()
    return torch.compile(function, dynamic=False)


_TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class _Batch:
    """Parameters whose matrices have the same shape, after tall matrices are transposed to wide ones."""

    parameters: list[Tensor]
    parts: list[int]
    """Number of matrices that are stacked by rows in each parameter."""
    scale: float
    spread: Spread

    @property
    def is_sharded(self) -> bool:
        return is_sharded(self.parameters[0])

    @property
    def numbers(self) -> int:
        """Return the approximate number of values that a rank holds. All ranks get the same result."""
        return sum(parameter.numel() for parameter in self.parameters) // self.spread.layout.shards

    def orthogonalise(
        self, settings: MuonSettings, kind: torch.dtype, which: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        """Orthogonalise some parameters' matrices as one batch. In `which`, wide parameters come before tall ones."""
        parts = [self.parts[index] for index in which]
        wide = sum(one.shape[0] // count <= one.shape[1] for one, count in zip(matrices, parts, strict=True))
        stacks = [_stacked(matrices[:wide], parts[:wide])] if wide else []
        stacks += [_stacked(matrices[wide:], parts[wide:]).mT] if wide < len(parts) else []
        wide_NRC = torch.cat(stacks) if len(stacks) > 1 else stacks[0]
        own = _TYPES[settings.compute]
        even_NRC = orthogonalise(wide_NRC, settings.newton_schulz_steps, own, settings.iteration).to(kind)
        turned_NCR = even_NRC[sum(parts[:wide]) :].mT.contiguous()  # at once, and not one by one
        return [*_apart(even_NRC[: sum(parts[:wide])], parts[:wide]), *_apart(turned_NCR, parts[wide:])]


def _stacked(matrices: list[Tensor], parts: list[int]) -> Tensor:
    """Stack all parts to one batch, in a single call if no matrix has several parts, which saves host time."""
    if set(parts) == {1}:
        return torch.stack(matrices)
    return torch.cat([one.unflatten(0, (count, -1)) for one, count in zip(matrices, parts, strict=True)])


def _apart(stack_NRC: Tensor, parts: list[int]) -> Sequence[Tensor]:
    """Split a batch into matrices, as the inverse of `_stacked`."""
    if set(parts) == {1}:
        return stack_NRC.unbind()
    return [one.flatten(0, 1) for one in stack_NRC.split(parts)] if parts else []


def _batches_of(settings: MuonSettings, matrices: Sequence[tuple[str, nn.Parameter]], layout: Layout) -> list[_Batch]:
    found: dict[tuple[int, int, float, bool], list[tuple[int, nn.Parameter]]] = {}
    for name, parameter in matrices:
        parts = _parts(name) if settings.fused == "parts" else 1
        rows, columns = parameter.shape[0] // parts, parameter.shape[1]
        scale = step_scale(settings.scaling, rows, columns)
        key = (min(rows, columns), max(rows, columns), scale, is_sharded(parameter))
        found.setdefault(key, []).append((parts, parameter))
    batches: list[_Batch] = []
    for (_, _, scale, cut), members in found.items():
        members.sort(key=lambda member: member[1].shape[0] // member[0] > member[1].shape[1])  # the tall ones last
        parameters: list[Tensor] = [parameter for _, parameter in members]
        before = sum(len(batch.parameters) for batch in batches)
        held = layout if cut else Layout(layout.world)  # what is not cut every rank has a copy of
        spread = Spread([parameter.shape for parameter in parameters], before, held)
        batches.append(_Batch(parameters, [parts for parts, _ in members], scale, spread))
    return batches


def _portions(batches: list[_Batch]) -> list[tuple[list[_Batch], bool]]:
    """Group the batches that are updated together, with whether a fused kernel does so. Large batches stand alone."""
    on_gpu = all(parameter.device.type == "cuda" for batch in batches for parameter in batch.parameters)
    is_large = [on_gpu and has_triton() and batch.numbers >= _LARGE_NUMBERS for batch in batches]
    small = [batch for batch, large in zip(batches, is_large, strict=True) if not large]
    together = [[batch for batch in small if batch.is_sharded == cut] for cut in (True, False)]
    return [(some, False) for some in together if some] + [
        ([batch], True) for batch, large in zip(batches, is_large, strict=True) if large
    ]


def _parts(name: str) -> int:
    return next((parts for ending, parts in _FUSED.items() if name.endswith(ending)), 1)


def step_scale(scaling: str, rows: int, columns: int) -> float:
    """Return the factor of an orthogonalised step. The factor is applied in addition to the learning rate."""
    if scaling == "matched":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def polynomials(iteration: str, steps: int) -> list[tuple[float, float, float]]:
    """Return each step's coefficients of x, x^3 and x^5."""
    if iteration == "newton-schulz":
        return [COEFFICIENTS] * steps
    *early, last = POLAR_EXPRESS
    safe = [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in early]
    return [*safe, *[last] * (steps - len(safe))][:steps]


def orthogonalise(matrix_NRC: Tensor, steps: int, dtype: torch.dtype, iteration: str = "newton-schulz") -> Tensor:
    """Return each matrix with its singular values brought near one. A matrix must not have more rows than columns.

    A step is (a I + b A + c A²) X with A = X Xᵀ, computed as one product. In the first step, the bracket also divides
    by the matrix's norm. So neither the first term nor the division needs a separate pass over X.
    """
    x_NRC = matrix_NRC.to(dtype)
    room = 1.0 if iteration == "newton-schulz" else _SAFETY
    for step, polynomial in enumerate(polynomials(iteration, steps)):
        gram_NRR = gram(x_NRC)
        norm_N = _norm(gram_NRR) * room if step == 0 else None
        x_NRC = torch.bmm(bracket(gram_NRR, *polynomial, norm_N), x_NRC)
    return x_NRC


def _norm(gram_NRR: Tensor) -> Tensor:
    """Return the norms of the matrices X, given their products X Xᵀ."""
    return gram_NRR.diagonal(dim1=1, dim2=2).float().sum(1).sqrt().clamp(min=_SMALLEST_NORM)


def newton_schulz_flops(settings: MuonSettings, named: Mapping[str, Tensor]) -> int:
    """Return the floating-point operations of a step's iterations: A = X Xᵀ, A², and the product with X.

    The first two products are symmetric, but are counted in full. Elementwise operations are not counted.
    """
    return settings.newton_schulz_steps * sum(
        _iteration_flops(named[name].shape, _parts(name) if settings.fused == "parts" else 1)
        for name in settings.taken(named)
    )


def _iteration_flops(shape: Sequence[int], parts: int) -> int:
    rows, columns = sorted((shape[0] // parts, shape[1]))
    return parts * (4 * rows**2 * columns + 2 * rows**3)
