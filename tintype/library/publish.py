"""Functions that export and import models, write model cards, push to the hub, and mirror runs and studies.

Heavy modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, AnyRun, Weights
from tintype.library.runs import ignore, path_of
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.export.import_run import ImportedModel
    from tintype.export.mirror import Mirrored
    from tintype.export.model_card import Card
    from tintype.export.parity import Figure
    from tintype.export.push import Consent, Pushed
    from tintype.export.trained import Exported

Format: TypeAlias = Literal["diffusers", "tintype", "safetensors"]
Library: TypeAlias = Literal["tintype", "diffusers"]
Dtype: TypeAlias = Literal["fp32", "bf16"]
Stage: TypeAlias = Literal["checking", "writing", "comparing", "sending"]
"""Stages of an export: check the repository, write files, compare images of diffusers and tintype, upload."""


@dataclass(frozen=True)
class ExportedRun:
    """An exported model, and its upload if one was requested."""

    path: Path
    about: dict[str, Any]
    """The record of the export, with step, weights, number type and more."""
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    """With `check`: the differences between the images of diffusers and of tintype, one entry per guidance scale."""
    pushed: Pushed | None = None
    declined: bool = False
    """Whether the user or the caller declined the upload."""

    @property
    def exit_code(self) -> int:
        return int(self.declined)


def export_run(
    run: AnyRun,
    *,
    to: Format,
    out: AnyPath,
    weights: Weights | None = None,
    ema_length: float | None = None,
    dtype: Dtype = "fp32",
    check: bool = False,
    license_: str | None = None,
    name: str | None = None,
    base_model: str | None = None,
    with_captions: bool = False,
    push: str | None = None,
    private: bool = False,
    yes: bool = False,
    consent: Consent | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    on_written: Callable[[Exported], None] | None = None,
) -> ExportedRun:
    """Export a run as a PRX pipeline of diffusers, as a folder for tintype, or as one file with the denoiser.

    Args:
        run: a run, or the path of its folder.
        to: format of the export: diffusers (folder of a pipeline), tintype (folder that tintype opens, for any run) or
            safetensors (the denoiser in one file).
        out: folder to write to.
        weights: weights to export; by default the weight average if the run has one.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        dtype: number type of all exported weights.
        check: sample with tintype and with diffusers, and show the largest difference between their images.
        license_: licence as the hub names it, such as apache-2.0; by default the card states that it is unknown.
        name: name of the model for its card; by default made from its data and plan.
        base_model: model on the hub from which the training started, for the card.
        with_captions: show captions of your own data beside the samples of the card.
        push: OWNER/NAME on the hub: upload the export there after asking for consent.
        private: with --push: make a new repository private.
        yes: with --push: upload without asking; the list of files is still shown.
        consent: called with the files and the repository before the upload; returns whether to upload.
        on_stage: called with the name of each stage when it begins.
        on_written: called after the files are written, before they are compared or uploaded.

    Raises:
        UserError: the run cannot be exported in this format, `out` exists, or the hub refuses the upload.
    """
    from tintype.export.model_card import CardOptions
    from tintype.export.model_folder import export_model
    from tintype.export.pipeline_folder import export_pipeline
    from tintype.export.trained import ExportOptions, export_file, load_trained

    stage = on_stage or ignore
    if check and to != "diffusers":
        raise UserError(
            f"{option('check')} compares images with those of a diffusers pipeline",
            f"leave {option('check')} out, or use {option('to', 'diffusers')}",
        )
    for_folder = {"license": license_, "name": name, "base-model": base_model, "with-captions": with_captions}
    for_folder |= {"push": push}
    if to == "safetensors" and (given := [one for one, value in for_folder.items() if value]):
        raise UserError(
            f"{option(given[0])} applies only to a folder with a model card, but a single file has no card",
            "put the file into a folder, write a card for it with `tintype card`, and upload it with `tintype push`",
        )
    if push is None and (private or yes):
        raise UserError(
            f"{option('private' if private else 'yes')} applies only to {option('push')}",
            f"give {option('push', 'OWNER/NAME')} too",
        )
    card = CardOptions(license=license_, name=name, repo=push, base_model=base_model, with_captions=with_captions)
    folder, path = path_of(run), Path(out)
    if push is not None:  # before gigabytes are written
        from tintype.export.push import log_in

        _refuse_unasked(yes, consent)
        stage("checking")
        log_in(push, private=private)
    stage("writing")
    write = {"diffusers": export_pipeline, "tintype": export_model, "safetensors": export_file}[to]
    exported = write(folder, path, ExportOptions(weights, dtype, ema_length, card))
    (on_written or ignore)(exported)
    figures: list[Figure] = []
    if check:
        from tintype.export.parity import measure

        stage("comparing")
        figures = measure(load_trained(folder, weights, ema_length).parts, path, exported.about)
    pushed = None
    if push is not None:
        stage("sending")
        try:
            pushed = _send(path, push, private, consent)
        except UserError as error:
            again = f"`tintype push {quote(str(path))} --repo {quote(push)}`"
            raise UserError(error.marked, f"\nThe export in {path} is whole: {again} sends it") from None
    notes = (*exported.about.get("notes", ()), *exported.warnings)
    return ExportedRun(path, exported.about, notes, tuple(figures), pushed, push is not None and pushed is None)


def import_model(source: AnyPath, out: AnyPath, *settings: str, weights: Weights | None = None) -> ImportedModel:
    """Import a PRX model from diffusers or from PRX's training. The result is a run to sample, score or train.

    Args:
        source: folder of diffusers (pipeline or transformer), or a .safetensors file.
        out: folder to write to.
        settings: override a setting: key.path=value (repeatable).
        weights: weights to import from a file with raw and averaged weights; by default the average.

    Raises:
        UserError: the model is not a PRX model, a setting does not fit the model, or `out` exists.
    """
    from tintype.export.import_run import import_model as import_from

    return import_from(Path(source), Path(out), settings, weights)


def write_card(
    run: AnyRun,
    *,
    out: AnyPath | None = None,
    license_: str | None = None,
    name: str | None = None,
    baseline: str | None = None,
    library: Library = "tintype",
    repo: str | None = None,
    datasets: Sequence[str] = (),
    base_model: str | None = None,
    with_captions: bool = False,
    ema_length: float | None = None,
    overwrite: bool = False,
) -> Card:
    """Write the model card of a run, for a repository on the hub.

    Args:
        run: a run, or the path of its folder.
        out: file to write, with samples in the folder card-samples beside it; by default the card is only shown.
        license_: licence as the hub names it, such as apache-2.0; by default the card states that it is unknown.
        name: name of the model for its card; by default made from its data and plan.
        baseline: recipe, plan file or run to compare the plan with; by default the baseline of the run's study.
        library: library with which the card's usage example loads the model.
        repo: OWNER/NAME on the hub, for the usage example.
        datasets: data set on the hub on which the model was trained (repeatable).
        base_model: model on the hub from which the training started, for the card.
        with_captions: show captions of your own data beside the samples of the card.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        overwrite: replace an existing card.

    Returns:
        The card's text, its samples, and warnings. Without `out` nothing is written.

    Raises:
        UserError: the run was not trained, or a different card exists at `out`.
    """
    from tintype.export import model_card

    if out is not None and Path(out).is_dir():
        raise UserError(
            f"{option('out', out)} is a folder, but must be a file", f"name the file: {Path(out) / model_card.CARD}"
        )
    chosen = model_card.CardOptions(
        license=license_,
        library=library,
        name=name,
        repo=repo,
        datasets=tuple(datasets),
        base_model=base_model,
        baseline=baseline,
        ema_length=ema_length,
        with_captions=with_captions,
    )
    made = model_card.make_card(path_of(run), chosen)
    if out is not None:
        model_card.write_card(made, Path(out), overwrite)
    return made


def push(
    folder: AnyPath,
    *,
    repo: str,
    private: bool = False,
    yes: bool = False,
    consent: Consent | None = None,
) -> Pushed | None:
    """Show the files of a model and its card, then upload them to the hub. A repeated call resumes.

    Args:
        folder: folder with a model and its card, as `tintype export` writes it.
        repo: OWNER/NAME on the hub; the repository is created if it does not exist.
        private: make a new repository private.
        yes: upload without asking; the list of files is still shown.
        consent: called with the files and the repository before the upload; returns whether to upload.

    Returns:
        The address and the commit of the upload; None if the upload was declined.

    Raises:
        UserError: the folder must not be published, or the hub refuses the upload.
    """
    _refuse_unasked(yes, consent)
    return _send(Path(folder), repo, private, consent)


def _send(folder: Path, repo: str, private: bool, consent: Consent | None) -> Pushed | None:
    from tintype.export.push import push as send

    return send(folder, repo, consent or (lambda upload, destination: True), private=private)


def _refuse_unasked(yes: bool, consent: Consent | None) -> None:
    if not yes and consent is None:
        raise UserError(
            "the upload must be confirmed, but the input is not interactive",
            f"pass {option('yes')} to confirm the upload in advance",
        )


@dataclass(frozen=True)
class SyncUnit:
    """The smallest unit that `sync` copies, which is a checkpoint with all its files, or one other file."""

    name: str
    files: int
    bytes: int


def sync(
    source: str,
    target: str | None = None,
    *,
    list_: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[SyncUnit] | Mirrored:
    """Mirror a study or run to an object store, or back. Only complete files are copied, and each copy is checked.

    Args:
        source: folder of a study or run, or its address: s3://, gs://, file://, memory://.
        target: folder or address to copy to.
        list_: list the files of the source that can be copied, and copy nothing.
        on_progress: called with the number of finished files and the number of all files.

    Returns:
        Counts of the files. `damaged` has the reason for each file that was not copied. With `list_`, a list of the
        checkpoints and files that can be copied.

    Raises:
        UserError: an address cannot be used, or there is nothing to copy.
    """
    from tintype.export.mirror import mirror, units_of
    from tintype.export.places import open_place

    if (target is None) != list_:
        problem = "no target is given" if target is None else f"{option('list')} and a target exclude each other"
        raise UserError(problem, f"give a target to copy {source} to, or {option('list')} and no target")
    if target is None:
        units = units_of(open_place(source).sizes())
        return [SyncUnit(unit.name, len(unit.names), unit.bytes) for unit in units]
    return mirror(open_place(source), open_place(target), on_progress or ignore)
