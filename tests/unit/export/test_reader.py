from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny_text
from tintype.errors import UserError
from tintype.export import components
from tintype.text.published import TransformersSettings

transformers = pytest.importorskip("transformers")


def encoder(folder: Path) -> Any:
    return TransformersSettings(weights=str(folder), max_tokens=24).build(torch.device("cpu"))


def changed(tmp_path: Path, **settings: Any) -> Path:
    """A GPT-2 whose tokenizer states something else."""
    folder = tmp_path / "gpt2"
    shutil.copytree(tiny_text.write_text_encoder("transformers"), folder)
    file = folder / "tokenizer_config.json"
    stated = json.loads(file.read_text())
    for key, value in settings.items():
        stated[key] = value
        if value is None:
            del stated[key]
    file.write_text(json.dumps(stated))
    return folder


def test_padding_goes_to_the_right_whatever_the_tokenizer_does_by_itself(tmp_path: Path) -> None:
    found = encoder(changed(tmp_path, padding_side="left"))
    assert found.tokenizer.padding_side == "left"
    components.tokenizer_of(found.transformers_form()).save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    ids = again(["a ball"], padding="max_length", truncation=True)["input_ids"][0]
    assert len(ids) == 24
    assert ids[:2] == found.token_ids(["a ball"])[0]


def test_a_tokenizer_without_a_padding_token_gets_one(tmp_path: Path) -> None:
    found = encoder(changed(tmp_path, pad_token=None))
    assert found.tokenizer.pad_token is None
    components.tokenizer_of(found.transformers_form()).save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert len(again(["a ball"], padding="max_length", truncation=True)["input_ids"][0]) == 24
    assert found.tokenizer.pad_token is None  # the run's own stays as it is


def test_a_null_caption_that_no_text_gives_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = encoder(changed(tmp_path))
    assert components.null_prompt(found.transformers_form()) == "<eos>"
    monkeypatch.setattr(found, "_nothing", 8)  # 'and': there is text for it, but another token than <eos>
    assert components.null_prompt(found.transformers_form()) == "and"
    monkeypatch.setattr(type(found.tokenizer), "convert_ids_to_tokens", lambda self, token: "two words")
    with pytest.raises(UserError, match="cannot reproduce"):
        components.null_prompt(found.transformers_form())


def test_a_small_t5gemma_comes_back_with_its_own_sizes(tmp_path: Path) -> None:
    """transformers reads the encoder's own config with the sizes of the 2B model."""
    network = tiny_text.model("t5gemma").get_encoder()
    network.save_pretrained(tmp_path)
    components.mend_config(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    assert stated["model_type"] == "t5gemma"
    assert stated["encoder"]["hidden_size"] == tiny_text.WIDTH
    from diffusers.pipelines.prx import T5GemmaEncoder

    kind: Any = T5GemmaEncoder
    again = kind.from_pretrained(tmp_path)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
