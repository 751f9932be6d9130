"""`tintype tokenizer save`: the autoencoder that a run has tuned, as a frozen tokenizer that any plan can name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tintype.errors import UserError
from tintype.losses.repa_e.tokenizer import TunedTokenizer
from tintype.runtime.locks import locked, refuse_foreign
from tintype.tokenizers.part import Statistics
from tintype.train.load import load_run


@dataclass(frozen=True)
class Saved:
    step: int
    statistics: Statistics
    """Statistics that the saved tokenizer normalises with: the running ones of the run."""
    words: str
    """How to name it in a plan."""


def save_tuned(run: Path, out: Path, device: str | None = None) -> Saved:
    """Write the autoencoder of the run's newest good checkpoint to a new folder."""
    parts, step = load_run(run, device)
    tokenizer = parts.tokenizer
    if not isinstance(tokenizer, TunedTokenizer) or parts.plan.tuning is None:
        raise UserError(
            f"{run} did not tune its tokenizer ('{parts.plan.tokenizer.kind}'), so there is nothing to save: use the "
            "one that its plan names. The technique repa-e tunes it"
        )
    statistics = tokenizer.norm.statistics
    about = {
        "tuned_by": parts.plan.hash,
        "step": step,
        "began_as": parts.plan.tokenizer.model_dump(mode="json"),
        "tuning": parts.plan.tuning.model_dump(mode="json"),
        "data": parts.plan.data.model_dump(mode="json"),
        "statistics": asdict(statistics),
    }
    with locked(out):
        refuse_foreign(out, "tokenizer")
        words = parts.plan.tokenizer.write_tuned(out, tokenizer.network, statistics, about)
    return Saved(step, statistics, words)
