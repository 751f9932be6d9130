from __future__ import annotations

import pytest
import torch

from tintype.metrics.clip_score import summarise, text_scores


def test_the_score_is_a_hundred_times_the_cosine_and_never_below_zero() -> None:
    image = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    text = torch.tensor([[5.0, 0.0], [0.0, -1.0]])
    values = text_scores(image, text, [0, 1, 0])
    torch.testing.assert_close(values["clip_score"], torch.tensor([100, 0, 100 / 2**0.5], dtype=torch.float64))


def test_an_image_nearer_to_another_prompt_is_not_retrieved() -> None:
    image = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0]])
    values = text_scores(image, torch.eye(2), [0, 1, 1])
    assert values["clip_rank"].tolist() == [1, 0, 1]


def test_a_tie_is_not_retrieved() -> None:
    """A model that ignores its prompt, or an encoder that reads nothing, must not score."""
    values = text_scores(torch.ones(2, 4), torch.ones(3, 4), [0, 2])
    assert values["clip_rank"].tolist() == [0, 0]


def test_groups_have_their_own_means() -> None:
    value = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    overall, parts = summarise(value, {"tag": ["a", "a", "b", "b"]})
    assert parts == {"tag: a": 0.5, "tag: b": 1.0}
    assert overall.value == 0.75 and overall.error == pytest.approx(0.25, rel=0.2)
