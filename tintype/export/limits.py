"""State what a model is for and what it cannot do, from the record of its run."""

from __future__ import annotations

from collections.abc import Iterator

from tintype.export.record import RunRecord
from tintype.optim.part import MOST_INIT

_MANY_EPOCHS = 10


def intended_use(record: RunRecord) -> str:
    if not record.step:
        return "Nothing in the record says what the model is fit for: look at the card of what was imported."
    uses = {source.data.intended_use() for source in record.sources.values() if source.images is not None}
    return uses.pop() if record.origin is None and len(uses) == 1 else record.plan.data.intended_use()


def limits(record: RunRecord) -> Iterator[str]:
    """Yield the limits, each from a fact of the record."""
    if record.step:
        yield from _of_training(record)
        yield from _of_data(record)
    yield from record.plan.text.limits()
    yield from _of_scores(record)
    yield (
        "No filter of prompts or images is part of the model, and whether it repeats training images was not "
        "looked for."
    )


def _of_training(record: RunRecord) -> Iterator[str]:
    plan = record.plan
    if record.weights_step < plan.train.steps:
        step, steps = record.weights_step, plan.train.steps
        yield f"Training is not finished: these are the weights after {step:,} of {steps:,} steps."
    if record.other_seeds:
        others = ", ".join(map(str, record.other_seeds))
        yield (
            f"This is one training, seed {plan.seed}. Its study trained the same plan with the seeds {others} too; how "
            "far they lie apart is in the study's report and not in this card."
        )
    else:
        yield (
            f"One seed ({plan.seed}): another training of the same plan would score differently; by how much "
            "was not measured. The intervals of the scores do not cover it."
        )
    yield from _of_sizes(record)
    if plan.ema is not None and (start := plan.ema.init_share(record.step)) > MOST_INIT:
        yield (
            f"The weights are an average over training in which those of the start still have a share of {start:.0%}."
        )
    if plan.captions.dropout == 0:
        yield "It never read the empty caption in training, so classifier-free guidance does not work."


def _of_sizes(record: RunRecord) -> Iterator[str]:
    plan, size_px = record.plan, record.plan.data.size_px
    stages = plan.train.stages
    if stages and record.step <= stages[-1].until:
        yield f"It has not seen {size_px} × {size_px} pixels yet: training ended in a stage of smaller images."
        return
    only = "" if record.origin is None else " in this training"
    last = " in its last stage" if stages else only
    seen = "Trained" + (
        f" on {len(plan.data.shapes)} shapes of about {size_px} × {size_px} pixels{last}"
        if len(plan.data.shapes) > 1
        else f" on squares of {size_px} × {size_px} pixels only{last}"
    )
    yield f"{seen}; other sizes and shapes were not tried."


def _of_data(record: RunRecord) -> Iterator[str]:
    read = {name: source for name, source in record.sources.items() if source.images is not None}
    yield from dict.fromkeys(limit for source in read.values() for limit in source.data.limits())
    for name, source in read.items():
        whose = f" of the source {name}" if name else ""
        epochs = (source.images or 0) / source.count if source.count else None
        if epochs is not None and epochs >= _MANY_EPOCHS:
            yield f"Each training image{whose} was seen about {epochs:,.0f} times, which favours memorisation."
        elif epochs is not None and epochs < 1:
            yield f"Training ended before it had seen all of its images{whose}: {source.images:,} of {source.count:,}."


def _of_scores(record: RunRecord) -> Iterator[str]:
    if not record.evaluations:
        yield "It was not evaluated: the quality of its images was not measured."
        return
    for one in record.evaluations:
        if one.step != (now := record.weights_step):
            yield f"The scores are of the weights after step {one.step:,}, not of those after step {now:,}."
    if record.plan.data.of_scenes:
        yield (
            "Distances on the features called scenes are those of tintype's own scene encoder; they do not compare "
            "with a published FID."
        )
