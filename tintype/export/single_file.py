"""`tintype export --to safetensors`: the denoiser in one file, under the names of PRX's training.

The header describes it: `tintype` has all of it as JSON, and the most useful entries stand alone too.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from tintype.errors import UserError
from tintype.export.architecture import to_training
from tintype.export.contract import check_single_file
from tintype.export.pipeline_folder import Exported
from tintype.export.trained import Dtype, Weights, load_trained
from tintype.export.whole import refuse_existing, written_whole
from tintype.plan import plan_from_folder

ABOUT = "tintype"
_SUFFIX = ".safetensors"
_ALONE = ("architecture", "plan", "step", "weights", "dtype", "prediction")


def export_file(
    run: Path, out: Path, weights: Weights | None = None, dtype: Dtype = "fp32", ema_length: float | None = None
) -> Exported:
    """Write the whole file, or nothing."""
    if out.suffix != _SUFFIX:
        raise UserError(f"--out {out}: a single file is named NAME{_SUFFIX}")
    refuse_existing(out)
    check_single_file(plan_from_folder(run), run)
    trained = load_trained(run, weights, ema_length)
    tensors = {to_training(name): tensor for name, tensor in trained.denoiser(dtype).items()}
    about = trained.about(dtype)
    header = {"format": "pt", "modelspec.architecture": "prx", ABOUT: json.dumps(about)}
    header |= {f"{ABOUT}.{key}": str(about[key]) for key in _ALONE}
    with written_whole(out) as temporary:
        save_file(tensors, temporary, metadata=header)
    return Exported(out, about)
