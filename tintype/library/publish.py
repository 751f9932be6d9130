"""Publishing in Python: export and import models, write cards, push to the hub, mirror runs and studies.

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
"""Parts of an export: the repository is checked, files are written, both libraries sample, files are uploaded."""


@dataclass(frozen=True)
class ExportedRun:
    """A model that was exported, and uploaded where that was asked for."""

    path: Path
    about: dict[str, Any]
    """Step, weights, type and everything else that the export records."""
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    """With `check`: how far images of diffusers are from those of tintype, by guidance."""
    pushed: Pushed | None = None
    declined: bool = False
    """Whether the upload was not consented to."""

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
    """Export a run: as a PRX pipeline of diffusers, as a folder for tintype, or its denoiser as one file.

    Args:
        run: a run, or the path of its folder.
        to: diffusers (folder of a pipeline), tintype (folder that tintype opens, for any run) or safetensors (the
            denoiser in one file).
        out: folder to write to.
        weights: by default the average if there is one.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        dtype: type of all weights.
        check: sample with tintype and with diffusers, and show the largest difference.
        license_: licence as the hub names it: apache-2.0. Without it the card says that it is unknown.
        name: name of the model for its card; by default from its data and plan.
        base_model: model on the hub that the training started from, for the card.
        with_captions: show captions of your own data beside the samples of the card.
        push: OWNER/NAME on the hub: ask, then upload it there.
        private: with --push: make a new repository private.
        yes: with --push: do not ask; the list of files is shown all the same.
        consent: called with the files and the place before anything is sent; it returns whether to send them.
        on_stage: called when a part of the work begins.
        on_written: called once the files are written, before they are compared or sent.

    Raises:
        UserError: the run cannot be exported in this form, `out` is there, or the hub refuses the upload.
    """
    from tintype.export.model_card import CardOptions
    from tintype.export.model_folder import export_model
    from tintype.export.pipeline_folder import export_pipeline
    from tintype.export.trained import ExportOptions, export_file, load_trained

    stage = on_stage or ignore
    if check and to != "diffusers":
        raise UserError(
            f"{option('check')} compares with a pipeline of diffusers",
            f"leave it out, or take {option('to', 'diffusers')}",
        )
    for_folder = {"license": license_, "name": name, "base-model": base_model, "with-captions": with_captions}
    for_folder |= {"push": push}
    if to == "safetensors" and (given := [one for one, value in for_folder.items() if value]):
        raise UserError(
            f"{option(given[0])} is for a folder with a card; a single file has none",
            "`tintype card` writes one for the folder that you put it in, and `tintype push` sends that",
        )
    if push is None and (private or yes):
        raise UserError(
            f"{option('private' if private else 'yes')} is for {option('push')}",
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
    """Import a PRX model, of diffusers or of PRX's training, as a run that can be sampled, scored and trained.

    Args:
        source: folder of diffusers (pipeline or transformer), or a .safetensors file.
        out: folder to write to.
        settings: override a setting: key.path=value (repeatable).
        weights: by default the average if there is one, for a file that has both.

    Raises:
        UserError: the model is not of PRX, a setting does not fit it, or `out` is there.
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
    """Write the model card of a run, as the hub shows it.

    Args:
        run: a run, or the path of its folder.
        out: file to write, with samples in card-samples beside it; by default the card is only shown.
        license_: licence as the hub names it: apache-2.0. Without it the card says that it is unknown.
        name: name of the model for its card; by default from its data and plan.
        baseline: recipe, plan file or run to list the changes against; by default the baseline of the study.
        library: library that loads the model: the run, or an export.
        repo: OWNER/NAME on the hub, for the usage example.
        datasets: data set on the hub that the model was trained on (repeatable).
        base_model: model on the hub that the training started from, for the card.
        with_captions: show captions of your own data beside the samples of the card.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        overwrite: replace an existing card.

    Returns:
        The card's text, its samples, and warnings. Without `out` nothing is written.

    Raises:
        UserError: the run was not trained, or another card is there.
    """
    from tintype.export import model_card

    if out is not None and Path(out).is_dir():
        raise UserError(f"{option('out', out)} is a folder", f"name the file: {Path(out) / model_card.CARD}")
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
    """Upload a model with its card to the hub, after showing the files. Running it again resumes.

    Args:
        folder: folder with a model and its card, as `tintype export` writes it.
        repo: OWNER/NAME on the hub; created if it does not exist.
        private: make a new repository private.
        yes: do not ask; the list of files is shown all the same.
        consent: called with the files and the place before anything is sent; it returns whether to send them.

    Returns:
        The address and the commit; None where consent was refused.

    Raises:
        UserError: the folder must not be published, or the hub refuses it.
    """
    _refuse_unasked(yes, consent)
    return _send(Path(folder), repo, private, consent)


def _send(folder: Path, repo: str, private: bool, consent: Consent | None) -> Pushed | None:
    from tintype.export.push import push as send

    return send(folder, repo, consent or (lambda upload, destination: True), private=private)


def _refuse_unasked(yes: bool, consent: Consent | None) -> None:
    if not yes and consent is None:
        raise UserError("nobody can confirm the upload", f"pass {option('yes')} to confirm it beforehand")


@dataclass(frozen=True)
class SyncUnit:
    """A checkpoint with all its files, or one other file, which `sync` copies as a whole."""

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
    """Mirror a study or run to an object store, or back: only what is whole, and each copy is checked.

    Args:
        source: folder of a study or run, or its address: s3://, gs://, file://, memory://.
        target: folder or address to copy to.
        list_: list what the source has, and copy nothing.
        on_progress: called with the number of files that are done, and of all.

    Returns:
        Counts of the files; `damaged` names what was not copied, and why. With `list_`, what could be copied.

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
