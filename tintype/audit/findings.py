"""Turn observations into findings, sorted by severity. All functions are pure, and every threshold has a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tintype.audit.observe import ROTATION, TIMES
from tintype.audit.seen import NARROW, Bad, Group, Input, Role, Seen, Tally
from tintype.optim.part import MOST_INIT
from tintype.train.parts import LOSSES

Severity = Literal["mistake", "note"]

LOST_SHARE = 0.01
"""Largest accepted share of weight updates that are rounded away, in a bf16 group or in the whole fp32 model.

With fp32 weights, fewer than one in a thousand updates are lost at any sensible learning rate. Only biases lose more,
if their gradient consists of rounding errors. With bf16 weights and rounding to nearest, a fifth or more are lost
(weights of 0.005, learning rate 1e-4). Any threshold between these shares would separate fp32 from bf16. A loss of one
update in a hundred changes no result.
"""
MOMENT_SHARE = 0.25
"""Largest accepted share of moment updates that are rounded away.

bf16 loses an update below 1/256 of its moment. With beta2 = 0.95 this affects a few updates in a hundred, and the
moment still follows its gradient. With beta2 = 0.999 it affects most updates, and the moment does not follow its
gradient.
"""
AVERAGE_SHARE = 0.5
"""Largest accepted share of fp32 averages that differ from their weight and do not move.

A few averages never move, since with a fixed decay an average stops within 2^-24 / (1 - decay) of its weight. If most
averages do not move, the decay is too close to 1 for the dtype.
"""
FEWEST_SMALL_STEPS = 20.0
"""Minimum expected movement for a check of stochastic rounding: half of it is two deviations below it."""
FEWEST_TELLING = 8
"""Minimum number of values that show rounding; bf16 represents a random fp32 number with probability 2^-16."""
WAVE_ERROR = 1e-2
"""Largest accepted error of the timesteps' sinusoids; 6e-5 in fp32, and whole turns with timesteps in bf16."""
FP8_SATURATED_SHARE = 1e-3
"""Largest accepted share of fp8 values at the maximum, to which only the largest is scaled; others were clipped."""
SCALE_TOLERANCE = 0.01
"""Relative tolerance of the loss scale. Sums over micro-batches differ only in their last bits."""


@dataclass(frozen=True)
class Finding:
    name: str
    what: str
    where: tuple[str, ...]
    remedy: str
    share: float | None = None
    """Fraction of the affected numbers that are lost, do not move, or are not finite."""
    severity: Severity = "mistake"


def find(seen: Seen) -> list[Finding]:
    """Return all findings. Mistakes come before notes, and within each severity the order is that of `_CHECKS`."""
    return ranked([finding for check in _CHECKS for finding in check(seen)])


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity != "mistake")


def _non_finite(seen: Seen) -> Iterator[Finding]:
    bad = [(where, one) for where, one in _all_bad(seen) if one.non_finite]
    if bad or seen.skipped_steps:
        count, numbers = sum(one.non_finite for _, one in bad), sum(one.numbers for _, one in bad)
        skipped = f"; {seen.skipped_steps} of {seen.steps} steps were skipped" if seen.skipped_steps else ""
        yield Finding(
            "non-finite",
            f"{count:,} values are infinite or not a number{skipped}",
            _rooms(where for where, _ in bad),
            "lower optimizer.lr, or go back to a checkpoint before it: the first place named is where it was seen "
            "first",
            count / max(1, numbers),
        )


def _saturated(seen: Seen) -> Iterator[Finding]:
    cut = [(where, one) for where, one in _all_bad(seen) if one.saturated]
    operands = [(f"{room} fp8 operands", one) for room, one in seen.operands.items()]
    cut += [(where, one) for where, one in operands if one.saturated > FP8_SATURATED_SHARE * one.numbers]
    if cut:
        count = sum(one.saturated for _, one in cut)
        yield Finding(
            "saturated",
            f"{count:,} values stand at the largest number of their type",
            _rooms(where for where, _ in cut),
            "lower optimizer.lr or store this in fp32 (precision.storage=fp32): the true values are larger",
            count / sum(one.numbers for _, one in cut),
        )


