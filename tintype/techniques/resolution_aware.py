"""resolution-aware: the time embedding also says how large the latents are (the vector form of PRX and diffusers).

Where all images have one size (no buckets, no stages) its input is constant, and it can teach the model nothing about
sizes.
"""

from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="model",
    summary="the time embedding also says how large the latents are",
    apply=lambda plan, options: {"model": plan.model.model_copy(update={"resolution_embeds": True})},
    trains=frozenset({"denoiser.resolution_embedder"}),
)
