"""Sample images on request from runs in the served folder, one image at a time, first come, first served.

The size of a request and the number of waiting requests are limited.
"""

from __future__ import annotations

import base64
import io
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from PIL import Image
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.export.import_run import open_model
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.sampler import Method
from tintype.optim.power_function import LONGEST
from tintype.sampling.generate import SamplerSettings, generate
from tintype.settings import Settings
from tintype.train.load import load_run, weights_words
from tintype.train.parts import Model
from tintype.train.reconstruct import reconstruction
from tintype.train.record import RunRecord, is_run

State = Literal["waiting", "loading", "sampling", "done", "failed", "stopped"]
ENDED: tuple[State, ...] = ("done", "failed", "stopped")
_PREVIEW_S = 0.2
"""Minimum time in seconds between two previews of an unfinished image."""
_MODELS = 2
_KEPT_JOBS = 32


@dataclass(frozen=True)
class Limits:
    prompt: int = 1000
    seed: int = 2**31 - 1
    steps: int = 250
    guidance: float = 50.0
    count: int = 4
    waiting: int = 8


LIMITS = Limits()


class Request(Settings):
    """A request for images, with the fields of the page's form."""

    client: str = Field(min_length=8, max_length=64)
    prompt: str = Field(min_length=1, max_length=LIMITS.prompt)
    run: str = Field(max_length=1000)
    beside: str = Field("", max_length=1000)
    seed: int = Field(0, ge=0, le=LIMITS.seed)
    steps: int = Field(30, ge=1, le=LIMITS.steps)
    guidance: float = Field(3.5, ge=0, le=LIMITS.guidance)
    from_t: float = Field(0.0, ge=0, le=1)
    to_t: float = Field(1.0, ge=0, le=1)
    method: Method = "euler"
    weights: Literal["usual", "raw", "length"] = "usual"
    ema: float = Field(0.1, gt=0, lt=LONGEST)
    """Length of the weight average, if `weights` is `length`."""
    count: int = Field(1, ge=1, le=LIMITS.count)

    @property
    def sampler(self) -> SamplerSettings:
        guidance = ClassifierFreeSettings(scale=self.guidance, from_t=self.from_t, to_t=self.to_t)
        return SamplerSettings(method=self.method, steps=self.steps, guidance=guidance, batch=self.count)

    @property
    def made_with(self) -> dict[str, str | int | float]:
        """Return the settings to record for an image, without the run and the weights."""
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "sampler": self.method,
            "steps": self.steps,
            "guidance": self.guidance,
            "guided from t": self.from_t,
            "to t": self.to_t,
        }


@dataclass(frozen=True)
class Made:
    folder: Path
    """Folder of the run that made the image."""
    png: bytes
    settings: Mapping[str, str | int | float]


@dataclass
class Job:
    """A request for images, and its progress."""

    id: str
    request: Request
    runs: list[tuple[str, Path]]
    """Pairs (path in the served folder, folder) of the runs that sample the images."""
    state: State = "waiting"
    words: str = ""
    share: float = 0.0
    images: list[dict[str, str]] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    """Finished images, in the order of the page."""
    version: int = 0
    stop: bool = False

    def shown(self) -> dict[str, object]:
        """Return the progress of the request in the form that the page gets."""
        return {"id": self.id, "state": self.state, "words": self.words, "share": self.share, "images": self.images}


class _StoppedError(Exception):
    """Raised during sampling if the user has stopped the request."""


