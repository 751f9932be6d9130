from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.model import Transformer
from tintype.model.fused import why_plain
from tintype.plan import diff
from tintype.seams import TextTokens
from tintype.settings import ModelSettings, PrecisionSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("model", "precision", "device", "key"),
    [
        ({}, {}, CPU, "cpu"),
        ({}, {"compute": "fp32"}, CUDA, "precision.compute"),
        ({}, {"islands": {"norms": "bf16"}}, CUDA, "precision.islands"),
        ({"width": 96, "heads": 4}, {}, CUDA, "model.width / model.heads"),
    ],
)
def test_the_reason_names_what_stands_against_the_kernels(
    model: Mapping[str, object], precision: Mapping[str, object], device: torch.device, key: str
) -> None:
    settings, plan = ModelSettings.model_validate(model), PrecisionSettings.model_validate(precision)
    assert key in why_plain(settings, plan, device)


def test_kernels_that_cannot_run_are_refused_with_the_setting_and_the_remedy() -> None:
    model = Transformer(ModelSettings(depth=1, width=32, heads=2, kernels="fused"), 4, 8)
    text = TextTokens(torch.zeros(1, 2, 8), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(UserError, match=r"model\.kernels is fused.*--set model\.kernels=auto"):
        model(torch.zeros(1, 4, 4, 4), torch.zeros(1), text)


def test_the_choice_of_kernels_is_no_part_of_a_runs_meaning() -> None:
    """The control is a setting of the model that is."""
    auto, plain, compiled = tiny_plan(), tiny_plan("model.kernels=plain"), tiny_plan("model.compile=true")
    assert auto.hash == plain.hash and not diff(auto, plain)
    assert auto.hash != compiled.hash and diff(auto, compiled)
