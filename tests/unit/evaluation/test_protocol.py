from __future__ import annotations

from pathlib import Path

import pytest

from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol, definitions, metric_label
from tintype.strict import parse, read_yaml


def protocol(text: str) -> Protocol:
    return parse(Protocol, read_yaml(text, "protocol.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count: 4", "4 images are too few for the distances: take at least 8"),
        ("reference_count: 5", "reference_count: 5 images are too few"),
        ("metrics: [fdd]", "unknown metric 'fdd'; valid: fd, "),
        ("encoders: [scenes, scenes]", "two encoders are called scenes"),
        ("encoders: [dino]", "protocol.yaml, line 1: encoders.0: unknown kind 'dino'"),
        ("also: [{name: a}, {name: a}]", "two conditions are called a"),
        ("also: [{name: 'a b'}]", "should match pattern"),
        ("also: [{name: parti, prompts: parti.tsv}]", "needs an encoder that reads text"),
        ("also: [{name: a, per_prompt: 4}]", "per_prompt is for a prompt file"),
        ("also: [{name: a, prompts: p.txt, count: 4}]", "of a prompt file every prompt is asked"),
        ("also: [{name: a, guidance: {scale: -1}}]", "greater than or equal to 0"),
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
        "also: []",
        "encoders: [{kind: scenes, name: other}]",
    ]
    assert len({protocol(text).hash for text in texts}) == len(texts)
    assert protocol("sampler: {batch: 3}").hash == protocol("{}").hash, "images do not depend on the batch"


def test_the_hash_follows_the_content_of_a_prompt_file(tmp_path: Path) -> None:
    hashes = set()
    for number, text in enumerate(("one\n", "two\n")):
        file = tmp_path / f"{number}.txt"
        file.write_text(text)
        both = protocol(f"encoders: [clip]\nalso: [{{name: mine, prompts: {file}}}]").hash
        hashes.add(both)
    assert len(hashes) == 2


def test_every_condition_has_its_metrics() -> None:
    found = definitions(
        protocol("also: [{name: free, guidance: {scale: 1}}, {name: s, prompts: short, distances: false}]")
    )
    assert {"fd_scenes", "fd_scenes_free", "scene_accuracy", "scene_accuracy_free", "scene_accuracy_s"} <= set(found)
    assert "fd_scenes_s" not in found
    assert "guidance 1" in found["fd_scenes_free"].definition and "guidance 3.5" in found["fd_scenes"].definition


def test_published_metrics_have_their_names() -> None:
    assert metric_label("fd", "inception", "inception") == "FID"
    assert metric_label("mmd_published", "clip", "clip") == "CMMD"
    assert metric_label("mmd_published", "dinov2", "dinov2") == "DINO-MMD"
    assert metric_label("fd", "inception", "tf") == "FID (tf)"
    assert metric_label("fd", "scenes", "scenes") == "Fréchet distance (scenes)"
