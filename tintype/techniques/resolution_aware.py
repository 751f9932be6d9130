"""resolution-aware: the time embedding also encodes the size of the latents (the vector form of PRX and diffusers).

If all images have one size (no buckets, no stages), the encoded size is constant, and the model learns nothing from it.
"""

from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="model",
    summary="add the size of the latents to the time embedding",
    apply=lambda plan, options: {"model": plan.model.model_copy(update={"resolution_embeds": True})},
    trains=frozenset({"denoiser.resolution_embedder"}),
)
