"""The tiny plan on which techniques are checked. Its parts are real, and a training step takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tintype.model import fp8
from tintype.plan import Plan, plan_from_yaml
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques
from tintype.train.loop import train

MakePlan = Callable[..., Plan]
"""Function from assignments `key.path=value` to a plan."""
TINY = """
data: {size_px: 16, count: 24, max_objects: 2}
text: {width: 16, depth: 1, heads: 2, buckets: 64, max_tokens: 24}
model: {depth: 3, width: 32, heads: 2, mlp_ratio: 2.0, patch: 4}
optimizer: {lr: 1e-3, eps: 1e-8}
train: {steps: 6, batch: 4, warmup_steps: 2, clip_norm: 1.0}
precision: {compute: fp32}
run: {save_every_steps: 2, log_every_steps: 1, device: cpu}
"""
_SMALL_VAE = "{kind: small-vae, folder: somewhere, channels: 4, stride_px: 4}"
SPECS: dict[str, str] = {
    "irepa": "irepa:teacher=scenes",
    "reg": "reg:teacher=scenes,hidden=32",
    "repa": "repa:teacher=scenes,hidden=32",
    "repa-burn-in": "repa-burn-in:teacher=scenes,hidden=32,stop=4",
    "caption-tokens": "caption-tokens:tokens=6",
    "caption-truncation": "caption-truncation:words=6",
    "mixture": "mixture:add.other.data.style=photo,add.other.data.count=5",
    "other-images": "other-images:data.style=photo,data.count=5",
    "synthetic-then-real": "synthetic-then-real:first.style=photo,first.count=5,over=0.4",
    "text-encoder": "text-encoder:to=minilm",
    "tokenizer": f"tokenizer:to={_SMALL_VAE}",
    "island": "island:norms=bf16,softmax=bf16,rope=bf16,timestep=bf16,modulation=bf16",
}
"""Technique options for the check, if default weights come from a hub, or if the name alone is not enough."""
BASELINES: dict[str, tuple[str, ...]] = {
    "fp32": ("precision.compute=bf16",),
    "long-captions": ("captions.column=short",),
    "repa-e": (f"tokenizer={_SMALL_VAE}", "model.patch=1"),
    "resolution-stages": ("data.size_px=32",),
}
"""Settings of the tiny plan without which some techniques would change nothing or be refused."""
OF_OTHERS = frozenset({"haste", "lpips", "perceptual-dino", "repa-e", "text-encoder", "tokenizer"})
"""Techniques with external weights, which may be missing. Plans with these techniques are made, but not trained."""


def tiny_plan(*assignments: str, techniques: Sequence[str] = ()) -> Plan:
    return apply_techniques(plan_from_yaml(TINY, "tiny", assignments), techniques)


def refused_by_the_device(*names: str) -> bool:
    """Return whether this machine cannot train with a technique; such plans are refused before the first step."""
    return "fp8" in names and not fp8.runs_on(choose_device("auto"))


@dataclass(frozen=True)
class Ground:
    """Applies techniques to a tiny plan; without `weights`, techniques with external weights are not trained."""

    folder: Path
    specs: Mapping[str, str] = field(default_factory=lambda: SPECS)
    baselines: Mapping[str, Sequence[str]] = field(default_factory=lambda: BASELINES)
    weights: Mapping[str, Callable[[], object]] | None = None
    """Function that makes the weights of a technique available."""
    plan: MakePlan = tiny_plan

    def spec(self, name: str) -> str:
        return self.specs.get(name, name)

    def baseline_for(self, *names: str) -> Plan:
        """Return the tiny plan with settings that the techniques need, except in sections that a technique sets."""
        for name in names:
            (self.weights or {}).get(name, lambda: None)()
        brought = {TECHNIQUES[name].seam for name in names if TECHNIQUES[name].setting is None}
        own = [setting for name in names for setting in self.baselines.get(name, ())]
        if "fp8" in names and not refused_by_the_device(*names):
            own.append("run.device=cuda")
        needs = {key: value for name in names for key, value in TECHNIQUES[name].needs.items()}
        missing = {key: value for key, value in needs.items() if key.split(".")[0] not in brought}
        return self.plan(*own, *(f"{key}={value}" for key, value in missing.items()))

    def with_techniques(self, *names: str) -> Plan:
        baseline, specs = self.baseline_for(*names), {name: self.spec(name) for name in names}
        if "sft" in names:  # its parent has what the others bring
            parent = apply_techniques(baseline, [spec for name, spec in specs.items() if name != "sft"])
            specs["sft"] = f"sft:from={self.trained(parent)},lr=1e-4"
        return apply_techniques(baseline, list(specs.values()))

    def can_step(self, *names: str) -> bool:
        """Return whether steps can be trained with the techniques on this machine."""
        return not refused_by_the_device(*names) and (self.weights is not None or not OF_OTHERS & set(names))

    def trained(self, plan: Plan) -> Path:
        """Return the folder of a run of the plan; empty if the plan cannot be trained on this machine."""
        folder = self.folder / plan.hash
        runs_here = plan.precision.matmul == "plain" or fp8.runs_on(choose_device("auto"))
        if runs_here and not folder.exists():
            train(plan, folder, Interrupt())
        return folder
