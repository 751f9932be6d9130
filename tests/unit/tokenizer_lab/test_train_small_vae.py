from __future__ import annotations

import io
import json
import signal
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from tests.tiny_perceptual import sample_images, write_alexnet
from tintype.config.strict import Document, parse
from tintype.data.fit import crop, shrunk
from tintype.errors import UserError
from tintype.losses.discriminator import Discriminator
from tintype.losses.reconstruction import PerceptualSettings
from tintype.metrics.reconstruction import psnr
from tintype.runtime.files import read_lines
from tintype.runtime.interrupt import Interrupt
from tintype.tokenizer_lab.images import ImageSettings, TrainingImages, held_out_ids, measured_images
from tintype.tokenizer_lab.train_small_vae import (
    Training,
    latent_statistics,
    losses_of,
    reconstruction_loss,
    train,
)
from tintype.tokenizer_lab.training import Outcome
from tintype.tokenizers.part import to_floats
from tintype.tokenizers.small_vae import SmallVae, SmallVaeSettings, Vae, read_vae
from tintype.train.steps import Progress

CPU = torch.device("cpu")
PARTS = ("whole", "parts")
TINY = {
    "size_px": 16,
    "vae": {"channels": 2, "stride_px": 4, "width": 8, "blocks": 1},
    "scenes": {"count": 8, "style": "render"},
    "held_out": 4,
    "steps": 6,
    "batch": 4,
    "lr": 3e-3,
    "warmup_steps": 2,
    "save_every_steps": 2,
    "log_every_steps": 1,
}


def tiny(**changes: object) -> Training:
    return parse(Training, Document("tiny", {**TINY, **changes}))


def run(settings: Training, out: Path, stop_at: int | None = None) -> Outcome:
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == stop_at:
            interrupt.signal = signal.SIGTERM

    return train(settings, out, CPU, interrupt, at)


def photos(folder: Path, count: int = 10, size_px: int = 24) -> Path:
    folder.mkdir()
    for index, image in enumerate(sample_images(5, count, size_px)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index:02d}.png")
    return folder


