"""Estimate the seconds of a study's runs on this machine, from a few steps and a few samples of its baseline.

An arm's time is the baseline's, scaled by the arm's number of operations. Scoring includes the sampler's steps and the
scene encoder's features, but no other encoders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

import torch

from tintype.bench.run import matmul_flop_per_s, some_captions, update
from tintype.config.strict import Document
from tintype.cost.plan import PlanCost, cost_of_plan, estimated_speed
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan, plan_from_document
from tintype.runtime.clock import Clock
from tintype.runtime.dist import current
from tintype.runtime.machine import cpu_threads
from tintype.sampling.generate import SamplerSettings, generate
from tintype.settings import plain
from tintype.study.costs import Measured, RunSeconds, is_for_cpu
from tintype.study.study import Study
from tintype.train.exact import deterministic_steps
from tintype.train.prepare import prepare_ids, prepare_term
from tintype.train.session import Session, build_session
from tintype.train.state import new_state
from tintype.vision.scene_encoder import scene_features

_MOST_STEPS, _MOST_S = 20, 3.0
"""Maximum number of timed steps, and seconds after which no further step starts."""
_SAMPLER_STEPS = 2
_FORWARD_SHARE = 3
"""Cost of a training step, in forward passes. The backward pass costs two forward passes."""
_ANY_GPU = "h200"
"""Kind of GPU with which operations are counted. The counts do not depend on the kind."""


@dataclass(frozen=True)
class Pace:
    """Measured seconds of a plan on this machine."""

    step_s: float
    sample_s: float
    """Seconds of a sampler step for one image."""
    feature_s: float
    """The scene encoder's seconds for one image; 0 if the data are not scenes."""
    steps: int
    samples: int

    def scoring_s(self, protocol: Protocol) -> float:
        """Return the seconds of an evaluation: sampling, reading the images, and features for the distances."""
        total = 0.0
        for one in protocol.conditions:
            prompts = one.prompt_file.prompts if one.prompt_file is not None else ()
            images = one.count if one.count is not None else len(prompts) * one.per_prompt
            passes = one.sampler.steps * (2 if one.sampler.method == "heun" else 1)
            readings = 1 + len(protocol.encoders_of(one))
            total += images * (passes * self.sample_s + readings * self.feature_s)
        return total


def measure_pace(plan: Plan, sampler: SamplerSettings) -> Pace:
    """Time a few steps and samples of a plan, made as its runs make them, but not the first ones."""
    plan = plan_from_document(Document("the baseline", plain(plan)), ["run.latents=none"])
    with cpu_threads(plan.run.device, plan.run.threads), deterministic_steps(plan, current()):
        parts = build_session(plan)
        parts.ready()
        try:
            step_s, steps = _steps(parts)
            image_BCHW, sample_s = _samples(parts, sampler)
        finally:
            forget_sources()
        feature_s = 0.0
        if plan.data.of_scenes:
            reading = scene_features(parts.device)
            feature_s = _second_call_s(lambda: reading.read(image_BCHW)) / len(image_BCHW)
    return Pace(step_s, sample_s, feature_s, steps, len(image_BCHW))


def _steps(parts: Session) -> tuple[float, int]:
    """Return the median seconds of a step, and the number of timed steps."""
    state, clock = new_state(parts), Clock(parts.device)
    batch = parts.plan.train.batch
    ids = parts.order.ids(0, (1 + _MOST_STEPS) * batch)
    prepare_ids(parts, ids, parts.source)
    for term in filter(lambda term: term.part.caches, parts.terms_at(0)):
        prepare_term(parts, term, ids, 0)
    update(parts, state, clock)
    taken_s: list[float] = []
    while len(taken_s) < _MOST_STEPS and sum(taken_s) < _MOST_S:
        began_s = time.perf_counter()
        update(parts, state, clock)
        taken_s.append(time.perf_counter() - began_s)
    return median(taken_s), len(taken_s)  # other work of the machine delays single steps


def _samples(parts: Session, sampler: SamplerSettings) -> tuple[torch.Tensor, float]:
    """Return a batch of images, and the seconds of a sampler step for one image."""
    captions = some_captions(parts, min(sampler.batch, parts.plan.train.batch))
    short = sampler.model_copy(update={"steps": _SAMPLER_STEPS})
    made: list[torch.Tensor] = []

    def sample() -> None:
        made.append(generate(parts, captions, short, seed=0, size_px=parts.plan.data.size_px))

    seconds = _second_call_s(sample)
    return made[0], seconds / len(captions) / _SAMPLER_STEPS


def _second_call_s(work: Callable[[], object]) -> float:
    work()
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def expected_seconds(study: Study, counted: Mapping[str, PlanCost] = MappingProxyType({})) -> Measured | str:
    """Return the seconds of a study's runs on this machine's CPU, or the reason why they are unknown.

    A study that needs a GPU or other networks gets a lower bound. `counted` has known costs of arms.
    """
    baseline = study.arms[0].plans[0]
    if not is_for_cpu(baseline):
        return "no run was measured yet"
    costs = {arm.label: counted.get(arm.label) or _cost(arm.plans[0]) for arm in study.arms}
    cost = costs[study.arms[0].label]
    if cost is None:
        return "the operations of the baseline cannot be counted"
    if baseline.model.compile or cost.towers or cost.missing:
        return _bound(study, costs, cost)
    try:
        pace = measure_pace(baseline, study.settings.evaluation.sampler)
    except UserError as error:
        return str(error).splitlines()[0]
    step_s = {label: pace.step_s * (own or cost).step_flops / cost.step_flops for label, own in costs.items()}
    how = f"{pace.steps} steps and {pace.samples} samples of the baseline were timed just now"
    return Measured(
        RunSeconds(_by_arm(study, pace, step_s)), f"{how}, and arms differ by their operations; scoring is counted"
    )


def _bound(study: Study, costs: Mapping[str, PlanCost | None], baseline: PlanCost) -> Measured:
    """Return a lower bound on the seconds: the operations divided by the peak speed of matrix products."""
    plan = study.arms[0].plans[0]
    with cpu_threads(plan.run.device, plan.run.threads):
        rate = matmul_flop_per_s(torch.device("cpu"), torch.float32)
    forward = baseline.phases[-1].image_flops / _FORWARD_SHARE
    pace = Pace(0.0, forward / rate, 0.0, 0, 0)
    step_s = {label: (own or baseline).step_flops / rate for label, own in costs.items()}
    words = f"all operations, those of sampling too, at this CPU's {rate / 1e9:,.0f} GFLOP/s of large matrix products"
    return Measured(RunSeconds(_by_arm(study, pace, step_s)), words, at_least=True)


def _by_arm(study: Study, pace: Pace, step_s: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a run of each arm. They include training, and scoring during and after training."""
    found = {}
    for arm in study.arms:
        plan = arm.plans[0]
        along = study.along(plan)
        early_s = (len(along.steps) + 1) * pace.scoring_s(along.protocol) if along else 0.0
        found[arm.label] = plan.train.steps * step_s[arm.label] + pace.scoring_s(study.settings.evaluation) + early_s
    return found


def _cost(plan: Plan) -> PlanCost | None:
    try:
        return cost_of_plan(plan, estimated_speed(_ANY_GPU))
    except UserError:
        return None
