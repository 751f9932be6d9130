"""Cards of tiny real runs, read as the hub reads them: the head as YAML, the rest as Markdown."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.testing import CliRunner

from tests.edit_checked import edit_json, edit_lines, write_plan
from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype.cli import app
from tintype.config.strict import parse, read_yaml, write_yaml
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult
from tintype.evaluation.run import evaluate
from tintype.export import public
from tintype.export.model_card import CardOptions, limits, make_card, write_card
from tintype.export.record import read_record
from tintype.plan import read_plan
from tintype.runtime.files import write_checked, write_lines, write_sealed
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.redact import LOCAL
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.record import RunRecord

PROTOCOL = """
count: 9
reference_count: 16
validation_count: 4
metrics: [fd, recall]
encoders: ENCODERS
sampler: {steps: 1, batch: 9}
also: [{name: short, prompts: short, count: 8, distances: false}]
"""
EVIL = "| **bold** _soft_ `code` [a link](http://x.y) ![p](q.png) $m$ /home/alice/secret --- # 1. *"


@dataclass(frozen=True)
class Run:
    path: Path
    result: EvaluationResult


def scored(path: Path, encoders: str, *assignments: str, techniques: tuple[str, ...] = ()) -> Run:
    train(tiny_plan(*assignments, techniques=techniques), path, Interrupt())
    protocol = parse(Protocol, read_yaml(PROTOCOL.replace("ENCODERS", encoders), "protocol"))
    return Run(path, evaluate(path, protocol))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return scored(tmp_path_factory.mktemp("secret-place") / "run", "[scenes]", techniques=("ema",))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("secret-place")
    captions = [f"{EVIL} number {index}" for index in range(60)]
    pictures = [image_file(index) for index in range(60)]
    parquet_of(folder / "in.parquet", pictures, caption_long=captions, caption_short=captions)
    imported(folder / "in.parquet", folder / "store", ImportOptions(eval_share=0.4))
    return scored(folder / "run", "[]", "data.kind=store", f"data.path={folder / 'store'}")


@pytest.fixture
def copied(scenes: Run, tmp_path: Path) -> Path:
    shutil.copytree(scenes.path, tmp_path / "run")
    return tmp_path / "run"


def split(text: str) -> tuple[dict[str, Any], list[Token]]:
    """The head and the body, cut where the hub cuts them."""
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), MarkdownIt("gfm-like", {"linkify": False}).parse(body)


def inline(tokens: list[Token], kind: str) -> list[Token]:
    return [child for token in tokens for child in token.children or () if child.type == kind]


def cells(tokens: list[Token]) -> list[str]:
    return ["".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"]


def test_the_hub_reads_the_head_and_finds_the_numbers(scenes: Run) -> None:
    text = make_card(scenes.path, CardOptions("apache-2.0", "diffusers", repo="me/it", datasets=("a/b",))).text
    head, _ = split(text)
    read: Any = ModelCard(text).data

    assert (head["license"], head["library_name"], head["pipeline_tag"]) == ("apache-2.0", "diffusers", "text-to-image")
    assert head["datasets"] == ["a/b"] and "base_model" not in head
    assert read.eval_results is not None
    assert {one.metric_type: one.metric_value for one in read.eval_results} == scenes.result.metrics
    by_name = {one.metric_type: one.metric_args for one in read.eval_results}
    low, high = scenes.result.intervals["scene_accuracy"]
    assert by_name["scene_accuracy"] == {"samples": 9, "interval_95": [low, high]} and low < high
    assert by_name["scene_accuracy_short"] is not None and by_name["scene_accuracy_short"]["samples"] == 8
    assert by_name["validation_loss"] is not None and by_name["validation_loss"]["samples"] == 4
    assert 'from_pretrained("me/it")' in text


def test_the_body_says_what_the_record_has(scenes: Run) -> None:
    text = make_card(scenes.path, CardOptions(baseline="pocket")).text
    _, tokens = split(text)
    found = cells(tokens)

    record = read_record(scenes.path)
    value, error = scenes.result.metrics["scene_accuracy"], scenes.result.errors["scene_accuracy"]
    row = found.index("scene accuracy")
    assert found[row + 1 : row + 5] == [f"{value:.4g}", f"{1.96 * error:.2g}", "9", "higher"]
    assert found[found.index("Training images") + 1] == "24"
    assert found[found.index("Images seen") + 1] == "24, 1 epochs"
    changed = found.index("optimizer.lr")
    assert found[changed + 1 : changed + 3] == [f"{read_plan('pocket').optimizer.lr:g}", "0.001"]
    assert record.run.plan.hash in text and scenes.result.encoders["scenes"].definition[:30] in text
    (plan,) = [token for token in tokens if token.type == "fence" and token.info == "yaml"]
    assert yaml.safe_load(plan.content)["train"]["batch"] == 4
    headings = [tokens[index + 1].content for index, token in enumerate(tokens) if token.type == "heading_open"]
    for words in ("How to use", "Samples", "Scores", "Data", "Training plan", "Against the recipe pocket"):
        assert words in headings
    for words in ("Cost of training", "Intended use and limits", "Licence", "Lineage"):
        assert words in headings


def test_the_cost_has_memory_gpu_hours_and_events_where_the_log_has_them(copied: Path) -> None:
    usual = make_card(copied).text
    assert "CPU hours" in usual and "GPU hours" not in usual and "Events" not in usual
    edit_lines(copied / "metrics.jsonl", lambda line: {**line, "memory_gb": float(line["step"]), "seconds": 600.0})
    for _ in range(2):
        RunFolder(copied).log_event("non-finite-step", 3, moved_to="/home/alice")
    edit_json(copied / "environment.json", lambda environment: environment.update(ranks=4, device="H200"))
    found = cells(split(make_card(copied).text)[1])
    assert found[found.index("GPU hours") + 1] == "4"
    assert found[found.index("Memory") + 1].startswith("6.0 GB held between steps")
    assert found[found.index("Events") + 1] == "non-finite-step: 2"
    assert found[found.index("Device") + 1] == "4 × H200"


def test_an_interval_without_width_is_no_interval(copied: Path) -> None:
    change_result(copied, lambda result: result["intervals"].update(recall_scenes=[0.0, 0.0]))
    text = make_card(copied).text
    head, tokens = split(text)
    metrics = {one["type"]: one for one in head["model-index"][0]["results"][0]["metrics"]}
    assert "interval_95" not in metrics["recall_scenes"]["args"]
    found = cells(tokens)
    assert found[found.index("recall (scenes)") + 2] == "unknown"


def test_the_samples_lie_beside_the_card(scenes: Run, tmp_path: Path) -> None:
    card = make_card(scenes.path)
    written = write_card(card, tmp_path / "out" / "README.md")
    _, tokens = split((tmp_path / "out" / "README.md").read_text(encoding="utf-8"))

    linked = [str(image.attrs["src"]) for image in inline(tokens, "image")]
    previews = scenes.result.previews
    assert len(linked) == len(previews) == 8 and len(written) == 9
    assert not (tmp_path / "out" / "samples").exists(), "where `tintype sample` writes by default"
    for place, preview in zip(linked, previews, strict=True):
        assert (tmp_path / "out" / place).read_bytes() == (scenes.path / preview).read_bytes()


def test_a_card_that_was_changed_is_not_overwritten(scenes: Run, tmp_path: Path) -> None:
    card, file = make_card(scenes.path), tmp_path / "README.md"
    write_card(card, file)
    write_card(card, file)  # the same again is no loss
    file.write_text("by hand")
    with pytest.raises(UserError, match="--overwrite"):
        write_card(card, file)
    assert file.read_text() == "by hand"
    write_card(card, file, overwrite=True)
    assert file.read_text(encoding="utf-8") == card.text


def change_result(run: Path, change: Any) -> None:
    (file,) = (run / "evaluation").glob("*/result.json")
    edit_json(file, change)


@pytest.mark.parametrize("name", ["../outside.png", "plan.yaml", "nowhere.png", "/etc/hostname"])
def test_previews_are_pngs_of_the_run(copied: Path, name: str) -> None:
    png = copied / json.loads(next((copied / "evaluation").glob("*/result.json")).read_text())["previews"][0]
    shutil.copy(png, copied.parent / "outside.png")
    assert make_card(copied).images
    change_result(copied, lambda result: result.update(previews=[name], previews_sha256=[]))
    card = make_card(copied)
    assert not card.images and "![" not in card.text


def test_nothing_of_the_machine_is_in_the_card(stored: Run) -> None:
    other = stored.path.parent / "other-store-of-mine"
    baseline = stored.path.parent / "baseline.yaml"
    baseline.write_text(tiny_plan("data.kind=store", f"data.path={other}").to_yaml())
    text = make_card(stored.path, CardOptions(baseline=str(baseline), with_captions=True)).text

    _, tokens = split(text)
    found = cells(tokens)
    changed = found.index("data.path")
    assert found[changed + 1 : changed + 3] == [LOCAL, LOCAL]
    assert "number 1" in text, "the captions are there"
    for secret in ("secret-place", "alice", "other-store", str(stored.path.parent), str(Path.home() / "x")[:-2] + "/"):
        assert secret not in text


def test_captions_cannot_break_the_card(stored: Run) -> None:
    name = f"a --- name\n---\nlicense: mit\n{EVIL}"
    card = make_card(stored.path, CardOptions(name=name, with_captions=True))
    head, tokens = split(card.text)

    assert head["license"] == "unknown" and head["model-index"][0]["name"].startswith("a --- name --- license: mit |")
    assert [image.attrs["src"] for image in inline(tokens, "image")] == list(card.images)
    assert not inline(tokens, "link_open") and not inline(tokens, "html_inline")
    assert not inline(tokens, "em_open") and not inline(tokens, "s_open")
    html = {token.content.strip() for token in tokens if token.type == "html_block"}
    assert all(line.startswith(("<details><summary>", "</details>")) for line in html)
    (table,) = [index for index, found in enumerate(cells(tokens)) if found == "Prompt"]
    shown = EVIL.replace("/home/alice/secret", LOCAL)
    prompts = cells(tokens)[table + 2 : table + 2 + 2 * len(card.images) : 2]
    assert len(prompts) == 8
    assert all(prompt.replace("\u200b", "").startswith(shown) for prompt in prompts)


def test_captions_of_ones_own_data_are_left_out_unless_asked_for(stored: Run) -> None:
    text = make_card(stored.path).text
    assert "number" not in text.split("## Samples")[1].split("## Scores")[0]
    assert len(inline(split(text)[1], "image")) == 8


def test_captions_of_another_store_are_not_taken_for_the_runs(stored: Run, tmp_path: Path) -> None:
    shutil.copytree(stored.path, tmp_path / "run")
    edit_json(tmp_path / "run" / "loaded.json", lambda loaded: loaded.update(data="0" * 64))
    with pytest.raises(UserError, match=r"identity of 'data' \(000000000000"):
        make_card(tmp_path / "run", CardOptions(with_captions=True))
    assert read_record(tmp_path / "run").data_count is None


def test_the_count_and_identity_of_a_store(stored: Run) -> None:
    record = read_record(stored.path)
    assert record.data_count is not None and 20 < record.data_count < 60
    assert record.run.identities["data"] in make_card(stored.path).text


def test_a_part_of_a_store_is_counted_as_what_is_left(stored: Run, tmp_path: Path) -> None:
    whole = read_record(stored.path).data_count
    (tmp_path / "skip.txt").write_text("# nothing\n")
    part = [f"data.path={stored.path.parent / 'store'}", "data.where=matches(long, '[13579]$') or split == 'eval'"]
    train(tiny_plan("data.kind=store", *part, f"data.skip={tmp_path / 'skip.txt'}"), tmp_path / "run", Interrupt())
    left = read_record(tmp_path / "run").data_count
    assert whole is not None and left is not None and 0 < left < whole
    (tmp_path / "skip.txt").unlink()  # what was left out is not known any more
    assert read_record(tmp_path / "run").data_count is None


def test_the_licence_is_said_or_said_to_be_unknown(scenes: Run) -> None:
    card = make_card(scenes.path)
    assert split(card.text)[0]["license"] == "unknown"
    assert "The licence is unknown" in card.text and any("--license" in warning for warning in card.warnings)
    card = make_card(scenes.path, CardOptions(license="cc-by-4.0"))
    assert "unknown" not in card.text and not card.warnings


@pytest.mark.parametrize(
    "options",
    [
        {"license": "My Licence"},
        {"datasets": ("nothing",)},
        {"base_model": "a b/c"},
        {"repo": "x"},
        {"library": "keras"},
    ],
)
def test_options_that_the_hub_would_not_take(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options)).replace("datasets", "dataset").replace("_", "-")):
        CardOptions(**options)


def test_a_run_of_a_study_is_compared_with_its_baseline_and_knows_its_other_seeds(copied: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    (study / "runs").mkdir(parents=True)
    (study / "baselines").mkdir()
    shutil.copytree(copied, study / "runs" / "one")
    write_sealed(study / "study.yaml", write_yaml({"name": "does it | help"}))
    write_sealed(study / "baselines" / "small.yaml", tiny_plan().to_yaml())
    write_sealed(study / "baselines" / "large.yaml", tiny_plan("data.size_px=32").to_yaml())
    for seed in (0, 3, 5):
        plan = tiny_plan(f"seed={seed}", techniques=["ema"] if seed != 5 else [])
        write_plan(study / "runs" / f"seed{seed}", plan)
    text = make_card(study / "runs" / "one").text

    found = cells(split(text)[1])
    assert "Against the baseline at the resolution small of the study “does it | help”" in found
    assert found[found.index("ema") + 1 : found.index("ema") + 3] == ["off", "on"]
    assert "data.size_px" not in found and "with the seeds 3 too" in text
    itself = make_card(copied, CardOptions(baseline=str(study / "runs" / "seed3"))).text
    assert "this is the baseline" in itself


def test_the_limits_come_from_the_record(scenes: Run, stored: Run) -> None:
    record = read_record(scenes.path)

    def said(*assignments: str, **changes: Any) -> str:
        plan = tiny_plan(*assignments, techniques=["ema:ramp=false"])
        return limits(replace(record, run=RunRecord(record.run.path, plan), **changes))

    usual = said()
    assert "One seed (0)" in usual and "show 1 to 2 objects" in usual and "16 × 16 pixels" in usual
    assert "first 23 words" in usual and "share of 99%" in usual
    assert "not finished" not in usual and "It was not evaluated" not in usual and "empty caption" not in usual
    assert "after 6 of 9 steps" in said("train.steps=9")
    assert "never read the empty caption" in said("captions.dropout=0.0")
    assert "It was not evaluated" in said(evaluations=[])
    assert "seen about 12 times" in said("data.count=2")
    assert "24 of 100" in said("data.count=100")
    assert "share of" not in said(step=5000)
    of_store = limits(read_record(stored.path))
    assert "who holds rights" in of_store and "The scenes" not in of_store


def test_scores_of_an_earlier_step_are_told(copied: Path) -> None:
    change_result(copied, lambda result: result.update(step=4))
    card = make_card(copied)
    assert "after step 4, not of those after step 6" in card.text
    assert any("scores are of step 4" in warning for warning in card.warnings)
    change_result(copied, lambda result: result.update(ema={"length": 0.1, "residual": 0.0}))
    card = make_card(copied)
    assert "was not evaluated" in card.text and "1 evaluations of earlier steps or other weights" in card.text
    assert "model-index" not in split(card.text)[0]
    assert "model-index" in split(make_card(copied, CardOptions(ema_length=0.1)).text)[0]


def test_a_run_that_never_stepped_has_no_card(tmp_path: Path) -> None:
    write_plan(tmp_path, tiny_plan())
    with pytest.raises(UserError, match="not been trained"):
        make_card(tmp_path)


def test_the_lineage_names_every_checkpoint_of_others(tmp_path: Path) -> None:
    """The card of a run that lies elsewhere needs no weights."""
    plan = tiny_plan("text={kind: t5, weights: google/flan-t5-small, revision: abc}", techniques=["repa"])
    write_plan(tmp_path, plan)
    line = {"step": 6, "seconds": 1.0, "images_per_s": 24.0, "parts": {"forward": 1.0}}
    write_lines(tmp_path / "metrics.jsonl", [line])
    write_checked(tmp_path / "loaded.json", {"text": "12" * 32, "repa": "34" * 32})
    text = make_card(tmp_path, CardOptions(base_model="me/old")).text
    head, tokens = split(text)
    found = cells(tokens)
    assert head["base_model"] == "me/old" and "repa" in head["tags"] and "model-index" not in head
    assert found[found.index("Started from") + 1] == "me/old, as the author says"
    assert found[found.index("text t5") + 1] == "google/flan-t5-small at abc"
    assert found[found.index("Identity of repa") + 1] == "34" * 32 and "frozen" in found
    assert "trained with tintype" not in text, "the record does not say by which version"


@pytest.mark.parametrize(
    ("technique", "words"),
    [
        (
            "mixture:own=real,share=3,add.other.data.style=photo",
            [
                "trained on a mixture of 2 sources",
                "real (scored against)",
                "| 3 | 24 | 18, 0.75 epochs |",
                "source other: 6",
            ],
        ),
        (
            "synthetic-then-real:first.style=photo,at=0.5,over=0,rest=0",
            ["| 1 at first, 0 from step 4 on (fall from step 3) | 24 | 12,", "| 0 at first, 1 from step 4 on (ramp"],
        ),
        (
            "resolution-stages:sizes=[16],until=[4]",
            ["16 × 16 px up to step 4, then 32 × 32 px", "in its last stage"],
        ),
        (
            "caption-mix:weights.long=3,weights.short=1",
            ["one of its image's captions: long 0.75 of the time, short 0.25"],
        ),
        ("caption-curriculum", ["column long, then a mix (ramp from step 3 to 4): long 0.5 of the time"]),
        ("caption-parts:keep=0.5", ["each sentence or clause is kept with a probability of 50%"]),
        ("caption-truncation:words=8", ["| Truncated | after 8 words |"]),
        ("caption-tokens:tokens=8", ["| Truncated | to 8 tokens |"]),
    ],
)
def test_data_and_captions_of_every_kind_are_put_into_words(technique: str, words: list[str], tmp_path: Path) -> None:
    plan = tiny_plan("data.size_px=32", techniques=[technique])
    write_plan(tmp_path, plan)
    line = {"step": 6, "seconds": 1.0, "images_per_s": 24.0, "parts": {"forward": 1.0}}
    write_lines(tmp_path / "metrics.jsonl", [line])
    text = make_card(tmp_path).text
    for one in words:
        assert one in text
    assert "trained with the denoiser" in text and "from random weights" in text


def test_a_mixture_shows_the_captions_of_the_source_that_it_is_scored_against(stored: Run, tmp_path: Path) -> None:
    own = f"{{share: 1, data: {{kind: store, path: {stored.path.parent / 'store'}}}}}"
    mixture = f"data={{kind: mixture, size_px: 16, sources: {{drawn: {{data: {{count: 8}}}}, own: {own}}}}}"
    run = scored(tmp_path / "run", "[]", mixture)
    text = make_card(run.path, CardOptions(with_captions=True)).text
    assert "number" in text.split("## Samples")[1].split("## Scores")[0]
    assert "held-out images of the store of the source own" in text and "secret-place" not in text
    assert "who holds rights" in text and read_record(run.path).sources["own"].identity in text


def test_a_run_that_ended_in_an_early_stage_has_not_seen_its_size(scenes: Run) -> None:
    plan = tiny_plan("data.size_px=32", techniques=["resolution-stages:sizes=[16],until=[4]"])
    record, run = read_record(scenes.path), RunRecord(scenes.path, plan)
    assert "has not seen 32 × 32 pixels yet" in limits(replace(record, run=run, step=4))
    assert "has not seen" not in limits(replace(record, run=run, step=5))


def test_scores_of_other_weights_than_the_cards_are_left_out(scenes: Run) -> None:
    of_raw = make_card(scenes.path, CardOptions(weights="raw"))
    assert "model-index" not in split(of_raw.text)[0] and not of_raw.images
    assert "1 evaluations of earlier steps or other weights" in of_raw.text
    assert any("none of the run's evaluations is of these weights" in warning for warning in of_raw.warnings)
    assert "model-index" in split(make_card(scenes.path, CardOptions(weights="average")).text)[0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/data/a b", LOCAL + " b"),
        ("~/models/x", LOCAL),
        ("read ../up/x now", f"read {LOCAL} now"),
        ("C:\\Users\\alice", LOCAL),
        ("file:///etc/passwd", LOCAL),
        ("12 images/s, and/or 1/2", "12 images/s, and/or 1/2"),
        ("a\u202eb\x00c\nd\ud800", "abc d"),
    ],
)
def test_paths_and_marks_leave_free_text(value: str, shown: str) -> None:
    assert public.one_line(value) == shown


def test_places_leave_settings_and_names_of_the_hub_stay() -> None:
    assert public.redacted({"weights": "google/t5", "revision": "abc"}) == {"weights": "google/t5", "revision": "abc"}
    for value in ("/x/y", "vae", "a/b/c", "~/vae", "./a/b"):
        assert public.redacted({"text": [{"weights": value}]}) == {"text": [{"weights": LOCAL}]}
    assert public.redacted({"path": "relative", "skip": "a.txt"}) == {"path": LOCAL, "skip": LOCAL}


def test_code_cannot_leave_its_fence() -> None:
    (token,) = MarkdownIt().parse(public.fenced("a\n```\n# b\n````", "yaml"))
    assert token.content == "a\n```\n# b\n````\n"


@pytest.mark.parametrize(
    "value", ["# a", "- a", "+ a", "1. a", "12) a", "= a", "<b>a</b>", "&amp;", "a\\", "*a*", "_a_"]
)
def test_text_stays_text_at_the_start_of_a_line(value: str) -> None:
    tokens = MarkdownIt().parse("before\n" + public.escape(value))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content or "\n" for child in tokens[1].children or ()) == "before\n" + value


def test_the_command_prints_and_writes(scenes: Run, tmp_path: Path) -> None:
    runner = CliRunner()
    printed = runner.invoke(app, ["card", str(scenes.path), "--license", "mit"])
    assert printed.exit_code == 0 and printed.stdout == make_card(scenes.path, CardOptions("mit")).text
    written = runner.invoke(app, ["card", str(scenes.path), "--out", str(tmp_path / "README.md")])
    assert written.exit_code == 0 and "8 samples" in written.stdout and "--license" in written.stderr
    refused = runner.invoke(app, ["card", str(scenes.path), "--out", str(tmp_path)])
    assert isinstance(refused.exception, UserError) and "is a folder" in str(refused.exception)
