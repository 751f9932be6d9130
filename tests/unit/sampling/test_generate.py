from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.errors import UserError
from tintype.flow.guidance import ClassifierFreeSettings, PathDropSettings, SelfSettings
from tintype.model.attention import Attention
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, generate
from tintype.sampling.sample import read_size, sample_run
from tintype.seams import Draws
from tintype.tokenizers.pixels import Pixels
from tintype.train.loop import train
from tintype.train.session import Session, build_session

PROMPTS = [
    f"a {colour} {shape}" for colour in ("red", "blue", "green", "white") for shape in ("ball", "ring", "star", "cross")
]
SETTINGS = SamplerSettings(steps=8, guidance=ClassifierFreeSettings(scale=3.0))


@pytest.fixture(scope="module")
def parts() -> Session:
    """A model whose every weight matters."""
    built = build_session(tiny_plan())
    generator = torch.Generator().manual_seed(0)
    for parameter in built.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return built


class FloatPixels(Pixels):
    """Leaves the sampler's result as it is, so that differences below one grey level are seen."""

    def decode(self, z_BCHW: torch.Tensor) -> torch.Tensor:
        return z_BCHW


@pytest.mark.parametrize("method", ["euler", "heun"])
def test_image_seven_alone_and_in_a_batch_of_sixteen_agree(parts: Session, method: str) -> None:
    from dataclasses import replace

    exact = replace(parts, tokenizer=FloatPixels())
    settings = SETTINGS.model_copy(update={"method": method, "batch": 16})
    together = generate(exact, PROMPTS, settings, seed=3, size_px=16)
    alone = generate(exact, [PROMPTS[7]], settings, seed=3, size_px=16, first_index=7)
    assert float((together[7] - alone[0]).abs().max()) < 1e-4
    assert float((together[7] - together[6]).abs().max()) > 0.1


@pytest.mark.parametrize("batch", [1, 5, 16])
def test_images_do_not_depend_on_the_batch_size(parts: Session, batch: int) -> None:
    whole = generate(parts, PROMPTS, SETTINGS, seed=0, size_px=16)
    cut = generate(parts, PROMPTS, SETTINGS.model_copy(update={"batch": batch}), seed=0, size_px=16)
    assert int((whole.int() - cut.int()).abs().max()) <= 1


def test_seed_prompt_and_guidance_each_matter(parts: Session) -> None:
    base = generate(parts, PROMPTS[:1], SETTINGS, seed=0, size_px=16)
    assert not torch.equal(base, generate(parts, PROMPTS[:1], SETTINGS, seed=1, size_px=16))
    assert not torch.equal(base, generate(parts, PROMPTS[5:6], SETTINGS, seed=0, size_px=16))
    plain = SETTINGS.model_copy(update={"guidance": ClassifierFreeSettings(scale=1.0)})
    assert not torch.equal(base, generate(parts, PROMPTS[:1], plain, seed=0, size_px=16))


def test_watching_changes_nothing_and_ends_at_the_image(parts: Session) -> None:
    """The last Euler step goes to t = 0, so its estimate x_t - t v is the image itself."""
    settings, seen = SamplerSettings(steps=3), list[torch.Tensor]()
    plain = generate(parts, ["a red ball"], settings, seed=1, size_px=16)
    watched = generate(
        parts, ["a red ball"], settings, seed=1, size_px=16, on_estimate=lambda estimate: seen.append(estimate())
    )
    assert torch.equal(plain, watched) and len(seen) == 3
    assert torch.equal(seen[-1], plain) and not torch.equal(seen[0], plain)


