"""resolution-aware: the time embedding also says how large the latents are (the vector form of PRX and diffusers).

Where all images have one size (no buckets, no stages) its input is constant, and it can teach the model nothing about
sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.techniques.technique import NoOptions, Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


def apply(plan: Plan, options: NoOptions) -> dict[str, Any]:
    return {"model": plan.model.model_copy(update={"resolution_embeds": True})}


TECHNIQUE = Technique(
    name="resolution-aware",
    seam="model",
    summary="the time embedding also says how large the latents are",
    apply=apply,
    trains=frozenset({"denoiser.resolution_embedder"}),
)
