"""Show progress and results of the commands that mirror and publish models."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from tintype.errors import UserError
from tintype.export.mirror import Mirrored
from tintype.terminal import documents
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import progress_console, say
from tintype.terminal.progress import Heartbeat, Progress, duration
from tintype.terminal.view import View

if TYPE_CHECKING:
    from rich.console import Console

    from tintype.export.import_run import ImportedModel
    from tintype.export.model_card import Card
    from tintype.export.push import Consent, Destination, Pushed, Upload
    from tintype.export.trained import Exported
    from tintype.library.publish import ExportedRun, Stage, SyncUnit

_NOTHING_WRITTEN = "nothing was written; run the same command again"

_SHOWN = 10
"""Largest number of damaged files that an error lists."""


class Export(View["ExportedRun"]):
    """View of `export`, which shows progress by stages, the written files, and the address of the upload."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        out, repo = self.given["out"], self.given["push"]
        with ExitStack() as stack:

            def on_stage(stage: Stage) -> None:
                stack.close()
                if stage == "checking":
                    stack.enter_context(Progress(f"checking {repo}", kept=_NOTHING_WRITTEN))
                elif stage == "writing":
                    stack.enter_context(Progress(f"writing {out}", kept=_NOTHING_WRITTEN))
                elif stage == "comparing":
                    kept = f"{out} is whole; its check was not finished"
                    stack.enter_context(Progress("sampling with both", kept=kept))
                else:
                    stack.enter_context(_sending(out, repo))

            def on_written(exported: Exported) -> None:
                stack.close()
                about = exported.about
                say(self.console, f"{out}: {about['weights']} weights of step {about['step']} in {about['dtype']}")
                for note in (*about.get("notes", ()), *exported.warnings):
                    say(self.console, f"note: {note}")

            yield {"on_stage": on_stage, "on_written": on_written, "consent": _consent(self.given["yes"], self.lines)}

    def show(self, result: ExportedRun) -> None:
        for figure in result.figures:
            differ = f"latents differ by {figure.latents:.2g} at most, images in [0, 1] by {figure.images:.2g}"
            say(self.console, f"guidance {figure.guidance:g}: {differ}")
        if self.given["push"] is not None:
            _show_pushed(result.pushed, self.console)

    def document(self, result: ExportedRun) -> documents.ExportedFolder:
        pushed = result.pushed
        return documents.ExportedFolder(
            folder=str(result.path),
            about=result.about,
            notes=list(result.notes),
            figures=[asdict(one) for one in result.figures],
            url=pushed and pushed.url,
            commit=pushed and pushed.commit,
        )


