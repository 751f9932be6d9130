"""Validation loss: the error of the velocity on unseen images, with fixed noise and at eight fixed times.

The loss is measured on velocities, whatever the arm's objective is, so that arms can be compared. A contrastive loss
shifts the optimal velocity in a known way. The shift of the velocity is corrected first, as in sampling (`unbias`). The
loss is measured in the latents of the run's own tokenizer, and with the run's own noise scale. So studies do not
compare this loss between arms with different tokenizers or `noise_scale` (`study.contrasts.another_space`). For this
loss, all arms read the same caption column.

B: images of a batch, N: all images, T: times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tintype.data.sources import ids_by_shape
from tintype.flow.objective import mean_square
from tintype.flow.path import interpolate, scaled, velocity
from tintype.losses.class_token import CLASS_TOKEN, noised_class_tokens
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.resample import mean_with_error
from tintype.sampling.generate import spans
from tintype.sampling.velocity_bias import velocity_bias
from tintype.seams import Draws, ImageSource
from tintype.train.parts import Model

TIMES = tuple((index + 0.5) / 8 for index in range(8))


def _measure(error_TN: Tensor) -> Measured:
    at_time = zip(TIMES, error_TN.mean(1).tolist(), strict=True)
    return replace(mean_with_error(error_TN.mean(0)), parts={f"t={t:g}": value for t, value in at_time})


METRIC = Metric(
    name="validation_loss",
    label="validation loss",
    direction="lower",
    definition="mean squared error of the velocity on held-out images with "
    f"{{captions}} captions, at fixed noise and the times {', '.join(f'{t:g}' for t in TIMES)}; in the latents of the "
    "run's own tokenizer, so that arms with another are not compared. Second definition: the bias that a contrastive "
    "loss leaves in the velocity is undone (except with data.buckets, whose shapes share no mean velocity)",
    measure=_measure,
    range=NOT_NEGATIVE,
    shows_parts=False,
    in_latents=True,
    revision=2,
)


def name_at(size_px: int) -> str:
    """Return the loss's name in a run's log, for images that have the size of an earlier stage."""
    return f"{METRIC.name}_{size_px}_px"


def velocity_errors(
    parts: Model, source: ImageSource, count: int, batch: int, seed: int, caption: str = "long"
) -> Tensor:
    """Return the squared error [T, N] of each image's velocity at each time. The mean error is the validation loss."""
    return torch.cat(
        [batch_errors(parts, source, ids, seed, caption) for ids in batches_of_one_shape(source, count, batch)], dim=1
    )


def batches_of_one_shape(source: ImageSource, count: int, batch: int) -> list[list[int]]:
    """Return the ids of the first images in batches. All images of a batch have one shape."""
    return [ids[slice(*span)] for _, ids in ids_by_shape(source, range(count)) for span in spans(0, len(ids), batch)]


@torch.no_grad()
def batch_errors(parts: Model, source: ImageSource, ids: Sequence[int], seed: int, caption: str = "long") -> Tensor:
    """Return the errors [T, B] of one batch, as in `velocity_errors`."""
    draws = Draws(seed, torch.tensor(ids, device=parts.device))
    image_BCHW = source.images(ids).to(parts.device)
    height, width = image_BCHW.shape[-2:]
    bias = velocity_bias(parts, (height, width)) if len(parts.plan.data.shapes) == 1 else None
    x_BCHW = parts.tokenizer.encode(image_BCHW, draws)
    seen = _class_tokens(parts, image_BCHW)
    noise_BCHW = scaled(draws.normal("validation", tuple(x_BCHW.shape[1:])), parts.objective.noise_scale)
    with parts.compute():
        text = parts.denoiser.read_text(parts.text.encode([r.captions[caption] for r in source.records(ids)]))
        at_time = []
        for t in TIMES:
            t_B = x_BCHW.new_full((len(ids),), t)
            x_t_BCHW = interpolate(x_BCHW, noise_BCHW, t_B)
            class_BT = noised_class_tokens(parts.plan.model.class_token, seen, draws, t_B)
            predicted = parts.velocity(x_t_BCHW, t_B, text, class_BT=class_BT)
            unbiased = predicted if bias is None else bias.undo(predicted)
            at_time.append(mean_square(unbiased, velocity(x_BCHW, noise_BCHW)).double().cpu())
    return torch.stack(at_time)


def _class_tokens(parts: Model, image_BCHW: Tensor) -> dict[str, Tensor | None]:
    """Return the images' class tokens under the name of their loss; {} if the denoiser has no class token."""
    if parts.class_tokens is None:
        return {}
    height, width = (side // parts.plan.token_px for side in image_BCHW.shape[-2:])
    return {CLASS_TOKEN: parts.class_tokens(image_BCHW, (height, width))}
