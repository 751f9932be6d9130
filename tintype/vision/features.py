"""Compute features of many images with one encoder.

Tensor dimensions are B (images), C (channels), H (rows), W (columns), N (all images) and F (size of the feature
vector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.frozen import encode_filled
from tintype.seams import Encoder

_CPU_BATCH, _CPU_BATCH_SMALL, _SMALL_PX = 8, 64, 128
"""Batch sizes on a CPU for large and for small inputs, and the largest side in pixels of a small input.

The batch size depends only on the input size, since kernels round differently for other batch sizes.
"""


def feature_matrix(
    encoder: Encoder,
    images: Iterable[Tensor],
    batch: int = 64,
    on_images: Callable[[int], None] = lambda images: None,
    first_index: int = 0,
) -> Tensor:
    """Return features [N, F] in float32 on the CPU, one row per image, in the order of the images.

    `images` yields uint8 images, single or in batches, of any sizes. The network always gets batches of the same size,
    and the last batch is padded. So the row of an image does not depend on how `images` are grouped. On a CPU the batch
    size is fixed, and rows are bit-identical for any `batch`. On a GPU the batch size is `batch`, which may change the
    last bits of a row. `first_index` is the index of the first image, for messages.
    """
    if batch < 1:
        raise ValueError(f"a batch must have at least one image, not {batch}")
    rows: list[Tensor] = []
    done = 0
    for input_BCHW in _batches(encoder, images, batch):
        feature_BF = encode_filled(encoder.encode, input_BCHW, _network_batch(input_BCHW, batch)).cpu()
        if len(bad := (~feature_BF.isfinite().all(dim=1)).nonzero()):
            raise UserError(
                f"the encoder '{encoder.name}' gave a feature that is not finite for image "
                f"{first_index + done + int(bad[0])}"
            )
        rows.append(feature_BF)
        done += len(feature_BF)
        on_images(len(feature_BF))
    if not rows:
        raise UserError(f"there are no images for the encoder '{encoder.name}'")
    return torch.cat(rows)


def _batches(encoder: Encoder, images: Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """Yield prepared images in batches of the network's size; the last batch may be smaller."""
    waiting: list[Tensor] = []
    for image in images:
        for chunk_BCHW in (image if image.ndim == 4 else image[None]).split(batch):
            waiting += encoder.prepare(chunk_BCHW).unbind()
            while waiting and len(waiting) >= (size := _network_batch(waiting[0], batch)):
                yield torch.stack(waiting[:size])
                del waiting[:size]
    if waiting:
        yield torch.stack(waiting)


def _network_batch(on: Tensor, batch: int) -> int:
    if on.device.type != "cpu":
        return batch
    return _CPU_BATCH_SMALL if on.shape[-1] <= _SMALL_PX else _CPU_BATCH
