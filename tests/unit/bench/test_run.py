from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tests.tiny_autoencoders import option, write_autoencoder
from tests.tiny_store import captioned, imported
from tests.tiny_tuning import NO_PERCEPTUAL, tuned_plan
from tintype.bench import clock as clocks
from tintype.bench import run as bench
from tintype.bench.clock import Step, StepClock
from tintype.bench.run import Comparison, Row, at_size, compare, measure, with_speeds
from tintype.cli import app
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.runtime.clock import PARTS
from tintype.settings import plain
from tintype.terminal.measure import show_comparison
from tintype.train import exact
from tintype.train.session import Session
from tintype.train.state import TrainState
from tintype.train.update import update as real_update


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure less: what is tested is which numbers there are, and not how good they are."""
    monkeypatch.setattr(bench, "_RENDER_COUNT", 4)
    monkeypatch.setattr(bench, "_CEILING_TRIES", 2)
    monkeypatch.setattr(bench, "_WARM_UP_STEPS", 1)
    monkeypatch.setattr(bench, "gc", SimpleNamespace(collect=int))  # a third of a second for each row


def test_the_bench_reports_speeds_and_a_split_that_adds_up() -> None:
    result = measure(tiny_plan(), steps=2)
    assert result.train_images_per_s > 0 and result.sample_images_per_s_at_10_steps > 0
    assert set(result.render_images_per_s_at_64_px) == {"render", "photo"}
    assert 0.5 < sum(result.time_split.values()) <= 1.0


def test_the_bench_measures_a_plan_with_a_teacher() -> None:
    assert measure(tiny_plan(techniques=["repa:teacher=scenes,hidden=8"]), steps=1).time_split["teacher"] > 0


def test_the_bench_samples_captions_of_a_store_however_few_and_however_they_are_called(tmp_path: Path) -> None:
    source = captioned(tmp_path / "few.parquet", 6)
    imported(source, tmp_path / "few", ImportOptions(captions={"plain": "caption_short"}, eval_share=0.2))
    data = f'data={{"kind":"store","path":"{tmp_path / "few"}","size_px":16}}'
    assert measure(tiny_plan(data, "captions.column=plain"), steps=1).sample_images_per_s_at_10_steps > 0


def test_techniques_are_compared_with_the_plan_itself_at_each_number_of_tokens() -> None:
    seen: list[tuple[str, int, int]] = []
    so_far: list[Comparison] = []
    result: Any = compare(
        tiny_plan(), ["tread", "ema"], [16, 64], [], 2, lambda *part: seen.append(part), so_far.append
    )
    rows = result.rows
    assert [one.rows for one in so_far] == [rows[: count + 1] for count in range(8)]
    names = ["dense", "tread", "ema", "dense again"]
    assert [(row.tokens, row.size_px, row.batch) for row in rows] == [(16, 16, 4)] * 4 + [(64, 32, 1)] * 4
    assert [row.technique for row in rows] == names * 2 and seen[1] == ("16 tokens, batch 4, tread", 1, 8)
    assert seen[-1] == ("", 8, 8)
    for row in rows:
        dense = rows[0] if row.tokens == 16 else rows[4]
        assert row.times_dense == row.images_per_s / dense.images_per_s
        assert row.slowest_images_per_s <= row.images_per_s <= row.fastest_images_per_s
        assert row.recompiled == row.graph_breaks == 0 and row.failed is row.peak_gib is None
        assert row.data_share == row.time_split["data"]


def test_without_techniques_or_tokens_only_what_is_asked_is_measured() -> None:
    assert [row.technique for row in compare(tiny_plan(), [], [16], [], 2).rows] == ["dense"]
    assert {row.tokens for row in compare(tiny_plan(), ["tread"], [], [], 2).rows} == {16}


def test_a_micro_batch_keeps_its_tokens_and_its_images_fit_one_batch() -> None:
    plan = tiny_plan("train.batch=64", "train.accumulate=2", "data.count=1000")
    found = {tokens: at_size(plan, tokens) for tokens in (16, 25, 64, 4096)}
    assert {tokens: one.train.batch for tokens, one in found.items()} == {16: 32, 25: 20, 64: 8, 4096: 1}
    assert [one.data.size_px for one in found.values()] == [16, 20, 32, 256]
    assert all(one.train.accumulate == 1 and plain(one.data)["count"] == one.train.batch for one in found.values())


def test_a_batch_is_made_up_of_micro_batches_that_fit() -> None:
    plan = tiny_plan("train.batch=64", "train.accumulate=2", "data.count=1000")
    found = [at_size(plan, 16, batch).train for batch in (8, 32, 48, 256)] + [at_size(plan, 64, 12).train]
    assert [(train.batch, train.accumulate) for train in found] == [(8, 1), (32, 1), (48, 2), (256, 8), (12, 2)]
    assert plain(at_size(plan, 16, 256).data)["count"] == 256


def test_a_store_lends_no_more_images_than_a_batch() -> None:
    plan = tiny_plan("data.kind=store", "data.path=anywhere", "train.batch=8")
    assert plain(at_size(plan, 16).data)["limit"] == 8 and plain(at_size(plan, 16, 32).data)["limit"] == 32


def test_a_technique_is_compared_with_the_plan_at_the_same_batch() -> None:
    rows: Any = compare(tiny_plan(), ["ema"], [], [2, 4], 2).rows
    assert [row.batch for row in rows] == [2] * 3 + [4] * 3
    assert [row.times_dense for row in rows if row.technique == "dense"] == [1, 1]
    assert rows[4].times_dense == rows[4].images_per_s / rows[3].images_per_s


def test_muon_stands_beside_the_time_of_its_matrix_products() -> None:
    result: Any = compare(tiny_plan(), ["muon", "muon:modulation=false"], [], [], 2)
    dense, muon, without, _ = result.rows
    assert dense.optimizer_s > 0 and dense.newton_schulz_tflop is dense.floor_s is dense.times_floor is None
    for row in (muon, without):
        assert row.floor_s == pytest.approx(row.newton_schulz_tflop / row.ceiling_tflop_per_s)
        assert row.times_floor == pytest.approx(row.optimizer_s / row.floor_s)
        assert row.optimizer_share == row.optimizer_s / row.step_s < 1
    depth, width, modulation = 3, 32, 6 * 32
    products_of_modulation = 5 * depth * (4 * width**2 * modulation + 2 * width**3)
    assert (muon.newton_schulz_tflop - without.newton_schulz_tflop) * 1e12 == pytest.approx(products_of_modulation)
    shown = _shown(result)
    assert f"16 tokens, batch 4, muon: the optimizer takes {1000 * muon.optimizer_s:.3g} ms" in shown
    assert f"{muon.times_floor:.2f} × that floor" in shown and "dense: the optimizer" not in shown


def test_the_tokenizers_share_stands_beside_the_optimizers() -> None:
    write_autoencoder("flux1")
    result: Any = compare(tiny_plan(), [option("flux1")], [], [], 2)
    _, latents, _ = result.rows
    assert latents.tokenizer_s > 0
    assert latents.tokenizer_share == latents.tokenizer_s / latents.step_s < 1
    split = latents.time_split
    assert f"/{100 * split['optimizer']:.0f}/{100 * split['tokenizer']:.0f}/" in _shown(result)
    for share, told in ((0.34, True), (0.1, False)):
        result.rows[1] = replace(result.rows[1], tokenizer_share=share)
        assert ("the tokenizer takes 34% of a step; cache its latents" in _shown(result)) == told


def test_of_a_tokenizer_that_is_trained_no_cache_is_advised() -> None:
    result: Any = compare(tuned_plan(techniques=[]), [NO_PERCEPTUAL], [], [], 1)
    assert [row.tuned for row in result.rows] == [False, True, False]
    result.rows[:] = [replace(row, tokenizer_share=0.34) for row in result.rows]
    frozen, tuned, again = (line for line in _shown(result).splitlines() if "34%" in line)
    assert tuned.endswith("the tokenizer takes 34% of a step, its training included")
    assert all(line.endswith("; cache its latents") for line in (frozen, again))


def test_the_wait_for_data_is_no_part_of_the_speed() -> None:
    others = dict.fromkeys(PARTS, 0.0)
    timed = [
        Step(whole, {**others, "data": data, "optimizer": 0.1, "tokenizer": 0.2})
        for whole, data in [(0.5, 0.0), (1.0, 0.6)]
    ]
    found: Any = with_speeds(Row(16, 16, 9, "dense"), timed)
    assert found.images_per_s == pytest.approx(9 / 0.45)
    assert (found.slowest_images_per_s, found.fastest_images_per_s) == pytest.approx((9 / 0.5, 9 / 0.4))
    assert (found.data_share, (found.time_split or {})["optimizer"]) == pytest.approx((0.6 / 1.5, 0.2 / 1.5))
    assert (found.step_s, found.optimizer_share) == pytest.approx((0.45, 0.1 / 0.45))
    assert found.tokenizer_share == pytest.approx(0.2 / 0.45)


def test_a_part_is_timed_in_each_step_by_itself_and_summed_over_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def work(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now_s))
    clock = StepClock(torch.device("cpu"))
    with clock.part("forward"):
        work(50)  # warm-up
    clock.start()
    for count in (1, 2):
        for _ in range(count):
            with clock.part("forward"):
                work(10)
            work(1)
        clock.end_step()
    first, second = clock.steps()
    assert (first.parts_s["forward"], first.whole_s) == (10, 11)
    assert (second.parts_s["forward"], second.whole_s, second.parts_s["optimizer"]) == (20, 22, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_only_the_wait_for_data_that_is_not_hidden_counts() -> None:
    device = torch.device("cuda")
    clock = StepClock(device)
    for busy in (False, True):
        torch.cuda.synchronize()
        if busy:
            torch.cuda._sleep(10**9)  # about half a second
        with clock.part("data"):
            time.sleep(0.05)
        clock.end_step()
    idle, hidden = clock.steps()
    assert 0.04 < idle.parts_s["data"] < 0.2 and hidden.parts_s["data"] < 0.01


@pytest.mark.parametrize(
    ("tokens", "near"),
    [
        (17, r"16 \(16 px\) and 25 \(20 px\)"),
        (9, r"nearest possible values: 16 \(16 px\);"),
        (10**6, r"nearest possible values: 65536 \(1024 px\);"),
    ],
)
def test_a_number_of_tokens_that_cannot_be_had_names_those_near_it(tokens: int, near: str) -> None:
    with pytest.raises(UserError, match=near):
        at_size(tiny_plan(), tokens)


def test_mistakes_are_told_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "update", None)
    with pytest.raises(UserError, match="unknown technique 'tred'"):
        compare(tiny_plan(), ["tread", "tred"], [16], [], 2)
    with pytest.raises(UserError, match="unknown technique 'dense'"):
        compare(tiny_plan(), ["dense"], [16], [], 2)
    with pytest.raises(UserError, match="--tokens 16 is given twice"):
        compare(tiny_plan(), [], [16, 16], [], 2)
    with pytest.raises(UserError, match="--batch 8 is given twice"):
        compare(tiny_plan(), [], [], [8, 8], 2)


def test_a_row_out_of_memory_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(parts: Session, state: TrainState, clock: Any) -> None:
        if parts.plan.route:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real_update(parts, state, clock)

    monkeypatch.setattr(bench, "update", update)
    result: Any = compare(tiny_plan(), ["tread", "ema"], [], [], 2)
    assert [row.failed for row in result.rows] == [None, "out of memory", None, None]
    assert result.rows[1].times_dense is None and result.rows[2].times_dense > 0
    assert "out of memory" in _shown(result)


def test_no_schedule_ends_while_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    def update(parts: Session, state: TrainState, clock: Any) -> None:
        steps.append(state.step)
        real_update(parts, state, clock)

    monkeypatch.setattr(bench, "update", update)
    compare(tiny_plan(), [], [16], [], 4)
    assert set(steps) == {0}


def test_steps_are_timed_as_training_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the strict mode (2) that `run.deterministic` asks for, with what torch refuses in it noted and allowed (1)."""
    modes: list[int] = []

    def update(parts: Session, state: TrainState, clock: Any) -> None:
        modes.append(torch.get_deterministic_debug_mode())
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        real_update(parts, state, clock)

    monkeypatch.setattr(exact, "update", update)
    monkeypatch.setattr(exact, "choose_device", lambda name: torch.device("cuda"))
    plan = tiny_plan("run.deterministic=true")
    with pytest.warns(UserWarning, match="put_ does not have"):
        measure(plan, steps=1)
        compare(plan, [], [16], [], 1)
    assert modes == [2, 1, 1] * 2
    assert torch.get_deterministic_debug_mode() == 0


