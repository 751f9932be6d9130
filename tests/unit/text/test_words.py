from __future__ import annotations

import pytest
import torch

from tests.bounds import distance, network_bound
from tintype.data.scenes.captions import vocabulary
from tintype.text.words import WordsEncoder, WordsSettings, bucket, token_ids


@pytest.mark.parametrize("buckets", [1024, 2048, 4096])
def test_no_two_words_of_the_embedded_captions_share_a_bucket(buckets: int) -> None:
    words = vocabulary()
    assert len({bucket(word, buckets) for word in words}) == len(words)


def test_the_null_caption_is_one_visible_token() -> None:
    encoder = WordsSettings(max_tokens=8, width=16).build(torch.device("cpu"))
    text = encoder.encode(["", "a red ball"])
    assert text.mask_BL.sum(1).tolist() == [1, 4]
    assert text.tokens_BLC.shape == (2, 8, 16)


def test_padding_does_not_change_the_words() -> None:
    torch.manual_seed(0)
    encoder = WordsSettings(max_tokens=8, width=16).build(torch.device("cpu"))
    short = encoder.encode(["a red ball"]).tokens_BLC[0, :4]
    beside_long = encoder.encode(["a red ball", "one two three four five six"]).tokens_BLC[0, :4]
    assert distance(short, beside_long) < network_bound(encoder, short)


def test_long_captions_are_cut() -> None:
    assert len(token_ids("word " * 50, WordsSettings(max_tokens=10))) == 10


def test_case_and_punctuation_are_ignored() -> None:
    settings = WordsSettings()
    assert token_ids("A red, ball.", settings) == token_ids("a RED ball", settings)


def test_a_caption_is_cut_behind_its_words_of_which_the_start_takes_one() -> None:
    encoder = WordsEncoder(WordsSettings())
    assert encoder.truncate(["A red, round ball.", "a", ""], 3) == ["A red", "a", ""]
    assert encoder.truncate(["A red, round ball."], 4) == ["A red, round"]
    assert encoder.truncate(["A red, round ball."], 5) == ["A red, round ball."], "four words and the start"
