"""Runs from Python: the same weights and images as the commands, in any thread, without a word on the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import tintype
from tests.tiny import TINY, tiny_plan
from tintype.cli import app
from tintype.train.steps import Progress

PROTOCOL = ("count=8", "reference_count=16", "validation_count=4", "sampler.steps=1", "also=[]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tintype.Run:
    return tintype.train(tiny_plan(), tmp_path_factory.mktemp("library") / "run")


def _in_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def _in_event_loop(work: Callable[[], None]) -> None:
    """Call it as a notebook does: from a coroutine, with the loop running."""

    async def cell() -> None:
        work()

    asyncio.run(cell())


def test_a_plan_comes_from_a_recipe_a_file_or_a_run(trained: tintype.Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert tintype.load_plan(tmp_path / "tiny.yaml").hash == tiny_plan().hash
    assert tintype.load_plan(trained.path, "optimizer.lr=1e-4").optimizer.lr == 1e-4
    assert tintype.load_plan("pocket", "train.steps=3").train.steps == 3
    with pytest.raises(tintype.UserError, match=r'^"train.stepz=3": train.stepz: unknown key; did you mean .steps'):
        tintype.load_plan("pocket", "train.stepz=3")


def test_a_recipe_goes_before_a_folder_of_its_name(
    trained: tintype.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pocket").symlink_to(trained.path)
    assert tintype.load_plan("pocket").train.steps == 600
    assert tintype.load_plan("./pocket").hash == trained.plan.hash


def test_techniques_make_another_plan() -> None:
    plan = tiny_plan()
    assert tintype.apply(plan, "muon", "ema:decay=0.9").optimizer.kind == "muon"
    assert plan.optimizer.kind == "adamw"
    with pytest.raises(tintype.UserError, match="unknown technique 'mun'; did you mean 'muon'"):
        tintype.apply(plan, "mun")
    assert tintype.apply("pocket", "muon") == tintype.apply(tintype.load_plan("pocket"), "muon")


@pytest.mark.parametrize("where", [_in_thread, _in_event_loop], ids=["in a thread", "in an event loop"])
def test_a_run_trains_samples_and_is_scored_anywhere_and_says_nothing(
    where: Callable[[Callable[[], None]], None], tmp_path: Path, trained: tintype.Run, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        steps: list[int] = []
        run = tintype.train(tiny_plan(), tmp_path / "run", on_progress=lambda now: steps.append(now.step))
        assert run.finished and steps[-1] == 6
        (image,) = run.sample("a red ball", steps=2)
        assert image.tobytes() == trained.sample(["a red ball"], steps=2)[0].tobytes()
        scores = tintype.evaluate(run, *PROTOCOL)
        assert scores.metrics["validation_loss"] > 0 and scores.step == 6

    where(work)
    assert capfd.readouterr() == ("", "")


def test_a_model_is_sampled_with_the_guidance_of_its_plan(tmp_path: Path) -> None:
    run = tintype.train(tiny_plan("sampling.guidance=self", techniques=["tread"]), tmp_path / "run")
    (image,) = run.sample("a red ball", steps=2)
    assert json.loads(image.info["tintype"])["guidance"]["kind"] == "self"

    def asked(*options: str) -> Image.Image:
        words = ["sample", str(run.path), "a red ball", "--steps", "2", "--out", str(tmp_path / f"out{len(options)}")]
        assert CliRunner().invoke(app, [*words, *options], catch_exceptions=False).exit_code == 0
        with Image.open(tmp_path / f"out{len(options)}" / "0000.png") as written:
            return written.copy()

    assert asked().tobytes() == image.tobytes()
    chosen = asked("--guidance-kind", "classifier-free")
    assert json.loads(chosen.info["tintype"])["guidance"]["kind"] == "classifier-free"


def test_images_are_those_of_the_command(trained: tintype.Run, tmp_path: Path) -> None:
    done: list[tuple[float, int]] = []
    images = trained.sample(
        ["a red ball", "a blue star"],
        count=2,
        steps=2,
        seed=3,
        size=(32, 16),
        batch=3,
        on_progress=lambda *now: done.append(now),
    )
    options = ["--count", "2", "--steps", "2", "--seed", "3", "--size", "32x16", "--batch", "3"]
    command = ["sample", str(trained.path), "a red ball", "a blue star", "--out", str(tmp_path), *options]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    files = sorted(tmp_path.glob("0*.png"))
    assert [len(files), len(images), *done[-1]] == [4, 4, 4, 4]
    for image, file in zip(images, files, strict=True):
        with Image.open(file) as written:
            assert image.size == (32, 16) and image.tobytes() == written.tobytes()
            assert image.info["prompt"] == written.info["prompt"]
            assert json.loads(image.info["tintype"]) == json.loads(written.info["tintype"])


def test_weights_are_loaded_once(trained: tintype.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tintype.load_run(trained.path)
    first = run.sample("a red ball", steps=1)[0]
    monkeypatch.setattr("tintype.sampling.sample.load_for_sampling", None)
    assert run.sample("a red ball", steps=1)[0].tobytes() == first.tobytes()


def test_a_run_names_itself_and_its_log(trained: tintype.Run) -> None:
    run = tintype.load_run(trained.path)
    assert run == trained and repr(run) == f"<Run {run.path}: step 6 of 6>"
    assert [line["step"] for line in run.log()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.sample([]), "give one prompt or more"),
        (lambda run: run.sample("a", size=17), "^size=17: this model can only sample sizes that are multiples of 4"),
        (lambda run: run.sample("a", steps=0), "steps: must be at least 1"),
        (lambda run: run.sample("a", method="rk4"), "method: must be the name of a sampler; valid: euler, heun"),
        (lambda run: tintype.load_run(run.path, arm="x"), "^`arm` and `seed` choose a run of a study, but "),
        (lambda run: tintype.load_run(run.path / "nothing"), "is not a run: plan.yaml is missing"),
        (lambda run: tintype.evaluate(run, "cont=8"), '^"cont=8": cont: unknown key; did you mean .count'),
        (lambda run: tintype.train(tiny_plan("seed=1"), run.path), "another plan .*choose another `out`"),
        (lambda run: tintype.compare(run), "^the comparison needs at least two runs, .*; give two or more runs"),
    ],
)
def test_mistakes_are_named_in_the_words_of_python(
    trained: tintype.Run, call: Callable[[tintype.Run], object], words: str
) -> None:
    with pytest.raises(tintype.UserError, match=words) as found:
        call(trained)
    assert "--" not in str(found.value).replace("`tintype train RECIPE --out", "")


def test_an_interrupt_saves_then_raises_and_the_same_call_resumes(tmp_path: Path, trained: tintype.Run) -> None:
    def stop(now: Progress) -> None:
        if now.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tintype.train(tiny_plan(), tmp_path / "run", on_progress=stop)
    assert signal.getsignal(signal.SIGINT) is before
    assert not tintype.load_run(tmp_path / "run").finished
    run = tintype.train(tiny_plan(), tmp_path / "run")
    assert [line["loss"] for line in run.log()] == [line["loss"] for line in trained.log()]


def test_an_error_of_the_callback_ends_the_training(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.step == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        tintype.train(tiny_plan(), tmp_path / "run", on_progress=stop)
    assert tintype.load_run(tmp_path / "run").step == 2
    assert tintype.train(tiny_plan(), tmp_path / "run").finished
