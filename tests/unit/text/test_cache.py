"""Embeddings on the disk: a run learns the same with them and without, and no encoder is asked twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import tiny_text
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_text import MAX_TOKENS, write_text_encoder
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.dist import World
from tintype.runtime.files import read_json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import Layout
from tintype.sampling.generate import SamplerSettings, generate
from tintype.seams import TextTokens
from tintype.text import cache
from tintype.text.cache import CachedText
from tintype.text.frozen import FrozenTextEncoder
from tintype.text.packing import Grouping, Packed
from tintype.text.published import MiniLmSettings
from tintype.text.words import WordsEncoder
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.prepare import prepare_text
from tintype.train.record import RunRecord
from tintype.train.session import build_session

CPU = torch.device("cpu")
CAPTIONS = ["a red ball", "", "two cubes on the grass", "a red ball"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_encoder("minilm")
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The captions that any encoder is asked for from here on."""
    found: list[str] = []
    real = FrozenTextEncoder.packed

    def noting(self: FrozenTextEncoder, captions: Sequence[str], grouping: Grouping) -> Packed:
        if len(captions) != 2 or len(captions[1]) < 1000:  # the encoder tries itself when it is built
            found.extend(captions)
        return real(self, captions, grouping)

    monkeypatch.setattr(FrozenTextEncoder, "packed", noting)
    return found


def encoder(compute: str = "fp32", seed: int = 0) -> FrozenTextEncoder:
    folder = write_text_encoder("minilm", seed)
    settings = {"weights": str(folder), "max_tokens": MAX_TOKENS, "compute": compute}
    return MiniLmSettings.model_validate(settings).build(CPU)


def plan_of(embeddings: str, *assignments: str) -> Plan:
    return tiny_plan(f"run.text_embeddings={embeddings}", *assignments, techniques=[tiny_text.option()])


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in RunRecord(folder).lines]


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_what_is_kept_is_what_the_encoder_says_to_the_last_bit(compute: str, asked: list[str]) -> None:
    live = encoder(compute).encode(CAPTIONS)
    asked.clear()
    first = CachedText(encoder(compute))
    for kept in (first, first, CachedText(encoder(compute))):
        found = kept.encode(CAPTIONS)
        assert torch.equal(found.tokens_BLC, live.tokens_BLC) and torch.equal(found.mask_BL, live.mask_BL)
        assert found.tokens_BLC.dtype == torch.float32
    assert asked == list(dict.fromkeys(CAPTIONS))


def test_new_captions_are_added_and_the_old_ones_not_asked_for_again(asked: list[str]) -> None:
    kept = CachedText(encoder())
    assert kept.fill(CAPTIONS) == 3
    assert kept.fill([*CAPTIONS, "\udcff green"]) == 1
    assert asked[3:] == ["\udcff green"]


def test_another_encoder_has_another_folder() -> None:
    folders = [CachedText(one).folder for one in (encoder(), encoder("bf16"), encoder(seed=1))]
    assert len(set(folders)) == 3 and CachedText(encoder()).folder == folders[0]


def test_the_folder_says_what_is_in_it() -> None:
    kept = CachedText(encoder())
    kept.fill(["a"])
    said = json.loads((kept.folder / "text.json").read_text())["made_of"]
    assert said["kind"] == "minilm" and said["weights, tokenizer and settings"] == encoder().identity


def test_a_run_learns_the_same_with_the_cache_and_without(tmp_path: Path, asked: list[str]) -> None:
    train(plan_of("live"), tmp_path / "live", Interrupt())
    asked.clear()
    train(plan_of("disk"), tmp_path / "disk", Interrupt())
    assert len(asked) == len(set(asked)) and "" in asked
    asked.clear()
    train(plan_of("disk"), tmp_path / "again", Interrupt())
    train(plan_of("disk", "optimizer.lr=1e-4"), tmp_path / "arm", Interrupt())
    assert asked == []
    assert losses(tmp_path / "live") == losses(tmp_path / "disk") == losses(tmp_path / "again")
    assert len(losses(tmp_path / "live")) == 6


