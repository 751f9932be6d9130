"""Print lists of recipes, studies and techniques, and print plans, their differences and their schema."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from tintype.page import numerals
from tintype.plan import Plan
from tintype.plugins.load import added
from tintype.settings import Settings, plain
from tintype.techniques import TECHNIQUES
from tintype.terminal import answers, documents
from tintype.terminal.lines import say
from tintype.terminal.view import View

if TYPE_CHECKING:
    from tintype.library.lists import ListedRecipe, ListedStudy, ListedTechnique
    from tintype.library.plans import PlanDiff


class RecipeTable(View["list[ListedRecipe]"]):
    def show(self, result: list[ListedRecipe]) -> None:
        numbers = [Column(head, justify="right", no_wrap=True) for head in ("px", "denoiser", "steps × batch")]
        table = Table(Column("recipe", no_wrap=True), "what it is", "device", *numbers)
        for one in result:
            size = one.denoiser_parameters
            denoiser = "" if size is None else numerals.count(size, 2)
            words = one.description.partition(": ")[0]  # the rest repeats the other columns
            row = [str(one.size_px), denoiser, f"{one.steps:,} × {one.batch}"]
            table.add_row(one.name, escape(words), one.device, *row)
        self.console.print(table)


class StudyTable(View["list[ListedStudy]"]):
    def show(self, result: list[ListedStudy]) -> None:
        table = Table(Column("study", no_wrap=True), "question", "device", "recipe", Column("runs", justify="right"))
        for one in result:
            table.add_row(one.name, escape(one.question), one.device, one.recipe, str(one.runs))
        self.console.print(table)
        say(self.console, "`tintype ablate STUDY --out DIR --dry-run` shows the arms of one", "dim")


class TechniqueTable(View["list[ListedTechnique]"]):
    def show(self, result: list[ListedTechnique]) -> None:
        table = Table(Column("technique", no_wrap=True), Column("seam", no_wrap=True), "what it does, options, paper")
        for one in result:
            lines = [one.summary, _options(TECHNIQUES[one.name].options), one.paper or "", _plugin_of(one.name)]
            table.add_row(one.name, one.seam, escape("\n".join(filter(None, lines))))
        self.console.print(table)


def _plugin_of(name: str) -> str:
    """Describe the plugin that a technique comes from; empty for tintype's own techniques."""
    one = added("techniques").get(name)
    return f"from the plugin {one.plugin.name}" if one else ""


def _options(options: type[Settings]) -> str:
    shown = []
    for key, field in options.model_fields.items():
        if key == "kind":  # the options are a part, whose kind the technique sets
            continue
        key = field.alias or key
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            default = plain(default).get("kind", "")
        default = str(default).lower() if isinstance(default, bool) else default
        shown.append(key if default is None or field.is_required() else f"{key}={default}")
    return ", ".join(shown)


class PlanText(View[Plan]):
    def show(self, result: Plan) -> None:
        sys.stdout.write(f"# hash: {result.hash}\n{result.to_yaml()}")

    def document(self, result: Plan) -> documents.PlanShown:
        return documents.PlanShown(hash=result.hash, plan=plain(result))


class PlanChanges(View["PlanDiff"]):
    """View of `plan diff`, which shows a line for each setting that differs between two plans."""

    def show(self, result: PlanDiff) -> None:
        for key, (old, new) in result.changes.items():
            sys.stdout.write(f"{key}: {old} -> {new}\n")
        if not result.changes:
            sys.stdout.write("no difference\n")


class Schema(View[dict[str, Any]]):
    def show(self, result: dict[str, Any]) -> None:
        if not self.console.quiet:  # another rank prints it
            answers.put(result)
