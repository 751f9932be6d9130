"""min-snr: the error of x has the weight min(SNR, γ), whatever the network predicts (Min-SNR, arXiv 2303.09556).

SNR = (1 - t)² / (t noise_scale)² on this path. The objective already weights the error of x (`x_weight`), so its loss
is multiplied by min(SNR, γ) / x_weight. For velocity prediction and noise of standard deviation 1, this factor is
min((1 - t)², γ t²). For x-prediction, it is min(SNR, γ) max(t, clamp)². The formula for variance-preserving paths,
min(SNR, γ) / (SNR + 1), would be off by t² + (1 - t)² here.

Differs: the weight is divided by its mean under the plan's density of t, unless `normalised` is off. The plain weight
has a mean of 0.16 over uniform t. The plain weight would thus change the effect of gradient clipping and of Adam's
epsilon.

B: samples of a micro-batch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from tintype.flow.part import WeightingPart
from tintype.seams import Objective, TimeDensity, Weighting


class MinSnrSettings(WeightingPart):
    kind: Literal["min-snr"] = "min-snr"
    gamma: float = Field(5.0, gt=0, description="Upper bound (gamma) of the signal-to-noise ratio in the loss weight")
    normalised: bool = Field(True, description="Divide the loss weight by its mean over the training density of t")

    def build(self, time: TimeDensity, objective: Objective) -> Weighting:
        def plain(t_B: Tensor) -> Tensor:
            snr_B = ((1 - t_B) / (t_B * objective.noise_scale)).square()  # infinite at t = 0, where the minimum is γ
            return snr_B.clamp_max(self.gamma) / objective.x_weight(t_B)

        mean = time.mean_of(plain) if self.normalised else 1.0
        return lambda t_B: plain(t_B) / mean
