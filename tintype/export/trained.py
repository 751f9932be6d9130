"""Load a run with the chosen weights, describe them for an export, and write them to one file.

`tintype export --to safetensors` writes the denoiser's tensors under the names of PRX's training. The file's header
describes the model. The header's entry `tintype` has the full record as JSON. The most useful values also have entries
of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor, nn

import tintype
from tintype.errors import UserError
from tintype.export.architecture import CLASS, check_tensors, to_training
from tintype.export.contract import check_single_file
from tintype.export.model_card import CardOptions
from tintype.export.whole import refuse_existing, written_whole
from tintype.plan import Plan
from tintype.runtime.files import following_umask
from tintype.settings import plain
from tintype.train.load import DTYPES, load_run
from tintype.train.parts import Model
from tintype.train.reconstruct import Reconstruction, reconstruction
from tintype.train.record import RunRecord
from tintype.wording import option

Weights = Literal["raw", "average"]
Dtype = Literal["fp32", "bf16"]
FORMAT = 1
ABOUT_IN_HEADER = "tintype"
_SUFFIX = ".safetensors"
_ALONE = ("architecture", "plan", "step", "weights", "dtype", "prediction")


@dataclass(frozen=True)
class ExportOptions:
    weights: Weights | None = None
    """The kind of weights to export. The default is the weight average, if the run has one."""
    dtype: Dtype = "fp32"
    ema_length: float | None = None
    card: CardOptions = field(default_factory=CardOptions)
    """Options of the card in an exported folder. A single file has no card."""


USUAL = ExportOptions()


@dataclass(frozen=True)
class Trained:
    parts: Model
    step: int
    weights: str
    """The kind of weights, raw or average. For a weight average of another length, its description."""
    average: Reconstruction | None = None
    """A weight average of another length than the checkpoint's, if one was requested."""

    @property
    def words(self) -> str:
        """Return the name of these weights in the results of an evaluation."""
        return self.average.words if self.average else self.weights

    @property
    def plan(self) -> Plan:
        return self.parts.plan

    def denoiser(self, dtype: Dtype) -> dict[str, Tensor]:
        tensors = self.stored(self.parts.denoiser, dtype)
        channels, text_dim = self.parts.tokenizer.channels, self.parts.text.dim
        check_tensors(tensors, self.plan.model, channels, text_dim, "the run")
        return tensors

    def stored(self, module: nn.Module, dtype: Dtype) -> dict[str, Tensor]:
        """Return a module's tensors converted to `dtype`. Integers, such as counters, keep their dtype."""
        tensors = module.state_dict()
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                if not tensor.isfinite().all():
                    raise UserError(f"the run's {self.words} weights of step {self.step} are not finite: {name}")
                tensors[name] = tensor.to(DTYPES[dtype])
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def about(self, dtype: Dtype) -> dict[str, Any]:
        """Return the record, without local paths, of the weights' origin and of the inputs that the model expects."""
        plan, size = self.plan, self.plan.tokenizer.compression
        tuned = {} if plan.tuning is None else {"tuned": plan.tuning.kind}
        sized = {"channels": size.channels, "stride_px": size.stride_px, **tuned}
        return {
            "format": FORMAT,
            "tintype": tintype.__version__,
            "architecture": CLASS,
            "plan": plan.hash,
            "step": self.step,
            "weights": self.words,
            **({"ema": {"length": self.average.length, "residual": self.average.residual}} if self.average else {}),
            "dtype": dtype,
            "prediction": plan.objective.predicts,
            "size_px": plan.data.size_px,
            "time": plain(plan.time),
            "sampling": plain(plan.sampling),
            "objective": plain(plan.objective),
            "model": plain(plan.model.model_copy(update={"compile": False, "activation_checkpointing": False})),
            "text": {**plan.text.portable(), "dim": self.parts.text.dim, "identity": self.parts.text.identity},
            "tokenizer": {**plan.tokenizer.portable(), **sized, "identity": self.parts.tokenizer.identity},
        }


def load_trained(run: Path, weights: Weights | None, ema_length: float | None = None) -> Trained:
    """Load a run's newest good weights, by default the average if there is one, or the average of `ema_length`."""
    record = RunRecord(run)
    plan = record.plan
    if about := record.about:
        if ema_length is not None or weights not in (None, about["weights"]):
            raise UserError(
                f"{run} is an exported model, which contains only the run's {about['weights']} weights",
                f"leave {option('weights')} and {option('ema-length')} out, or export the run itself",
            )
        parts, step = load_run(run, "cpu")
        return Trained(parts, step, about["weights"])
    record.check_plan()
    if weights == "average" and plan.ema is None:
        raise UserError(f"{run} has no average of its weights", f"use {option('weights', 'raw')}")
    if weights == "raw" and ema_length is not None:
        raise UserError(
            f"{option('ema-length')} chooses a weight average, but {option('weights', 'raw')} chooses weights "
            f"that are not averaged",
            "leave one of them out",
        )
    if not record.saved_steps:
        raise UserError(
            f"{run} was never trained: it has no checkpoint",
            f"train it with `tintype train {quote(str(run / 'plan.yaml'))} --out {quote(str(run))}`",
        )
    chosen: Weights = weights or ("raw" if plan.ema is None else "average")
    average = reconstruction(run, ema_length) if ema_length is not None else None
    parts, step = load_run(run, "cpu", average, raw=chosen == "raw")
    return Trained(parts, step, chosen, average)


@dataclass(frozen=True)
class Exported:
    path: Path
    about: dict[str, Any]
    warnings: tuple[str, ...] = ()


def export_file(run: Path, out: Path, options: ExportOptions = USUAL) -> Exported:
    """Write the file. After an error, no file remains."""
    if out.suffix != _SUFFIX:
        raise UserError(
            f"{option('out', out)} has the wrong ending", f"give the name of one file that ends in {_SUFFIX}"
        )
    refuse_existing(out)
    check_single_file(RunRecord(run).plan, run)
    trained = load_trained(run, options.weights, options.ema_length)
    tensors = {to_training(name): tensor for name, tensor in trained.denoiser(options.dtype).items()}
    about = trained.about(options.dtype)
    header = {"format": "pt", "modelspec.architecture": "prx", ABOUT_IN_HEADER: json.dumps(about)}
    header |= {f"{ABOUT_IN_HEADER}.{key}": str(about[key]) for key in _ALONE}
    with written_whole(out) as temporary, following_umask(temporary):
        save_file(tensors, temporary, metadata=header)
    return Exported(out, about)
