"""repa-e: the tokenizer's autoencoder is trained together with the denoiser (arXiv 2504.10483).

This technique is the end-to-end half of the paper. The other half aligns the denoiser itself, and is a separate
alignment loss. If the plan has an alignment loss, both use one projector, and the loss's teacher and block are the
defaults here. Otherwise, repa-e trains a projector on the denoiser's tokens without changing the denoiser.

Differs: the discriminator is an option that is off by default, and it starts untrained. The autoencoder and the
discriminator use the plan's AdamW with their own learning rates.
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
