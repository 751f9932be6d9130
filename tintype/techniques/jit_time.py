"""jit-time: sample t from JiT's density, which is a logit-normal of mean -0.8 and std 0.8 in JiT's own time (arXiv
2511.13720).

In JiT, t = 1 is the data; here, t = 1 is the noise. Exchanging t and 1 - t changes the sign before the logistic
function. So the mean is +0.8 here, and most samples are noisy.

JiT does not shift its times, so `time.shift` becomes 1 and `time.shift_by` none. The sampling grid is a separate
decision and does not change.
"""

from __future__ import annotations

from pydantic import Field

from tintype.flow.time_density import LogitNormalTime
from tintype.plan import Plan
from tintype.settings import Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    p_mean: float = Field(
        -0.8,
        description="Mean of the normal distribution before the logistic function, in JiT's time, where t = 1 is data",
    )
    p_std: float = Field(0.8, gt=0, description="Its standard deviation")


def apply(plan: Plan, options: Options) -> Changes:
    own = {**plan.time.common, "mean": -options.p_mean, "std": options.p_std, "shift": 1.0, "shift_by": "none"}
    return {"time": LogitNormalTime(**own)}


TECHNIQUE = Technique(
    seam="time",
    summary="draw training times from JiT's density, which favours noisy times",
    apply=apply,
    options=Options,
    paper="arXiv:2511.13720",
)
