from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation import samples as module
from tintype.evaluation.protocol import Protocol, Sampling
from tintype.evaluation.samples import Samples, samples_hash, samples_of
from tintype.flow.guidance import ClassifierFreeSettings, PathDropSettings, SelfSettings
from tintype.sampling.generate import SamplerSettings
from tintype.seams import Draws
from tintype.train.session import Session, build_session

PROMPTS = [f"prompt {index}" for index in range(10)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_IMAGES", 4)


@pytest.fixture(scope="module")
def parts() -> Session:
    built = build_session(tiny_plan())
    torch.manual_seed(0)
    for parameter in built.modules.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return built


def samples(folder: Path, count: int = 10, batch: int = 4, prompts: list[str] = PROMPTS, step: int = 6) -> Samples:
    sampling = replace(Protocol().conditions[0], sampler=SamplerSettings(steps=2, batch=batch))
    return samples_of(folder, step, sampling, prompts[:count], 0, 16)


def images_of(one: Samples) -> torch.Tensor:
    return torch.cat(list(one.shards()))


def made(folder: Path, parts: Session, **settings: Any) -> torch.Tensor:
    one = samples(folder, **settings)
    one.make(parts)
    return images_of(one)


def test_the_images_do_not_depend_on_the_batch(parts: Session, tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", parts, batch=1), made(tmp_path / "b", parts, batch=7)
    assert (first.int() - second.int()).abs().max() <= 1
    assert samples(tmp_path, batch=1).folder == samples(tmp_path, batch=7).folder


def test_no_noise_is_used_twice(parts: Session, tmp_path: Path) -> None:
    """One seed for every batch, as in published code, would make images 0, 4 and 8 of one prompt the same."""
    one = samples(tmp_path, prompts=["the same"] * 10)
    one.make(parts)
    assert len({image.numpy().tobytes() for image in images_of(one)}) == 10
    noise = Draws(0, torch.arange(64)).normal("sample", (3, 4, 4)).flatten(1)
    correlation = torch.corrcoef(noise).fill_diagonal_(0)
    assert correlation.abs().max() < 0.6, "48 numbers: chance stays below 0.6"


def test_the_blocks_that_are_scored_are_all_images_in_their_order(parts: Session, tmp_path: Path) -> None:
    images, one = made(tmp_path, parts), samples(tmp_path)
    assert one.blocks(3) == [(0, 3), (3, 4), (4, 7), (7, 8), (8, 10)], "each in one shard of four"
    assert torch.equal(torch.cat([one.read(*block) for block in one.blocks(3)]), images)


def test_a_larger_count_adds_images_after_the_first(parts: Session, tmp_path: Path) -> None:
    few = made(tmp_path, parts, count=4)
    one = samples(tmp_path, 10)
    assert one.missing() == [(4, 8), (8, 10)]
    one.make(parts)
    assert torch.equal(images_of(one)[:4], few) and not one.missing()


def test_a_smaller_count_removes_nothing(parts: Session, tmp_path: Path) -> None:
    many = made(tmp_path, parts, count=10)
    few = made(tmp_path, parts, count=2)
    assert torch.equal(few, many[:2]) and not samples(tmp_path, 10).missing()
    assert torch.equal(images_of(samples(tmp_path, 10)), many)


def test_images_that_went_missing_are_not_scored_as_if_they_were_there(parts: Session, tmp_path: Path) -> None:
    made(tmp_path, parts)
    sorted(samples(tmp_path).folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(UserError, match="lacks images that existed before"):
        images_of(samples(tmp_path))


def test_sampling_resumes_after_the_last_whole_shard(parts: Session, tmp_path: Path) -> None:
    whole = made(tmp_path / "a", parts)

    class StopError(Exception):
        pass

    def stop(images: int, seen: list[int] = []) -> None:  # noqa: B006
        seen.append(images)
        if len(seen) == 4:
            raise StopError

    cut = samples(tmp_path / "b")
    with pytest.raises(StopError):
        cut.make(parts, stop)
    assert cut.missing() == [(4, 8), (8, 10)]
    cut.make(parts)
    assert torch.equal(images_of(cut), whole)


def test_other_prompts_are_sampled_anew(parts: Session, tmp_path: Path) -> None:
    made(tmp_path, parts)
    changed = samples(tmp_path, prompts=[*PROMPTS[:5], "another", *PROMPTS[6:]])
    assert changed.missing() == [(4, 8)]


def test_another_step_or_sampler_has_its_own_folder(tmp_path: Path) -> None:
    one = samples(tmp_path)
    other = replace(one.sampling, sampler=SamplerSettings(steps=3))
    assert one.folder != samples(tmp_path, step=7).folder
    assert one.folder != samples_of(tmp_path, 6, other, PROMPTS, 0, 16).folder
    assert one.folder != samples_of(tmp_path, 6, one.sampling, PROMPTS, 1, 16).folder


def test_a_damaged_shard_is_named(parts: Session, tmp_path: Path) -> None:
    one = samples(tmp_path)
    one.make(parts)
    shard = sorted(one.folder.glob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=rf"{shard.name} is damaged .* remove it"):
        images_of(one)


def test_a_condition_has_its_own_guidance_and_steps() -> None:
    protocol = Protocol.model_validate_json(
        '{"count": 20, "sampler": {"steps": 9}, "also": [{"name": "free", "guidance": {"scale": 1}}, '
        '{"name": "fast", "steps": 3, "prompts": "short", "count": 8}]}'
    )
    found: list[Sampling] = list(protocol.conditions)
    assert [(s.name, s.prompts, s.count, s.sampler.steps, s.sampler.guidance.scale) for s in found] == [
        ("", "long", 20, 9, 3.5),
        ("free", "long", 20, 9, 1),
        ("fast", "short", 8, 3, 3.5),
    ]


def test_images_are_named_by_all_that_decides_them() -> None:
    """Two samplings that differ in any of it must never share a folder: that would be a silent wrong score."""

    def name(
        guidance: ClassifierFreeSettings | SelfSettings | PathDropSettings, size_px: int = 16, steps: int = 4
    ) -> str:
        sampler = SamplerSettings(steps=steps, guidance=guidance)
        return samples_hash(Sampling("", "long", 8, 1, sampler, True), 0, size_px)

    names = [
        name(ClassifierFreeSettings(scale=3)),
        name(SelfSettings(scale=3)),
        name(SelfSettings(scale=3, share=0.25)),
        name(PathDropSettings(scale=3)),
        name(PathDropSettings(scale=3, to_t=0.9)),
        name(PathDropSettings(scale=3, unbias=True)),
        name(PathDropSettings(scale=2)),
        name(PathDropSettings(scale=2), size_px=32),
        name(PathDropSettings(scale=2), steps=5),
    ]
    assert len(set(names)) == len(names)
