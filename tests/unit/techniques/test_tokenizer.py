from __future__ import annotations

import pytest

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.plan import Plan, diff
from tintype.settings import plain
from tintype.techniques.apply import apply_techniques


def with_pixels(patch: int, *assignments: str) -> Plan:
    return tiny_plan("data.size_px=64", f"model.patch={patch}", *assignments)


@pytest.mark.parametrize(("to", "patch"), [("flux1", 4), ("taef2", 4), ("flux2", 4), ("dc-ae", 1)])
def test_the_patch_follows_the_stride_and_the_grid_of_tokens_stays(to: str, patch: int) -> None:
    baseline = with_pixels(32)
    plan = apply_techniques(baseline, [f"tokenizer:to={to}"])
    assert plan.model.patch == patch and plan.token_grid == baseline.token_grid == (2, 2)
    changes = diff(baseline, plan)
    assert changes["tokenizer.kind"] == ("pixels", to) and changes["model.patch"] == (32, patch)
    assert {key for key in changes if not key.startswith("tokenizer.")} == {"model.patch"}


def test_between_tokenizers_of_one_stride_nothing_else_changes() -> None:
    plan = apply_techniques(tiny_plan("data.size_px=64", "tokenizer=flux1"), ["tokenizer:to=flux2"])
    assert {key.split(".")[0] for key in diff(tiny_plan("data.size_px=64", "tokenizer=flux1"), plan)} == {"tokenizer"}


def test_and_back_to_pixels() -> None:
    plan = apply_techniques(tiny_plan("data.size_px=64", "tokenizer=flux1", "model.patch=2"), ["tokenizer:to=pixels"])
    assert plan.tokenizer.kind == "pixels" and plan.model.patch == 16


def test_a_grid_that_cannot_stay_is_refused_unless_the_patch_is_said() -> None:
    baseline = with_pixels(4)
    with pytest.raises(UserError, match=r"covers 4 × 4 px.*'flux2' covers 8 × 8 px.*16 × 16 tokens cannot be kept"):
        apply_techniques(baseline, ["tokenizer:to=flux2"])
    assert apply_techniques(baseline, ["tokenizer:to=flux2,patch=1"]).token_grid == (8, 8)


def test_settings_of_the_new_tokenizer_are_options() -> None:
    plan = apply_techniques(with_pixels(8), ["tokenizer:to.kind=taef2,to.weights=/models/taef2,to.scale=1.2"])
    assert plain(plan.tokenizer)["weights"] == "/models/taef2" and plain(plan.tokenizer)["scale"] == 1.2


def test_an_unknown_kind_and_no_change_are_refused() -> None:
    with pytest.raises(UserError, match="unknown kind 'flux3'"):
        apply_techniques(with_pixels(8), ["tokenizer:to=flux3"])
    with pytest.raises(UserError, match="changes nothing"):
        apply_techniques(with_pixels(8), ["tokenizer:to=pixels"])
    with pytest.raises(UserError, match=r"technique tokenizer: to"):
        apply_techniques(with_pixels(8), ["tokenizer"])


def test_another_technique_may_change_the_model_too() -> None:
    for order in (["tokenizer:to=flux1", "resolution-aware"], ["resolution-aware", "tokenizer:to=flux1"]):
        plan = apply_techniques(with_pixels(8), order)
        assert plan.model.patch == 1 and plan.model.resolution_embeds


def test_the_plan_of_pixels_keeps_its_name() -> None:
    """Its hash from before there were other tokenizers."""
    assert plain(Plan().tokenizer) == {"kind": "pixels"}
