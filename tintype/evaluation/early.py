"""Scores along training: the weights that a run kept at chosen steps, and its last ones, all by one cheaper protocol.

Distances between sets of images depend on how many there are. So the scores of a curve are all taken on the same number
of images, the last one too, and are compared among themselves only. The images of the last score are the first ones of
the full evaluation, which are there already.
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
"""By default an early score is taken on one in so many of the images of the full one."""
FEWEST_EARLY = 128
"""By default an early score is taken on no fewer images than this, where the full one has as many."""
NOT_SCORED = "not-scored"
"""The event of a step whose kept weights gave no score."""


def early_protocol(protocol: Protocol, metrics: Collection[str], count: int | None = None) -> Protocol:
    """Return the protocol of the scores along training: fewer images, and only the samplings that `metrics` need.

    `count` is the number of images of the main sampling, by default a quarter of the protocol's and at least 128.
    Other samplings have no more; a prompt file is used whole. The validation loss has as many images as in the full
    protocol, since it costs little.
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
    """Return the steps that the run has trained without keeping their weights, so that they cannot be scored."""
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
    """Score a finished run's last weights, those of the step `last`, then the ones that it kept at `steps`.

    Kept weights are removed once their score is stored, and so are those of other steps, which nobody asks for any
    more. Steps without kept weights are left out: they were scored before, or the run was trained without keeping them.
    Weights that cannot be scored are an event of the run, which stays what it is. The kept ones come last: while there
    are some, scores are missing.
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
    """Set aside a stored score that is damaged. Its weights are gone, so it cannot be taken again."""
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
