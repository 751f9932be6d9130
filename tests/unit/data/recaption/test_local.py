"""Captions of a model that runs here, of a real class and tiny."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_store import image_file, tiny_store
from tests.tiny_vlm import write_vlm
from tintype.data.image_file import Encoded
from tintype.data.recaption.asking import Asking, Question, Reply
from tintype.data.recaption.local import Local
from tintype.data.recaption.work import Task, recaption
from tintype.data.store.layout import open_store
from tintype.errors import UserError
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.interrupt import Interrupt

ASKING = Asking("Describe it.", 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vlm(tmp_path_factory.mktemp("vlm"))


def local(folder: Path, **changes: Any) -> Local:
    return replace(Local(Checkpoint(str(folder)), ASKING, torch.device("cpu"), 3), **changes)


def question(seed: int, attempt: int = 0) -> Question:
    return Question(f"{seed:064x}"[::-1], Encoded("a", image_file(seed)), attempt)


def ask(model: Local, questions: list[Question]) -> list[Reply]:
    left = list(questions)
    return list(model.replies(lambda: left.pop(0) if left else None, Interrupt()))


def texts(replies: list[Reply]) -> list[str | None]:
    return [reply.text for reply in replies]


def test_a_store_is_captioned(folder: Path, tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 7)
    outcome = recaption(store, Task("vlm", ASKING), local(folder), Interrupt())
    assert outcome.about is not None
    added = outcome.about.find_added("vlm")
    assert added is not None and added.made_by["settings"]["backend"] == "transformers"
    assert len(added.made_by["settings"]["files_sha256"]) == 64
    counts, aside = added.made_by["counts"], sum(added.made_by["set_aside"].values())
    assert counts["pictures"] == 7 and counts["output_tokens"] > 0 and counts["input_tokens"] > 0
    assert sum(not text for text in open_store(store).texts("caption:vlm")) == aside
    open_store(store).check()


def test_the_answer_depends_on_the_image_and_not_on_its_batch(folder: Path) -> None:
    questions = [question(seed) for seed in range(6)]
    alone = texts(ask(local(folder, batch=1), questions))
    assert len(set(alone)) > 1
    assert texts(ask(local(folder, batch=4), questions)) == alone


def test_draws_depend_on_the_seed_the_image_and_the_try_alone(folder: Path) -> None:
    hot = replace(ASKING, temperature=1.5)
    questions = [question(seed, attempt) for seed in range(3) for attempt in (0, 1)]
    alone = texts(ask(local(folder, asking=hot, batch=1), questions))
    torch.manual_seed(7)
    assert texts(ask(local(folder, asking=hot, batch=6), questions)) == alone
    assert len(set(alone)) == 6
    assert texts(ask(local(folder, asking=replace(hot, seed=1), batch=6), questions)) != alone


def test_draws_follow_the_probabilities() -> None:
    from tintype.data.recaption.local import _Dice

    count = 20_000
    logits_BV = torch.tensor([2.0, 1.0, 0.0]).expand(count, 3).clone()
    keys = [Question(f"{seed * 7919:015x}" + "0" * 49, Encoded("a", b"")) for seed in range(count)]
    drawn = _Dice(keys, replace(ASKING, temperature=2.0), 5)(torch.zeros(count, 5), logits_BV).argmax(1)
    assert torch.equal(logits_BV, torch.tensor([2.0, 1.0, 0.0]).expand(count, 3))
    shares = torch.bincount(drawn, minlength=3) / count
    assert torch.allclose(shares, torch.softmax(logits_BV[0] / 2, 0), atol=0.012)  # over three standard errors


def test_an_answer_without_an_end_is_cut_off(folder: Path) -> None:
    replies = ask(local(folder, asking=replace(ASKING, max_tokens=1)), [question(seed) for seed in range(8)])
    for reply in replies:
        assert reply.output_tokens == 1 and reply.cut_off == bool(reply.text)
    longer = ask(local(folder, asking=replace(ASKING, max_tokens=40, temperature=1.0)), [question(s) for s in range(8)])
    assert any(not reply.cut_off and reply.output_tokens < 40 for reply in longer)


def test_other_weights_are_another_model(folder: Path, tmp_path: Path) -> None:
    other = write_vlm(tmp_path / "other")
    assert local(other).identity()["files_sha256"] == local(folder).identity()["files_sha256"]
    weights = other / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert local(other).identity()["files_sha256"] != local(folder).identity()["files_sha256"]


def test_what_cannot_be_asked_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--revision"):
        local(folder, checkpoint=Checkpoint("someone/some-vlm")).identity()
    with pytest.raises(UserError, match="there is no folder"):
        local(tmp_path / "none").identity()
    with pytest.raises(UserError, match="no chat template"):
        local(write_vlm(tmp_path / "base", template=None)).check()
    weightless = write_vlm(tmp_path / "weightless")
    (weightless / "model.safetensors").rename(weightless / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no \.safetensors"):
        local(weightless).check()


def test_a_model_that_does_not_write_is_refused(tmp_path: Path) -> None:
    from tests.tiny_clip import write_clip

    clip = write_clip(tmp_path / "clip")
    with pytest.raises(UserError, match="cannot describe"):
        Checkpoint(str(clip)).image_text_model(torch.float32)


def test_code_of_a_checkpoint_is_neither_run_nor_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = write_vlm(tmp_path / "hostile")
    (hostile / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    file = hostile / "processor_config.json"
    config = json.loads(file.read_text())
    named = {"image_processor_type": "Evil", "auto_map": {"AutoImageProcessor": "evil.Evil"}}
    config["image_processor"] = {**config.get("image_processor", {}), **named}
    file.write_text(json.dumps(config))
    (hostile / "preprocessor_config.json").write_text(json.dumps(config["image_processor"]))
    asked: list[str] = []

    def say_yes(text: str = "") -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", say_yes)
    with pytest.raises(UserError, match="cannot load"):
        local(hostile).check()
    assert not asked and not (tmp_path / "ran").exists()
