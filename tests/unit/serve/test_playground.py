"""The playground samples by the one path of `tintype sample`, one request after another, within its limits."""

from __future__ import annotations

import base64
import io
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.live_server import Client, serving
from tests.tiny import tiny_plan
from tests.tiny_export import pixel_plan, write_run
from tintype.errors import UserError
from tintype.export.import_run import import_model
from tintype.export.pipeline_folder import export_pipeline
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import generate
from tintype.serve import playground
from tintype.serve.playground import ENDED, Job, Playground, Request, State
from tintype.study.picked import MOST, keep_image, read_picked
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import Model
from tintype.train.reconstruct import reconstruction

ASKED = {"client": "a-client-of-tests", "prompt": "a red ball", "run": "run", "steps": 3, "seed": 5, "count": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    train(tiny_plan("train.steps=2"), root / "run", Interrupt())
    return root


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with serving(root) as found:
        yield found


def finished(place: Playground, job: Job) -> Job:
    end = time.monotonic() + 20
    while job.state not in ENDED and time.monotonic() < end:
        time.sleep(0.01)
    return job


def pixels(source: str) -> torch.Tensor:
    content = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    image = Image.open(io.BytesIO(content)).convert("RGB")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)


def test_images_are_those_of_the_one_sampling_path(root: Path) -> None:
    place, request = Playground(), Request.model_validate(ASKED)
    job = finished(place, place.ask(request, [("run", root / "run")]))
    assert job.state == "done", job.words
    parts, _ = load_run(root / "run")
    wanted = generate(parts, ["a red ball"] * 2, request.sampler, seed=5, size_px=16)
    for one, image in zip(job.images, wanted, strict=True):
        assert torch.equal(pixels(one["source"])[::8, ::8], image.permute(1, 2, 0))


def test_the_image_appears_while_it_is_denoised(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground, "_PREVIEW_S", 0.0)
    place, seen = Playground(), list[str]()
    tell = place._tell

    def noted(job: Job, state: State, words: str, share: float = 0.0) -> None:
        seen.extend(image["words"] for image in job.images)
        tell(job, state, words, share)

    monkeypatch.setattr(place, "_tell", noted)
    finished(place, place.ask(Request.model_validate(ASKED | {"count": 1}), [("run", root / "run")]))
    assert dict.fromkeys(seen) == dict.fromkeys(
        ["step 0 of 3, seed 5", "step 1 of 3, seed 5", "step 2 of 3, seed 5", "trained 2 steps, raw weights, seed 5"]
    )


def test_a_model_is_loaded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, loads = Playground(), list[Path]()

    def load(run: Path, device: str | None, *args: object, **more: bool) -> tuple[Model, int]:
        loads.append(run)
        return load_run(run, device)

    monkeypatch.setattr(playground, "load_run", load)
    for _ in range(2):
        assert finished(place, place.ask(Request.model_validate(ASKED), [("run", root / "run")])).state == "done"
    assert len(loads) == 1


def test_requests_wait_in_turn_and_not_too_many(root: Path) -> None:
    place = Playground()
    place._works = True  # nobody works: all wait
    jobs = [place.ask(Request.model_validate(ASKED), []) for _ in range(playground.LIMITS.waiting)]
    assert jobs[2].words == "waiting, 2 before it"
    with pytest.raises(UserError, match="8 requests are waiting already"):
        place.ask(Request.model_validate(ASKED), [])
    place.stop("somebody else", jobs[0].id)
    assert jobs[0] in place._waiting
    place.stop("a-client-of-tests", jobs[0].id)
    assert jobs[0].state == "stopped"


