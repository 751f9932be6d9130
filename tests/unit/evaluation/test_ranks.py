"""Sampling and scoring on several ranks give what one process gives, to the last bit."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.ranks import run_ranks
from tests.tiny import tiny_plan
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation import reference, run, samples
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import read_result
from tintype.evaluation.run import evaluate
from tintype.metrics import validation
from tintype.runtime.dist import current
from tintype.runtime.interrupt import Interrupt
from tintype.sampling import sample
from tintype.sampling.generate import SamplerSettings
from tintype.train.loop import train
from tintype.train.parts import build_model

PROMPTS = [f"prompt {index}" for index in range(10)]

PROTOCOL = """
count: 130
reference_count: 140
validation_count: 12
encoders: [scenes]
metrics: [fd, recall]
sampler: {steps: 1, batch: 8}
also: [{name: short, prompts: short, count: 8, distances: false}]
"""


class Counted:
    """A function that counts the images of its calls."""

    def __init__(self, module: Any, name: str) -> None:
        self.real, self.images, self.calls = getattr(module, name), 0, 0
        setattr(module, name, self)

    def __call__(self, *args: Any, **more: Any) -> Tensor:
        result: Tensor = self.real(*args, **more)
        self.calls, self.images = self.calls + 1, self.images + len(result)
        return result


def _make(folder: Path, count: int, batch: int) -> tuple[int, list[Any]]:
    """The batches that this rank made, and what is in all shards when it is done."""
    samples.SHARD_IMAGES = 4
    counted = Counted(samples, "generate")
    parts = build_model(tiny_plan())
    torch.manual_seed(0)
    for parameter in parts.modules.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    sampling = replace(Protocol().conditions[0], sampler=SamplerSettings(steps=2, batch=batch))
    one = samples.samples_of(folder, 6, sampling, PROMPTS[:count], 0, 16)
    one.make(parts)
    assert not one.missing()
    return counted.calls, [_content(path) for path in sorted(one.folder.glob("images-*"))]


def _content(shard: Path) -> tuple[str, dict[str, str], bytes]:
    with safe_open(shard, "pt") as file:
        return shard.name, file.metadata(), file.get_tensor("images").numpy().tobytes()


@pytest.mark.parametrize(
    ("count", "batch", "made"), [(10, 3, [[5], [3, 2], [2, 2, 1]]), (2, 4, [[1], [1, 0], [1, 0, 0]])]
)
def test_shards_of_one_two_and_three_ranks_are_the_same(
    tmp_path: Path, count: int, batch: int, made: list[list[int]]
) -> None:
    found = [run_ranks(size, _make, tmp_path / str(size), count, batch) for size in (1, 2, 3)]
    assert [[calls for calls, _ in ranks] for ranks in found] == made
    shards = [content for ranks in found for _, content in ranks]
    assert all(one == shards[0] for one in shards) and len(shards[0]) == -(-count // 4)


def test_ranks_go_on_where_one_process_stopped(tmp_path: Path) -> None:
    [(_, whole)] = run_ranks(1, _make, tmp_path, 10, 3)
    (folder,) = tmp_path.iterdir()
    sorted(folder.glob("images-*"))[1].unlink()
    again = run_ranks(2, _make, tmp_path, 10, 3)
    assert [calls for calls, _ in again] == [1, 1] and all(shards == whole for _, shards in again)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "run"
    train(tiny_plan(techniques=["ema"]), folder, Interrupt())
    return folder


def _sample(folder: Path, out: Path) -> tuple[int, list[str]]:
    counted = Counted(sample, "generate")
    settings = SamplerSettings(steps=2, batch=3)
    written = sample.sample_run(folder, PROMPTS[:4], None, out, settings, count=2, seed=1, size_px=None)
    return counted.images, [path.name for path in written]


@pytest.mark.slow
def test_sampled_images_of_one_two_and_three_ranks_are_the_same(trained: Path, tmp_path: Path) -> None:
    found = {size: run_ranks(size, _sample, trained, tmp_path / str(size)) for size in (1, 2, 3)}
    assert [[images for images, _ in ranks] for ranks in found.values()] == [[8], [5, 3], [3, 3, 2]]
    names = found[1][0][1]
    assert names[-1] == "contact-sheet.png" and all(told == names for ranks in found.values() for _, told in ranks)
    for name in names:
        assert len({(tmp_path / str(size) / name).read_bytes() for size in found}) == 1


def _evaluate(folder: Path, text: str, cache: Path) -> tuple[dict[str, Any], dict[str, int]]:
    os.environ["TINTYPE_CACHE"] = str(cache)
    counted = {
        "made": Counted(samples, "generate"),
        "encoded": Counted(reference, "feature_matrix"),
        "validated": Counted(validation, "batch_errors"),
    }
    result = evaluate(folder, parse(Protocol, read_yaml(text, "protocol")))
    return result.dump(), {name: one.calls for name, one in counted.items()}


@pytest.mark.slow
def test_a_result_of_two_ranks_is_that_of_one_and_both_worked(trained: Path, tmp_path: Path) -> None:
    results, shares = [], []
    for size in (1, 2):
        shutil.copytree(trained, tmp_path / f"run-{size}")
        found = run_ranks(size, _evaluate, tmp_path / f"run-{size}", PROTOCOL, tmp_path / f"cache-{size}")
        results += [{name: value for name, value in result.items() if name != "seconds"} for result, _ in found]
        shares.append([Counter(calls) for _, calls in found])
        (stored,) = (tmp_path / f"run-{size}" / "evaluation").glob("*/result.json")
        assert read_result(stored).dump() == found[-1][0]
    assert results[0] == results[1] == results[2]
    (alone,), (first, second) = shares
    assert alone == first + second and alone == {"made": 18, "encoded": 6, "validated": 2}
    assert first["made"] - second["made"] <= 2 and second["encoded"] == 2 and second["validated"] == 1


def _load_as_it_is_trained_on(folder: Path, out: Path) -> list[str]:
    """Return the error of this rank if the second one loads a later step."""
    heard = []
    for module in (run, sample):
        load = module.load_run
        module.load_run = partial(_one_step_later, load)  # type: ignore[attr-defined]
    for command in (
        lambda: evaluate(folder, parse(Protocol, read_yaml(PROTOCOL, "protocol"))),
        lambda: sample.sample_run(
            folder, PROMPTS[:4], None, out, SamplerSettings(steps=2), count=1, seed=1, size_px=None
        ),
    ):
        try:
            command()
        except UserError as error:
            heard.append(str(error))
    return heard


def _one_step_later(load: Any, *args: Any, **more: Any) -> tuple[Any, int]:
    parts, step = load(*args, **more)
    return parts, step + current().rank


def test_ranks_that_load_another_step_are_refused(trained: Path, tmp_path: Path) -> None:
    message = f"{trained} was saved again, at step 7, while this process was loading it; run the same command again"
    assert run_ranks(2, _load_as_it_is_trained_on, trained, tmp_path / "out") == [[message] * 2] * 2


def _build_late_on_rank_zero(log: Path) -> None:
    rank, protocol = current().rank, Protocol()
    real = type(protocol.encoders[0]).build

    def build(settings: Any, device: torch.device) -> Any:
        time.sleep(0.0 if rank else 0.3)
        with log.open("a") as file:
            file.write(f"{rank}\n")
        return real(settings, device)

    type(protocol.encoders[0]).build = build  # type: ignore[method-assign,assignment]
    run._check_readiness(protocol, tiny_plan(), torch.device("cpu"))


def test_one_rank_fetches_the_weights_before_the_others_need_them(tmp_path: Path) -> None:
    run_ranks(2, _build_late_on_rank_zero, tmp_path / "log")
    assert (tmp_path / "log").read_text().split()[0] == "0"


def _sample_on_the_gpu(folder: Path, out: Path) -> None:
    os.environ["LOCAL_RANK"] = "0"
    settings = SamplerSettings(steps=4, batch=3)
    sample.sample_run(folder, PROMPTS[:4], None, out, settings, count=2, seed=1, size_px=None, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_ranks_on_a_gpu_sample_what_one_does(trained: Path, tmp_path: Path) -> None:
    for size in (1, 2):
        run_ranks(size, _sample_on_the_gpu, trained, tmp_path / str(size))
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()


def test_a_stored_result_is_broadcast_to_all_ranks(trained: Path, tmp_path: Path) -> None:
    text = PROTOCOL.replace("130", "8")
    shutil.copytree(trained, tmp_path / "run")
    [(before, _)] = run_ranks(1, _evaluate, tmp_path / "run", text, tmp_path / "cache")
    for result, calls in run_ranks(2, _evaluate, tmp_path / "run", text, tmp_path / "cache"):
        assert result == before and not any(calls.values())
