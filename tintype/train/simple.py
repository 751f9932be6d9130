"""Train modules that do not belong to a run, such as the small VAE and the scene encoder, in one process.

The loop, the checkpoints, resuming and the check for finite numbers are shared with the training of runs. A step whose
loss or gradient is not finite leaves the weights unchanged and ends the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tintype.config.strict import parse, read_file, write_yaml
from tintype.errors import DivergedError
from tintype.runtime.files import write_text
from tintype.runtime.gradients import clip
from tintype.runtime.identity import check_same
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import ONE
from tintype.runtime.locks import refuse_foreign
from tintype.runtime.transfer import PendingNumbers
from tintype.settings import Settings, plain
from tintype.train import checkpoint
from tintype.train.divergence import NON_FINITE, too_large
from tintype.train.folder import RunFolder
from tintype.train.state import TrainState
from tintype.train.steps import Cadence
from tintype.wording import option

SETTINGS_NAME = "training.yaml"
_KEPT = 2


def claim_folder(folder: RunFolder, settings: Settings, free: Collection[str]) -> None:
    """Claim the folder; raise if it contains a training with other settings, except those in `free`."""
    path = folder.path / SETTINGS_NAME
    if path.exists():
        there = parse(type(settings), read_file(path)).model_dump(exclude=set(free))
        check_same(path, "training", there, settings.model_dump(exclude=set(free)), f"choose another {option('out')}")
    else:
        refuse_foreign(folder.path, SETTINGS_NAME)
    folder.checkpoints.mkdir(exist_ok=True)
    write_text(path, write_yaml(plain(settings)))


@dataclass(frozen=True)
class SimpleStep:
    step: int
    losses: dict[str, Tensor]
    numbers: PendingNumbers
    """Loss, gradient norm, and whether the step was skipped."""


@dataclass
class SimpleTraining:
    """Train the modules of a state, given the losses of a step and the learning rate of the first group.

    The gradients of each module are clipped separately. `remedy` is advice on a step that is not finite.
    """

    folder: RunFolder
    state: TrainState
    cadence: Cadence
    interrupt: Interrupt
    batch: int
    losses: Callable[[], dict[str, Tensor]]
    lr_at: Callable[[int], float]
    minimised: Collection[str] = ("loss",)
    clip_norm: float | None = None
    remedy: str = "lower lr"
    began_s: float = field(default_factory=time.perf_counter)

    def interrupted(self) -> bool:
        return self.interrupt.signal is not None

    def take_step(self) -> SimpleStep:
        state, optimizer = self.state, self.state.optimizer
        optimizer.param_groups[0]["lr"] = self.lr_at(state.step)
        optimizer.zero_grad(set_to_none=True)
        losses = self.losses()
        torch.autograd.backward([losses[name] for name in self.minimised if name in losses])
        owned = [list(module.parameters()) for module in state.modules.values()]
        norms = [clip(some, self.clip_norm, ONE) for some in owned if any(one.grad is not None for one in some)]
        skipped = torch.stack([losses["loss"].detach(), *norms]).isfinite().all().logical_not().float()
        optimizer.found_inf = skipped  # type: ignore[attr-defined]
        optimizer.step()
        state.step += 1
        state.images_seen += self.batch
        found = {**{name: value.detach() for name, value in losses.items()}, "grad_norm": norms[0]}
        return SimpleStep(state.step, found, PendingNumbers(torch.stack([found["loss"], norms[0], skipped])))

    def check_step(self, result: SimpleStep) -> None:
        loss, grad_norm, skipped = result.numbers.numbers()
        if skipped:
            self.folder.log_event(NON_FINITE, result.step, loss=str(loss), grad_norm=str(grad_norm))
            raise DivergedError(
                f"step {result.step} is not finite (loss {loss:g}, gradient norm {grad_norm:g}) , so the "
                f"weights were not updated",
                f"{self.remedy}, with another {option('out')} than {self.folder.path}",
            )

    def finish_step(self) -> None:
        pass

    def log(self, window: Sequence[SimpleStep], saving: bool) -> dict[str, float]:
        if found := too_large(dict(self.state.modules.named_parameters()), None):
            raise DivergedError(f"the training diverged at step {self.state.step}: {found}", self.remedy)
        now_s = time.perf_counter()
        line = {"step": self.state.step, **{name: float(value) for name, value in window[-1].losses.items()}}
        line["images_per_s"] = len(window) * self.batch / (now_s - self.began_s)
        self.began_s = now_s
        self.folder.log_metrics(line)
        return line

    def save(self, now: bool) -> None:
        checkpoint.save(self.folder.checkpoints, self.state, _KEPT, records=self.folder.records())