class Import(View["ImportedModel"]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with Progress(f"reading {self.given['source']}", kept=_NOTHING_WRITTEN):
            yield {}

    def show(self, result: ImportedModel) -> None:
        out = result.path
        say(self.console, f"{out}: a run of plan {result.plan.hash} at step 0")
        for note in result.notes:
            say(self.console, f"note: {note}")
        train = f"`tintype train {quote(str(out / 'plan.yaml'))} --out {quote(str(out))}`"
        say(self.console, f"{train} continues its training")

    def document(self, result: ImportedModel) -> documents.ImportedRun:
        return documents.ImportedRun(folder=str(result.path), plan=result.plan.hash, notes=list(result.notes))


class CardText(View["Card"]):
    """View of `card`, which shows the text of the card, or the path of the written file."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if self.given["out"] is not None:
            begin_work()
        yield {}

    def show(self, result: Card) -> None:
        if self.given["out"] is None:
            sys.stdout.write(result.text)
        else:
            say(self.console, f"card: {self.given['out']}, with {len(result.images)} samples")

    def document(self, result: Card) -> documents.WrittenCard:
        out = self.given["out"]
        file = None if out is None else str(out)
        return documents.WrittenCard(text=result.text, file=file, warnings=list(result.warnings))

    def finish(self, result: Card) -> None:
        super().finish(result)
        for warning in result.warnings:
            say(progress_console, f"note: {warning}", "yellow")


class Push(View["Pushed | None"]):
    """View of `push`, with the files, the question, and the address. A declined upload has exit code 1."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with _sending(self.given["folder"], self.given["repo"]):
            yield {"consent": _consent(self.given["yes"], self.lines)}

    def show(self, result: Pushed | None) -> None:
        _show_pushed(result, self.console)

    def document(self, result: Pushed | None) -> documents.Pushed:
        return documents.Pushed(url=result and result.url, commit=result and result.commit)

    def finish(self, result: Pushed | None) -> None:
        super().finish(result)
        if result is None:
            sys.exit(1)


@contextmanager
def _sending(folder: Path, repo: str) -> Iterator[None]:
    """Show that files are being uploaded. On a terminal, huggingface_hub draws its own bars."""
    begin_work()
    began_s = time.monotonic()
    try:
        with Heartbeat(progress_console, lambda: f"sending {folder}: after {duration(time.monotonic() - began_s)}"):
            yield
    except Interrupted as stopped:
        stopped.kept = f"`tintype push {quote(str(folder))} --repo {quote(repo)}` resumes"
        raise


def _consent(yes: bool, console: Console) -> Consent | None:
    """Return a function that asks the user whether to upload; None if there is no user at a terminal."""

    def ask(upload: Upload, destination: Destination) -> bool:
        from typer import confirm

        _show_upload(upload, destination, console)
        return yes or confirm("Upload it?", default=False, err=True)

    return ask if yes or sys.stdin.isatty() else None


def _show_upload(upload: Upload, destination: Destination, console: Console) -> None:
    seen = "private" if destination.private else "public"
    state = f"an existing {seen} repository" if destination.exists else f"a new {seen} repository"
    say(console, f"to {destination.url}, {state}, as {destination.account}:")
    table = Table("file", "size")
    sizes = upload.sizes
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        table.add_row(escape(name), decimal(sizes[name]))
    table.add_row(f"{len(sizes)} files", decimal(sum(sizes.values())), style="bold")
    console.print(table)
    if upload.left_out:
        hidden = ", ".join(upload.left_out[:5]) + (", …" if len(upload.left_out) > 5 else "")
        say(console, f"left out: {hidden}")


def _show_pushed(pushed: Pushed | None, console: Console) -> None:
    if pushed is None:
        say(console, "nothing was sent")
    else:
        sent = f"sent as commit {pushed.commit[:12]}" if pushed.changed else "the repository had these files already"
        say(console, f"{sent}: {pushed.url}")


class Mirror(View["list[SyncUnit] | Mirrored"]):
    """View of `sync`, with the progress of a copy, or a location's files. Damaged files are an error."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if self.given["target"] is None:
            yield {}
            return
        kept = "what was copied is whole; run the same command again to copy the rest"
        with Progress(f"copying to {self.given['target']}", unit="files", kept=kept) as bars:
            yield {"on_progress": bars.count}

    def show(self, result: list[SyncUnit] | Mirrored) -> None:
        if isinstance(result, Mirrored):
            gone = f"; removed from the source meanwhile: {result.gone}" if result.gone else ""
            copied = f"copied: {result.copied} files ({decimal(result.copied_bytes)})"
            say(self.console, f"{copied}, there: {result.there}{gone}")
            return
        table = Table("name", "files", "size", box=None)
        for unit in result:
            table.add_row(escape(unit.name), str(unit.files), decimal(unit.bytes))
        self.console.print(table)

    def finish(self, result: list[SyncUnit] | Mirrored) -> None:
        super().finish(result)
        if isinstance(result, Mirrored) and result.damaged:
            lines = [f"  {name}: {reason}" for name, reason in list(result.damaged.items())[:_SHOWN]]
            more = f"\n  and {len(result.damaged) - _SHOWN} more" if len(result.damaged) > _SHOWN else ""
            raise UserError(
                f"{len(result.damaged)} files in {self.given['source']} are damaged and were not copied",
                "repair the files by training, evaluating or reporting again, then run the same command "
                "again:\n" + "\n".join(lines) + more,
            )
