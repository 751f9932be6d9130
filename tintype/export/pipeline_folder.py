"""Implement `tintype export --to diffusers`: a folder that opens as a PRX pipeline without tintype.

Where possible, the folder's settings remove differences between the pipeline and training. For all other differences,
`tintype.json` in the folder has arguments for the call of the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintype.export import components
from tintype.export.architecture import to_config
from tintype.export.contract import LATENT, PIXEL, pipeline_for
from tintype.export.model_card import CARD, exported_card, write_card
from tintype.export.trained import USUAL, Dtype, Exported, ExportOptions, Trained, load_trained
from tintype.export.whole import refuse_existing, written_whole
from tintype.flow.path import sampling_times
from tintype.plan import Plan
from tintype.pretrained.hub import json_object
from tintype.pretrained.packages import diffusers_package, quiet
from tintype.runtime.files import write_json
from tintype.tokenizers.part import Pipeline
from tintype.train.load import DTYPES
from tintype.train.record import ABOUT, RunRecord

STEPS = 28
"""Number of sampling steps whose timesteps are stored. The number is the default of diffusers' PRX pipelines."""
CONFIGS = ("config.json", "model_index.json", "tokenizer_config.json")
"""Files in which diffusers and transformers record the path from which they were loaded."""
TRAIN_TIMESTEPS = 1000
"""The scheduler's time scale. The scheduler's timesteps are t × 1000."""


def export_pipeline(run: Path, out: Path, options: ExportOptions = USUAL) -> Exported:
    """Write the folder with its card. After an error, no folder is left."""
    refuse_existing(out)
    pipeline = pipeline_for(RunRecord(run).plan, run)  # before anything large is loaded
    trained = load_trained(run, options.weights, options.ema_length)
    about = {
        **trained.about(options.dtype),
        "pipeline": pipeline,
        "call": _call(trained, pipeline),
        "notes": [*_notes(trained)],
    }
    made = exported_card(run, options.card, about)
    with quiet("diffusers", "transformers"), written_whole(out) as temporary:
        _write(trained, pipeline, options.dtype, temporary)
        write_json(temporary / ABOUT, about)
        write_card(made, temporary / CARD)
    return Exported(out, about, made.warnings)


def timesteps(steps: int, shift: float) -> list[float]:
    """Return the timesteps of tintype's sampling grid, for a scheduler with shift 1.

    The pipeline gets them as an argument, since the last step of diffusers' own grid is almost 0.
    """
    return [t * TRAIN_TIMESTEPS for t in sampling_times(steps, shift)[:-1]]


def sampling_shift(plan: Plan) -> float:
    rows, columns = plan.token_grid
    return plan.sampling.shift_at(rows * columns, plan.token_numbers)


def _write(trained: Trained, pipeline: Pipeline, dtype: Dtype, folder: Path) -> None:
    diffusers = diffusers_package()
    plan, parts, kind = trained.plan, trained.parts, DTYPES[dtype]
    encoder = components.form_of(parts.text)
    parts_of = {
        "transformer": _transformer(trained.denoiser(dtype), plan, parts.tokenizer.channels, parts.text.dim),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=TRAIN_TIMESTEPS, shift=1.0),
        "text_encoder": components.network_of(encoder).to(kind),
        "tokenizer": components.tokenizer_of(encoder),
        "default_sample_size": plan.data.size_px,
    }
    if pipeline == LATENT:
        parts_of["vae"] = components.for_pipeline(parts.tokenizer).to(kind)
    else:
        parts_of |= {"prompt_max_tokens": encoder.max_tokens, "noise_scale": plan.objective.noise_scale}
    getattr(diffusers, pipeline)(**parts_of).save_pretrained(folder, safe_serialization=True)
    components.mend_config(folder / "text_encoder")
    for file in folder.rglob("*.json"):
        if file.name in CONFIGS:
            forget_places(file)


def _transformer(tensors: Mapping[str, Tensor], plan: Plan, channels: int, text_dim: int) -> Any:
    with torch.device("meta"):
        model = diffusers_package().PRXTransformer2DModel(**to_config(plan.model, channels, text_dim))
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


def _call(trained: Trained, pipeline: Pipeline) -> dict[str, Any]:
    """Return arguments for the call of the pipeline, with which it samples as tintype does."""
    call: dict[str, Any] = {
        "timesteps": timesteps(STEPS, sampling_shift(trained.plan)),
        "use_resolution_binning": False,
    }
    text = components.form_of(trained.parts.text)
    if pipeline == LATENT and text.clean != "prx":
        call["skip_text_cleaning"] = True
    if null := components.null_prompt(text):
        call["negative_prompt"] = null
    return call


def _notes(trained: Trained) -> Iterator[str]:
    """Yield a note on each remaining difference between the pipeline and training."""
    plan, text = trained.plan, components.form_of(trained.parts.text)
    if plan.route is not None:
        yield f"the pipeline guides by the empty prompt; guidance of kind `self` ({plan.route.kind}) is tintype's"
    if any(loss.velocity_bias(max(0, trained.step - 1)) for loss in plan.losses):
        yield "the bias of the contrastive loss stays in the velocity; `unbias` is tintype's"
    if text.clean is True:
        yield "training cleaned captions (text.clean); the pipeline does not: give prompts without HTML or links"
    if text.clean == "prx" and plan.tokenizer.pipeline == PIXEL:
        yield (
            "training cleaned captions as PRXPipeline does (text.clean=prx); PRXPixelPipeline does not: give prompts "
            "in lower case, without links and special characters"
        )
    if plan.sampling.shift_by != "none":
        yield (
            f"sampling.shift_by is {plan.sampling.shift_by}: the time steps in `call` are those of "
            f"{plan.data.size_px} px; other sizes have others"
        )
    if plan.sampling.guidance != "classifier-free":
        yield f"sampling.guidance is {plan.sampling.guidance}, which is tintype's; the pipeline's is classifier-free"
    if text.compute == "bf16":
        yield "training read captions in bf16; a pipeline opened in fp32 reads them more exactly"
    if plan.precision.islands.timestep == "bf16":
        yield "training rounded t to bf16 (precision.islands.timestep); the pipeline does not"


def forget_places(file: Path) -> None:
    """Remove the local paths that were written to a config file when a network was loaded."""
    stated = json_object(file)
    cleaned = json.loads(json.dumps(stated), object_pairs_hook=_without_places)
    if cleaned != stated:
        file.write_text(json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _without_places(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key not in ("_name_or_path", "name_or_path")}
