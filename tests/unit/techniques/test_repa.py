from __future__ import annotations

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.losses.repa import RepaSettings
from tintype.plan import Plan, plan_from_yaml
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques
from tintype.train.parts import build_model
from tintype.train.session import Session, build_session
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.transformers_teacher import TransformersTeacherSettings


@pytest.mark.parametrize(("depth", "block"), [(16, 8), (12, 6), (3, 2), (1, 1)])
def test_the_middle_block_is_aligned_by_default(depth: int, block: int) -> None:
    plan = tiny_plan(f"model.depth={depth}", techniques=["repa"])
    (loss,) = plan.losses
    assert loss == RepaSettings(block=block)
    assert (loss.weight, loss.hidden, loss.cache) == (0.5, 2048, "none")
    assert loss.teacher == Dinov2TeacherSettings(source="facebook/dinov2-base")


def test_blocks_are_counted_from_one() -> None:
    parts = build_session(tiny_plan(techniques=["repa:block=1,teacher=scenes,hidden=8"]))
    assert parts.terms[0].part.taps == {0}


@pytest.mark.parametrize("block", [0, 4, -1])
def test_a_block_outside_the_depth_is_refused_with_both_numbers(block: int) -> None:
    with pytest.raises(UserError, match=rf"'repa' applied.*block {block} does not exist; model\.depth is 3.* 1 to 3"):
        tiny_plan(techniques=[f"repa:block={block}"])
    with pytest.raises(UserError, match=rf"block {block} does not exist"):
        plan_from_yaml(f"model: {{depth: 3, width: 32, heads: 2}}\nlosses: [{{kind: repa, block: {block}}}]", "a plan")


def test_options_of_the_teacher_are_nested() -> None:
    spec = "repa:teacher.kind=transformers,teacher.source=/folder,cache=disk,schedule.kind=until,schedule.end=4"
    (loss,) = tiny_plan(techniques=[spec]).losses
    assert loss.teacher == TransformersTeacherSettings(source="/folder")  # type: ignore[attr-defined]
    assert (loss.cache, loss.schedule.end) == ("disk", 4)  # type: ignore[attr-defined]


def test_the_same_part_cannot_be_added_twice() -> None:
    assert TECHNIQUES["repa"].part is TECHNIQUES["repa-burn-in"].part is RepaSettings
    with pytest.raises(UserError, match="'repa' and 'repa-burn-in' both add the same kind of part"):
        tiny_plan(techniques=["repa", "repa-burn-in"])
    with pytest.raises(UserError, match="'repa' is given twice"):
        apply_techniques(tiny_plan(techniques=["repa"]), ["repa-burn-in"])


def test_an_arm_leaves_the_weights_of_the_denoiser_alone() -> None:
    baseline = build_session(tiny_plan()).denoiser.state_dict()
    arm = build_session(tiny_plan(techniques=["repa:teacher=scenes,hidden=8"])).denoiser.state_dict()
    assert all(torch.equal(baseline[name], arm[name]) for name in baseline)


def test_sampling_needs_no_teacher_at_all() -> None:
    plan: Plan = tiny_plan(techniques=["repa:teacher.kind=dinov2,teacher.source=/no/such/folder"])
    assert not isinstance(build_model(plan), Session)
    with pytest.raises(UserError, match="there is no folder /no/such/folder"):
        build_session(plan)
