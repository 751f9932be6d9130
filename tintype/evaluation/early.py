"""Scores during training. The weights kept at chosen steps and the last weights are scored by one cheaper protocol.

Distances between sets of images depend on the number of images. So all scores of a curve, including the last, use the
same number of images. Scores of a curve are only compared with each other. The last score uses the first images of the
full evaluation, which are already generated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from tintype.errors import DamagedFileError, DivergedError
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Protocol, definitions
from tintype.evaluation.results import read_result, result_file
from tintype.evaluation.run import evaluate
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import set_aside
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.load import drop_kept
from tintype.train.record import RunRecord

EARLY_SHARE = 4
"""By default, an early score uses one image for every `EARLY_SHARE` images of the full score."""
FEWEST_EARLY = 128
"""Fewest images of an early score by default, unless the full score has fewer."""
NOT_SCORED = "not-scored"
"""Event that is logged if the weights kept at a step could not be scored."""


def early_protocol(protocol: Protocol, metrics: Collection[str], count: int | None = None) -> Protocol:
    """Return the protocol of scores during training, with fewer images and only the samplings that `metrics` need.

    `count` is the number of images of the main sampling. The default is a quarter of the protocol's count, and at least
    128. Other samplings have at most `count` images, but a prompt file is always used as a whole. The validation loss
    uses as many images as in the full protocol, since it is cheap.
    """
    images = min(protocol.count, count or max(protocol.count // EARLY_SHARE, FEWEST_EARLY))
    known = definitions(protocol)
    needed = {one.sampling.name for name in metrics if (one := known.get(name)) and one.sampling}
    also = tuple(
        one if one.count is None else one.model_copy(update={"count": min(one.count, images)})
        for one in protocol.also
        if one.name in needed
    )
    asked = protocol.memorisation.model_copy(update={"captions": min(protocol.memorisation.captions, images)})
    return protocol.model_copy(update={"count": images, "also": also, "memorisation": asked})


def lost_steps(run: Path, steps: Sequence[int], protocol: Protocol) -> list[int]:
    """Return the steps that can no longer be scored, since the run has passed them without keeping their weights."""
    record = RunRecord(run)
    kept = checkpoint.steps(record.kept)
    passed = [step for step in steps if step <= record.saved_step and step not in kept]
    return [step for step in passed if not result_file(run, protocol, step).exists()]


def score_along(
    run: Path,
    steps: Sequence[int],
    protocol: Protocol,
    last: int,
    on_progress: Callable[[int, Scoring], None],
    fence: Fence = OPEN,
) -> None:
    """Score a finished run's last weights, at step `last`, then the weights kept at `steps`.

    Kept weights are removed once scored, and so are kept weights of other steps. Steps without kept weights are
    skipped. If weights cannot be scored, an event is logged and the run stays valid. The last weights are scored first.
    So kept weights that remain show that scores are missing.
    """
    folder = RunFolder(run, fence=fence)
    _score(folder, protocol, last, on_progress, kept=False)
    for step in checkpoint.steps(folder.kept):
        if step in steps:
            _score(folder, protocol, step, on_progress, kept=True)
        fence.check()
        drop_kept(folder.kept, step)
    for step in steps:
        _set_aside_damaged(folder, protocol, step)


def _set_aside_damaged(folder: RunFolder, protocol: Protocol, step: int) -> None:
    """Set a damaged stored score aside. The kept weights are gone, so the step cannot be scored again."""
    file = result_file(folder.path, protocol, step)
    try:
        if file.exists():
            read_result(file)
    except DamagedFileError as error:
        folder.fence.check()
        folder.log_event(NOT_SCORED, step, reason=str(error), moved_to=str(set_aside(file)))


def _score(
    folder: RunFolder, protocol: Protocol, step: int, on_progress: Callable[[int, Scoring], None], kept: bool
) -> None:
    try:
        kept_step = step if kept else None
        evaluate(
            folder.path,
            protocol,
            partial(on_progress, step),
            whole_step=step,
            kept_step=kept_step,
            fence=folder.fence,
        )
    except (DivergedError, checkpoint.DamagedError) as error:
        if (NOT_SCORED, step) not in [(event["event"], event["step"]) for event in folder.record.events]:
            folder.log_event(NOT_SCORED, step, reason=str(error))