def test_the_loss_falls_and_the_record_says_what_was_reached(tmp_path: Path) -> None:
    outcome = run(tiny(steps=60, save_every_steps=100, lr=1e-2), tmp_path)
    losses = [line["reconstruction"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert outcome.record is not None
    assert sum(p.numel() for p in read_vae(tmp_path).parameters()) == outcome.record.trained["parameters"] < 25_000
    tokenizer = SmallVaeSettings(folder=str(tmp_path)).build()
    held_out = tiny().open_data(CPU).held_out_images()
    expected = psnr(held_out, tokenizer.decode(tokenizer.encode(held_out))).mean().item()
    assert outcome.record.trained["psnr_db"] == pytest.approx(expected, abs=1e-6)
    assert outcome.record.trained["held_out"] == 4


def test_encoded_training_pictures_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    settings = tiny()
    run(settings, tmp_path)
    tokenizer = SmallVaeSettings(folder=str(tmp_path)).build()
    images = torch.cat([images for _, images in settings.open_data(CPU).batches(0, 64, 4)])
    z_C = tokenizer.encode(images).double().transpose(0, 1).flatten(1)
    assert z_C.mean(dim=1).abs().max() < 1e-4
    assert (z_C.std(dim=1, correction=0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_a_stopped_training_goes_on_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    settings = tiny()
    whole = run(settings, tmp_path / "whole")
    first = run(settings, tmp_path / "parts", stop_at)
    assert (first.step, first.record) == (stop_at, None)
    assert not (tmp_path / "parts" / "vae.json").exists()
    second = run(settings, tmp_path / "parts")
    assert whole.record is not None
    assert second.record == whole.record
    of_whole, of_parts = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert [line["loss"] for line in of_whole] == [line["loss"] for line in of_parts]


def adversarial(**changes: object) -> Training:
    settings = {"weight": 0.1, "start_step": 2, "lr": 1e-3, "width": 8, **changes}
    return tiny(size_px=24, adversarial=settings)


@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_stopped_adversarial_training_goes_on_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    """Also where it stopped before the discriminator's first step, when the optimizer holds nothing of it."""
    settings = adversarial()
    whole = run(settings, tmp_path / "whole")
    run(settings, tmp_path / "parts", stop_at)
    second = run(settings, tmp_path / "parts")
    assert whole.record is not None
    assert second.record == whole.record
    lines = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts")]
    for name in ("loss", "generator", "discriminator"):
        assert [line.get(name) for line in lines[0]] == [line.get(name) for line in lines[1]]
    last = [load_file(next((tmp_path / name / "checkpoints").glob("*6")) / "state.safetensors") for name in PARTS]
    assert last[0].keys() == last[1].keys()
    assert any(name.startswith("optimizer/adversary.") for name in last[0])
    assert all(torch.equal(tensor, last[1][name]) for name, tensor in last[0].items())


def test_the_discriminator_comes_at_its_step_and_changes_what_is_learnt(tmp_path: Path) -> None:
    with_it, without = run(adversarial(), tmp_path / "with"), run(tiny(size_px=24), tmp_path / "without")
    lines, plain_lines = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("with", "without"))
    assert ["discriminator" in line for line in lines] == [False, False, True, True, True, True]
    assert [line["loss"] for line in lines[:2]] == [line["loss"] for line in plain_lines[:2]]
    assert with_it.record is not None and without.record is not None
    assert with_it.record.sha256 != without.record.sha256
    assert with_it.record.trained["parameters"] == without.record.trained["parameters"]


def test_the_losses_are_in_fp32_where_the_networks_are_not() -> None:
    settings, image = adversarial().model_copy(update={"compute": "bf16"}), sample_images(0, 4, 24)
    vae, judge = Vae(settings.vae), Discriminator(8)
    half = losses_of(settings, vae, None, torch.arange(4), image, judge)
    exact = losses_of(adversarial(), vae, None, torch.arange(4), image, judge)
    assert {value.dtype for value in half.values()} == {torch.float32}
    for name in ("generator", "discriminator"):
        assert half[name].item() != exact[name].item()
        assert half[name].item() == pytest.approx(exact[name].item(), abs=0.02)


def test_neither_loss_reaches_the_others_parameters() -> None:
    settings = adversarial()
    vae, judge, image = Vae(settings.vae), Discriminator(8), sample_images(0, 4, 24)
    losses = losses_of(settings, vae, None, torch.arange(4), image, judge)
    expected = losses["reconstruction"] + settings.kl_weight * losses["kl"] + 0.1 * losses["generator"]
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    torch.autograd.backward([losses["loss"]], retain_graph=True)
    assert all(parameter.grad is None for parameter in judge.parameters())
    of_vae = [parameter.grad.clone() for parameter in vae.parameters() if parameter.grad is not None]
    assert of_vae
    torch.autograd.backward([losses["discriminator"]])
    assert all(parameter.grad is not None for parameter in judge.parameters())
    after = [parameter.grad for parameter in vae.parameters() if parameter.grad is not None]
    assert all(torch.equal(before, now) for before, now in zip(of_vae, after, strict=True))


def test_a_training_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = run(tiny(), tmp_path)
    before = (tmp_path / "vae.safetensors").stat().st_mtime_ns
    again = run(tiny(save_every_steps=3), tmp_path)
    assert again.already_done
    assert again.record == first.record
    assert (tmp_path / "vae.safetensors").stat().st_mtime_ns == before


def test_the_seed_decides(tmp_path: Path) -> None:
    digests = []
    for index, seed in enumerate((0, 0, 1)):
        record = run(tiny(seed=seed, steps=2), tmp_path / str(index)).record
        assert record is not None
        digests.append(record.sha256)
    assert digests[0] == digests[1] != digests[2]


def test_another_training_or_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "out", stop_at=2)
    with pytest.raises(UserError, match=r"another training \(kl_weight: 0.0001 there, 0.5 here\)"):
        run(tiny(kl_weight=0.5), tmp_path / "out")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("words")
    with pytest.raises(UserError, match=r"other files, but not training\.yaml"):
        run(tiny(), tmp_path / "foreign")


def test_pictures_that_changed_are_refused(tmp_path: Path) -> None:
    settings = tiny(data=str(photos(tmp_path / "photos")))
    run(settings, tmp_path / "out", stop_at=2)
    Image.new("RGB", (24, 24)).save(tmp_path / "photos" / "03.png")
    with pytest.raises(UserError, match="identity of 'data'"):
        run(settings, tmp_path / "out")


def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path) -> None:
    settings = tiny()
    whole = run(settings, tmp_path / "whole")
    run(settings, tmp_path / "parts", stop_at=4)
    newest = tmp_path / "parts" / "checkpoints" / "step-000000004" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert run(settings, tmp_path / "parts").record == whole.record


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size_px": 18}, "multiple of vae.stride_px"),
        ({"short_px": 16, "size_px": 32}, "no crop would fit"),
        ({"perceptual": {"kind": "lpips", "net": "alexnet"}}, "at least 31"),
        ({"vae": {"width": 12}}, "multiple of 8"),
        ({"adversarial": {"weight": 0.1, "start_step": 0}}, "size_px of at least 24"),
        ({"size_px": 24, "adversarial": {"weight": 0.1, "start_step": 6}}, "would never be used"),
        ({"stepz": 3}, "did you mean 'steps'"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny(**changes)


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower lr"):
        run(tiny(lr=1e30, warmup_steps=0, steps=30), tmp_path)


def test_the_loss_is_the_weighted_sum_of_its_terms() -> None:
    settings = tiny(kl_weight=0.5, perceptual={"kind": "scenes", "weight": 0.25})
    vae, image = Vae(settings.vae), sample_images(0, 4, 16)
    losses = losses_of(settings, vae, settings.perceptual.load(CPU), torch.arange(4), image)
    expected = losses["reconstruction"] + 0.5 * losses["kl"] + 0.25 * losses["perceptual"]
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert losses["kl"].item() == pytest.approx(vae.posterior(to_floats(image)).kl().mean().item(), rel=1e-5)


def test_reconstruction_losses() -> None:
    seen, true = torch.tensor([0.3, -0.5]), torch.tensor([0.0, 0.0])
    assert reconstruction_loss("l1", seen, true).item() == pytest.approx(0.4)
    charbonnier = [(0.09 + 1e-6) ** 0.5 - 1e-3, (0.25 + 1e-6) ** 0.5 - 1e-3]
    assert reconstruction_loss("charbonnier", seen, true).item() == pytest.approx(sum(charbonnier) / 2, rel=1e-5)
    assert reconstruction_loss("charbonnier", true, true).item() == 0


@pytest.mark.parametrize(
    "perceptual",
    [
        PerceptualSettings(kind="scenes"),
        PerceptualSettings(kind="lpips", net="alexnet", weights=str(write_alexnet())),
    ],
)
def test_a_perceptual_distance_is_zero_at_the_truth_and_has_a_gradient(perceptual: PerceptualSettings) -> None:
    distance = perceptual.load(CPU)
    assert distance is not None
    true = to_floats(sample_images(0, 2, 32))
    seen = nn.Parameter(true + 0.1 * torch.sin(torch.arange(32.0)))
    assert distance(true, true).abs().max() < 1e-6
    far = distance(seen, true)
    assert far.shape == (2,)
    assert (far > 1e-5).all()
    torch.autograd.backward([far.sum()])
    assert seen.grad is not None
    assert seen.grad.abs().max() > 0
    assert PerceptualSettings().load(CPU) is None


def test_statistics_are_those_of_all_latents_at_once() -> None:
    vae = Vae(tiny().vae)
    image = sample_images(4, 6, 16)
    mean_C, std_C = latent_statistics(vae, image.split(4))
    raw = vae.posterior(to_floats(image)).mean_BCHW.detach().double()
    torch.testing.assert_close(mean_C.double(), raw.mean(dim=(0, 2, 3)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(std_C.double(), raw.std(dim=(0, 2, 3), correction=0), rtol=1e-5, atol=1e-6)


def test_it_trains_on_pictures_and_holds_some_out(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for file in sorted(folder.iterdir()):
            tar.add(file, file.name)
    for name in ("photos", "photos.tar"):
        outcome = run(tiny(data=str(tmp_path / name), steps=2), tmp_path / f"out-{name}")
        assert outcome.record is not None
        assert outcome.record.trained["held_out"] == 2  # a fifth of ten
    same = [
        json.loads((tmp_path / f"out-{name}" / "vae.json").read_text())["sha256"] for name in ("photos", "photos.tar")
    ]
    assert same[0] == same[1]


def test_no_held_out_picture_is_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "grey"
    folder.mkdir()
    for index in range(10):
        Image.new("RGB", (20, 24), (index, index, index)).save(folder / f"{index:02d}.png")
    data = TrainingImages(ImageSettings(data=str(folder), size_px=16, held_out=2), 0, CPU)
    trained = {int(image[0, 0, 0]) for _, batch in data.batches(0, 12, 4) for image in batch}
    held_out = [int(image[0, 0, 0]) for image in data.held_out_images()]
    assert trained == set(range(10)) - set(held_out)
    assert held_out == held_out_ids(2, 10)
    measured, total = measured_images(str(folder), 16, 2, CPU)
    assert [int(image[0, 0, 0]) for image in measured] == held_out  # a report of as many sees just those
    assert total == 10


def test_crops_come_from_everywhere_and_are_exact() -> None:
    image = torch.arange(6 * 8).view(1, 6, 8)
    assert torch.equal(crop(image, 4, 0.0, 0.0), image[:, :4, :4])
    assert torch.equal(crop(image, 4, 0.9999, 0.9999), image[:, 2:, 4:])
    assert torch.equal(crop(image, 4, 0.5, 0.5), image[:, 1:5, 2:6])


def test_pictures_are_shrunk_by_their_short_side_and_never_enlarged(tmp_path: Path) -> None:
    image = torch.full((3, 32, 48), 77, dtype=torch.uint8)
    assert torch.equal(shrunk(image, 16), torch.full((3, 16, 24), 77, dtype=torch.uint8))
    with pytest.raises(UserError, match="24 × 24 pixels, fewer than 32"):
        run(tiny(data=str(photos(tmp_path / "photos")), size_px=16, short_px=32), tmp_path / "out")
    with pytest.raises(UserError, match="fewer than 28"):
        measured_images(str(tmp_path / "photos"), 28, 4, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_trains_on_a_gpu_in_bf16(tmp_path: Path) -> None:
    device = torch.device("cuda")
    outcome = train(tiny(compute="bf16", steps=20), tmp_path, device, Interrupt())
    assert outcome.record is not None
    tokenizer = SmallVae(read_vae(tmp_path).to(device))
    image = sample_images(0, 2, 16)
    on_gpu, on_cpu = tokenizer.encode(image.to(device)).cpu(), SmallVae(read_vae(tmp_path)).encode(image)
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-3)


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "04.png").write_bytes(io.BytesIO(b"no picture").getvalue())
    with pytest.raises(UserError, match=r"04\.png cannot be read"):
        run(tiny(data=str(folder)), tmp_path / "out")


VF = {"weight": 0.1, "teacher": {"kind": "scenes"}}


def test_the_vf_loss_is_added_by_the_weight_that_balances_it() -> None:
    """|gradient at the encoder's last layer|: a tenth of reconstruction's, whatever the size of either loss."""
    settings = tiny(vf=VF, kl_weight=0.0, perceptual={"kind": "scenes", "weight": 0.25})
    vae, image = Vae(settings.vae), sample_images(0, 4, 16)
    vf = settings.vf.build(2, (4, 4), 0, CPU)
    assert vf is not None
    losses = losses_of(settings, vae, settings.perceptual.load(CPU), torch.arange(4), image, vf=vf)
    compared = losses["reconstruction"] + 0.25 * losses["perceptual"]
    expected = compared + losses["vf_weight"] * losses["vf"]
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [
        torch.autograd.grad(one, vae.last_encoder_weight, retain_graph=True)[0].norm().item()
        for one in (compared, losses["vf_weight"] * losses["vf"])
    ]
    assert gradients[1] == pytest.approx(0.1 * gradients[0], rel=0.02)
    torch.autograd.backward([losses["loss"]])
    assert vf.project.weight.grad is not None and vf.project.weight.grad.abs().max() > 0


def test_a_stopped_training_with_the_vf_loss_goes_on_bit_for_bit(tmp_path: Path) -> None:
    settings = tiny(vf=VF, equivariance=0.5)
    whole = run(settings, tmp_path / "whole")
    run(settings, tmp_path / "parts", stop_at=3)
    assert (
        run(settings, tmp_path / "parts").record == whole.record != run(tiny(equivariance=0.5), tmp_path / "off").record
    )
    lines = [read_lines(tmp_path / name / "metrics.jsonl") for name in PARTS]
    for name in ("loss", "vf", "vf_weight"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]
    assert whole.record is not None
    assert whole.record.trained["settings"]["vf"]["teacher"] == {"kind": "scenes"}
