from __future__ import annotations

import threading

import pytest
import torch

from tintype.data import fit as module
from tintype.data.fit import SHRINK, covering, crop, shrunk, square, stretched
from tintype.pretrained.preprocess import resize


def whole(image_CHW: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return resize(image_CHW[None], rows, columns, SHRINK)[0].round().to(torch.uint8)


def noise(height: int, width: int, levels: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * width)
    return torch.randint(0, levels, (3, height, width), generator=generator).mul(255 // (levels - 1)).to(torch.uint8)


@pytest.mark.parametrize(("height", "width", "size_px"), [(40, 51, 33), (420, 315, 128), (96, 64, 32), (33, 400, 20)])
def test_bytes_are_those_of_the_whole_products(height: int, width: int, size_px: int) -> None:
    for image_CHW in (noise(height, width), noise(height, width, 2)):
        short = min(height, width)
        rows, columns = (round(px * size_px / short) for px in (height, width))
        expected_CHW = whole(image_CHW, rows, columns)
        assert torch.equal(shrunk(image_CHW, size_px), expected_CHW)
        assert torch.equal(square(image_CHW, size_px), crop(expected_CHW, size_px, 0.5, 0.5))


def test_a_sum_on_the_edge_between_two_bytes_is_left_to_the_whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle column of 300 × 401 is the mean of two halves: with 10 and 11 it is 10.5."""
    image_CHW = torch.full((3, 300, 400), 10, dtype=torch.uint8)
    image_CHW[:, :, 200:] = 11
    seen: list[int] = []

    def noted(image_BCHW: torch.Tensor, rows: int, columns: int, how: object) -> torch.Tensor:
        if threading.current_thread() is threading.main_thread():  # not images that another test still reads ahead
            seen.append(columns)
        return resize(image_BCHW, rows, columns, SHRINK)

    monkeypatch.setattr(module, "resize", noted)
    assert torch.equal(shrunk(image_CHW, 200), whole(image_CHW, 200, 267)) and seen == [267]
    image_CHW = torch.full((3, 300, 400), 10, dtype=torch.uint8)
    image_CHW[:, 100:200, 200] = (
        138  # by half the weights are multiples of 1/256: 10 + 128 × 111/256 is 65.5 in any order
    )
    assert int(shrunk(image_CHW, 150)[0, 70, 100]) == 66 and seen == [267]


def test_an_image_covers_a_shape_that_is_not_square() -> None:
    image_CHW = noise(60, 90)
    assert torch.equal(covering(image_CHW, 30, 40), whole(image_CHW, 30, 45)[:, :, 3:43])
    assert torch.equal(covering(image_CHW, 40, 30), whole(image_CHW, 40, 60)[:, :, 15:45])
    assert torch.equal(covering(image_CHW, 60, 60), image_CHW[:, :, 15:75])


def test_a_stretched_image_has_the_shape_and_loses_nothing_at_its_sides() -> None:
    image_CHW = noise(60, 90)
    assert torch.equal(stretched(image_CHW, 30, 40), whole(image_CHW, 30, 40))
    assert torch.equal(stretched(image_CHW, 60, 90), image_CHW)
