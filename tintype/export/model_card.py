"""The card of a model, from the record of its run: README.md as the hub wants it, with the previews beside it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import tintype
from tintype.config.strict import write_yaml
from tintype.errors import UserError
from tintype.evaluation.reference import held_out
from tintype.evaluation.run import sampling_prompts
from tintype.export import data_words, public
from tintype.export.data_words import in_plain, in_words
from tintype.export.limits import intended_use, limits
from tintype.export.public import fenced, front_matter, table, text
from tintype.export.record import Evaluation, RunRecord, read_record
from tintype.metrics import throughput
from tintype.plan import Plan
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.files import write_bytes
from tintype.settings import plain
from tintype.train.folder import RunFolder

Library = Literal["tintype", "diffusers"]
UNKNOWN = "unknown"
CARD = "README.md"
SAMPLES = "samples"
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_SHOWN_ABOVE = ("data", "text", "tokenizer")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class CardOptions:
    """What the record of a run cannot say."""

    license: str | None = None
    library: Library = "tintype"
    name: str | None = None
    repo: str | None = None
    datasets: tuple[str, ...] = ()
    base_model: str | None = None
    baseline: str | None = None
    ema_length: float | None = None
    with_captions: bool = False
    """Show captions of a store beside the samples. Those of scenes are nobody's, and are always shown."""
    usage: Callable[[str], str] | None = None
    """Code that uses the model with a prompt, from whoever wrote it in another form."""
    usage_language: str = "python"
    weights: str | None = None
    """Which weights the card is for: only their scores are shown. Without, those that the run is sampled with."""

    def __post_init__(self) -> None:
        if self.library not in get_args(Library):
            raise UserError(f"--library {self.library}: it is one of {', '.join(get_args(Library))}")
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise UserError(
                f"--license {self.license}: write the identifier that the hub knows, in small letters, for example "
                "apache-2.0 or cc-by-4.0"
            )
        named = [("--dataset", one) for one in self.datasets] + [
            ("--base-model", self.base_model),
            ("--repo", self.repo),
        ]
        for option, name in named:
            if name is not None and not public.HUB_NAME.fullmatch(name):
                raise UserError(f"{option} {name}: write the name of a repository of the hub, OWNER/NAME")


@dataclass(frozen=True)
class Card:
    text: str
    pictures: Mapping[str, Path] = field(default_factory=dict)
    """Where each goes, beside the card, and where it lies now."""
    warnings: tuple[str, ...] = ()


def make_card(run: Path, options: CardOptions | None = None) -> Card:
    options = options or CardOptions()
    record = read_record(run, options.baseline, options.ema_length, options.weights)
    pictures = _pictures(record)
    sections = [
        _head(record, options),
        _usage(record, options),
        _samples(record, options, pictures),
        _scores(record),
        *((_data(record, options),) if record.step else ()),
        _reading(record),
        *((_plan(record), _changes(record), _cost(record)) if record.step else ()),
        _limits(record),
        _license(options),
        _lineage(record, options),
        _full_plan(record),
    ]
    body = "\n".join("\n".join(section) for section in sections)
    return Card(front_matter(_metadata(record, options)) + "\n" + body, pictures, tuple(_warnings(record, options)))


def write_card(card: Card, file: Path, overwrite: bool = False) -> list[Path]:
    """Writes the card and its pictures. A file that says something else is kept, unless it may be overwritten."""
    wanted = {file: card.text.encode("utf-8")}
    wanted |= {file.parent / place: source.read_bytes() for place, source in card.pictures.items()}
    changed = [path for path, content in wanted.items() if path.exists() and path.read_bytes() != content]
    if changed and not overwrite:
        raise UserError(
            f"{changed[0]} is there already and says something else; use --overwrite to replace it, or another --out"
        )
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return list(wanted)


def _warnings(record: RunRecord, options: CardOptions) -> Iterator[str]:
    if options.license is None:
        yield "no licence given: the card says that it is unknown; pass --license"
    if not record.evaluations:
        if record.older_evaluations:
            yield "none of the run's evaluations is of these weights, and the card has no scores"
        else:
            command = f"`tintype evaluate {shlex.quote(str(record.path))}`"
            yield f"the run was not evaluated, and the card has no scores; {command} makes them"
    for one in record.evaluations:
        if one.step != (now := record.weights_step):
            yield f"the scores are of step {one.step}, the weights of step {now}; evaluate the run again"


def _title(record: RunRecord, options: CardOptions) -> str:
    data = record.plan.data
    return options.name or f"tintype {data.kind} {data.size_px} px, {record.plan.hash}"


