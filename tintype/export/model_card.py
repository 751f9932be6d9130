"""Write a model's card from the record of its run. The card is a README.md for the hub, with samples next to it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import tintype
from tintype.config.strict import write_yaml
from tintype.errors import UserError
from tintype.evaluation.reference import held_out, scored_data
from tintype.evaluation.samples import sampling_prompts
from tintype.export.public import HUB_NAME, escape, fenced, one_line, redacted
from tintype.export.record import CardRecord, read_record
from tintype.optim.part import MOST_INIT
from tintype.plan import Plan
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.files import Json, write_bytes
from tintype.runtime.redact import LOCAL
from tintype.settings import Part, Settings, plain
from tintype.wording import option, rendered

Library = Literal["tintype", "diffusers"]
UNKNOWN = "unknown"
CARD = "README.md"
SAMPLES = "card-samples"
"""Name of the folder of samples next to the card. The name `samples` is already the default of `tintype sample`."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class CardOptions:
    license: str | None = None
    library: Library = "tintype"
    name: str | None = None
    repo: str | None = None
    datasets: tuple[str, ...] = ()
    base_model: str | None = None
    baseline: str | None = None
    ema_length: float | None = None
    with_captions: bool = False
    """Whether to show a store's captions next to the samples. Captions of scenes are always shown."""
    weights: str | None = None
    """The kind of weights (raw or average) whose scores the card shows, by default the kind used for sampling."""
    exported: Mapping[str, Any] = field(default_factory=dict)
    """The record of the exported model, if the card is in the folder of an exported model."""

    def __post_init__(self) -> None:
        if self.library not in get_args(Library):
            raise UserError(f"{option('library', self.library)} is unknown", f"valid: {', '.join(get_args(Library))}")
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise UserError(
                f"{option('license', self.license)} is not a licence identifier",
                "write the identifier as on the hub, in lower case, for example apache-2.0 or cc-by-4.0",
            )
        names = {"base-model": [self.base_model], "repo": [self.repo], "dataset": self.datasets}
        for of, name in ((of, name) for of, some in names.items() for name in some if name is not None):
            if not HUB_NAME.fullmatch(name):
                raise UserError(
                    f"{option(of, name)} is not a valid repository name of the hub", "write it as OWNER/NAME"
                )


@dataclass(frozen=True)
class Card:
    text: str
    images: Mapping[str, Path] = field(default_factory=dict)
    """The samples. Each path next to the card is mapped to the image's current path."""
    warnings: tuple[str, ...] = ()


def make_card(run: Path, options: CardOptions | None = None) -> Card:
    options = options or CardOptions()
    record = read_record(run, options.baseline, options.ema_length, options.weights)
    plan, images = record.run.plan, _samples(record)
    prompts = _prompts(record, options, max(1, len(images)))
    title = options.name or f"tintype {plan.data.kind} {plan.data.size_px} px, {plan.hash}"
    text = _TEMPLATES.get_template("model_card.md.j2").render(
        head=Markup(_metadata(record, options, title).to_yaml()),
        title=title,
        record=record,
        plan=plan,
        options=options,
        exported=options.exported,
        repo=options.repo or "OWNER/NAME",
        prompt=one_line(prompts[0] if prompts else "an image"),
        images=list(images),
        prompts=list(zip(images, prompts, strict=True)) if images and prompts else [],
        checkpoints=_checkpoints({section: part for section, part in plain(plan).items() if section != "start"}),
        version=tintype.__version__,
        full_plan=fenced(write_yaml(redacted(plain(plan))), "yaml"),
    )
    return Card(text, images, tuple(_warnings(record, options)))


def exported_card(run: Path, options: CardOptions, about: Mapping[str, Any]) -> Card:
    """Return the card of an exported model, with the scores of its weights and instructions to load it from the hub."""
    which = {"ema_length": about["ema"]["length"]} if "ema" in about else {"weights": about["weights"]}
    library: Library = "diffusers" if "pipeline" in about else "tintype"
    return make_card(run, replace(options, library=library, exported=about, **which))


def limits(record: CardRecord) -> str:
    """Return the limitations of a model as a Markdown list. Each limitation follows from a fact in the record."""
    return _TEMPLATES.get_template("limits.md.j2").render(record=record, plan=record.run.plan)


def write_card(card: Card, file: Path, overwrite: bool = False) -> list[Path]:
    """Write the card and its samples. Raise if a different file exists, unless `overwrite` is set."""
    wanted = {file: card.text.encode("utf-8")}
    wanted |= {file.parent / place: source.read_bytes() for place, source in card.images.items()}
    changed = [path for path, content in wanted.items() if path.exists() and path.read_bytes() != content]
    if changed and not overwrite:
        raise UserError(
            f"{changed[0]} exists already with another content",
            f"use {option('overwrite')} to replace it, or another {option('out')}",
        )
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return list(wanted)


