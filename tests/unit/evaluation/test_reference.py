from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation import reference as module
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import (
    About,
    ImageFeatures,
    ScoredData,
    cached_features,
    data_reference,
    held_out,
    read_reference,
    refuse_other_encoder,
    write_reference,
)
from tintype.vision.features import feature_matrix
from tintype.vision.scene_encoder import scene_features

CPU = torch.device("cpu")
PROTOCOL = Protocol(count=8, also=(), reference_count=24, validation_count=2)
DATA = tiny_plan().data


def about(fingerprint: str = "f" * 64) -> About:
    encoder = scene_features(CPU)
    return About(encoder.name, encoder.identity, encoder.definition, "a test", fingerprint, 24)


def images() -> list[torch.Tensor]:
    return [held_out(ScoredData(DATA), PROTOCOL).images(range(24))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    data_reference.cache_clear()


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_features(about(), scene_features(CPU), images()[0])
    monkeypatch.setattr(module, "feature_matrix", None)
    again = cached_features(about(), scene_features(CPU), [])
    assert torch.equal(again.feature_MF, first.feature_MF) and again.digests == first.digests
    torch.testing.assert_close(first.feature_MF, feature_matrix(scene_features(CPU), images()))


def test_features_that_were_cached_without_digests_are_computed_again() -> None:
    first = cached_features(about(), scene_features(CPU), images()[0])
    write_reference(module._file(about()), replace(first, digests=None))
    assert cached_features(about(), scene_features(CPU), images()[0]).digests == first.digests is not None


def test_other_images_other_data_and_other_encoders_have_other_keys() -> None:
    keys = {about().key, about("0" * 64).key, replace(about(), identity="1" * 64).key, replace(about(), count=25).key}
    assert len(keys) == 4


def test_a_reference_of_another_preprocessing_is_refused_with_both_hashes(tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    other = replace(about(), identity="ab" * 32, definition="another resize")
    write_reference(file, ImageFeatures(torch.zeros(24, 4), other, None))
    mine = scene_features(CPU).identity[:12]
    with pytest.raises(UserError, match=f"'scenes' .another resize.*{'ab' * 6}… there, {mine}… here"):
        refuse_other_encoder(read_reference(file).about, scene_features(CPU), file)


def test_a_damaged_reference_is_named(tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    write_reference(file, ImageFeatures(torch.zeros(24, 4), about(), None))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_reference(file)
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a reference file that tintype wrote"):
        read_reference(file)


def test_a_changed_renderer_makes_another_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    source = held_out(ScoredData(DATA), PROTOCOL)
    before = module.data_fingerprint(DATA, source)
    monkeypatch.setattr(type(source), "images", lambda self, ids: torch.zeros(len(ids), 3, 16, 16, dtype=torch.uint8))
    assert module.data_fingerprint(DATA, source) != before


def test_the_reference_of_a_run_is_its_held_out_images() -> None:
    reference = data_reference(ScoredData(DATA), PROTOCOL, scene_features(CPU), CPU)
    assert reference is not None and len(reference) == 24
    assert data_reference(ScoredData(DATA), PROTOCOL, scene_features(CPU), CPU) is reference
