"""Implement `tintype import`: make a run from another tool's PRX model.

The model's weights become the checkpoint of step 0. An imported run is sampled and scored like any other run. Training
can continue from its weights with a new optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import tintype
from tintype.config.strict import Document
from tintype.errors import UserError
from tintype.export.architecture import check_tensors, from_tensors
from tintype.export.contract import route_obstacles
from tintype.export.foreign import PIPELINES_BY_CLEANING, Foreign, read_foreign
from tintype.export.whole import refuse_existing, written_whole
from tintype.plan import Plan, plan_from_document
from tintype.settings import plain
from tintype.text.part import TextPart
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.parts import Model, build_model
from tintype.train.record import IMPORTED
from tintype.train.session import Session, build_session
from tintype.train.state import new_state
from tintype.wording import rendered, setting


@dataclass(frozen=True)
class ImportedModel:
    path: Path
    plan: Plan
    record: dict[str, Any]
    notes: tuple[str, ...] = ()


def import_model(source: Path, out: Path, assignments: Sequence[str] = (), weights: str | None = None) -> ImportedModel:
    """Import a model as a run. After an error, no files remain. `assignments` are settings as in `--set`."""
    refuse_existing(out)
    foreign = read_foreign(source, weights)
    plan = _plan(foreign, assignments)
    _check(foreign, plan)
    parts = build_session(plan)
    _check_parts(foreign, parts)
    record = _record(foreign, plan)
    with written_whole(out) as temporary:
        _write(foreign, parts, record, temporary)
    return ImportedModel(out, plan, record, tuple(_cleaning_notes(foreign, plan.text)))


def open_model(source: Path, device: str | None = None) -> Model:
    """Return another tool's PRX model for sampling. Unlike `import_model`, make no run's folder."""
    foreign = read_foreign(source, None)
    plan = _plan(foreign, [f"run.device={device}"] if device else [])
    _check(foreign, plan)
    parts = build_model(plan)
    _check_parts(foreign, parts)
    _fill(parts, foreign)
    parts.modules.eval()
    return replace(parts, trained_steps=int(foreign.about.get("step", 0)))


def _check_parts(foreign: Foreign, parts: Model) -> None:
    plan, reads = parts.plan, foreign.tensors.get("txt_in.weight")
    if reads is not None and reads.shape[-1] != parts.text.dim:
        raise UserError(
            f"{foreign.place} needs text embeddings of width {reads.shape[-1]}, but the plan's encoder "
            f"'{plan.text.kind}' gives width {parts.text.dim}",
            f"name the model's own encoder with {setting('text.kind', '…')} and {setting('text.weights', '…')}",
        )
    check_tensors(foreign.tensors, plan.model, parts.tokenizer.channels, parts.text.dim, str(foreign.place))


@torch.no_grad()
def _fill(parts: Model, foreign: Foreign) -> None:
    own = parts.denoiser.state_dict()
    for name, tensor in foreign.tensors.items():
        own[name].copy_(tensor)


def _plan(foreign: Foreign, assignments: Sequence[str]) -> Plan:
    """Return the plan. The plan's sections follow from the folder, and the user's assignments override them."""
    sections = {key: dict(value) for key, value in foreign.sections.items()}
    if foreign.config is not None:
        sections["model"] = foreign.config.model
    document = Document(f"the plan of {foreign.place}", sections)
    if "model" not in sections:
        _add_model(foreign, document, assignments)
    return plan_from_document(document, assignments)


def _add_model(foreign: Foreign, document: Document, assignments: Sequence[str]) -> None:
    """Add the section `model`, inferred from the tensors.

    The inference needs the tokenizer's number of channels. So the tokenizer is resolved first, with a model that fits
    any tokenizer.
    """
    if "tokenizer" not in document.data and not any(one.strip().startswith("tokenizer") for one in assignments):
        from_tensors(foreign.tensors, None, str(foreign.place))
    trial = Document(document.name, {**document.data, "model": {"patch": 1}})
    kept = [one for one in assignments if one.split("=")[0].strip().split(".")[0] in ("tokenizer", "data")]
    channels = plan_from_document(trial, kept).tokenizer.compression.channels
    document.data["model"] = from_tensors(foreign.tensors, channels, str(foreign.place))


def _check(foreign: Foreign, plan: Plan) -> None:
    if not plan.text.is_frozen:
        raise UserError(
            f"{foreign.place} has no text encoder, and the plan's encoder '{plan.text.kind}' would be untrained",
            f"name the encoder of the model's training: {setting('text.kind', 't5gemma')}, and "
            f"{setting('text.weights', 'FOLDER')} unless its weights are on the hub",
        )
    channels = plan.tokenizer.compression.channels
    if foreign.config is not None and foreign.config.channels != channels:
        raise UserError(
            f"{foreign.place} needs latents with {foreign.config.channels} channels, but the plan's tokenizer "
            f"'{plan.tokenizer.kind}' gives {channels}",
            f"name the model's own tokenizer with {setting('tokenizer.kind', '…')}",
        )
    if plan.tuning is not None or route_obstacles(plan):
        raise UserError(
            "the plan has layers that the imported model lacks (tuning of the tokenizer, or a route with an "
            "extra layer)",
            "import the model without these settings, then train a plan with them from the imported weights",
        )
    if plan.start is not None:
        raise UserError(
            "the plan starts from another run (start), so the imported weights would not be used", "leave start out"
        )
    for name, tensor in foreign.tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{foreign.place}: {name} is not finite")


def _write(foreign: Foreign, parts: Session, record: dict[str, Any], temporary: Path) -> None:
    _fill(parts, foreign)
    state = new_state(parts)  # a weight average begins with the imported weights
    folder = RunFolder(temporary)
    with folder.claim(parts.plan):
        folder.keep_identities(parts.identities, 0)
        folder.write_about(parts)
        folder.write_record(IMPORTED, record)
        folder.log_event("imported", 0, **record)
        checkpoint.save(folder.checkpoints, state, parts.plan.run.keep_checkpoints, records=folder.records())


def _cleaning_notes(foreign: Foreign, text: TextPart) -> Iterator[str]:
    """Yield a note on how prompts are cleaned, if the folder has no plan that states it."""
    cleaning = plain(text)["clean"]
    if foreign.about:
        return
    if cleaning in PIPELINES_BY_CLEANING:
        yield (
            f"prompts and captions are cleaned as diffusers' {PIPELINES_BY_CLEANING[cleaning]} cleans prompts "
            f"(text.clean={cleaning}); {rendered(setting('text.clean', 'false'))} leaves them as they are"
        )
    elif not cleaning:
        of_latents, of_pixels = (rendered(setting("text.clean", kind)) for kind in ("prx", "prx-pixel"))
        yield (
            "prompts and captions are not cleaned (text.clean=false). PRX's own models were trained on cleaned "
            f"captions: import them with {of_latents}, pixel models with {of_pixels}"
        )


def _record(foreign: Foreign, plan: Plan) -> dict[str, Any]:
    about = {key: foreign.about[key] for key in ("plan", "step", "tintype") if key in foreign.about}
    return {
        "source": str(foreign.place.absolute()),
        "sha256": foreign.sha256,
        "weights": foreign.weights,
        "imported_by": tintype.__version__,
        "as_plan": plan.hash,
        "text_cleaning": plain(plan.text)["clean"],
        **({"exported_from": about} if about else {}),
    }
