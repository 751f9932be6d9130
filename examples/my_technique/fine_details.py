"""fine-details: errors of high spatial frequency count more.

    tintype check examples/my_technique/fine_details.py
    tintype --plugin examples/my_technique/fine_details.py train pocket --technique fine-details --out runs/fine

The mean square error treats all frequencies alike (Parseval). With e the error of the velocity, F its orthonormal
Fourier transform over rows and columns, and |f| the length of a frequency over the largest one,

    L = w · mean over C and f of |f|^γ |F e|²

so γ = 0 is w times the mean square error, and with γ > 0 fine details count more.

B: samples of a micro-batch. C: channels. H, W: rows and columns of the latents.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.losses.part import LossPart
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.techniques.technique import Technique


class FineDetailsSettings(LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["fine-details"] = "fine-details"
    weight: float = Field(0.5, gt=0, description="w, its weight in the sum of the losses")
    power: float = Field(1.0, ge=0, description="γ: how much more high frequencies count; 0 treats all alike")

    def build(self, context: LossContext) -> FineDetails:
        return FineDetails(self.power)


class FineDetails(LossTerm):
    needs_images = False

    def __init__(self, power: float) -> None:
        self.power = power

    def loss(self, inputs: LossInputs) -> Tensor:
        loss_B = spectral_error(inputs.velocity_BCHW - inputs.target_BCHW, self.power)
        return loss_B if inputs.weight_B is None else inputs.weight_B * loss_B


def spectral_error(error_BCHW: Tensor, power: float) -> Tensor:
    """Return the weighted mean square of the errors' spectra, for each sample."""
    rows, columns = error_BCHW.shape[-2:]
    device = error_BCHW.device
    row_H, column_W = torch.fft.fftfreq(rows, device=device), torch.fft.fftfreq(columns, device=device)
    length_HW = (row_H[:, None].square() + column_W.square()).sqrt()
    weight_HW = torch.pow(length_HW / length_HW.amax(), power)
    spectrum_BCHW = torch.fft.fft2(error_BCHW.float(), norm="ortho")
    loss_B: Tensor = (weight_HW * spectrum_BCHW.abs().square()).mean((1, 2, 3))
    return loss_B


LOSSES = (FineDetailsSettings,)
TECHNIQUES = {
    "fine-details": Technique(
        seam="losses", summary="errors of high spatial frequency count more", options=FineDetailsSettings
    )
}


def test_mathematics() -> None:
    """Compare γ = 0 with the mean square error (Parseval); with γ = 2 a flat error counts nothing."""
    error_BCHW = torch.randn(3, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(spectral_error(error_BCHW, 0.0), error_BCHW.square().mean((1, 2, 3)))
    board_HW = 1.0 - 2.0 * ((torch.arange(6)[:, None] + torch.arange(8)) % 2)
    flat_and_board = torch.stack([torch.ones(6, 8), board_HW])[:, None]
    torch.testing.assert_close(spectral_error(flat_and_board, 2.0), torch.tensor([0.0, 1.0]))


def test_contract() -> None:
    """Make the checks of `tintype check`."""
    from tintype.contract.run import require_contract

    require_contract(__file__)
