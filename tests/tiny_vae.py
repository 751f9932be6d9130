"""A small-vae with random weights whose latents have mean 0 and deviation 1 on the embedded scenes: 4 px a latent, 4
channels."""

from __future__ import annotations

from pathlib import Path

import torch

from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.tokenizers.part import to_floats
from tintype.tokenizers.small_vae import SmallVaeShape, Vae, write_vae


def write_tiny_vae(folder: Path, seed: int = 0, width: int = 8) -> Path:
    """The folder, with the network in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = Vae(SmallVaeShape(channels=4, stride_px=4, width=width, blocks=1)).eval()
        images = SceneSource(ScenesSettings(size_px=16, count=64, max_objects=2), "train", torch.device("cpu"))
        mean_BCHW = network.posterior(to_floats(images.images(range(64)))).mean_BCHW
        network.latent_mean.copy_(mean_BCHW.mean((0, 2, 3), keepdim=True))
        network.latent_std.copy_(mean_BCHW.std((0, 2, 3), keepdim=True))
    write_vae(folder, network, {})
    return folder
