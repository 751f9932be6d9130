"""FID and its relatives against torch-fidelity and clean-fid, where those can be imported (they need torchvision)."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import Tensor

from tests.bounds import distance, rounding_bound
from tintype.metrics.pair import FeaturePair
from tintype.metrics.table import FEATURE_METRICS
from tintype.pretrained.weights import fetch
from tintype.vision import inception
from tintype.vision.features import feature_matrix
from tintype.vision.inception import Inception, InceptionSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def peer(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{name} cannot be imported here: {error}")


def sample_images(count: int = 12) -> Tensor:
    """Smooth and rough images with full contrast."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 9, 12, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (190, 250), mode="bicubic").clamp(0, 1)
    rough = torch.rand(count, 3, 190, 250, generator=generator)
    share = torch.linspace(0, 0.5, count)[:, None, None, None]
    return ((1 - share) * smooth + share * rough).mul(255).round().byte()


def features(shift: float, count: int = 300, size: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(int(100 * shift))
    return shift + torch.randn(count, size, generator=generator, dtype=torch.float64) * (1 + shift)


def test_inception_is_torch_fidelitys(tmp_path: Path) -> None:
    theirs = peer("torch_fidelity.feature_extractor_inceptionv3")
    names = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "variance": "bn.running_var"}
    state = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}
    for name, tensor in fetch(inception.WEIGHTS).tensors.items():
        unit, _, part = name.rpartition(".")
        state[f"{unit}.{names[part]}"] = tensor
        state[f"{unit}.bn.weight"] = torch.ones(tensor.shape[:1])
        state[f"{unit}.bn.num_batches_tracked"] = torch.tensor(0)
    torch.save(state, tmp_path / "weights.pth")
    network = theirs.FeatureExtractorInceptionV3("x", ["2048"], str(tmp_path / "weights.pth"), "float64")
    with torch.no_grad():  # on the CPU: on a GPU its convolutions run in TF32
        wanted = network(sample_images())[0]
    found = feature_matrix(InceptionSettings(resize="tf").build(DEVICE), [sample_images()])
    sizes = [tensor[0].numel() for name, tensor in Inception().state_dict().items() if name.endswith(".weight")]
    assert distance(found, wanted) < rounding_bound(sum(sizes), wanted)


def test_the_clean_resize_is_clean_fids() -> None:
    resizer = peer("cleanfid.resize").build_resizer("clean")
    wanted = np.stack([resizer(image.permute(1, 2, 0).numpy()) for image in sample_images()]).transpose(0, 3, 1, 2)
    encoder: Any = InceptionSettings(resize="clean").build(DEVICE)
    found = encoder.prepare(sample_images()).cpu() * 128 + 128
    taps = 2 * 4  # of a cubic, in both axes
    assert distance(found, torch.from_numpy(wanted)) < rounding_bound(taps, 255.0)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.7])
def test_fid_is_theirs(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, real = features(shift), features(0.05)
    traces, size = float(fake.var(0).sum() + real.var(0).sum()), fake.shape[1]
    near = partial(pytest.approx, abs=rounding_bound(size**3, traces, torch.float64))  # the root of a matrix
    found = FEATURE_METRICS["fd"].measure(FeaturePair(fake, real)).value
    theirs = peer("torch_fidelity.metric_fid")
    of = theirs.fid_features_to_statistics
    assert found == near(theirs.fid_statistics_to_metric(of(fake), of(real), False)[theirs.KEY_METRIC_FID])
    clean, root = peer("cleanfid.fid"), linalg.sqrtm
    monkeypatch.setattr(clean.linalg, "sqrtm", lambda a, disp=True: root(a) if disp else (root(a), 0.0))  # older scipy
    moments = [(f.mean(0).numpy(), np.cov(f.numpy(), rowvar=False)) for f in (fake, real)]
    assert found == near(clean.frechet_distance(*moments[0], *moments[1]))


def test_kid_is_torch_fidelitys() -> None:
    theirs = peer("torch_fidelity.metric_kid")
    fake, real = features(0.1), features(0.05)
    kernel = {"kid_kernel_poly_degree": 3, "kid_kernel_poly_gamma": None, "kid_kernel_poly_coef0": 1}
    pairs = [(fake, fake), (fake, real), (real, real)]
    kernels = [theirs.kernel_poly(a.numpy(), b.numpy(), **kernel) for a, b in pairs]
    bound = rounding_bound(kernels[0].size, float(np.abs(kernels).max()), torch.float64)
    found = FEATURE_METRICS["kid"].measure(FeaturePair(fake, real)).value
    assert found == pytest.approx(theirs.mmd2(*kernels), abs=bound)


def test_precision_and_recall_are_torch_fidelitys() -> None:
    theirs = peer("torch_fidelity.metric_prc")
    fake, real = features(0.1, 400), features(0.05, 350)
    precision, recall = theirs.calculate_precision_recall_full(fake, real)
    pair = FeaturePair(fake, real)
    assert FEATURE_METRICS["precision"].measure(pair).value == pytest.approx(precision, abs=rounding_bound(1, 1.0))
    assert FEATURE_METRICS["recall"].measure(pair).value == pytest.approx(recall, abs=rounding_bound(1, 1.0))