def _all_bad(seen: Seen) -> Iterator[tuple[str, Bad]]:
    """Yield the bad values in the order of a training step. Inputs come first, then gradients, then stored tensors."""
    for one in seen.inputs.values():
        yield f"{one.room} inputs", one.bad
    roles: tuple[Role, ...] = ("gradients", "weights", "moments", "averages", "buffers")
    for role in roles:
        yield from ((f"{g.room} {role}", g.bad[role]) for g in seen.groups.values() if role in g.bad)


_BY_ROUNDING = {
    "kahan": "compensated: what rounding takes is kept beside them",
    "stochastic": "rounded stochastically: weights that stay are made up for by others that go further",
}


def _weights(seen: Seen) -> Iterator[Finding]:
    stored = [g for g in seen.narrow("weights") if not g.room.startswith(LOSSES)]
    types = _types(stored, "weights")
    by_rounding = {kind: [g for g in stored if rounding_of(g, stored) == kind] for kind in ("nearest", *_BY_ROUNDING)}
    if nearest := by_rounding.pop("nearest"):
        worst = max(nearest, key=lambda g: g.updates.share or 0.0)  # a norm's gains are few, and freeze first
        most = worst.updates.share or 0.0
        yield Finding(
            "weights-bf16",
            f"weights are stored in {types} and rounded to nearest: steps below about 1/256 of a weight are lost; the "
            f"{worst.kind} of {worst.room} lose {most:.0%} of theirs" + _stored_as_planned(seen),
            _worst_first(nearest, lambda g: g.updates.share),
            "precision.storage=fp32, or precision.rounding=stochastic or kahan",
            share_of(g.updates for g in nearest),
            "mistake" if most > LOST_SHARE else "note",
        )
    for rounding, groups in by_rounding.items():
        if groups:
            yield Finding(
                f"weights-{rounding}",
                f"weights are stored in {types} and {_BY_ROUNDING[rounding]}",
                _rooms(g.room for g in groups),
                "nothing to do; precision.storage=fp32 has no rounding at all",
                share_of(g.updates for g in groups),
                "note",
            )


def rounding_of(group: Group, among: Iterable[Group]) -> str:
    """Guess how storage rounds from moved weights; a group with few small updates gets the rounding of all."""
    if group.updates.compensated:
        return "kahan"
    wanted, gone = group.updates.small_wanted, group.updates.small_gone
    if wanted < FEWEST_SMALL_STEPS:
        alike = [other.updates for other in among if not other.updates.compensated]
        wanted, gone = sum(one.small_wanted for one in alike), sum(one.small_gone for one in alike)
    return "stochastic" if gone > 0.5 * wanted else "nearest"


def _projector(seen: Seen) -> Iterator[Finding]:
    stored = [g for g in seen.narrow("weights") if g.room.startswith(LOSSES)]
    computed = [one for one in seen.inputs.values() if one.room.startswith(LOSSES) and one.types & NARROW]
    if stored or computed:
        how = f"stored in {_types(stored, 'weights')}" if stored else f"computed in {_narrow_types(computed)}"
        yield Finding(
            "projector-bf16",
            f"a loss's own layers are {how}: a cosine near one needs more bits",
            _rooms([*(g.room for g in stored), *(one.module for one in computed)]),
            "keep the loss's modules in fp32 and outside autocast: leave them out of .to(bfloat16) and of FSDP's casts",
            share_of(g.updates for g in stored),
        )


def _average(seen: Seen) -> Iterator[Finding]:
    if narrow := seen.narrow("averages"):
        yield Finding(
            "average-bf16",
            f"the weight average is stored in {_types(narrow, 'averages')}: most of its steps round away",
            _worst_first(narrow, lambda g: g.averages.share),
            "keep the average in fp32 whatever the weights are stored in, as `ema` and `power-ema` do",
            share_of(g.averages for g in narrow),
        )
    wide = [g for g in seen.groups.values() if not g.narrow("averages") and g.averages.due]
    share = share_of(g.averages for g in wide)
    if share is not None and share > AVERAGE_SHARE:
        yield Finding(
            "average-stuck",
            "most of the weight average cannot move yet: its share of the way is below the type's last place",
            _worst_first(wide, lambda g: g.averages.share),
            "a lower ema.decay, or power-ema, whose averages begin short",
            share,
            "note",
        )
    if seen.init_share > MOST_INIT:
        yield Finding(
            "average-init",
            f"at the end of training {seen.init_share:.0%} of the weight average will still be the initial weights",
            ("weight average",),
            "ema with ramp=true, a lower decay or every, or a longer training",
            seen.init_share,
        )