class Playground:
    """The queue of requests, the loaded models, and the sampling thread."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.changed = threading.Condition()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._models: OrderedDict[tuple[object, ...], tuple[Model, int]] = OrderedDict()
        self._number = 0
        self._works = False

    def ask(self, request: Request, runs: list[tuple[str, Path]]) -> Job:
        """Queue a request; refuse it if too many requests are waiting."""
        if request.from_t >= request.to_t:
            raise UserError(
                f"guidance from t {request.from_t:g} to {request.to_t:g} covers no time",
                "choose a larger t for the end of the guidance",
            )
        with self.changed:
            if len(self._waiting) >= LIMITS.waiting:
                raise UserError(
                    f"{LIMITS.waiting} requests are waiting already", "try again when some of them are done"
                )
            self._number += 1
            job = Job(str(self._number), request, runs, words=f"waiting, {len(self._waiting)} before it")
            self.jobs[job.id] = job
            while len(self.jobs) > _KEPT_JOBS:
                self.jobs.popitem(last=False)
            self._waiting.append(job)
            if not self._works:
                self._works = True
                threading.Thread(target=self._work, name="playground", daemon=True).start()
            self.changed.notify_all()
        return job

    def stop(self, client: str, id: str) -> None:
        """Stop a request of this client at the next sampling step."""
        with self.changed:
            job = self.jobs.get(id)
            if job is not None and job.request.client == client:
                job.stop = True
                if job in self._waiting:
                    self._waiting.remove(job)
                    self._tell(job, "stopped", "stopped")

    def made(self, client: str, id: str, index: int) -> Made:
        """Return an image of this client; raise if the image is unfinished or no longer stored."""
        with self.changed:
            job = self.jobs.get(id)
            if job is None or job.request.client != client or job.state != "done" or not 0 <= index < len(job.made):
                raise UserError("this image is no longer stored", "open the link of the image and generate it again")
            return job.made[index]

    def of_client(self, client: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.request.client == client]

    def _tell(self, job: Job, state: State, words: str, share: float = 0.0) -> None:
        with self.changed:
            job.state, job.words, job.share = state, words, share
            job.version += 1
            self.changed.notify_all()

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self._waiting:
                    self._works = False
                    return
                job = self._waiting.popleft()
            try:
                self._make(job)
                self._tell(job, "done", "done", 1.0)
            except _StoppedError:
                self._tell(job, "stopped", "stopped")
            except UserError as error:
                self._tell(job, "failed", str(error))
            except Exception as error:  # a failed request must not end the thread that serves all requests
                self._tell(job, "failed", f"{type(error).__name__}: {error}")

    def _make(self, job: Job) -> None:
        for index, (name, folder) in enumerate(job.runs):
            self._tell(job, "loading", "loading the run", index / len(job.runs))
            model, step = self._model(folder, job.request)
            self._sample(job, name, folder, model, step, index)

    def _model(self, folder: Path, request: Request) -> tuple[Model, int]:
        """Return a model with a run's newest weights, which is cached until the run has trained further."""
        record = RunRecord(folder)
        places = [record.checkpoints, record.snapshots] if is_run(folder) else [folder / "transformer"]
        stamp = max((path.stat().st_mtime for place in places for path in place.glob("*")), default=0.0)
        length = request.ema if request.weights == "length" else 0.0
        key = folder, request.weights, length, stamp
        if key not in self._models:
            for old in [one for one in self._models if one[0] == folder and one[-1] != stamp]:
                del self._models[old]
            while len(self._models) >= _MODELS:
                self._models.popitem(last=False)
            self._models[key] = self._load(folder, request)
        self._models.move_to_end(key)
        return self._models[key]

    def _load(self, folder: Path, request: Request) -> tuple[Model, int]:
        if is_run(folder):
            average = reconstruction(folder, request.ema) if request.weights == "length" else None
            return load_run(folder, self.device, average, raw=request.weights == "raw")
        if request.weights != "usual":
            raise UserError("an exported folder (diffusers) has only one set of weights", "choose “as the run samples”")
        model = open_model(folder, self.device)
        return model, model.trained_steps or 0

    def _sample(self, job: Job, name: str, folder: Path, model: Model, step: int, index: int) -> None:
        request = job.request
        first = index * request.count
        shown_s, done = 0.0, 0
        of = f", run {index + 1} of {len(job.runs)}" if len(job.runs) > 1 else ""

        def show(images: Tensor, words: str) -> None:
            for place, image in enumerate(images):
                about = {"run": name, "words": f"{words}, seed {request.seed}", "source": _source(image)}
                job.images[first + place : first + place + 1] = [about]

        def on_step(images: int) -> None:
            nonlocal done
            done += 1
            share = (index + done / request.steps) / len(job.runs)
            self._tell(job, "sampling", f"step {done} of {request.steps}{of}", share)

        def on_estimate(estimate: Callable[[], Tensor]) -> None:
            nonlocal shown_s
            if job.stop:
                raise _StoppedError
            if time.monotonic() - shown_s > _PREVIEW_S:
                shown_s = time.monotonic()
                show(estimate(), f"step {done} of {request.steps}")

        images = generate(
            model,
            [request.prompt] * request.count,
            request.sampler,
            seed=request.seed,
            size_px=model.plan.data.size_px,
            on_step=on_step,
            on_estimate=on_estimate,
        )
        weights = _weights_words(folder, model, request)
        show(images, f"trained {step:,} steps, {weights}" if step else weights)
        made_by: dict[str, str | int | float] = {"run": name, "weights": weights, "trained steps": step}
        settings = [{**request.made_with, **made_by, "image": place + 1} for place in range(request.count)]
        job.made += [Made(folder, _png(image), one) for image, one in zip(images, settings, strict=True)]


def _weights_words(folder: Path, model: Model, request: Request) -> str:
    if request.weights == "length":
        return f"average of length {request.ema:g}"
    if not is_run(folder):
        return "weights of a folder of diffusers"
    return "raw weights" if request.weights == "raw" else f"{weights_words(folder, model.plan)} weights"


def _png(image_CHW: Tensor, *, least_px: int = 0) -> bytes:
    """Return an image as PNG; if a side has fewer than `least_px` pixels, enlarge the image by an integer factor."""
    image = Image.fromarray(image_CHW.permute(1, 2, 0).cpu().numpy())
    factor = max(1, math.floor(least_px / max(image.size)))
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _source(image_CHW: Tensor) -> str:
    """Return an image as a data URI. Small images are enlarged for display."""
    return "data:image/png;base64," + base64.b64encode(_png(image_CHW, least_px=128)).decode("ascii")
