"""The tables of a model card, from the record of a run: rows of names and values, not yet escaped."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from tintype.data.captions import CaptionsPart
from tintype.export.public import redacted, table
from tintype.export.record import Evaluation, RunRecord
from tintype.metrics import throughput
from tintype.plan import Plan
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.files import Json
from tintype.runtime.redact import LOCAL
from tintype.settings import Part, Settings, plain

Fact = tuple[str, object]
_SHOWN_APART = ("data", "text", "tokenizer")
"""Identities that stand in tables of their own."""


def sizes(plan: Plan) -> str:
    size_px, shapes = plan.data.size_px, plan.data.shapes
    full = f"{size_px} × {size_px} px"
    if len(shapes) > 1:
        listed = ", ".join(f"{height} × {width}" for height, width in shapes)
        return f"{len(shapes)} shapes (height × width in px): {listed}"
    early = [f"{one.size_px} × {one.size_px} px up to step {one.until:,}" for one in plan.train.stages]
    return ", ".join([*early, f"then {full}"]) if early else full


def data_facts(record: RunRecord, datasets: tuple[str, ...]) -> list[Fact]:
    data, count, mixed = record.plan.data, record.data_count, "" not in record.sources
    return [
        ("Kind", data.describe()),
        ("Training images", "not in the record" if count is None else f"{count:,}"),
        ("Identity (SHA-256)", record.identities.get("data") or "given by the settings" * data.of_scenes * (not mixed)),
        ("Size", sizes(record.plan)),
        ("Images seen", f"{record.images:,}{'' if mixed else _epochs(record.images, count)}"),
        ("Settings", "" if mixed else listed(data)),
        ("Data sets, as the author says", ", ".join(datasets)),
    ]


def source_rows(record: RunRecord) -> list[list[str]]:
    """Return a row for each source of a mixture; none for data that is no mixture."""
    return [
        [
            name + " (scored against)" * (record.plan.data.scored_name == f"data/{name}"),
            listed(one.data, without=("size_px",)),
            one.share,
            "" if one.count is None else f"{one.count:,}",
            "none" if one.images is None else f"{one.images:,}{_epochs(one.images, one.count)}",
            one.identity,
        ]
        for name, one in record.sources.items()
        if name
    ]


def _epochs(images: int, count: int | None) -> str:
    return f", {images / count:.3g} epochs" if count else ""


def reading_facts(record: RunRecord) -> list[Fact]:
    """Return what stands between the data and the denoiser."""
    plan, latents = record.plan, record.latents
    size = plan.tokenizer.compression
    rows: list[Fact] = [
        *(_caption_facts(plan.captions) if record.step else ()),
        ("Text encoder", described(plan.text)),
        ("Its weights", "frozen" if plan.text.is_frozen else "trained with the denoiser"),
        ("Its identity", record.identities.get("text")),
        ("Tokenizer", described(plan.tokenizer)),
        ("Latents", f"{size.channels} channels, one for each {size.stride_px} px"),
        ("Its identity", record.identities.get("tokenizer")),
    ]
    if latents:
        mean, std = (", ".join(f"{value:.4g}" for value in latents[key]) for key in ("mean", "std"))
        rows.append((f"Latents of the first {latents['images']:,} images", f"mean {mean}; deviation {std}"))
    return rows


def _caption_facts(part: CaptionsPart) -> Iterator[Fact]:
    yield "Captions", described(part, without=part.common)
    if part.keep_parts < 1:
        yield "Parts", f"each sentence or clause is kept with a probability of {part.keep_parts:.0%}, one at least"
    if part.max_words is not None:
        yield "Truncated", f"after {part.max_words:,} words"
    if part.max_tokens is not None:
        yield "Truncated", f"to {part.max_tokens:,} tokens"
    yield "Caption dropout", f"{part.dropout:.0%} of the samples read the empty caption"


def training_facts(record: RunRecord) -> list[Fact]:
    plan, model, train = record.plan, record.plan.model, record.plan.train
    rows, columns = plan.token_grid
    optional = {"Weighting": plan.weighting, "Routing": plan.route, "Tokenizer tuning": plan.tuning}
    return [
        ("Denoiser", f"{model.depth} blocks, width {model.width}, {model.heads} heads, patch {model.patch}"),
        ("Tokens", f"{rows} × {columns} = {rows * columns:,}"),
        ("Objective", described(plan.objective)),
        ("Times", listed(plan.time)),
        ("Sampling grid", listed(plan.sampling)),
        *((name, described(part)) for name, part in optional.items() if part is not None),
        *((f"Loss {loss.kind}", described(loss)) for loss in plan.losses),
        ("Optimizer", described(plan.optimizer)),
        ("Steps", f"{record.step:,}" + (f" of {train.steps:,} planned" if record.step < train.steps else "")),
        ("Batch", f"{train.batch} images" + (f" in {train.accumulate} parts" if train.accumulate > 1 else "")),
        ("Learning rate", f"{train.schedule} after {train.warmup_steps:,} steps of warm-up"),
        ("Gradients", "not clipped" if train.clip_norm is None else f"clipped to the norm {train.clip_norm:g}"),
        ("Precision", f"weights {plan.precision.storage}, products {plan.precision.compute}"),
        ("Weight average", listed(plan.ema) if plan.ema else "none"),
        ("Seed", plan.seed),
    ]


def change_rows(record: RunRecord) -> list[list[str]]:
    """Return the settings that differ from the baseline's: key, baseline, this run."""
    return [
        [key, *(_words(redacted(value, key.rpartition(".")[2])) for value in sides)]
        for key, sides in record.changes.items()
    ]


