"""The example of every part that a plugin can add trains, scores, imports and launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.plugin_files import EVERY_PART, only_these_plugins, write_plugin
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tintype.bench.cost import cost_of_plan, estimated_speed
from tintype.data.importers import open_importer
from tintype.errors import UserError
from tintype.evaluation.protocol import ImageProtocol, Protocol
from tintype.metrics.pair import FeaturePair
from tintype.metrics.table import FEATURE_METRICS
from tintype.plan import parts_of
from tintype.plugins.load import forget, load_files, loaded
from tintype.plugins.record import record_of
from tintype.plugins.registry import GROUPS, known
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.study.launch.choose import choose_launcher
from tintype.study.launch.launcher import Crew
from tintype.tokenizer_lab.report import read_tokenizer
from tintype.train.folder import RunFolder
from tintype.train.loop import train


@pytest.fixture(autouse=True)
def every_part() -> Iterator[None]:
    with only_these_plugins(EVERY_PART):
        yield


def test_the_example_has_a_part_of_every_group() -> None:
    assert all(known(group) for group in GROUPS)


def test_its_parts_train_resume_and_sample_together(tmp_path: Path) -> None:
    parts = ("text={kind: letters, width: 16, max_tokens: 24}", "tokenizer=unshuffle", "model.patch=2")
    plan = tiny_plan(*parts, techniques=["edges", "sign-steps:beta=0.8"])
    assert [name for _, name in parts_of(plan)] == ["letters", "unshuffle", "lion", "edges"]
    assert set(record_of(parts_of(plan))) == {"every_part.py"}
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    losses = [[line["loss"] for line in RunFolder(tmp_path / name).metrics()] for name in ("whole", "stopped")]
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
    settings, asked = SamplerSettings(steps=1), ["a red ball"]
    written = sample_run(tmp_path / "whole", asked, None, tmp_path / "out", settings, count=1, seed=0, size_px=None)
    with Image.open(written[0]) as image:
        assert image.size == (16, 16)


def test_its_parts_are_named_where_the_cost_does_not_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("text={kind: letters, width: 16, max_tokens: 24}", "tokenizer=unshuffle", "model.patch=2")
    speed = estimated_speed("h200")
    found = cost_of_plan(plan, speed)
    assert found.parameters["text"] == (258 + 24) * 16 and found.step_flops > 0
    assert [one.split(":")[0] for one in found.missing] == ["text", "tokenizer"] and "'letters'" in found.missing[0]
    with monkeypatch.context() as changed, pytest.raises(UserError, match="'letters' is a frozen encoder of a plugin"):
        changed.setattr(type(plan.text), "is_frozen", True)
        cost_of_plan(plan, speed)
    with monkeypatch.context() as changed, pytest.raises(UserError, match="'letters' cannot be built without numbers"):
        changed.setattr(type(plan.text), "build", lambda self, device: torch.zeros(1, device=device).item())
        cost_of_plan(plan, speed)


def test_its_metric_is_one_of_the_protocols_and_counts_in_their_hash() -> None:
    pair = FeaturePair(torch.ones(4, 3), torch.zeros(5, 3))
    assert FEATURE_METRICS["mean-shift"].measure(pair).value == pytest.approx(3**0.5)
    assert Protocol(metrics=("fd", "mean-shift")).hash != Protocol(metrics=("fd",)).hash
    assert "mean-shift" not in ImageProtocol().metrics, "a default does not depend on what is loaded"


def test_a_metric_of_another_file_content_is_another_protocol(tmp_path: Path) -> None:
    before = Protocol(metrics=("mean-shift",)).hash
    forget(loaded()[EVERY_PART.name])
    load_files([write_plugin(tmp_path, EVERY_PART.read_text() + "# changed\n", EVERY_PART.name)])
    assert Protocol(metrics=("mean-shift",)).hash != before


def test_its_importer_opens_its_format(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "set.pairs").write_text("a.png\ta red ball\ngone.png\tnothing\n../a.png\tinside all the same\n")
    found = open_importer(tmp_path / "set.pairs")
    items = list(found.items(["caption"], 0))
    assert found.count == 3 and found.usual_captions == {"long": "caption"}
    assert items[0].content == (tmp_path / "a.png").read_bytes() and items[0].values == {"caption": "a red ball"}
    assert items[1].content is None and "gone.png" in items[1].problem


def test_its_launcher_is_chosen_by_name(tmp_path: Path) -> None:
    (said,) = choose_launcher("script:big").launch(Crew(tmp_path, 2))
    script = (tmp_path / "launch" / "start.sh").read_text()
    assert said.endswith("start.sh for big") and script.count(f"--plugin {EVERY_PART} work {tmp_path}") == 2
    with pytest.raises(UserError, match="valid are slurm, ray and ssh:HOST,HOST, script"):
        choose_launcher("pbs")


def test_its_tokenizer_is_known_to_the_report_of_tokenizers() -> None:
    assert read_tokenizer("unshuffle").compression.channels == 12
