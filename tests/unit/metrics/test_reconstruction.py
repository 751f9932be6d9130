from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d

from tintype.errors import UserError
from tintype.metrics.reconstruction import PSNR, PairValues, psnr, ssim


def random_images(count: int, seed: int, size: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size + 4), dtype=torch.uint8, generator=generator)


def blurred(image: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(image.double(), 3, 1, 1).to(torch.uint8)


def naive_ssim(x: torch.Tensor, y: torch.Tensor) -> float:
    """One channel, with the whole window at once."""
    place = np.arange(11) - 5
    window = np.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    a, b = x.double().numpy(), y.double().numpy()
    m_a, m_b, aa, bb, ab = (convolve2d(z, window, mode="valid") for z in (a, b, a * a, b * b, a * b))
    c_1, c_2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    top = (2 * m_a * m_b + c_1) * (2 * (ab - m_a * m_b) + c_2)
    return float((top / ((m_a**2 + m_b**2 + c_1) * (aa - m_a**2 + bb - m_b**2 + c_2))).mean())


def test_psnr_of_a_known_difference() -> None:
    image = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    other = image.clone()
    other[0] += 5
    other[1, 0, 0, 0] = 0
    expected = [20 * math.log10(255 / 5), 10 * math.log10(255**2 * 192 / 100**2)]
    assert psnr(image, other).tolist() == pytest.approx(expected, rel=1e-12)
    assert psnr(image, image).isinf().all()


def test_psnr_does_not_wrap_around() -> None:
    black, white = torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)
    assert psnr(black, white).item() == psnr(white, black).item() == 0


def test_ssim_equals_its_definition() -> None:
    image = random_images(2, 0)
    other = blurred(image)
    expected = [np.mean([naive_ssim(x[c], y[c]) for c in range(3)]) for x, y in zip(image, other, strict=True)]
    assert ssim(image, other).tolist() == pytest.approx(expected, rel=1e-9)


def test_ssim_of_flat_images_is_that_of_their_light() -> None:
    dark, light = torch.full((1, 3, 11, 11), 50, dtype=torch.uint8), torch.full((1, 3, 11, 11), 100, dtype=torch.uint8)
    c_1 = 2.55**2
    assert ssim(dark, light).item() == pytest.approx((2 * 50 * 100 + c_1) / (50**2 + 100**2 + c_1), rel=1e-9)


def test_each_image_is_scored_alone() -> None:
    image = random_images(3, 1)
    other = blurred(image)
    for score in (psnr, ssim):
        alone = torch.cat([score(image[i : i + 1], other[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(score(image, other), alone, rtol=1e-12, atol=0)
        torch.testing.assert_close(score(image, other), score(other, image), rtol=1e-12, atol=0)
    assert ssim(image, image).tolist() == pytest.approx([1, 1, 1])


def test_what_cannot_be_compared_is_refused() -> None:
    image = random_images(1, 0)
    with pytest.raises(UserError, match="shapes"):
        psnr(image, image[:, :2])
    with pytest.raises(UserError, match="uint8"):
        ssim(image.float(), image.float())
    with pytest.raises(UserError, match="11 px"):
        ssim(image[:, :, :10], image[:, :, :10])


def test_exact_pairs_are_left_out_of_the_mean_psnr_and_counted() -> None:
    measured = PSNR.measure(PairValues(torch.tensor([20.0, math.inf, 30.0], dtype=torch.float64)))
    assert measured.value == 25 and measured.warnings == ("1 of 3 pairs are identical and are left out of the mean",)
    assert PSNR.measure(PairValues(torch.tensor([math.inf]))).value == math.inf
