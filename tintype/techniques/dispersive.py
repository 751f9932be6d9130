"""dispersive: samples of a micro-batch are pushed apart in the denoiser's features (`losses/dispersive.py`)."""

from tintype.losses.dispersive import DispersiveOptions, DispersiveSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="spread the samples of a batch apart inside a block, without a teacher",
    apply=lambda plan, options: {"losses": (*plan.losses, DispersiveSettings(**options.resolved(plan)))},
    options=DispersiveOptions,
    paper="arXiv:2506.09027",
    part=DispersiveSettings,
)