# The head of the file, which the hub reads.


def _metadata(record: RunRecord, options: CardOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"license": options.license or UNKNOWN, "library_name": options.library}
    found |= {"pipeline_tag": "text-to-image", "tags": _tags(record.plan)}
    if options.datasets:
        found["datasets"] = list(options.datasets)
    hub = record.origin.hub if record.origin else None
    if base_model := options.base_model or (hub[0] if hub else None):
        found["base_model"] = base_model
    if record.evaluations:
        results = [_result(record, one) for one in record.evaluations]
        found["model-index"] = [{"name": _title(record, options), "results": results}]
    return found


def _tags(plan: Plan) -> list[str]:
    parts = [plan.weighting, plan.route, plan.tuning, *plan.losses]
    kinds = [plan.objective.kind, plan.optimizer.kind, *(part.kind for part in parts if part is not None)]
    return list(dict.fromkeys(["tintype", "text-to-image", "flow-matching", *kinds]))


def _result(record: RunRecord, one: Evaluation) -> dict[str, Any]:
    name = f"tintype, {record.plan.data.describe_held_out()}"
    metrics = []
    for metric, meaning in one.meanings.items():
        if metric in one.result.metrics:
            about: dict[str, Any] = {"samples": samples} if isinstance(samples := _count(one, metric), int) else {}
            if interval := _interval(one, metric):
                about["interval_95"] = list(interval)
            entry = {"type": metric, "name": meaning.label, "value": one.result.metrics[metric]}
            metrics.append({**entry, "args": about} if about else entry)
    return {
        "task": {"type": "text-to-image", "name": "Text to image"},
        "dataset": {"type": record.plan.data.kind, "name": name},
        "metrics": metrics,
    }


# What people read.


def _head(record: RunRecord, options: CardOptions) -> Iterator[str]:
    plan, size = record.plan, record.environment.get("parameters")
    parameters = f", {size:,} {'trained ' if record.step else ''}parameters" if size else ""
    yield f"# {text(_title(record, options))}\n"
    origin = record.origin
    if not record.step:
        yield text(
            f"A text-to-image flow-matching transformer{parameters}: {origin.brief if origin else 'random weights'}. "
            "tintype has not trained it, and nothing in its record says what it was trained on."
        )
    else:
        start = options.base_model or (origin.brief if origin else None)
        yield text(
            f"A text-to-image flow-matching transformer{parameters}, trained on {plan.data.describe()} "
            f"at {data_words.sizes(plan)} for {record.step:,} steps of {plan.train.batch} images, "
            f"{f'starting from {start}' if start else 'from random weights'}. The plan's hash is {plan.hash}."
        )
    yield ""
    if options.ema_length is not None:
        yield (
            f"The weights are the average of length {options.ema_length!r} (a share of the training) at step "
            f"{record.weights_step:,}, made of snapshots of the run.\n"
        )
    if options.license is None:
        yield "> **The licence is unknown.** Without one, nobody but its owner may use the model.\n"


def _usage(record: RunRecord, options: CardOptions) -> Iterator[str]:
    yield "## How to use\n"
    prompt = next(iter(_prompts(record, options, 1)), "a picture")
    if options.usage is not None:
        yield fenced(options.usage(public.words(prompt)), options.usage_language)
    elif options.library == "diffusers":
        repo = options.repo or "OWNER/NAME"
        code = [
            "from diffusers import DiffusionPipeline",
            "",
            f"pipeline = DiffusionPipeline.from_pretrained({json.dumps(repo)})",
            f"prompt = {json.dumps(public.words(prompt), ensure_ascii=False)}",
            "image = pipeline(prompt, num_inference_steps=50, guidance_scale=3.5).images[0]",
            'image.save("picture.png")',
        ]
        yield fenced("\n".join(code), "python")
    else:
        asked = shlex.quote(public.words(prompt))
        lines = [f"tintype sample RUN {asked} --out samples --guidance 3.5 --steps 50"]
        yield fenced("\n".join(lines), "sh")
        version = record.environment.get("tintype")
        trained = f" It was trained with tintype {text(version)}." if version and record.step else ""
        yield f"`RUN` is the folder of the run.{trained}"
        yield ""


