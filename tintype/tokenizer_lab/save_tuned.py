"""`tintype tokenizer save` writes the autoencoder that a run has tuned as a frozen tokenizer for any plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tintype.errors import UserError
from tintype.runtime.locks import locked, refuse_foreign
from tintype.settings import plain
from tintype.tokenizers.part import Statistics
from tintype.train.load import load_run


@dataclass(frozen=True)
class SavedTokenizer:
    """A saved tokenizer that a run has tuned."""

    step: int
    statistics: Statistics
    """Statistics with which the saved tokenizer normalises, which are the run's running statistics."""
    words: str
    """The tokenizer's settings in the notation of a plan file."""


def save_tuned(run: Path, out: Path, device: str | None = None) -> SavedTokenizer:
    """Write the autoencoder of the run's newest intact checkpoint to a new folder."""
    parts, step = load_run(run, device)
    plan = parts.plan
    if plan.tuning is None:
        raise UserError(
            f"{run} did not tune its tokenizer ('{plan.tokenizer.kind}'), so there is nothing to save",
            "use the tokenizer that the run's plan names. Only the technique repa-e trains the tokenizer",
        )
    network, statistics = plan.tuning.tuned(parts.tokenizer)
    about = {
        "tuned_by": plan.hash,
        "step": step,
        "began_as": plain(plan.tokenizer),
        "tuning": plain(plan.tuning),
        "data": plain(plan.data),
        "statistics": asdict(statistics),
    }
    with locked(out):
        refuse_foreign(out, "tokenizer")
        words = plan.tokenizer.write_tuned(out, network, statistics, about)
    return SavedTokenizer(step, statistics, words)
