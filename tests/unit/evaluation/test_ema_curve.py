"""Weight averages of several lengths of one run, each scored and kept under its own name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tintype import cli
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation import ema_curve
from tintype.evaluation import run as scoring
from tintype.evaluation.ema_curve import Curve, check_metric, read_lengths, score_lengths
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.runtime.interrupt import Interrupt
from tintype.terminal.runs import show_ema_curve
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import Reconstruction, reconstruction

SETTINGS = ["count=8", "also=[]", "reference_count=8", "validation_count=4", "metrics=[fd]", "sampler={steps: 1}"]
PROTOCOL = parse(
    Protocol,
    read_yaml("{count: 8, also: [], reference_count: 8, validation_count: 4, metrics: [fd], sampler: {steps: 1}}", "p"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_plan("train.steps=16", "optimizer.lr=3e-3", techniques=["power-ema"]), folder, Interrupt())
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


class StoppedError(Exception):
    pass


def silent(length: float, now: Scoring) -> None:
    pass


def scored(run: Path, *lengths: float, on_progress: Callable[[float, Scoring], None] = silent) -> Curve:
    curve = Curve(run, lengths, PROTOCOL, "validation_loss")
    score_lengths(curve, on_progress)
    return curve


def folders(run: Path) -> set[str]:
    return {path.name for path in (run / "evaluation").rglob("*-step-*")}


def test_each_length_has_its_own_scores_and_images(run: Path) -> None:
    usual = evaluate(run, PROTOCOL)
    results = [evaluate(run, PROTOCOL, average=reconstruction(run, length)) for length in (0.05, 0.08, 0.2)]
    losses = [result.metrics["validation_loss"] for result in results]
    assert losses[0] == usual.metrics["validation_loss"], "the first length is what is sampled by default"
    assert len(set(losses)) == 3
    assert [result.weights for result in (usual, *results)] == [
        "average",
        "average 0.05",
        "average 0.08",
        "average 0.2",
    ]
    assert (average := results[1].ema) and average.length == 0.08 and 0 < average.residual < 0.01
    assert len({result.samples[""] for result in (usual, *results)}) == 4 and len(folders(run)) == 8


def test_a_score_is_read_again_for_its_own_length_only(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate(run, PROTOCOL, average=reconstruction(run, 0.08))
    monkeypatch.setattr(scoring, "load_run", None)
    assert evaluate(run, PROTOCOL, average=reconstruction(run, 0.08)) == first
    for other in (reconstruction(run, 0.081), None):
        with pytest.raises(TypeError):
            evaluate(run, PROTOCOL, average=other)


def test_a_score_of_other_snapshots_is_not_read_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(run, PROTOCOL, average=reconstruction(run, 0.08))
    shutil.rmtree(checkpoint.folder_of(run / "snapshots", 14))
    monkeypatch.setattr(scoring, "load_run", None)
    with pytest.raises(TypeError):
        evaluate(run, PROTOCOL, average=reconstruction(run, 0.08))


def test_the_curve_has_its_best_point(run: Path) -> None:
    curve = scored(run, 0.05, 0.1, 0.2)
    values = {point.length: point.value("validation_loss") for point in curve.points}
    assert curve.best is not None and values[curve.best.length] == min(v for v in values.values() if v is not None)
    told: Any = curve.as_json()
    assert told["best"] == curve.best.length and told["direction"] == "lower" and told["finished"]
    assert [point["length"] for point in told["points"]] == [0.05, 0.1, 0.2]
    higher = Curve(run, curve.lengths, PROTOCOL, "scene_accuracy", curve.points)
    assert higher.best is not None
    assert higher.best.value("scene_accuracy") == max(point.value("scene_accuracy") or 0 for point in curve.points)


def test_an_interrupted_curve_resumes_with_the_next_length(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(length: float, now: Scoring) -> None:
        if now.share > 0.67:
            raise StoppedError

    with pytest.raises(StoppedError):
        scored(run, 0.05, 0.1, 0.2, on_progress=stop)
    loads: list[float] = []

    def noted(path: Path, device: str | None, average: Reconstruction, kept_step: int | None) -> Any:
        loads.append(average.length)
        return load_run(path, device, average, kept_step=kept_step)

    monkeypatch.setattr(scoring, "load_run", noted)
    shares: list[float] = []
    curve = scored(run, 0.05, 0.1, 0.2, on_progress=lambda length, now: shares.append(now.share))
    assert loads == [0.2] and len(curve.points) == 3
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_length_that_cannot_be_represented_is_shown_and_not_scored(run: Path) -> None:
    curve = scored(run, 0.004, 0.1)
    assert curve.points[0].result is None and curve.points[0].residual > 0.15
    assert curve.best is curve.points[1]
    console = Console(record=True, width=120)
    show_ema_curve(curve, console)
    text = console.export_text()
    assert "not representable" in text and "best" in text and f"{curve.points[0].residual:.2%}" in text
    with pytest.raises(UserError, match=r"cannot represent an average of length 0\.004"):
        scored(run, 0.003, 0.004)


def test_a_bad_length_is_found_before_the_first_is_scored(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ema_curve, "evaluate", None)
    with pytest.raises(UserError, match="the length of an average is -1"):
        scored(run, 0.05, -1.0)


def test_words_that_are_no_lengths_or_metrics_are_refused() -> None:
    assert read_lengths("0.05,0.1,0.050") == [0.05, 0.1]
    with pytest.raises(UserError, match=r"--lengths 0\.05,long is not a list of numbers; write it as"):
        read_lengths("0.05,long")
    assert check_metric(PROTOCOL, None) == "scene_accuracy"
    with pytest.raises(UserError, match=r"--metric fd_scene: .* did you mean 'fd_scenes'"):
        check_metric(PROTOCOL, "fd_scene")


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)


def test_the_commands(run: Path, tmp_path: Path) -> None:
    settings = [word for one in SETTINGS for word in ("--set", one)]
    told = json.loads(
        ask("ema", str(run), "--lengths", "0.05,0.15", "--metric", "fd_scenes", *settings, "--json").stdout
    )
    assert [point["length"] for point in told["points"]] == [0.05, 0.15] and told["step"] == 16
    one = json.loads(ask("evaluate", str(run), "--ema-length", "0.15", *settings, "--json").stdout)
    assert one["metrics"]["fd_scenes"] == told["points"][1]["value"]
    assert "(average 0.15 weights)" in " ".join(
        ask("evaluate", str(run), "--ema-length", "0.15", *settings).stdout.split()
    )
    shown = ask("ema", str(run), "--lengths", "0.05,0.15", *settings).stdout
    assert "EMA length" in shown and "best" in shown
    with pytest.raises(UserError, match="--ema-length chooses among the weights of a run"):
        ask("evaluate", "--images", str(tmp_path), "--reference", str(tmp_path), "--ema-length", "0.1")


def test_sampled_images_of_two_lengths_lie_side_by_side(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for length in ("0.05", "0.2"):
        ask("sample", str(run), "a red ball", "--out", str(out), "--steps", "2", "--ema-length", length)
    assert {path.name for path in out.iterdir()} == {
        f"{name}-ema-{length}.png" for name in ("0000", "contact-sheet") for length in ("0.05", "0.2")
    }
    images = [Image.open(out / f"0000-ema-{length}.png") for length in ("0.05", "0.2")]
    assert images[0].tobytes() != images[1].tobytes()
    assert json.loads(images[1].info["tintype"])["ema_length"] == 0.2