def _samples(record: RunRecord, options: CardOptions, pictures: Mapping[str, Path]) -> Iterator[str]:
    if not pictures:
        return
    one = record.evaluations[0]
    main = one.protocol.conditions[0]
    yield "## Samples\n"
    yield text(
        f"The first {len(pictures)} of {main.count}, not chosen. Sampling: {main.words}, seed {one.protocol.seed}."
    )
    yield ""
    prompts = list(_prompts(record, options, len(pictures)))
    if not prompts:
        yield "The prompts are captions of the data, which are left out here.\n"
        yield from (f"![sample {number}]({place})" for number, place in enumerate(pictures, 1))
        yield ""
        return
    yield "| Picture | Prompt |"
    yield "| --- | --- |"
    for number, (place, prompt) in enumerate(zip(pictures, prompts, strict=True), 1):
        yield f"| ![sample {number}]({place}) | {text(prompt)} |"
    yield ""


def _scores(record: RunRecord) -> Iterator[str]:
    yield "## Scores\n"
    if not record.evaluations:
        yield "These weights were not evaluated.\n"
    for one in record.evaluations:
        yield from _evaluation(record, one)
    if record.older_evaluations:
        yield f"{record.older_evaluations} evaluations of earlier steps or other weights are left out here.\n"


def _evaluation(record: RunRecord, one: Evaluation) -> Iterator[str]:
    result = one.result
    yield f"### Step {one.step:,}, {text(result.weights)} weights, protocol {text(result.protocol_hash)}\n"
    reference = record.plan.data.describe_held_out()
    yield text(
        f"Against {one.protocol.reference_count:,} {reference}. ± is the 95% interval of sampling (1.96 standard "
        "errors over other pictures of the same weights), not that of training with another seed."
    )
    yield ""
    known = {name: meaning for name, meaning in one.meanings.items() if name in result.metrics}
    real = {name: parts["overall"] for name, parts in result.real.items()}
    heads = ["Metric", "Value", "± 95%", "Samples", "Better", *(["On real pictures"] if real else [])]
    rows = []
    for name, meaning in known.items():
        row = [meaning.label, _number(result.metrics[name]), _spread(one, name)]
        row += [_many(_count(one, name)), meaning.direction]
        rows.append([*row, *([_number(real.get(name))] if real else [])])
    yield from table(heads, rows)
    yield "Prompts and sampling:\n"
    for sampling in one.protocol.conditions:
        of_file = "all of the file" if sampling.count is None else f"{sampling.count:,} pictures"
        yield f"- {text(sampling.name or 'main')}: {text(sampling.words)}; {of_file}"
    yield ""
    if result.encoders:
        yield "Encoders of the distances:\n"
        for name, about in result.encoders.items():
            yield f"- {text(name)}, {text(about.identity[:12])}: {text(about.definition)}"
        yield ""
    if result.warnings:
        yield "Notes on these numbers:\n"
        yield from (f"- {text(warning)}" for warning in result.warnings)
        yield ""
    yield "<details><summary>What the metrics are</summary>\n"
    yield from (f"- {text(meaning.label)}: {text(meaning.definition)}" for meaning in known.values())
    yield "\n</details>\n"


def _data(record: RunRecord, options: CardOptions) -> Iterator[str]:
    data, count = record.plan.data, record.data_count
    mixed = "" not in record.sources
    yield "## Data\n"
    rows = [
        ("Kind", data.describe()),
        ("Training pictures", _many(count) or "not in the record"),
        (
            "Identity (SHA-256)",
            record.identities.get("data") or ("given by the settings" if data.of_scenes and not mixed else ""),
        ),
        ("Size", data_words.sizes(record.plan)),
        ("Pictures seen", f"{record.images:,}{'' if mixed else data_words.epochs(record.images, count)}"),
        ("Settings", "" if mixed else in_words(public.settings(plain(data)))),
        *((("Data sets, as the author says", ", ".join(options.datasets)),) if options.datasets else ()),
    ]
    yield from table(["", ""], [row for row in rows if row[1]])
    if mixed:
        heads = ["Source", "Pictures", "Share, relative to the others", "Training pictures", "Seen", "Identity"]
        yield from table(heads, data_words.source_rows(record))
    if record.origin is not None:
        yield "What was read before, by the weights that this training started from, is not in this table.\n"


