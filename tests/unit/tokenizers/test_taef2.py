"""TAEF2 with its real weights on real photographs, where they are at hand; else what can be known without."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from tests.bounds import distance, network_bound
from tests.shared import shared
from tintype.errors import UserError
from tintype.metrics.reconstruction import psnr
from tintype.seams import Draws
from tintype.tokenizers.taef2 import Taef2, Taef2Settings

CPU = torch.device("cpu")
PHOTOS, SIZE_PX = 20, 128


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Random weights in the published layout."""
    torch.manual_seed(0)
    network = Taef2()
    for part in ("encoder", "decoder"):
        state = network.get_submodule(part).state_dict()
        save_file({name: tensor.half() for name, tensor in state.items()}, tmp_path / f"taef2_{part}.safetensors")
    return tmp_path


def photographs() -> Tensor:
    """The first ones, the middle square of each: uint8 [N, 3, 128, 128]."""
    file = pq.ParquetFile(shared("data/photos.parquet"))
    rows = next(file.iter_batches(PHOTOS, columns=["image"])).to_pylist()
    return torch.stack([_square(row["image"]["bytes"]) for row in rows])


def _square(content: bytes) -> Tensor:
    image = Image.open(io.BytesIO(content)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((SIZE_PX, SIZE_PX), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


@pytest.mark.slow
def test_real_weights_bring_real_photographs_back() -> None:
    """26.1 dB was measured over many; a photograph's PSNR varies by 3.5 dB, so the mean of 20 by about 0.8."""
    image = photographs()
    tokenizer = Taef2Settings(weights=str(shared("weights"))).build(CPU)
    z = tokenizer.encode(image, Draws(0, torch.arange(PHOTOS)))
    assert z.shape == (PHOTOS, 32, 16, 16)
    assert abs(float(psnr(image, tokenizer.decode(z)).mean()) - 26.1) < 1.0
    assert abs(float(z.std()) - 1) < 0.1 and abs(float(z.mean())) < 0.15
    mean_C, std_C = z.double().mean((0, 2, 3)), z.double().std((0, 2, 3))
    assert tokenizer.check_latents(mean_C, std_C) is None


def test_the_scale_is_a_setting_and_decoding_undoes_it(folder: Path) -> None:
    image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = Draws(0, torch.arange(2))
    usual = Taef2Settings(weights=str(folder)).build(CPU)
    other = Taef2Settings(weights=str(folder), scale=2.3, shift=0.0).build(CPU)
    found, expected = other.encode(image, draws), usual.encode(image, draws) * 2
    assert distance(found, expected) < network_bound(Taef2().encoder, expected)
    first, second = (t.decode(t.encode(image, draws)) for t in (usual, other))
    assert first.shape == (2, 3, 32, 32) and int((first.int() - second.int()).abs().max()) <= 1


def test_weights_that_are_missing_or_of_another_layout_are_named(folder: Path) -> None:
    (folder / "taef2_decoder.safetensors").rename(folder / "kept")
    with pytest.raises(UserError, match=r"has no taef2_decoder\.safetensors"):
        Taef2Settings(weights=str(folder)).build(CPU)
    (folder / "taef2_encoder.safetensors").rename(folder / "taef2_decoder.safetensors")
    (folder / "kept").rename(folder / "taef2_encoder.safetensors")
    with pytest.raises(UserError, match=r"do not fit Sequential: \d+ missing: "):
        Taef2Settings(weights=str(folder)).build(CPU)
    (folder / "taef2_encoder.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="is not a safetensors file"):
        Taef2Settings(weights=str(folder)).build(CPU)


def test_it_has_one_size(folder: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.channels is 16, but .* has 32"):
        Taef2Settings(weights=str(folder), channels=16).build(CPU)
