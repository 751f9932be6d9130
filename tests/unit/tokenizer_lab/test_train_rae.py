from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.tiny_perceptual import sample_images
from tintype import cli
from tintype.config.strict import Document, parse
from tintype.errors import UserError
from tintype.losses.discriminator import Discriminator
from tintype.runtime.files import read_lines
from tintype.runtime.interrupt import Interrupt
from tintype.tokenizer_lab.report import read_tokenizer
from tintype.tokenizer_lab.train_rae import RaeTraining, noised
from tintype.tokenizer_lab.training import Outcome, train_tokenizer
from tintype.tokenizers.part import to_floats
from tintype.tokenizers.rae import RaeSettings
from tintype.train.steps import Progress

CPU = torch.device("cpu")
TINY = {
    "size_px": 24,
    "encoder": "scenes",
    "decoder": {"stride_px": 8, "width": 16, "depth": 1, "heads": 2},
    "scenes": {"count": 8, "style": "render"},
    "held_out": 2,
    "steps": 4,
    "batch": 4,
    "lr": 3e-3,
    "warmup_steps": 1,
    "save_every_steps": 2,
    "log_every_steps": 1,
}


def tiny(**changes: object) -> RaeTraining:
    return parse(RaeTraining, Document("tiny", {**TINY, **changes}))


def run(settings: RaeTraining, out: Path, stop_at: int | None = None) -> Outcome:
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == stop_at:
            interrupt.signal = signal.SIGTERM

    return train_tokenizer(settings, out, CPU, interrupt, at)


def test_noise_has_a_deviation_of_its_own_for_each_image_up_to_the_most() -> None:
    raw = torch.zeros(400, 2, 16, 16)
    position = torch.arange(400)
    found = noised(raw, 0.8, 3, position)
    deviation_B = found.flatten(1).std(dim=1)
    assert 0 < float(deviation_B.min()) < 0.02 and 0.75 < float(deviation_B.max()) < 0.9
    assert float(deviation_B.mean()) == pytest.approx(0.4, abs=0.04)  # uniform
    assert torch.equal(noised(raw[7:9], 0.8, 3, position[7:9]), found[7:9])
    assert noised(raw, 0.0, 3, position) is raw


def test_the_loss_is_l1_of_the_decoded_noisy_latents_and_its_weighted_terms() -> None:
    settings = tiny(
        perceptual={"kind": "scenes", "weight": 0.25}, adversarial={"weight": 0.1, "start_step": 0, "width": 8}
    )
    trainee, image, position = settings.begin(CPU), sample_images(0, 4, 24), torch.arange(4)
    losses = trainee.losses(position, image, settings.perceptual.load(CPU), Discriminator(8))
    raw = noised(trainee.encoder(image), 0.8, 0, position)
    wanted = (trainee.network.decode_raw(raw) - to_floats(image)).abs().mean()
    assert torch.equal(losses["reconstruction"], wanted)
    total = losses["reconstruction"] + 0.25 * losses["perceptual"] + 0.1 * losses["generator"]
    assert losses["loss"].item() == pytest.approx(total.item(), rel=1e-6)
    torch.autograd.backward([losses["loss"]])
    assert all(parameter.grad is not None for parameter in trainee.network.parameters())


def test_the_loss_falls_and_latents_of_training_images_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    settings = tiny(steps=30, save_every_steps=100)
    outcome = run(settings, tmp_path)
    losses = [line["reconstruction"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert outcome.record is not None and outcome.record.trained["held_out"] == 2
    tokenizer = RaeSettings(folder=str(tmp_path)).build()
    images = torch.cat([images for _, images in settings.open_data(CPU).batches(0, 64, 4)])
    z_C = tokenizer.encode(images).double().transpose(0, 1).flatten(1)
    assert z_C.mean(dim=1).abs().max() < 1e-3
    assert (z_C.std(dim=1, correction=0) - 1).abs().max() < 1e-3


@pytest.mark.slow
def test_a_stopped_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    settings = tiny()
    whole = run(settings, tmp_path / "whole")
    assert run(settings, tmp_path / "parts", stop_at=2).record is None
    second = run(settings, tmp_path / "parts")
    assert second.record == whole.record != run(tiny(noise=0.0), tmp_path / "silent").record
    assert run(settings, tmp_path / "parts").already_done
    of_whole, of_parts = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert [line["loss"] for line in of_whole] == [line["loss"] for line in of_parts]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size_px": 20}, "multiple of decoder.stride_px"),
        ({"decoder": {"width": 16, "heads": 3}}, r"width \(16\) must be a multiple of heads"),
        ({"kl_weight": 0.1}, "kl_weight: unknown key"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny(**changes)


def test_the_command_trains_it_and_a_report_reads_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "rae"
    sets = [
        "encoder=scenes",
        "size_px=16",
        "decoder={stride_px: 8, width: 8, depth: 1, heads: 1}",
        "steps=1",
        "batch=2",
        "scenes.count=4",
        "held_out=2",
    ]
    words = [word for one in sets for word in ("--set", one)]
    asked = ["tokenizer", "train", "--kind", "rae", "--out", str(out), *words, "--device", "cpu"]
    result = CliRunner().invoke(cli.app, asked, catch_exceptions=False)
    assert "trained 1 steps; PSNR" in " ".join(result.output.split())
    assert read_tokenizer(str(out)).kind == "rae"
