"""Functions on stores and tokenizers, where they differ from the commands that call them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import tintype
from tests.tiny_store import captioned, tiny_store
from tintype.runtime.interrupt import Interrupt


def test_a_stopped_call_raises_the_signal_again_or_says_what_is_kept(tmp_path: Path) -> None:
    store, out, interrupt = tiny_store(tmp_path, 9), tmp_path / "out", Interrupt()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    with pytest.raises(KeyboardInterrupt):
        tintype.export_store(store, out, to="parquet", on_progress=lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, before)
    interrupt.signal = signal.SIGINT
    with pytest.raises(tintype.StoppedError, match="nothing was exported; make the same call again"):
        tintype.export_store(store, out, to="parquet", interrupt=interrupt)
    assert not out.exists() and tintype.export_store(store, out, to="parquet").rows == 9


def test_no_page_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = tiny_store(tmp_path, 9)
    before = set(tmp_path.iterdir())
    found = tintype.inspect_store(store, write_skip="skip.txt")
    assert found.result["records"] == 9 and set(tmp_path.iterdir()) - before == {tmp_path / "skip.txt"}


def test_pairs_are_a_mapping_or_texts_and_shares_are_numbers_too(tmp_path: Path) -> None:
    source, out = captioned(tmp_path / "a.parquet", 9, kind=["a", "b", "c"] * 3), tmp_path / "store"
    splits = {"a": "train", "b": "train", "c": "eval"}
    first = tintype.import_images(
        source, out, caption={"words": "caption_long"}, split_column="kind", split=splits, most_bad=0.5
    )
    assert first.about.captions == ["words"] and first.about.counts == {"train": 6, "eval": 3}
    texts = [f"{name}={split}" for name, split in splits.items()]
    again = tintype.import_images(
        source, out, caption="words=caption_long", split_column="kind", split=texts, most_bad="50%"
    )
    assert again.already_done and again.about == first.about
