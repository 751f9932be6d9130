"""Log the scores and the preview images of a run to its trackers."""

from __future__ import annotations

from pathlib import Path

from tintype.evaluation.results import EvaluationResult
from tintype.plan import Plan
from tintype.runtime.fence import OPEN, Fence
from tintype.train.folder import RunFolder
from tintype.train.trackers.mirror import mirror_more


def track_result(path: Path, plan: Plan, file: Path, result: EvaluationResult, fence: Fence = OPEN) -> None:
    """Log a result once to each tracker. Scores by other protocols or at other sizes have other names."""
    folder, protocol = RunFolder(path, fence=fence), result.protocol_hash[:8]
    if result.size_px is not None:
        protocol += f"-{result.size_px}px"

    def on_failure(tracker: str, reason: str) -> None:
        if folder.metrics_file.exists():
            folder.log_event("tracker-failed", result.step, tracker=tracker, reason=reason)

    with mirror_more(plan, path, on_failure=on_failure, fence=fence) as mirror:
        numbers = {f"scores-{protocol}/{name}": value for name, value in result.metrics.items()}
        images = {f"samples-{protocol}/{Path(name).stem}": path / name for name in result.previews}
        mirror.log_scores(file.parent.name, result.step, numbers, images)