def test_all_captions_of_an_epoch_are_there_before_the_first_step(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_steps: list[int] = []
    real = CachedText.encode

    def noting(self: CachedText, captions: Sequence[str]) -> TextTokens:
        in_steps.append(len(asked))
        return real(self, captions)

    monkeypatch.setattr(CachedText, "encode", noting)
    train(plan_of("disk"), tmp_path / "run", Interrupt())
    assert set(in_steps) == {len(asked)}


def test_ranks_share_the_work_and_the_folder(asked: list[str]) -> None:
    for rank in (0, 1):
        parts = build_session(plan_of("disk", "captions.dropout=0"))
        prepare_text(replace(parts, layout=Layout(World(rank, 2))), 0, 24)
    both = list(asked)
    assert len(both) == len(set(both)) == 24
    asked.clear()
    prepare_text(build_session(plan_of("disk", "captions.dropout=0")), 0, 24)
    assert asked == []


def test_two_processes_that_miss_the_same_captions_encode_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, noted, captions = multiprocessing.get_context("fork"), tmp_path / "noted", [f"{n} balls" for n in range(12)]
    noted.mkdir()
    together, whole, real = fork.Barrier(2), encoder(), FrozenTextEncoder.packed

    def slowly(self: FrozenTextEncoder, some: Sequence[str], grouping: Grouping) -> Packed:
        for caption in some:
            (noted / f"{caption}-{os.getpid()}").touch()
        time.sleep(0.02)
        return real(self, some, grouping)

    def fill(captions: list[str]) -> None:
        kept = CachedText(whole)
        together.wait(30)
        kept.fill(captions)
        assert kept.fill(captions) == 0

    monkeypatch.setattr(FrozenTextEncoder, "packed", slowly)
    monkeypatch.setattr(cache, "_AT_ONCE", 3)
    running = [fork.Process(target=fill, args=(order,), daemon=True) for order in (captions, captions[::-1])]
    for process in running:
        process.start()
    for process in running:
        process.join(30)
    assert [process.exitcode for process in running] == [0, 0]
    names = [one.name.rpartition("-") for one in noted.iterdir()]
    assert sorted(caption for caption, _, _ in names) == sorted(captions) and len({pid for _, _, pid in names}) == 2


def test_a_trained_encoder_does_without() -> None:
    assert isinstance(build_session(tiny_plan("run.text_embeddings=disk")).text, WordsEncoder)


def test_stop_and_resume_are_exact_and_nothing_of_the_encoder_is_saved(tmp_path: Path) -> None:
    train(plan_of("disk"), tmp_path / "whole", Interrupt())
    stop_and_go_on(plan_of("disk"), tmp_path / "stopped", 3)
    assert losses(tmp_path / "whole") == losses(tmp_path / "stopped")
    folder = RunRecord(tmp_path / "whole").checkpoints
    tensors, _ = checkpoint.read(checkpoint.folder_of(folder, 6))
    assert not [name for name in tensors if "text" in name.split("/")[1].split(".")[0]]


def test_a_run_goes_on_with_its_own_encoder_only(tmp_path: Path) -> None:
    place = shutil.copytree(write_text_encoder("minilm"), tmp_path / "encoder")
    text = f'text={{"kind":"minilm","weights":"{place}","max_tokens":{MAX_TOKENS}}}'
    plan = tiny_plan(text)
    stop_after = tiny_plan(text, "train.steps=6")
    train(stop_after, tmp_path / "run", Interrupt())
    assert read_json(tmp_path / "run" / "loaded.json")["text"] == encoder().identity
    parts, _ = load_run(tmp_path / "run")
    settings = SamplerSettings(steps=2)
    images = generate(parts, ["a red ball", ""], settings, seed=0, size_px=16)
    assert images.shape == (2, 3, 16, 16)
    shutil.copytree(write_text_encoder("minilm", seed=1), place, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"identity of 'text' \(\w{12}… there"):
        load_run(tmp_path / "run")
    shutil.rmtree(checkpoint.folder_of(RunRecord(tmp_path / "run").checkpoints, 6))
    with pytest.raises(UserError, match=r"identity of 'text' .*another --out"):
        train(plan, tmp_path / "run", Interrupt())


def test_samples_are_the_same_with_the_cache_and_without(tmp_path: Path, asked: list[str]) -> None:
    made = []
    for embeddings in ("live", "disk"):
        train(plan_of(embeddings), tmp_path / embeddings, Interrupt())
        asked.clear()
        parts, _ = load_run(tmp_path / embeddings)
        settings = SamplerSettings(steps=2)
        made.append(generate(parts, ["a red ball", "never seen"], settings, seed=0, size_px=16))
    assert torch.equal(made[0], made[1]) and "never seen" in asked


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write .*text\.json: .*run\.text_embeddings to live"):
        CachedText(encoder()).fill(["a"])
