from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tintype import rng
from tintype.config.strict import Document, parse
from tintype.errors import UserError
from tintype.rng import seeded
from tintype.runtime.interrupt import Interrupt
from tintype.tokenizer_lab.equivariance import Transform, draw_transform
from tintype.tokenizer_lab.train_small_vae import Training, losses_of, train
from tintype.tokenizers.part import to_floats
from tintype.tokenizers.small_vae import Vae
from tintype.train.steps import Progress

TINY = {
    "size_px": 32,
    "vae": {"channels": 2, "stride_px": 4, "width": 8, "blocks": 1},
    "scenes": {"count": 8, "style": "render"},
    "held_out": 2,
    "steps": 2,
    "batch": 4,
    "save_every_steps": 1,
    "log_every_steps": 1,
}


def tiny(**changes: object) -> Training:
    return parse(Training, Document("tiny", {**TINY, **changes}))


def test_the_loss_compares_the_decoded_transform_with_the_transformed_image() -> None:
    """L(τ x, D(τ z)): a smaller map, then quarter turns, of both sides."""
    settings = tiny(equivariance=1.0, kl_weight=0.0)
    with seeded(0, "vae"):
        network = Vae(settings.vae)
    position = torch.arange(4)
    image = torch.randint(0, 256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    found = losses_of(settings, network, None, position, image)["reconstruction"]
    transform = draw_transform(0, position, 1.0, 8)
    assert transform is not None and transform.side < 8
    noise = rng.normal(0, "small-vae/posterior", position, (2, 8, 8))
    z = network.posterior(to_floats(image)).sample(noise)
    side = (transform.side, transform.side)
    turned = torch.nn.functional.interpolate(z, side, mode="bilinear").rot90(transform.turns, (-1, -2))
    small = torch.nn.functional.interpolate(to_floats(image), (4 * side[0], 4 * side[1]), mode="bilinear")
    wanted = (network.decode_raw(turned) - small.rot90(transform.turns, (-1, -2))).abs().mean()
    assert torch.equal(found, wanted)


def test_an_equivariant_pair_has_no_loss() -> None:
    """Turning and shrinking commute with taking means of blocks, so latents that are such means decode to the image."""
    block = torch.rand(1, 3, 8, 8).repeat_interleave(2, -1).repeat_interleave(2, -2)
    means = torch.nn.functional.avg_pool2d(block, 2)
    transform = Transform(8, 1)
    assert torch.allclose(transform.latents(means), torch.nn.functional.avg_pool2d(transform.images(block, 2), 2))


def test_draws_have_the_share_the_sizes_and_the_turns() -> None:
    drawn = [draw_transform(0, torch.tensor([index]), 0.5, 8) for index in range(400)]
    some = [one for one in drawn if one is not None]
    assert 150 < len(some) < 250
    assert {one.side for one in some} == set(range(2, 8)) and {one.turns for one in some} == {1, 2, 3}
    assert draw_transform(0, torch.tensor([3]), 0.0, 8) is None
    assert draw_transform(1, torch.tensor([3]), 1.0, 1) in [Transform(1, turns) for turns in (1, 2, 3)]


def test_off_it_changes_nothing_and_resumed_it_is_the_same(tmp_path: Path) -> None:
    def run(name: str, share: float, stop_at: int | None = None) -> None:
        interrupt = Interrupt()

        def at(progress: Progress) -> None:
            if progress.step == stop_at:
                interrupt.signal = signal.SIGTERM

        train(tiny(equivariance=share), tmp_path / name, torch.device("cpu"), interrupt, at)

    run("off", 0.0)
    run("whole", 1.0)
    run("parts", 1.0, stop_at=1)
    run("parts", 1.0)
    first, second, off = (
        load_file(next((tmp_path / name).glob("*.safetensors"))) for name in ("whole", "parts", "off")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], off[name]) for name in first)


def test_networks_that_cannot_see_a_quarter_are_refused() -> None:
    with pytest.raises(UserError, match="with equivariance a quarter of size_px"):
        tiny(equivariance=0.5, adversarial={"weight": 0.1, "start_step": 1})
