"""Resizing against Pillow, torch and a plain loop; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from tests.bounds import distance, rounding_bound
from tintype.pretrained.preprocess import Filter, Fit, Preprocess, Resampling, resize

SIZES = [(64, 48, 40, 40), (33, 57, 97, 71), (200, 150, 31, 64), (5, 3, 8, 8), (1, 1, 4, 4), (299, 299, 299, 299)]
PILLOW: dict[Filter, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def sample_image(height: int, width: int) -> Tensor:
    """Noise, with bars of black and white that make a bicubic filter overshoot."""
    image_CHW = torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    image_CHW[:, ::7] = 255
    image_CHW[:, :, ::5] = 0
    return image_CHW


@pytest.mark.parametrize("name", PILLOW)
@pytest.mark.parametrize(("height", "width", "to_height", "to_width"), SIZES)
def test_float_resize_is_pillows_of_float_images(
    name: Filter, height: int, width: int, to_height: int, to_width: int
) -> None:
    """The definition of clean-fid: each channel for itself, in floats, clipped at the end."""
    image_CHW = sample_image(height, width)
    ours_CHW = resize(image_CHW, to_height, to_width, Resampling(name)).numpy()
    for channel, ours_HW in zip(image_CHW.numpy(), ours_CHW, strict=True):
        pillow = Image.fromarray(channel.astype(np.float32)).resize((to_width, to_height), PILLOW[name])
        assert np.abs(np.asarray(pillow).clip(0, 255) - ours_HW).max() < 1e-4


@pytest.mark.parametrize("name", PILLOW)
@pytest.mark.parametrize(("height", "width", "to_height", "to_width"), SIZES)
def test_quantised_resize_is_pillows_of_bytes_exactly(
    name: Filter, height: int, width: int, to_height: int, to_width: int
) -> None:
    """One axis at a time: from version 13 Pillow itself chooses which axis goes first."""
    image_CHW = sample_image(height, width)
    ours_CHW = resize(image_CHW, to_height, to_width, Resampling(name, quantise=True)).to(torch.uint8)
    pillow = Image.fromarray(image_CHW.permute(1, 2, 0).numpy()).resize((to_width, height), PILLOW[name])
    pillow = pillow.resize((to_width, to_height), PILLOW[name])
    assert np.array_equal(np.asarray(pillow), ours_CHW.permute(1, 2, 0).numpy())


@pytest.mark.parametrize(("height", "width", "to_height", "to_width"), SIZES)
@pytest.mark.parametrize(
    ("how", "mode", "antialias"),
    [
        (Resampling("bicubic-0.75", antialias=False, clip=False), "bicubic", False),
        (Resampling("bilinear", antialias=False), "bilinear", False),
        (Resampling("bilinear"), "bilinear", True),
        (Resampling("bicubic", clip=False), "bicubic", True),
    ],
)
def test_resize_is_torchs(
    how: Resampling, mode: str, antialias: bool, height: int, width: int, to_height: int, to_width: int
) -> None:
    image_CHW = sample_image(height, width)
    ours_CHW = resize(image_CHW, to_height, to_width, how)
    torchs_BCHW = interpolate(image_CHW[None].double(), (to_height, to_width), mode=mode, antialias=antialias)
    assert distance(ours_CHW, torchs_BCHW[0]) < rounding_bound(height * width, 255.0, torch.float64)


@pytest.mark.parametrize(("height", "width", "to_px"), [(32, 20, 45), (45, 37, 11), (299, 299, 299)])
def test_tf1_grid_is_a_plain_loop(height: int, width: int, to_px: int) -> None:
    image = sample_image(height, width)
    ours = resize(image, to_px, to_px, Resampling("bilinear", antialias=False, grid="tf1"))
    for row in range(0, to_px, 5):
        for column in range(0, to_px, 3):
            y, x = row * height / to_px, column * width / to_px
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            dy, dx = y - top, x - left
            upper = image[0, top, left] * (1 - dx) + image[0, top, right] * dx
            lower = image[0, bottom, left] * (1 - dx) + image[0, bottom, right] * dx
            assert abs(float(upper * (1 - dy) + lower * dy - ours[0, row, column])) < 1e-3


@pytest.mark.parametrize(
    ("fit", "box", "resized"),
    [
        ("squash", None, (16, 16)),
        ("short-side", None, (16, 25)),
        ("crop-first", (10, 0, 40, 30), (16, 16)),
    ],
)
def test_each_way_to_a_square_against_pillow(
    fit: Fit, box: tuple[int, int, int, int] | None, resized: tuple[int, int]
) -> None:
    image_CHW = sample_image(30, 50)[:, :, :47] if fit == "short-side" else sample_image(30, 50)
    prepared = Preprocess(16, Resampling("bicubic", quantise=True), fit, scale=1.0)(image_CHW[None])[0]
    pillow = Image.fromarray(image_CHW.permute(1, 2, 0).numpy()).crop(box)
    pillow = pillow.resize(resized[::-1], Image.Resampling.BICUBIC)
    left = (resized[1] - 16) // 2
    wanted = np.asarray(pillow)[:, left : left + 16].transpose(2, 0, 1)
    assert np.array_equal(prepared.numpy(), wanted)


def test_numbers_are_scaled_shifted_and_divided() -> None:
    image = torch.full((1, 3, 4, 4), 192, dtype=torch.uint8)
    prepared = Preprocess(4, Resampling(), scale=0.5, mean=(96.0, 90.0, 86.0), std=(1.0, 2.0, 10.0))(image)
    assert prepared.dtype == torch.float32
    assert torch.equal(prepared[0, :, 0, 0], torch.tensor([0.0, 3.0, 1.0]))


@pytest.mark.parametrize("how", [Resampling(), Resampling("bilinear", antialias=False, grid="tf1")])
def test_a_row_does_not_depend_on_its_batch(how: Resampling) -> None:
    images = torch.stack([sample_image(70, 50), sample_image(70, 50).flip(1), sample_image(70, 50).flip(2)])
    prepare = Preprocess(33, how)
    alone = torch.cat([prepare(image[None]) for image in images])
    assert torch.equal(prepare(images), alone)


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (torch.rand(2, 3, 8, 8), TypeError),
        (torch.rand(2, 3, 8, 8) * 255, TypeError),
        (torch.randint(0, 256, (2, 3, 8, 8)), TypeError),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), ValueError),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), ValueError),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), ValueError),
        (torch.zeros(2, 3, 0, 8, dtype=torch.uint8), ValueError),
    ],
    ids=["floats to 1", "floats to 255", "int64", "grey", "no batch", "channels last", "empty"],
)
def test_anything_but_a_batch_of_bytes_is_refused(image: Tensor, error: type[Exception]) -> None:
    with pytest.raises(error, match="images must"):
        Preprocess(8, Resampling())(image)


def test_the_published_mistake_makes_a_negative_and_cannot_be_made_here() -> None:
    """uint8 * 255 in uint8 is 256 - x: the right type, so the only guard is that nothing multiplies before us."""
    image = sample_image(8, 8)[None]
    negative = image * 255
    assert torch.equal(negative, (256 - image.to(torch.int64)).to(torch.uint8))
    with pytest.raises(TypeError, match="uint8"):
        Preprocess(8, Resampling())(image.float() / 255 * 255)
    assert (Preprocess(8, Resampling())(image) - Preprocess(8, Resampling())(negative)).abs().mean() > 0.1


def test_definition_and_hash_tell_two_ways_apart() -> None:
    ways = [
        Preprocess(8, Resampling()),
        Preprocess(9, Resampling()),
        Preprocess(8, Resampling("bilinear")),
        Preprocess(8, Resampling("bicubic-0.75")),
        Preprocess(8, Resampling(antialias=False)),
        Preprocess(8, Resampling("bilinear", antialias=False, grid="tf1")),
        Preprocess(8, Resampling(quantise=True)),
        Preprocess(8, Resampling(clip=False)),
        Preprocess(8, Resampling(), "short-side"),
        Preprocess(8, Resampling(), mean=(0.5, 0.4, 0.3)),
    ]
    assert len({way.definition for way in ways}) == len({way.hash_input for way in ways}) == len(ways)
    assert ways[0].hash_input == Preprocess(8, Resampling()).hash_input


def test_a_grid_without_antialiasing_refuses_it() -> None:
    with pytest.raises(ValueError, match="antialias"):
        Resampling("bilinear", grid="tf1")