def test_compiled_graphs_and_graph_breaks_are_counted() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    before = bench._compiled()
    torch.compile(broken, backend="eager", dynamic=False)(torch.ones(2))
    after = bench._compiled()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


def test_the_table_shows_ratios_and_says_what_was_recompiled() -> None:
    result: Any = compare(tiny_plan(), ["tread"], [], [], 2)
    result.rows[1] = replace(result.rows[1], recompiled=3)
    shown = _shown(result)
    assert "dense again" in shown and f"{result.rows[1].times_dense:.3f}" in shown
    assert "16 tokens, batch 4, tread: 3 graphs compiled in the timed steps" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "16,x"], "'x' is not a whole number"),
        (["--batch", "4,0"], "'0' is not a whole number above 0; write it as --batch 32,256"),
        (["--tokens", "16", "--metrics"], "--metrics"),
        (["--batch", "4", "--metrics"], "--metrics"),
    ],
)
def test_the_command_refuses_what_it_cannot_measure(options: list[str], message: str) -> None:
    outcome = CliRunner().invoke(app, ["bench", *options])
    assert isinstance(outcome.exception, UserError) and message in str(outcome.exception)


def test_the_command_prints_json() -> None:
    tiny = ["--set", "model.depth=1", "--set", "train.batch=2", "--set", "run.device=cpu"]
    outcome = CliRunner().invoke(app, ["bench", "--steps", "2", "--tokens", "16,25", "--batch", "1,2", "--json", *tiny])
    rows = json.loads(outcome.stdout)["rows"]
    assert [(row["tokens"], row["batch"]) for row in rows] == [(16, 1), (16, 2), (25, 1), (25, 2)]


def _shown(result: Comparison) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        show_comparison(result, console)
    return captured.get()


def test_a_row_begins_with_no_graphs_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit to the graphs of one function: past it a block would run uncompiled."""
    resets: list[int] = []
    real = torch._dynamo.reset

    def reset() -> None:
        resets.append(1)
        real()

    monkeypatch.setattr(torch._dynamo, "reset", reset)
    compare(tiny_plan(), ["ema"], [], [], 2)
    assert len(resets) >= 3