def _warnings(record: CardRecord, options: CardOptions) -> Iterator[str]:
    if options.license is None:
        yield f"no licence given: the card says that it is unknown; pass {rendered(option('license'))}"
    if not record.evaluations:
        if record.older_evaluations:
            yield "none of the run's evaluations is of these weights, and the card has no scores"
        else:
            command = f"`tintype evaluate {shlex.quote(str(record.run.path))}`"
            yield f"the run was not evaluated, and the card has no scores; {command} makes them"
    for one in record.evaluations:
        if one.result.step != (now := record.weights_step):
            yield f"the scores are of step {one.result.step}, the weights of step {now}; evaluate the run again"


def _metadata(record: CardRecord, options: CardOptions, title: str) -> ModelCardData:
    hub = record.origin.hub if record.origin else None
    results = list(_results(record))
    return ModelCardData(
        license=options.license or UNKNOWN,
        library_name=options.library,
        pipeline_tag="text-to-image",
        tags=_tags(record.run.plan),
        datasets=list(options.datasets) or None,
        base_model=options.base_model or (hub[0] if hub else None),
        model_name=one_line(title) if results else None,
        eval_results=results or None,
    )


def _tags(plan: Plan) -> list[str]:
    main_loss = None if plan.main_loss.kind == "square" else plan.main_loss
    parts = [main_loss, plan.noise, plan.weighting, plan.route, plan.tuning, *plan.losses]
    kinds = [plan.objective.kind, plan.optimizer.kind, *(part.kind for part in parts if part is not None)]
    return list(dict.fromkeys(["tintype", "text-to-image", "flow-matching", *kinds]))


def _results(record: CardRecord) -> Iterator[EvalResult]:
    for one in record.evaluations:
        for metric, meaning in one.shown.items():
            samples, interval = one.count(metric), one.interval(metric)
            about = {"samples": samples} if isinstance(samples, int) else {}
            yield EvalResult(
                task_type="text-to-image",
                task_name="Text to image",
                dataset_type=record.run.plan.data.kind,
                dataset_name=one_line(f"tintype, {record.run.plan.data.describe_held_out()}"),
                dataset_config=f"protocol {one_line(one.result.scale)}",
                metric_type=one_line(metric),
                metric_name=one_line(meaning.label),
                metric_value=one.result.metrics[metric],
                metric_args=(about | ({"interval_95": list(interval)} if interval else {})) or None,
            )


def _samples(record: CardRecord) -> dict[str, Path]:
    """Return the preview images of the first evaluation. Only PNG files in the run's folder are used."""
    if not record.evaluations:
        return {}
    folder = record.run.path
    found = [folder / name for name in record.evaluations[0].result.previews]
    own = [file for file in found if file.resolve().is_relative_to(folder.resolve()) and file.is_file()]
    own = [file for file in own if file.read_bytes().startswith(_PNG)]
    return {f"{SAMPLES}/sample-{number}.png": file for number, file in enumerate(own, 1)} if own == found else {}


def _prompts(record: CardRecord, options: CardOptions, count: int) -> list[str]:
    """Return the prompts of the first samples, which are captions of held-out data; empty if they must not be shown."""
    plan = record.run.plan
    data = plan.data
    if not record.evaluations or not (data.of_scenes or options.with_captions):
        return []
    if not data.at_hand:
        raise UserError(
            f"{option('with-captions')}: the store that contains the captions is not on this machine", "leave it out"
        )
    result = record.evaluations[0].result
    protocol, scored = result.protocol, scored_data(plan, result.protocol, result.step)
    record.run.check_identity(
        data.scored_name, held_out(scored, protocol).identity
    )  # so the captions are those that were scored
    return list(sampling_prompts(scored, protocol, protocol.conditions[0])[:count])


def _checkpoints(value: Json, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield every external checkpoint that the plan names, with its revision."""
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


def described(part: Part, without: Container[str] = ()) -> str:
    """Return the description that a part gives of itself, else its settings as text."""
    return part.describe() or listed(part, without)


def listed(settings: Settings, without: Container[str] = ()) -> str:
    """Return settings as one line of text, without paths. `kind` comes first."""
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


def value(setting: Json, key: str) -> str:
    return _words(redacted(setting, key.rpartition(".")[2]))


_TEMPLATES = Environment(
    loader=PackageLoader("tintype.export", "."),
    autoescape=True,
    finalize=escape,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
"""Templates of cards. `escape` escapes every value that a template prints, as Markdown."""
_TEMPLATES.filters |= {
    "thousands": "{:,}".format,
    "percent": "{:.0%}".format,
    "number": "{:.4g}".format,
    "literal": lambda text: Markup(json.dumps(text, ensure_ascii=False)),
    "quoted": lambda text: Markup(shlex.quote(text)),
}
_TEMPLATES.globals |= {
    "described": described,
    "listed": listed,
    "value": value,
    "fenced": fenced,
    "most_init": MOST_INIT,
}
