"""Resume a run from its newest good checkpoint."""

from __future__ import annotations

from pathlib import Path

from tintype.errors import UserError
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.state import StateMismatchError, TrainState


def resume(folder: RunFolder, state: TrainState) -> None:
    """Restores damaged files and the newest good checkpoint, if any, and cuts the logs and snapshots back to it."""

    def on_damage(moved_to: Path, reason: str) -> None:
        folder.log_event("damaged-checkpoint", 0, moved_to=str(moved_to), reason=reason)

    with folder.world.fail_together():
        folder.restore_files()
    try:
        checkpoint.restore(folder.checkpoints, state, on_damage, folder.world)
    except StateMismatchError as error:
        raise UserError(f"the checkpoint in {folder.checkpoints} does not fit this plan and version: {error}") from None
    with folder.world.fail_together():
        folder.forget_after(state.step)
        if folder.writes:
            checkpoint.remove_after(folder.snapshots, state.step)
