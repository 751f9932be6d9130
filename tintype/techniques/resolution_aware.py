"""resolution-aware: the time embedding also says how large the latents are (the vector form of PRX and diffusers).

Where all images have one size (no buckets, no stages) its input is constant, and it can teach the model nothing about
sizes.
"""

from __future__ import annotations

from tintype.plan import Plan
from tintype.techniques.technique import Changes, NoOptions, Technique


def apply(plan: Plan, options: NoOptions) -> Changes:
    return {"model": plan.model.model_copy(update={"resolution_embeds": True})}


TECHNIQUE = Technique(
    seam="model",
    summary="the time embedding also says how large the latents are",
    apply=apply,
    trains=frozenset({"denoiser.resolution_embedder"}),
)