def test_a_request_under_way_can_be_stopped(root: Path) -> None:
    place = Playground()
    place.changed.acquire()  # it begins when this is released
    job = place.ask(Request.model_validate(ASKED), [("run", root / "run")])
    job.stop = True
    place.changed.release()
    assert finished(place, job).state == "stopped"


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with averages of two lengths and their snapshots."""
    root = tmp_path_factory.mktemp("averaged")
    plan = tiny_plan("train.steps=8", "ema={kind: power, lengths: [0.05, 0.1], snapshots: 4}", "optimizer.lr=0.05")
    train(plan, root / "run", Interrupt())
    return root


def test_the_weights_are_chosen(averaged: Path) -> None:
    place, found = Playground(), dict[str, torch.Tensor]()
    for weights in ("usual", "raw", "length"):
        request = Request.model_validate(ASKED | {"weights": weights, "ema": 0.08, "count": 1})
        job = finished(place, place.ask(request, [("run", averaged / "run")]))
        assert job.state == "done", job.words
        found[job.images[0]["words"]] = pixels(job.images[0]["source"])
        parts, _ = load_run(
            averaged / "run",
            average=reconstruction(averaged / "run", 0.08) if weights == "length" else None,
            raw=weights == "raw",
        )
        wanted = generate(parts, ["a red ball"], request.sampler, seed=5, size_px=16)[0]
        assert torch.equal(pixels(job.images[0]["source"])[::8, ::8], wanted.permute(1, 2, 0))
    said = [words.removeprefix("trained 8 steps, ") for words in found]
    assert said == ["average weights, seed 5", "raw weights, seed 5", "average of length 0.08, seed 5"]
    images = list(found.values())
    assert not torch.equal(images[0], images[1]) and not torch.equal(images[1], images[2])


def test_a_length_that_a_run_cannot_give_is_refused(root: Path) -> None:
    place, request = Playground(), Request.model_validate(ASKED | {"weights": "length"})
    job = finished(place, place.ask(request, [("run", root / "run")]))
    assert job.state == "failed" and "no snapshots of weight averages" in job.words


@pytest.mark.slow
def test_a_folder_of_diffusers_is_sampled_like_a_run(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    pipeline = export_pipeline(run, tmp_path / "sub" / "pipeline").path
    imported = import_model(pipeline, tmp_path / "imported", ["run.device=cpu"]).path
    place, request = Playground("cpu"), Request.model_validate(ASKED | {"count": 1, "run": "sub/pipeline"})
    job = finished(place, place.ask(request, [("sub/pipeline", pipeline), ("imported", imported)]))
    assert job.state == "done", job.words
    own, other = (pixels(one["source"]) for one in job.images)
    assert torch.equal(own, other), "as after `tintype import`"
    raw = finished(place, place.ask(request.model_copy(update={"weights": "raw"}), [("x", pipeline)]))
    assert raw.state == "failed" and "one set of weights" in raw.words
    with serving(tmp_path) as client:
        assert '<option value="sub/pipeline">sub/pipeline (diffusers)</option>' in client.get("/playground").text
        assert "Folders of diffusers" in client.get("/").text and "sub/pipeline" not in client.get("/compare").text


def test_an_image_is_kept_for_the_report_of_its_study(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "run", tmp_path / "study" / "runs" / "run")
    shutil.copytree(root / "run", tmp_path / "loose")
    (tmp_path / "study" / "study.yaml").write_text("name: chosen\n")
    with serving(tmp_path) as client:
        asked = ASKED | {"run": "study/runs/run", "beside": "loose", "count": 1}
        place, id = client.server.playground, json.loads(client.post("/play", asked).text)["id"]
        finished(place, place.jobs[id])
        pick = {"client": ASKED["client"], "id": id, "index": 0}
        assert "for the next report of chosen" in client.post("/play/pick", pick).text
        assert client.post("/play/pick", pick).status == 200, "the same one is kept once"
        assert "beside its run" in client.post("/play/pick", pick | {"index": 1}).text
        (found,) = read_picked(tmp_path / "study")
        assert found.prompt == "a red ball" and "seed 5" in found.made and "run study/runs/run" in found.made
        with Image.open(tmp_path / "study" / found.image) as image:
            assert image.size == (16, 16)
        assert len(read_picked(tmp_path / "loose")) == 1
        run = client.get("/run/loose").text
        assert "Picked by hand" in run and "no arm should be judged by them" in run


def test_kept_images_are_limited_and_damaged_ones_left_out(tmp_path: Path) -> None:
    for index in range(MOST):
        keep_image(tmp_path, b"png", {"prompt": str(index)})
        (tmp_path / "picked").rename(tmp_path / "moved")
        (tmp_path / "all").mkdir(exist_ok=True)
        for file in (tmp_path / "moved").iterdir():
            file.rename(tmp_path / "all" / f"{index:02d}{file.suffix}")
        (tmp_path / "moved").rmdir()
    (tmp_path / "all").rename(tmp_path / "picked")
    with pytest.raises(UserError, match="already has 64 images"):
        keep_image(tmp_path, b"another", {"prompt": "x"})
    assert keep_image(tmp_path, b"png", {"prompt": "5"}).prompt == "5", "it is there"
    (tmp_path / "picked" / "03.json").write_text("{")
    (tmp_path / "picked" / "04.png").unlink()
    assert [one.prompt for one in read_picked(tmp_path)][:3] == ["0", "1", "2"] and len(
        read_picked(tmp_path)
    ) == MOST - 2


def test_a_run_that_cannot_be_loaded_fails_alone(root: Path) -> None:
    place = Playground()
    job = finished(place, place.ask(Request.model_validate(ASKED), [("x", root / "nothing")]))
    assert job.state == "failed" and job.words
    assert finished(place, place.ask(Request.model_validate(ASKED), [("run", root / "run")])).state == "done"


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 100_000},
        {"count": 99},
        {"prompt": ""},
        {"prompt": "a" * 2000},
        {"guidance": -1},
        {"seed": -1},
        {"x": 1},
        {"weights": "any"},
        {"ema": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_more_than_the_limits_is_refused(client: Client, change: dict[str, object]) -> None:
    answer = client.post("/play", ASKED | change)
    assert answer.status == 400 and "error" in answer.text


def test_a_request_through_the_server(client: Client) -> None:
    assert client.post("/play", ASKED | {"run": "../run"}).status == 404
    assert client.post("/play", ASKED | {"from_t": 0.8, "to_t": 0.2}).status == 400
    assert client.post("/play", ASKED).status == 200
    events = client.events("/events/play/a-client-of-tests", 1)
    assert events[0][0] == "play"
    page = client.get("/playground?run=run&seed=7")
    assert '<option value="run" selected>' in page.text and 'value="7"' in page.text
