from __future__ import annotations

from pathlib import Path

import pytest

from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation.prompts import read_prompts
from tintype.evaluation.protocol import Protocol, definitions, metric_label
from tintype.metrics.discrepancy import MMD_PUBLISHED
from tintype.metrics.frechet_distance import FD
from tintype.vision.clip import ClipSettings
from tintype.vision.dino import Dinov2Settings
from tintype.vision.inception import InceptionSettings
from tintype.vision.scene_encoder import SceneEncoderSettings


def protocol(text: str) -> Protocol:
    return parse(Protocol, read_yaml(text, "protocol.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count: 4", "4 images are too few for the distances: take at least 8"),
        ("reference_count: 5", "reference_count: 5 images are too few"),
        ("metrics: [fdd]", "unknown metric 'fdd'; valid: fd, "),
        ("encoders: [scenes, scenes]", "two encoders have the name scenes"),
        ("encoders: [dino]", "protocol.yaml, line 1: encoders.0: unknown kind 'dino'"),
        ("also: [{name: a}, {name: a}]", "two conditions have the name a"),
        ("also: [{name: 'a b'}]", "also.0.name: must have small letters, digits and hyphens only"),
        ("also: [{name: parti, prompts: parti.tsv}]", "need an encoder that reads text"),
        ("also: [{name: a, per_prompt: 4}]", "per_prompt applies only to a prompt file"),
        ("also: [{name: a, prompts: p.txt, count: 4}]", "count applies only to captions"),
        ("also: [{name: a, guidance: {scale: -1}}]", "must be at least 0"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        protocol(text)


def test_the_hash_has_all_that_decides_a_number() -> None:
    texts = [
        "{}",
        "count: 100",
        "seed: 1",
        "metrics: [fd]",
        "sampler: {steps: 3}",
        "sampler: {guidance: {scale: 2}}",
        "sampler: {guidance: {unbias: true}}",
        "also: []",
        "encoders: [{kind: scenes, name: other}]",
    ]
    assert len({protocol(text).hash for text in texts}) == len(texts)
    assert protocol("sampler: {batch: 3}").hash == protocol("{}").hash, "images do not depend on the batch"


def test_the_hash_follows_the_content_of_a_prompt_file_and_not_its_place(tmp_path: Path) -> None:
    def hashed(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        read_prompts.cache_clear()
        return protocol(f"encoders: [clip]\nalso: [{{name: mine, prompts: {tmp_path / name}}}]").hash

    assert hashed("a.txt", "one\n") == hashed("b.txt", "one\n") != hashed("a.txt", "two\n")


def test_the_hash_follows_the_packaged_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = protocol("{}").hash
    monkeypatch.setattr("tintype.evaluation.protocol.scene_encoder_record", lambda: {"sha256": "another"})
    assert protocol("{}").hash != before


def test_every_condition_has_its_metrics() -> None:
    found = definitions(
        protocol("also: [{name: free, guidance: {scale: 1}}, {name: s, prompts: short, distances: false}]")
    )
    assert {"fd_scenes", "fd_scenes_free", "scene_accuracy", "scene_accuracy_free", "scene_accuracy_s"} <= set(found)
    assert "fd_scenes_s" not in found
    assert "guidance 1" in found["fd_scenes_free"].definition and "guidance 3.5" in found["fd_scenes"].definition


def test_a_definition_says_when_the_velocity_is_unbiased() -> None:
    found = definitions(protocol("also: [{name: free, guidance: {unbias: true}}]"))
    assert "unbiased" in found["fd_scenes_free"].definition and "unbiased" not in found["fd_scenes"].definition


def test_published_metrics_have_their_names() -> None:
    assert metric_label(FD, InceptionSettings(resize="tf")) == "FID"
    assert metric_label(FD, InceptionSettings()) == "FID (clean)"
    assert metric_label(FD, InceptionSettings(resize="tf", name="mine")) == "FID (mine)"
    assert metric_label(FD, SceneEncoderSettings()) == "Fréchet distance (scenes)"
    assert metric_label(MMD_PUBLISHED, ClipSettings(form="cmmd")) == "CMMD"
    assert metric_label(MMD_PUBLISHED, ClipSettings(source="another/clip")) == "MMD as published (clip)"
    assert metric_label(MMD_PUBLISHED, Dinov2Settings()) == "MMD as published (dinov2)"
    assert metric_label(MMD_PUBLISHED, Dinov2Settings(form="prx")) == "DINO-MMD"
    assert metric_label(FD, Dinov2Settings()) == "FD-DINOv2"


def test_a_metric_that_was_defined_anew_gives_the_protocol_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """So scores of both definitions are kept apart."""
    protocols = {
        "fd_inf": Protocol(prompts="text", also=(), metrics=("fd", "fd_inf")),
        "mmd": Protocol(prompts="text", also=(), reference_count=10_001),
        "scene_accuracy": Protocol(),
        "none": Protocol(prompts="text", also=()),
    }
    now = {name: protocol.hash for name, protocol in protocols.items()}
    monkeypatch.setattr("tintype.evaluation.protocol.revisions", lambda *protocol: {})
    before = {name: protocol.model_copy().hash for name, protocol in protocols.items()}
    assert {name for name in protocols if now[name] != before[name]} == set(protocols), (
        "the validation loss is in every protocol"
    )