def _reading(record: RunRecord) -> Iterator[str]:
    """What stands between the data and the denoiser."""
    plan, latents = record.plan, record.latents
    yield f"## {'Captions, text encoder' if record.step else 'Text encoder'} and tokenizer\n"
    rows = [
        *(data_words.captions(plan.captions) if record.step else ()),
        ("Text encoder", in_words(public.settings(plain(plan.text)))),
        ("Its weights", "frozen" if plan.text.is_frozen else "trained with the denoiser"),
        ("Its identity", record.identities.get("text", "")),
        ("Tokenizer", in_words(public.settings(plain(plan.tokenizer)))),
        (
            "Latents",
            f"{plan.tokenizer.compression.channels} channels, one for each {plan.tokenizer.compression.stride_px} px",
        ),
        ("Its identity", record.identities.get("tokenizer", "")),
    ]
    if latents:
        mean, std = (", ".join(_number(value) for value in latents[key]) for key in ("mean", "std"))
        rows.append((f"Latents of the first {latents['images']:,} images", f"mean {mean}; deviation {std}"))
    yield from table(["", ""], [row for row in rows if row[1]])


def _plan(record: RunRecord) -> Iterator[str]:
    plan = record.plan
    rows, columns = plan.token_grid
    model, train = plan.model, plan.train
    yield "## Training plan\n"
    shown = [
        ("Denoiser", f"{model.depth} blocks, width {model.width}, {model.heads} heads, patch {model.patch}"),
        ("Tokens", f"{rows} × {columns} = {rows * columns:,}"),
        ("Objective", in_words(plain(plan.objective))),
        ("Times", in_words(plain(plan.time))),
        *((section, in_words(public.settings(plain(part)))) for section, part in _switched(plan)),
        *((f"Loss {loss.kind}", in_words(public.settings(plain(loss)))) for loss in plan.losses),
        ("Optimizer", in_words(plain(plan.optimizer))),
        ("Steps", f"{record.step:,}" + (f" of {train.steps:,} planned" if record.step < train.steps else "")),
        ("Batch", f"{train.batch} images" + (f" in {train.accumulate} parts" if train.accumulate > 1 else "")),
        ("Learning rate", f"{train.schedule} after {train.warmup_steps:,} steps of warm-up"),
        ("Gradients", "not clipped" if train.clip_norm is None else f"clipped to the norm {train.clip_norm:g}"),
        ("Precision", f"weights {plan.precision.storage}, products {plan.precision.compute}"),
        ("Weight average", in_words(plain(plan.ema)) if plan.ema else "none"),
        ("Seed", plan.seed),
    ]
    yield from table(["", ""], shown)
    yield "The full plan is at the end of this card.\n"


def _switched(plan: Plan) -> list[tuple[str, Any]]:
    sections = [("Weighting", plan.weighting), ("Routing", plan.route), ("Tokenizer tuning", plan.tuning)]
    return [(name, part) for name, part in sections if part is not None]


def _changes(record: RunRecord) -> Iterator[str]:
    if record.baseline is None:
        return
    yield f"## Against {text(record.baseline.words)}\n"
    changes = record.changes
    if not changes:
        yield "No setting differs, the seed aside: this is the baseline.\n"
        return
    shown = {
        key: (public.settings(old, _last(key)), public.settings(new, _last(key))) for key, (old, new) in changes.items()
    }
    yield from table(
        ["Setting", "Baseline", "This run"], [(key, in_plain(old), in_plain(new)) for key, (old, new) in shown.items()]
    )


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _cost(record: RunRecord) -> Iterator[str]:
    yield "## Cost of training\n"
    about, seconds = record.environment, record.seconds
    ranks = int(about.get("ranks", 1))
    rows: list[tuple[str, str]] = [
        ("Steps and images", f"{record.step:,} and {record.images:,}"),
        ("Device", f"{ranks} × {about['device']}" if "device" in about else "not in the record"),
    ]
    if record.lines:
        lines = [dict(line) for line in record.lines]
        hours = "GPU hours" if record.on_gpu else "Hours of the processor"
        split = throughput.time_split(lines)
        rows += [
            ("Speed", f"{throughput.images_per_s(lines):,.4g} images/s, without the wait for data"),
            ("Time", f"{seconds:,.0f} s in steps, evaluation and saving aside"),
            (hours, f"{seconds * ranks / 3600:,.3g}"),
            ("Time by part", ", ".join(f"{part} {share:.0%}" for part, share in split.items() if share >= 0.005)),
        ]
    if record.events:
        rows.append(("Events", ", ".join(f"{kind}: {count:,}" for kind, count in record.events.items())))
    if record.on_gpu:
        most = max(float(line["memory_gb"]) for line in record.lines if "memory_gb" in line)
        rows.append(
            ("Memory", f"{most:.1f} GB held between steps at most; the peak within a step is not in the record")
        )
    yield from table(["", ""], rows)


def _limits(record: RunRecord) -> Iterator[str]:
    yield "## Intended use and limits\n"
    yield f"{text(intended_use(record))}\n"
    yield from (f"- {text(limit)}" for limit in limits(record))
    yield ""


