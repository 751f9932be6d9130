"""The playground samples by the one path of `tintype sample`, one request after another, within its limits."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.live_server import Client, serving
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import generate
from tintype.serve import playground
from tintype.serve.playground import ENDED, Job, Playground, Request, State
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import Model

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
        ["step 0 of 3, seed 5", "step 1 of 3, seed 5", "step 2 of 3, seed 5", "trained 2 steps, seed 5"]
    )


def test_a_model_is_loaded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, loads = Playground(), list[Path]()

    def load(run: Path, device: str | None) -> tuple[Model, int]:
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
    with pytest.raises(UserError, match="8 requests wait already"):
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
