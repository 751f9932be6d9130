"""tokenizer: the denoiser works on the latents of another autoencoder, or on pixels.

The grid of tokens does not change, because `model.patch` changes with the stride and a token covers the same pixels. So
the cost of the denoiser changes only in its first and last layer. If no patch size makes this possible, the technique
is refused, since a different number of tokens is a separate change. The option `patch` is for users who want both
changes.
"""

from __future__ import annotations

from pydantic import Field

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.settings import Settings
from tintype.techniques.technique import Changes, Technique
from tintype.tokenizers import TokenizerChoice
from tintype.tokenizers.part import TokenizerPart


class Options(Settings):
    to: TokenizerChoice = Field(
        description="The new tokenizer, as a kind alone (to=flux2) or a kind with settings "
        "(to.kind=taef2,to.weights=DIR)"
    )
    patch: int | None = Field(
        None, ge=1, description="New model.patch; by default the value that keeps the number of tokens"
    )


def apply(plan: Plan, options: Options) -> Changes:
    patch = options.patch or _same_grid(plan, options.to)
    return {"tokenizer": options.to, "model": plan.model.model_copy(update={"patch": patch})}


def _same_grid(plan: Plan, tokenizer: TokenizerPart) -> int:
    token_px, stride_px = plan.tokenizer.compression.stride_px * plan.model.patch, tokenizer.compression.stride_px
    if token_px % stride_px == 0:
        return token_px // stride_px
    side = plan.token_grid[0]
    raise UserError(
        f"technique 'tokenizer': a token of the plan covers {token_px} × {token_px} px, but one latent of "
        f"'{tokenizer.kind}' covers {stride_px} × {stride_px} px, so the grid of {side} × {side} tokens "
        f"cannot be kept",
        f"choose a model.patch for the baseline with which a token covers a multiple of {stride_px} px, or use "
        f"tokenizer:patch=1 to change the number of tokens too",
    )


TECHNIQUE = Technique(
    seam="tokenizer",
    also=frozenset({"model"}),
    summary="work on the latents of another tokenizer, with the same grid of tokens",
    apply=apply,
    options=Options,
)