def cost_facts(record: RunRecord) -> Iterator[Fact]:
    about, ranks = record.environment, int(record.environment.get("ranks", 1))
    yield "Steps and images", f"{record.step:,} and {record.images:,}"
    yield "Device", f"{ranks} × {about['device']}" if "device" in about else "not in the record"
    if record.lines:
        lines = [dict(line) for line in record.lines]
        split = throughput.time_split(lines)
        yield "Speed", f"{throughput.images_per_s(lines):,.4g} images/s, without the wait for data"
        yield "Time", f"{record.seconds:,.0f} s in steps, without evaluation and saving"
        yield "GPU hours" if record.on_gpu else "CPU hours", f"{record.seconds * ranks / 3600:,.3g}"
        yield "Time by part", ", ".join(f"{part} {share:.0%}" for part, share in split.items() if share >= 0.005)
    yield "Events", ", ".join(f"{kind}: {count:,}" for kind, count in record.events.items())
    if record.on_gpu:
        most = max(float(line["memory_gb"]) for line in record.lines if "memory_gb" in line)
        yield "Memory", f"{most:.1f} GB held between steps at most; the peak within a step is not in the record"


def lineage_facts(record: RunRecord, base_model: str | None, written_by: str) -> Iterator[Fact]:
    said = f"{base_model}, as the author says" if base_model else None
    if record.origin is None:
        yield "Started from", said or "random weights"
    else:
        yield "Base model", said
        yield from record.origin.rows()
    yield from _checkpoints({section: part for section, part in plain(record.plan).items() if section != "start"})
    for name, identity in record.identities.items():
        if name.partition("/")[0] not in _SHOWN_APART:
            yield f"Identity of {name}", identity
    yield "Plan", record.plan.hash
    yield "Study", record.baseline.words if record.study and record.baseline else ""
    about = record.environment
    made_with = ", ".join(f"{name} {about[name]}" for name in ("tintype", "torch", "python") if name in about)
    yield "Trained with" if record.step else "Imported with", made_with or "not in the record"
    yield "Card written by", written_by


def _checkpoints(value: Json, where: str = "") -> Iterator[Fact]:
    """Yield every checkpoint of others that the plan names, with its revision."""
    if isinstance(value, list):
        for inner in value:
            yield from _checkpoints(inner, where)
    if not isinstance(value, Mapping):
        return
    for key in ("weights", "source"):
        if isinstance(name := value.get(key), str):
            shown, revision, subfolder = str(redacted(name, key)), value.get("revision"), value.get("subfolder")
            pinned = Checkpoint(shown, str(revision) if revision else None, subfolder=str(subfolder or "")).words
            yield f"{where} {value.get('kind', '')}".strip(), shown if shown == LOCAL else pinned
    for key, inner in value.items():
        yield from _checkpoints(inner, f"{where} {key}".strip())


def score_table(one: Evaluation) -> str:
    real = {name: parts["overall"] for name, parts in one.result.real.items()}
    heads = ["Metric", "Value", "± 95%", "Samples", "Better", *(["On real images"] if real else [])]
    rows = []
    for name, meaning in one.shown.items():
        interval, count = one.interval(name), one.count(name)
        spread = f"{(interval[1] - interval[0]) / 2:.2g}" if interval else "unknown" * (name in one.result.intervals)
        row = [meaning.label, _number(one.result.metrics[name]), spread]
        row += [f"{count:,}" if isinstance(count, int) else count or "", meaning.direction]
        rows.append([*row, *([_number(real.get(name))] if real else [])])
    return table(heads, rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def described(part: Part, without: Container[str] = ()) -> str:
    """Return a part in its own words, or its settings where it has none."""
    return part.describe() or listed(part, without)


def listed(settings: Settings, without: Container[str] = ()) -> str:
    """Return settings on one line, without paths: `kind` first, then what is set."""
    return _listed({key: value for key, value in plain(settings).items() if key not in without})


def _listed(settings: Mapping[str, Json]) -> str:
    shown = {key: redacted(value, key) for key, value in settings.items() if value not in (None, "", [], {})}
    kind = shown.pop("kind", None)
    return ", ".join([*([str(kind)] if kind else []), *(f"{key} {_words(value)}" for key, value in shown.items())])


def _words(value: Json) -> str:
    if isinstance(value, Mapping):
        return f"({_listed(value)})"
    if isinstance(value, list):
        return "[" + ", ".join(map(_words, value)) + "]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