def test_text_is_read_once_and_not_at_every_step(parts: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = Attention.read_text

    def counted(self: Attention, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return original(self, text)

    monkeypatch.setattr(Attention, "read_text", counted)
    generate(parts, PROMPTS[:2], SETTINGS, seed=0, size_px=16)
    assert len(calls) == 2 * parts.plan.model.depth  # once for the captions, once for the null caption


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "run"
    train(tiny_plan(techniques=["ema"]), folder, Interrupt())
    return folder


def test_pngs_carry_their_settings_and_a_contact_sheet_is_made(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a red ball\n\na <b>blue</b> ring\n", encoding="utf-8")
    written = sample_run(run, ["one"], file, tmp_path / "out", SETTINGS, count=2, seed=4, size_px=None)
    assert [path.name for path in written] == [*(f"{i:04d}.png" for i in range(6)), "contact-sheet.png"]
    with Image.open(written[5]) as image:
        assert image.size == (16, 16)
        assert image.text["prompt"] == "a <b>blue</b> ring"  # type: ignore[attr-defined]
        assert '"seed": 4' in image.text["tintype"] and '"steps": 8' in image.text["tintype"]  # type: ignore[attr-defined]


def test_images_of_another_command_are_numbered_after_those_that_are_there(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def names(*prompts: str, seed: int = 0, batch: int = 4, count: int = 1) -> list[str]:
        settings = SETTINGS.model_copy(update={"batch": batch})
        return [
            path.name
            for path in sample_run(run, list(prompts), None, out, settings, count=count, seed=seed, size_px=None)
        ]

    first, second = ["0000.png", "0001.png", "contact-sheet.png"], ["0002.png", "contact-sheet-0002.png"]
    assert names("a", "b") == first
    kept = {name: (out / name).read_bytes() for name in first}
    assert names("c") == second
    assert names("a", "b") == first and names("c") == second, "the same command writes the same files again"
    assert names("c", seed=1) == ["0003.png", "contact-sheet-0003.png"]
    assert {name: (out / name).read_bytes() for name in first} == kept
    with Image.open(out / "contact-sheet-0003.png") as sheet, Image.open(out / "0003.png") as image:
        assert sheet.tobytes() == image.tobytes(), "of this command's images only"
    (out / "0003.png").write_bytes(b"no image")
    assert names("c", seed=1) == ["0004.png", "contact-sheet-0004.png"], "what is not known is left as it is"
    assert names("a", "b", batch=1) == first, "images do not depend on the batch"
    (out / "0001.png").unlink()
    assert names("a", "b") == first, "a command that was interrupted writes the rest"
    assert names("a", "b", "c") == ["0005.png", "0006.png", "0007.png", "contact-sheet-0005.png"]


def test_bad_sampling_requests(run: Path, tmp_path: Path) -> None:
    def ask(prompts: list[str], size_px: int | None = None, folder: Path = run) -> None:
        sample_run(folder, prompts, None, tmp_path / "out", SETTINGS, count=1, seed=0, size_px=size_px)

    with pytest.raises(UserError, match="no prompt"):
        ask([])
    with pytest.raises(UserError, match="multiples of 4"):
        ask(["x"], size_px=18)
    with pytest.raises(UserError, match=r"is not a run: plan\.yaml is missing"):
        ask(["x"], folder=tmp_path)


@pytest.mark.parametrize("text", ["832x1248", " 832×1248 "])
def test_a_size_is_read_as_width_and_height(text: str) -> None:
    assert read_size(text) == (1248, 832) and read_size("512") == 512
    for wrong in ("", "0", "832x", "x832", "832x0", "8.5", "1x2x3", "-4"):
        with pytest.raises(UserError, match="give the side of a square in pixels"):
            read_size(wrong)


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 24), (24, 8), (2080, 8)])
def test_oblong_images_are_euler_steps_of_oblong_noise(parts: Session, size: tuple[int, int]) -> None:
    """Written out, without guidance: x ← x + (t' - t) v(x, t) from the noise of (seed, index)."""
    plain = SamplerSettings(steps=2, guidance=ClassifierFreeSettings(scale=1.0))
    found = generate(parts, PROMPTS[:2], plain, seed=3, size_px=size, first_index=5)
    x_BCHW = Draws(3, torch.tensor([5, 6])).normal("sample", (3, *size))
    text = parts.text.encode(PROMPTS[:2])
    for t, later in ((1.0, 0.5), (0.5, 0.0)):
        x_BCHW = x_BCHW + (later - t) * parts.velocity(x_BCHW, torch.full((2,), t), text)
    assert found.shape == (2, 3, *size)
    assert int((found.int() - Pixels().decode(x_BCHW).int()).abs().max()) <= 1


@pytest.mark.parametrize("kind", ["self", "path-drop"])
def test_guidances_that_leave_tokens_out_take_oblong_images(parts: Session, kind: str) -> None:
    guidance = {"self": SelfSettings, "path-drop": PathDropSettings}[kind](scale=2.0)
    if kind == "path-drop":
        parts = build_session(tiny_plan(techniques=["sprint"]))
    settings = SamplerSettings(steps=2, guidance=guidance)
    assert generate(parts, PROMPTS[:2], settings, seed=3, size_px=(8, 24)).shape == (2, 3, 8, 24)


def test_the_command_makes_images_of_width_and_height(run: Path, tmp_path: Path) -> None:
    command = ["sample", str(run), "a ball", "--steps", "1", "--out", str(tmp_path), "--size"]
    assert CliRunner().invoke(app, [*command, "24x8"]).exit_code == 0
    with Image.open(tmp_path / "0000.png") as image:
        assert image.size == (24, 8) and json.loads(image.info["tintype"])["size_px"] == [8, 24]
    assert CliRunner().invoke(app, [*command, "16x16"]).exit_code == 0
    with Image.open(tmp_path / "0001.png") as image:
        assert image.size == (16, 16) and json.loads(image.info["tintype"])["size_px"] == 16
    refused = CliRunner().invoke(app, [*command, "24x9"])
    assert "--size 24x9: this model can only sample sizes that are multiples of 4" in str(
        refused.exception or refused.output
    )
