"""Use the denoiser with averaged weights as the teacher of a loss term."""

from __future__ import annotations

import torch

from tintype.model import Transformer
from tintype.optim.part import AverageSettings
from tintype.runtime.forms import under
from tintype.seams import WeightAverage
from tintype.settings import PrecisionSettings


class AverageTeacher:
    """Run the denoiser directly on the averaged weights, without a second copy that could be outdated.

    The averaged denoiser does not use fused kernels, since they cache bf16 copies of weights and would miss updates of
    the averages.
    """

    def __init__(self, settings: AverageSettings, average: WeightAverage, precision: PrecisionSettings) -> None:
        self._settings, self._average = settings, average
        self._precision = precision.model_copy(update={"matmul": "plain"})
        self._network: Transformer | None = None

    def network(self, student: Transformer) -> Transformer:
        """Return the averaged denoiser, or the student itself before the first update of the average."""
        if self._network is None:
            weights = under("denoiser.", self._settings.sampled(self._average.tensors()))
            if not weights:
                return student
            plain = {"kernels": "plain", "compile": False, "activation_checkpointing": False}
            with torch.device("meta"):
                network = Transformer(
                    student.settings.model_copy(update=plain), student.channels, student.text_dim, self._precision
                )
            network.load_state_dict(weights, assign=True)
            self._network = network.requires_grad_(False)
        return self._network
