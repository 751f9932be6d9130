from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv2d

from tests.tiny_clip import write_clip
from tintype.vision import inception
from tintype.vision.encoders import ClipSettings, InceptionSettings, feature_matrix
from tintype.vision.frozen import matrix_conv2d
from tintype.vision.weights import fetch, fill


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((1, 1), 1, (0, 0)), ((3, 3), 2, (0, 0)), ((5, 5), 1, (2, 2)), ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))],
)
def test_a_convolution_is_a_matrix_product(kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 15, 17, dtype=torch.float64, generator=generator)
    weight = torch.randn(6, 4, *kernel, dtype=torch.float64, generator=generator)
    for laid in (x, x.contiguous(memory_format=torch.channels_last)):
        found = matrix_conv2d(laid, weight, None, stride, padding)
        torch.testing.assert_close(found, conv2d(x, weight, None, stride, padding))


@torch.no_grad()
def test_inception_by_matrix_products_is_inception() -> None:
    """A GPU convolves so in fp32; here the same path runs on a CPU."""
    network = inception.Inception()
    fill(network, fetch(inception.WEIGHTS))
    x = torch.rand(1, 3, 299, 299, generator=torch.Generator().manual_seed(0)) * 2 - 1
    wanted = network(x)
    inception.convolve_exactly(network)
    found = network(x)
    assert not torch.equal(found, wanted), "the other way must have been taken"
    assert (found - wanted).norm() / wanted.norm() < 1e-5


def test_fast_arithmetic_is_another_encoder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(write_clip(tmp_path_factory.mktemp("clip")))
    exact, fast = (ClipSettings(source=folder, arithmetic=a).build(torch.device("cpu")) for a in ("fp32", "tf32"))
    assert exact.identity != fast.identity
    assert exact.definition.endswith("fp32") and fast.definition.endswith("tf32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_features_of_a_cpu() -> None:
    image = torch.randint(0, 256, (4, 3, 64, 80), generator=torch.Generator().manual_seed(0)).byte()
    cpu, gpu = (feature_matrix(InceptionSettings().build(torch.device(name)), [image]) for name in ("cpu", "cuda"))
    assert (cpu - gpu).norm() / cpu.norm() < 1e-5
