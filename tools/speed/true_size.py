"""`python -m tools.speed.true_size OUT.json`: ten training steps of PRX's plans with towers of the true sizes.

T5Gemma's encoder, FLUX.1's autoencoder and DINOv2-B have the sizes of the published configs and random weights, so
nothing is downloaded, and the losses say nothing. All else is the recipe as it stands: its denoiser, batch,
micro-batches and precision. Each step is one of training on other noise and, where images have 256 px, on other images.
The images are rendered and on the device before the first step: disks and decoders are not measured.

T5Gemma's own vocabulary is not in its config. A stand-in of as many entries reads the words of the scenes' captions,
which are short. One run reads letters instead, so that most captions reach the tokens at which they are cut.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tintype.bench.clock import Step, StepClock
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.plan import Plan, read_plan
from tintype.pretrained.packages import Untyped, diffusers_package, optional_package, transformers_package
from tintype.runtime.clock import PARTS, synchronized_s
from tintype.runtime.dist import current
from tintype.runtime.files import Json, read_object, write_json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device, environment
from tintype.techniques.apply import apply_techniques
from tintype.text.frozen import FrozenTextEncoder
from tintype.train.exact import exact_steps, exact_update
from tintype.train.prepare import prepare_images
from tintype.train.session import Session, build_session
from tintype.train.state import new_state

_LEFT_OUT = 2
"""First steps that compile and allocate, and count for no speed."""
_RECORD = "tower.json"
"""Written last, so that a tower with this file is complete."""
_LETTERS = "letters"
"""Folder beside the weights of the text encoder, with the tokenizer to which each letter is a token."""


# Towers


@dataclass(frozen=True)
class Sizes:
    """Numbers of the published configs, or of a test."""

    text: Mapping[str, int]
    autoencoder: Mapping[str, Any]
    teacher: Mapping[str, int]


TRUE = Sizes(
    text={
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 9216,
        "vocab_size": 256_000,
    },
    autoencoder={"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "norm_num_groups": 32},
    teacher={"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 518},
)
TINY = Sizes(
    text={
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 24,
        "vocab_size": 200,
    },
    autoencoder={"block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4},
    teacher={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28},
)


def text_encoder(sizes: Sizes) -> Untyped:
    """Return T5Gemma's encoder. Its config has one for the decoder too, which is not built."""
    transformers = transformers_package()
    own = dict(sizes.text)
    config = transformers.T5GemmaConfig(
        encoder=own, decoder=dict(own), vocab_size=own["vocab_size"], is_encoder_decoder=False
    )
    return transformers.T5GemmaEncoderModel(config)