def _moments(seen: Seen) -> Iterator[Finding]:
    if narrow := seen.narrow("moments"):
        share = share_of(g.moments for g in narrow)
        stuck = share is not None and share > MOMENT_SHARE
        yield Finding(
            "moments-bf16",
            f"the optimizer's moments are stored in {_types(narrow, 'moments')}: "
            + ("most of their changes round away" if stuck else "they follow the gradient, with 8 bits")
            + _stored_as_planned(seen),
            _worst_first(narrow, lambda g: g.moments.share),
            "precision.storage=fp32, or a lower optimizer.beta2: its changes are then larger",
            share,
            "mistake" if stuck or seen.precision.storage != "bf16" else "note",
        )


def _rounded_inputs(seen: Seen) -> Iterator[Finding]:
    """Find rounded timesteps and RoPE tables by dtype, by values exact in bf16, or by operations that round them."""
    times = [one for key, one in seen.inputs.items() if key in TIMES]
    rotations = [one for one in seen.inputs.values() if one.argument == ROTATION]
    for island, inputs, words, harm in (
        ("timestep", times, "timesteps are", "bf16 has 128 of them between a half and one"),
        ("rope", rotations, "RoPE's cosines and sines are", "neighbouring positions blur"),
    ):
        narrow = [one for one in inputs if one.types & NARROW]
        upstream = [one for one in inputs if one not in narrow and (_all_of_bf16(one) or one.off > WAVE_ERROR)]
        inside = seen.rounded_inside.get(island, [])
        if narrow:
            how = f"in {_narrow_types(narrow)} where they arrive"
        elif upstream:
            how = "in fp32, but were rounded to bf16 before"
        elif inside:
            how = "rounded to 16 bits where they are used"
        else:
            continue
        places = [f"{_any_block(one.module)}({one.argument})" for one in narrow + upstream]
        remedy = "FSDP: MixedPrecisionPolicy(cast_forward_inputs=False); else take away the cast before this place"
        yield _island(seen, island, f"{words} {how}: {harm}", _rooms([*places, *inside]), remedy)


def _island(seen: Seen, island: str, what: str, where: tuple[str, ...], remedy: str) -> Finding:
    """Return the finding for an island. If the plan sets the island to bf16, the fix is to change that setting."""
    if _is_planned(seen, island):
        what += f" (as the plan says: precision.islands.{island})"
        remedy = f"precision.islands.{island}=fp32"
    return Finding(f"{island}-bf16", what, where, remedy)


def _all_of_bf16(one: Input) -> bool:
    return one.telling >= FEWEST_TELLING and one.telling_in_bf16 == one.telling


def _islands(seen: Seen) -> Iterator[Finding]:
    """Find operations between modules that compute in 16 bits. If no dtype was observed, the plan's dtype counts."""
    names = {"norms": "the statistics of norms", "softmax": "softmax", "modulation": "the modulation"}
    for island, words in names.items():
        rooms = seen.rounded_inside.get(island, [])
        if rooms or _is_planned(seen, island):
            remedy = "compute it in fp32: autocast does by itself, outside of it use .float()"
            yield _island(seen, island, f"{words}: computed in 16 bits", _rooms(rooms) or ("denoiser",), remedy)


def _is_planned(seen: Seen, island: str) -> bool:
    """Return whether the plan sets the island to bf16."""
    return island in {name for name, kind in seen.precision.islands if kind == "bf16"}