def _license(options: CardOptions) -> Iterator[str]:
    yield "## Licence\n"
    if options.license is None:
        yield "Unknown: whoever wrote this card did not say. Ask the owner before you use the model.\n"
    else:
        yield f"{text(options.license)}, as stated by whoever wrote this card. It covers the weights; frozen parts that"
        yield "were loaded from elsewhere, and the data, have licences of their own.\n"


def _lineage(record: RunRecord, options: CardOptions) -> Iterator[str]:
    yield "## Lineage\n"
    about = record.environment
    made_with = ", ".join(f"{name} {about[name]}" for name in ("tintype", "torch", "python") if name in about)
    rows = [
        *_beginning(record, options),
        *_sources({section: part for section, part in plain(record.plan).items() if section != "start"}),
        *(
            (f"Identity of {name}", identity)
            for name, identity in record.identities.items()
            if name.partition("/")[0] not in _SHOWN_ABOVE
        ),
        ("Plan", record.plan.hash),
        *(("Study", words) for words in [record.baseline.words if record.study and record.baseline else ""] if words),
        ("Trained with" if record.step else "Imported with", made_with or "not in the record"),
        ("Card written by", f"tintype {tintype.__version__}"),
    ]
    yield from table(["", ""], rows)


def _beginning(record: RunRecord, options: CardOptions) -> Iterator[tuple[str, str]]:
    said = f"{options.base_model}, as the author says" if options.base_model else None
    if record.origin is None:
        yield "Started from", said or "random weights"
        return
    if said:
        yield "Base model", said
    yield from record.origin.rows()


def _sources(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every checkpoint of others that the plan names, with its revision."""
    if isinstance(value, list):
        for inner in value:
            yield from _sources(inner, where)
    if not isinstance(value, Mapping):
        return
    for key in ("weights", "source"):
        if isinstance(name := value.get(key), str):
            shown = str(public.settings(name, key))
            pinned = Checkpoint(shown, value.get("revision"), subfolder=value.get("subfolder") or "").words
            yield f"{where} {value.get('kind', '')}".strip(), pinned if shown != public.LOCAL else shown
    for key, inner in value.items():
        yield from _sources(inner, f"{where} {key}".strip())


def _full_plan(record: RunRecord) -> Iterator[str]:
    yield "<details><summary>The full plan</summary>\n"
    yield fenced(write_yaml(public.settings(plain(record.plan))), "yaml")
    yield "</details>\n"


# The pictures and their prompts.


def _pictures(record: RunRecord) -> dict[str, Path]:
    """The previews of the first evaluation. A result names them; none but PNGs of the run's own folder are taken."""
    if not record.evaluations:
        return {}
    found = [record.path / name for name in record.evaluations[0].result.previews]
    own = [file for file in found if file.resolve().is_relative_to(record.path.resolve()) and _is_png(file)]
    return {f"{SAMPLES}/sample-{number}.png": file for number, file in enumerate(own, 1)} if own == found else {}


def _is_png(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(_PNG)) == _PNG


def _prompts(record: RunRecord, options: CardOptions, count: int) -> list[str]:
    """What the first pictures were asked for: captions of the held-out data; none where they may not be shown."""
    data = record.plan.data
    if not record.evaluations or not (data.of_scenes or options.with_captions):
        return []
    if not data.at_hand:
        raise UserError("the captions are asked for, but the store that has them is not on this machine")
    protocol = record.evaluations[0].protocol
    RunFolder(record.path).check_identity(data.scored_name, held_out(data, protocol).identity)  # else they are others'
    return list(sampling_prompts(data, protocol, protocol.conditions[0])[:count])


# Values as words.


def _count(one: Evaluation, metric: str) -> int | str | None:
    if metric == "validation_loss":
        return one.protocol.validation_count
    sampling = one.sampling(metric)
    if sampling is None:
        return None
    return sampling.count if sampling.count is not None else "all prompts of its file"


def _many(count: int | str | None) -> str:
    return f"{count:,}" if isinstance(count, int) else count or ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(one: Evaluation, metric: str) -> tuple[float, float] | None:
    """None where there is none, and where it has no width: pictures that all score alike say nothing of the spread."""
    low, high = one.result.intervals.get(metric, (0.0, 0.0))
    return (low, high) if high > low else None


def _spread(one: Evaluation, metric: str) -> str:
    interval = _interval(one, metric)
    if interval is None:
        return "not known" if metric in one.result.intervals else ""
    return f"{(interval[1] - interval[0]) / 2:.2g}"