def autoencoder(sizes: Sizes) -> Untyped:
    """Return FLUX.1's autoencoder, with its two factors of normalisation."""
    return diffusers_package().AutoencoderKL(
        **sizes.autoencoder,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=16,
        sample_size=1024,
        scaling_factor=0.3611,
        shift_factor=0.1159,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def teacher(sizes: Sizes) -> Untyped:
    transformers = transformers_package()
    return transformers.Dinov2Model(transformers.Dinov2Config(**sizes.teacher, patch_size=14))


TOWERS: dict[str, Callable[[Sizes], Untyped]] = {
    "t5gemma": text_encoder,
    "flux1": autoencoder,
    "dinov2": teacher,
}
"""By the kind in a plan."""


def without_numbers(name: str, sizes: Sizes) -> Untyped:
    """Return the network with shapes and no numbers."""
    with torch.device("meta"):
        return TOWERS[name](sizes)


def write_tower(name: str, sizes: Sizes, folder: Path) -> dict[str, Json]:
    """Write the tower in bf16 unless it is there. Return its parameters, bytes and the seconds that writing took."""
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    network = without_numbers(name, sizes)
    parameters = _parameters(network)
    if (folder / _RECORD).exists():
        there = read_object(folder / _RECORD)
        if there["parameters"] != parameters:
            raise UserError(
                f"--towers: the tower in {folder} has {there['parameters']} parameters, where {parameters} are needed; "
                "name another folder"
            )
        return there
    device = choose_device("auto")
    generator = torch.Generator(device).manual_seed(0)
    tensors = {key: _random(key, one, generator) for key, one in network.state_dict().items()}
    if hasattr(network, "save_config"):  # of diffusers
        network.save_config(folder)
        weights = folder / "diffusion_pytorch_model.safetensors"
    else:
        network.config.architectures = [type(network).__name__]
        network.config.save_pretrained(folder)
        weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    if name == "t5gemma":
        write_tokenizer(folder, sizes.text["vocab_size"], r"\w+|[^\w\s]")
        write_tokenizer(folder / _LETTERS, sizes.text["vocab_size"], ".")
    found: dict[str, Json] = {
        "parameters": parameters,
        "bytes": weights.stat().st_size,
        "seconds": time.monotonic() - began_s,
    }
    write_json(folder / _RECORD, found)
    return found


def _random(name: str, shape: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers that keep the size of what passes through: biases of 0, factors of 1, and matrices by the number
    of their inputs."""
    made = torch.empty(shape.shape, dtype=torch.bfloat16, device=generator.device)
    if made.ndim < 2:
        return made.fill_(0.0 if name.endswith("bias") else 1.0)
    return made.normal_(std=prod(made.shape[1:]) ** -0.5, generator=generator)


def write_tokenizer(folder: Path, vocabulary: int, pattern: str) -> None:
    """Write a tokenizer to which what the pattern finds in the captions of scenes are tokens.

    Entries that stand for no text fill it up to the table of its text encoder: another number is refused.
    """
    tokenizers = optional_package("tokenizers", "encoders", "this tokenizer")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    scenes = SceneSource(ScenesSettings(count=1024), "train", torch.device("cpu")).records(range(1024))
    texts = [caption.lower() for record in scenes for caption in record.captions.values()]
    found = sorted({token for text in texts for token, _ in split.pre_tokenize_str(text)})
    words = special + found + [f"<unused{index}>" for index in range(vocabulary - len(special) - len(found))]
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    core.normalizer, core.pre_tokenizer = tokenizers.normalizers.Lowercase(), split
    core.post_processor = tokenizers.processors.TemplateProcessing(
        "<bos> $A", special_tokens=[(token, index) for index, token in enumerate(special)]
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    transformers_package().PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)


# Runs


@dataclass(frozen=True)
class Run:
    """A recipe, its changes, and PRX's published values for it. {folder} is the folder of the towers."""

    recipe: str
    towers: tuple[str, ...]
    published_batches_per_s: float
    changes: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    differs: str = ""
    """How PRX's own differs, beyond what is so of all runs."""
    tiny: tuple[str, ...] = ()

    def plan(self, folder: Path, settings: Sequence[str], tiny: bool) -> Plan:
        """Return the plan with these further settings."""
        changes = [change.replace("{folder}", str(folder)) for change in self.changes]
        techniques = [technique.replace("{folder}", str(folder)) for technique in self.techniques]
        smaller = [*self.tiny, *_TINY] if tiny else []
        return apply_techniques(read_plan(self.recipe, [*changes, *smaller, *settings]), techniques)


_TEXT = ("text.weights={folder}/t5gemma", "run.text_embeddings=live")
"""The text encoder runs in each step: what a run costs whose captions are not cached."""
_PIXELS = ("data.count=256", *_TEXT)
"""One batch of images: more of 1024 px do not stay on the device, and each step would render its own."""
_LATENTS = ("data.count=2560", *_TEXT, "tokenizer.weights={folder}/flux1")
"""As many images as ten steps read."""
_TINY = (
    *("run.device=cpu", "data.count=8", "train.batch=4", "train.accumulate=2", "text.max_tokens=64"),
    *("model.depth=2", "model.width=32", "model.heads=2", "model.compile=false"),
)
_TINY_PIXELS = ("data.size_px=64", "model.bottleneck=8")
_TINY_LATENTS = ("data.size_px=32",)
RUNS: dict[str, Run] = {
    "prx-256": Run("prx-256", ("t5gemma", "flux1"), 3.95, _LATENTS, tiny=_TINY_LATENTS),
    "prx-jit-1024": Run("prx-jit-1024", ("t5gemma",), 1.33, _PIXELS, tiny=_TINY_PIXELS),
    "prx-256, repa": Run(
        "prx-256",
        ("t5gemma", "flux1", "dinov2"),
        3.66,
        _LATENTS,
        ("repa:teacher={kind: dinov2, source: {folder}/dinov2}",),
        "the teacher of PRX's config is a DINOv2-L with registers, compiled",
        _TINY_LATENTS,
    ),
    "prx-256, captions of letters": Run(
        "prx-256",
        ("t5gemma", "flux1"),
        3.95,
        (*_LATENTS, f"text.tokenizer_subfolder={_LETTERS}"),
        tiny=_TINY_LATENTS,
    ),
}
"""By name, those that matter most first."""
PUBLISHED_BATCH = 256
CONTEXT = (
    "PRX's part 2 gives batches of 256 images a second, and neither the number nor the kind of its GPUs. Its configs "
    "have micro-batches of 32 on each, which makes eight; parts 3 and 4 name H200. Its configs read text embeddings of "
    "256 tokens that were computed before, so that no text encoder runs in a step; images come from shards on a disk."
)
EIGHT = 8
"""GPUs that micro-batches of 32 in batches of 256 make."""


def published(run: Run) -> dict[str, Json]:
    images_per_s = PUBLISHED_BATCH * run.published_batches_per_s
    return {
        "batches_per_s": run.published_batches_per_s,
        "images_per_s": images_per_s,
        "images_per_s_of_a_gpu_if_they_were_eight": images_per_s / EIGHT,
        **({"differs": run.differs} if run.differs else {}),
    }


def take_steps(plan: Plan) -> dict[str, Json]:
    """Train the plan from its first step to its last, as `tintype train` does but for its files, and time it."""
    with exact_steps(plan, current()):
        device = choose_device(plan.run.device)
        marks = [synchronized_s(device)]
        parts = build_session(plan)
        parts.ready()
        state = new_state(parts)
        marks.append(synchronized_s(device))
        prepare_images(parts, 0, Interrupt())
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        marks.append(synchronized_s(device))
        inexact: list[str] = []
        results, clock = [], StepClock(device)
        for _ in range(plan.train.steps):
            results.append(exact_update(parts, state, clock, inexact.append))
            clock.end_step()
        steps = clock.steps()
        marks.append(synchronized_s(device))
    names = ("building", "rendering", "steps")
    return {
        "plan": plan.hash,
        "size_px": plan.data.size_px,
        "batch": plan.train.batch,
        "micro_batch": plan.train.batch // plan.train.accumulate,
        "deterministic": plan.run.deterministic,
        "image_tokens": prod(plan.token_grid),
        "caption_tokens": _caption_tokens(parts),
        "trained_parameters": {name: _parameters(module) for name, module in parts.modules.items()},
        **speeds(steps, plan.train.batch),
        **_peaks(device),
        "seconds": {name: end - begin for name, begin, end in zip(names, marks, marks[1:], strict=False)},
        "loss": [result.loss for result in results],
        "gradient_norm": [result.grad_norm for result in results],
        "skipped_steps": sum(result.skipped for result in results),
        "inexact_operations": list(inexact),
    }


def speeds(steps: Sequence[Step], batch: int) -> dict[str, Json]:
    """Return the values that follow from the times of the steps; all but the list leave out the first two."""
    counted = steps[_LEFT_OUT:]
    step_s, total_s = median(step.whole_s for step in counted), sum(step.whole_s for step in counted)
    split = {part: sum(step.parts_s[part] for step in counted) / total_s for part in PARTS}
    return {
        "steps_s": [step.whole_s for step in steps],
        "step_s": step_s,
        "images_per_s": batch / step_s,
        "batches_of_256_per_s": batch / step_s / PUBLISHED_BATCH,
        "images_per_s_without_text": batch / median(step.whole_s - step.parts_s["text"] for step in counted),
        "parts_s": {part: median(step.parts_s[part] for step in counted) for part in PARTS},
        "time_split": {**split, "rest": 1 - sum(split.values())},
    }


def _caption_tokens(parts: Session) -> dict[str, Json]:
    assert isinstance(parts.text, FrozenTextEncoder)
    records = parts.source.records(range(min(256, len(parts.source))))
    lengths = [len(ids) for ids in parts.text.token_ids([record.captions["long"] for record in records])]
    return {"mean": mean(lengths), "most": max(lengths), "cut_at": parts.text.settings.max_tokens}


def _parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _peaks(device: torch.device) -> dict[str, Json]:
    """Return the most memory of the steps; nothing on a CPU."""
    if device.type != "cuda":
        return {"peak_allocated_gib": None, "peak_reserved_gib": None}
    return {
        "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / 2**30,
        "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30,
    }


def _free() -> None:
    """Free the memory of the run before."""
    forget_sources()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(run: Run, folder: Path, sizes: Sizes, settings: Sequence[str]) -> dict[str, Json]:
    """Write the towers that the run needs, and make its steps. A failed run is reported, and the next can start."""
    found: dict[str, Json] = {"recipe": run.recipe, "failed": None}
    found["changes"] = [*run.changes, *run.techniques, *settings]
    try:
        _free()  # a kernel that failed may have left a GPU on which this fails too
        found["towers"] = {name: write_tower(name, sizes, folder / name) for name in run.towers}
        found |= take_steps(run.plan(folder, settings, sizes is TINY))
    except Exception as error:  # out of memory, a package that is not there, a kernel that fails
        found["failed"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    return {**found, "published": published(run)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.true_size", description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="names of runs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--set", nargs="+", default=[], help="further settings of all plans")
    parser.add_argument("--towers", type=Path, help="folder that keeps the towers for the next call")
    parser.add_argument("--only-towers", action="store_true", help="write the towers and take no step")
    parser.add_argument("--tiny", action="store_true", help="measure next to nothing, on the CPU: for tests")
    given = parser.parse_args(arguments)
    if given.steps <= _LEFT_OUT:
        parser.error(f"--steps: the first {_LEFT_OUT} count for no speed; take more")
    sizes = TINY if given.tiny else TRUE
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.towers or Path(temporary)).resolve()
        _measure_all({name: RUNS[name] for name in given.only}, folder, sizes, given)


def _measure_all(runs: Mapping[str, Run], folder: Path, sizes: Sizes, given: argparse.Namespace) -> None:
    """Measure one run after the other. The file is complete after each."""
    device = choose_device("cpu" if given.tiny else "auto")
    report: dict[str, Any] = {"environment": environment(device), "published": CONTEXT, "towers": {}, "runs": {}}
    if given.only_towers:
        for name in dict.fromkeys(name for run in runs.values() for name in run.towers):
            report["towers"][name] = write_tower(name, sizes, folder / name)
            print(f"{name}: {report['towers'][name]}", flush=True)
        write_json(given.out, report)
        return
    for name, run in runs.items():
        found = measure(run, folder, sizes, [f"train.steps={given.steps}", *given.set])
        report["towers"] |= found.pop("towers", {})
        report["runs"][name] = found
        write_json(given.out, report)
        print(f"{name}: {in_words(found)}", flush=True)


def in_words(found: Mapping[str, Any]) -> str:
    if found["failed"]:
        return str(found["failed"])
    shares = ", ".join(f"{part} {share:.1%}" for part, share in found["time_split"].items())
    peak = found["peak_allocated_gib"]
    memory = "" if peak is None else f", {peak:.1f} GiB"
    return (
        f"{found['step_s']:.3f} s a step, {found['images_per_s']:.1f} images/s{memory} ({shares}); published: "
        f"{found['published']['batches_per_s']} batches/s"
    )


if __name__ == "__main__":
    main()
