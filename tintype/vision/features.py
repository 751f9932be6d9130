"""Features of many images by one encoder.

B: images. C: channels. H, W: rows, columns. N: all images. F: size of the feature vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.frozen import encode_filled
from tintype.seams import Encoder

_CPU_BATCH, _CPU_BATCH_SMALL, _SMALL_PX = 8, 64, 128
"""Images that a network sees at once on a CPU, by the size of its input alone: kernels round by the batch's size."""


def feature_matrix(
    encoder: Encoder,
    images: Iterable[Tensor],
    batch: int = 64,
    on_images: Callable[[int], None] = lambda images: None,
    first_index: int = 0,
) -> Tensor:
    """Return features [N, F] in float32 on the CPU, one row for each image, in order.

    `images` gives uint8 images, single or in batches, of any sizes. The network sees batches of one size, the last
    one filled up, so that a row does not depend on how the images came. On a CPU that size is fixed, and rows are
    the same to the last bit for any `batch`; on a GPU it is `batch`, and another may move the last bits.

    `on_images` is called with the number of images of every batch; `first_index` is the first one's number in messages.
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
    """Yield prepared images in batches of the network's size; the last may be smaller."""
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
