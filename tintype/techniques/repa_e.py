"""repa-e: the tokenizer's autoencoder is trained together with the denoiser (arXiv 2504.10483).

It is the end-to-end half of the paper. The other half, a denoiser that is aligned itself, is an alignment loss beside
it, whose projector then serves both; what that loss says of teacher, block and projector is the default here. Alone, it
trains a projector on the denoiser's tokens without touching the denoiser.

Differs: the discriminator is an option, off by default, and begins untrained. The optimizer of the autoencoder and of
the discriminator is the plan's AdamW with learning rates of their own.
"""

from __future__ import annotations

from tintype.losses.repa_e.settings import SHARED, TuningOptions, TuningSettings, aligned_loss
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: TuningOptions) -> Changes:
    chosen = options.resolved(plan)
    if (loss := aligned_loss(plan)) is not None:
        chosen |= {name: getattr(loss, name) for name in SHARED if name not in options.model_fields_set}
    return {"tuning": TuningSettings(**chosen)}


TECHNIQUE = Technique(
    seam="tuning",
    summary="train the tokenizer's autoencoder with the denoiser, by alignment and reconstruction",
    apply=apply,
    options=TuningOptions,
    paper="arXiv:2504.10483",
    trains=frozenset({"tokenizer", "losses_repa-e"}),
)
