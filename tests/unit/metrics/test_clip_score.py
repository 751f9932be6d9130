from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from tintype.metrics.clip_score import RANK, SCORE, TextFeatures


def features(
    image: Tensor, text: Tensor, prompts: list[int], groups: Mapping[str, Sequence[str]] | None = None
) -> TextFeatures:
    """Group each image by itself unless told otherwise, so that the parts are the values of the images."""
    return TextFeatures(image, text, prompts, groups or {"image": [str(index) for index in range(len(image))]})


def test_the_score_is_a_hundred_times_the_cosine_and_never_below_zero() -> None:
    image = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    text = torch.tensor([[5.0, 0.0], [0.0, -1.0]])
    found = SCORE.measure(features(image, text, [0, 1, 0]))
    assert list(found.parts.values()) == pytest.approx([100, 0, 100 / 2**0.5])


def test_an_image_nearer_to_another_prompt_is_not_retrieved() -> None:
    image = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0]])
    assert list(RANK.measure(features(image, torch.eye(2), [0, 1, 1])).parts.values()) == [1, 0, 1]


def test_a_tie_is_not_retrieved() -> None:
    """A model that ignores its prompt, or an encoder that reads nothing, must not score."""
    assert list(RANK.measure(features(torch.ones(2, 4), torch.ones(3, 4), [0, 2])).parts.values()) == [0, 0]


def test_groups_have_their_own_means() -> None:
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    found = RANK.measure(features(image, torch.eye(2), [0, 0, 0, 0], {"tag": ["a", "a", "b", "b"]}))
    assert found.parts == {"tag: a": 0.5, "tag: b": 1.0}
    assert found.value == 0.75 and found.error == pytest.approx(0.25, rel=0.2)
