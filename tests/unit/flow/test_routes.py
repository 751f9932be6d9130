"""Guidance of models with and without a route of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.bounds import distance, network_bound
from tests.tiny import tiny_plan
from tintype.data.captions import NULL_CAPTION
from tintype.flow.guidance import PathDropSettings, SelfSettings
from tintype.flow.routes import usual_range
from tintype.model.transformer import Block
from tintype.sampling.generate import SamplerSettings, TextBranches, generate
from tintype.seams import Draws, Route
from tintype.train.session import Session, build_session

PROMPTS = ["a red ball", "a blue ring", "a green star"]
X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def random_parts(*techniques: str) -> Session:
    parts = build_session(tiny_plan(techniques=techniques))
    generator = torch.Generator().manual_seed(0)
    for parameter in parts.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return parts


def branches(parts: Session) -> TextBranches:
    def read(captions: list[str]) -> object:
        return parts.denoiser.read_text(parts.text.encode(captions))

    return TextBranches(parts, Draws(0, torch.arange(3)), 16, read(PROMPTS), read([NULL_CAPTION] * 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("depth", "blocks"), [(16, (3, 13)), (28, (5, 23)), (8, (2, 6)), (3, (2, 2)), (1, (1, 1))])
def test_the_usual_range_is_prxs_scaled_to_the_depth(depth: int, blocks: tuple[int, int]) -> None:
    assert usual_range(depth) == blocks


@torch.no_grad()
def test_path_drop_on_a_model_without_a_route_leaves_out_the_middle_blocks() -> None:
    parts = random_parts()
    weak = branches(parts).null_shallow(X, 0.5)
    del parts.denoiser.blocks[1]
    null = parts.denoiser.read_text(parts.text.encode([NULL_CAPTION] * 3))
    assert torch.equal(weak, parts.velocity(X, torch.full((3,), 0.5), null))


@torch.no_grad()
def test_path_drop_runs_the_dense_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, calls = random_parts("sprint"), []
    original = Block.forward

    def counted(self: Block, *inputs: torch.Tensor) -> object:
        calls.append(self)
        return original(self, *inputs)

    asked = branches(parts)
    monkeypatch.setattr(Block, "forward", counted)
    asked.null_shallow(X, 0.5)
    assert calls == [parts.denoiser.blocks[0], parts.denoiser.blocks[2]]


@torch.no_grad()
def test_self_guidance_drops_the_same_tokens_at_every_t_and_of_each_image_its_own() -> None:
    parts = random_parts("tread")
    seen = []
    original = parts.router.sparse

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(parts.router, name)

        def sparse(self, kept_BK: torch.Tensor) -> object:
            seen.append(kept_BK)
            return original(kept_BK)

    from dataclasses import replace

    asked = branches(replace(parts, router=Watched()))  # type: ignore[arg-type]
    weak = asked.captioned_sparse(0.25)
    for t in (0.2, 0.9):
        weak(X, t)
    (kept_BK,) = seen
    assert kept_BK.shape == (3, 12) and not torch.equal(kept_BK[0], kept_BK[1])
    by_hand = parts.velocity(X, torch.full((3,), 0.5), parts.text.encode(PROMPTS), Route(1, 2, kept_BK))
    assert distance(weak(X, 0.5), by_hand) < network_bound(parts.denoiser, by_hand)  # with the caption
    assert not torch.equal(weak(X, 0.5), asked.captioned(X, 0.5))


@torch.no_grad()
def test_self_guidance_drops_one_token_at_least() -> None:
    asked = branches(random_parts())
    assert not torch.equal(asked.captioned_sparse(0.01)(X, 0.5), asked.captioned(X, 0.5))


@pytest.mark.parametrize("techniques", [(), ("tread",), ("sprint",)])
@pytest.mark.parametrize("guidance", [SelfSettings(scale=2.0), PathDropSettings(scale=2.0)])
def test_every_guidance_serves_every_model_and_images_do_not_depend_on_their_batch(
    techniques: tuple[str, ...], guidance: SelfSettings | PathDropSettings
) -> None:
    parts = random_parts(*techniques)
    settings = SamplerSettings(steps=4, guidance=guidance, batch=3)
    together = generate(parts, PROMPTS, settings, seed=0, size_px=16)
    alone = generate(parts, PROMPTS[1:2], settings, seed=0, size_px=16, first_index=1)
    assert int((together[1].int() - alone[0].int()).abs().max()) <= 1
    plain = SamplerSettings(steps=4, guidance=guidance.model_copy(update={"scale": 1.0}), batch=3)
    assert not torch.equal(together, generate(parts, PROMPTS, plain, seed=0, size_px=16))