def _loss_scale(seen: Seen) -> Iterator[Finding]:
    """Compare the loss scale at every step with the plan.

    Ratios that differ between steps come from processes that report a mean of losses, without a loss scale.
    """
    scales = seen.loss_scales
    if not scales or max(scales) - min(scales) > SCALE_TOLERANCE * abs(scales[0]):
        return
    scale, planned = sum(scales) / len(scales), seen.precision.loss_scale != 1.0
    if abs(scale - 1) > SCALE_TOLERANCE:
        yield Finding(
            "loss-scaled",
            f"the loss is multiplied by {scale:.6g} before backward: only fp16 has so small a range that it "
            "would need this; here it brings overflow nearer"
            + (" (as the plan says: precision.loss_scale)" if planned else ""),
            ("loss",),
            "precision.loss_scale=1.0" if planned else "leave out the gradient scaler; only fp16 needs one",
        )


def _buffers(seen: Seen) -> Iterator[Finding]:
    if narrow := seen.narrow("buffers"):
        yield Finding(
            "buffers-bf16",
            f"buffers are in {_types(narrow, 'buffers')}: tables and running means that no optimizer repairs",
            _rooms(g.room for g in narrow),
            "keep buffers in fp32: cast parameters one by one, not the module (.to(bfloat16) takes buffers along)",
        )


def _fp16(seen: Seen) -> Iterator[Finding]:
    stored = [f"{g.room} {role}" for g in seen.groups.values() for role, types in g.types.items() if "fp16" in types]
    inputs = [f"{_any_block(one.module)}({one.argument})" for one in seen.inputs.values() if "fp16" in one.types]
    if stored or inputs:
        yield Finding(
            "fp16",
            "something is in fp16, which ends at 65,504 and has no number below 6e-8",
            _rooms(stored + inputs),
            "bf16 or fp32: precision.compute=bf16",
        )


def _gathered_and_tf32(seen: Seen) -> Iterator[Finding]:
    if seen.precision.gather == "bf16":
        yield Finding(
            "gathered-bf16",
            "FSDP2 gathers the weights in bf16 (as the plan says: precision.gather): those of norms are rounded too",
            ("denoiser",),
            "precision.gather=fp32",
            severity="note",
        )
    if seen.tf32 and seen.precision.compute == "fp32":
        yield Finding(
            "tf32",
            "the plan says fp32, but matrix products or convolutions may round to TF32 or bf16",
            ("torch's settings",),
            'torch.set_float32_matmul_precision("highest") and torch.backends.cudnn.allow_tf32 = False',
        )


def _fp32_updates(seen: Seen) -> Iterator[Finding]:
    wide = [g for g in seen.groups.values() if not g.narrow("weights")]
    share = share_of(g.updates for g in wide)
    if share is not None and share > LOST_SHARE:
        yield Finding(
            "updates-lost",
            f"weights in {_types(wide, 'weights')} do not take these steps: they are below its last place",
            _worst_first(wide, lambda g: g.updates.share),
            "a higher optimizer.lr: the steps are smaller than one part in 16 million of the weights",
            share,
        )


_CHECKS: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    _non_finite,
    _saturated,
    _weights,
    _fp32_updates,
    _average,
    _rounded_inputs,
    _projector,
    _moments,
    _fp16,
    _islands,
    _gathered_and_tf32,
    _buffers,
    _loss_scale,
)


def share_of(tallies: Iterable[Tally]) -> float | None:
    """Return the share of lost numbers over several tallies."""
    counted = list(tallies)
    return Tally(sum(tally.due for tally in counted), sum(tally.lost for tally in counted)).share


def _types(groups: Iterable[Group], role: Role) -> str:
    return ", ".join(sorted({name for g in groups for name in g.types.get(role, ())}))


def _narrow_types(inputs: Iterable[Input]) -> str:
    return ", ".join(sorted({name for one in inputs for name in one.types & NARROW}))


def _worst_first(groups: Iterable[Group], share: Callable[[Group], float | None]) -> tuple[str, ...]:
    return _rooms(g.room for g in sorted(groups, key=lambda g: -(share(g) or 0.0)))


def _rooms(names: Iterable[str]) -> tuple[str, ...]:
    """Return each module once, in order; all blocks count as one module."""
    return tuple(dict.fromkeys(_any_block(name) for name in names))


def _any_block(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _stored_as_planned(seen: Seen) -> str:
    return " (as the plan says: precision.storage)" if seen.precision.storage == "bf16" else ""
