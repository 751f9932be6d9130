"""Print the results of the commands for plugins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from tintype.contract.run import Checked, Result, parts_in_words
from tintype.terminal import documents
from tintype.terminal.lines import say
from tintype.terminal.progress import Progress
from tintype.terminal.view import View

if TYPE_CHECKING:
    from rich.console import Console


class NextSteps(View[Path]):
    """View of `new technique`, which shows the next commands for the new file."""

    def show(self, result: Path) -> None:
        file, name = quote(str(result)), self.given["name"]
        out = quote(f"runs/{name}")
        say(self.console, f"written: {result}")
        say(self.console, f"next: write your idea into its `loss`, then tintype check {file}")
        say(self.console, f"then: tintype --plugin {file} train pocket --technique {quote(name)} --out {out}")

    def document(self, result: Path) -> documents.Written:
        return documents.Written(file=str(result))


class Checks(View[Checked]):
    """View of `check`, which shows a line for each finished check, followed by the number of passed checks."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        kept = "a check writes nothing; run the same command again"
        with Progress(f"loading {self.given['file']}", unit="checks", kept=kept) as bars:
            lines = bars.console_for_lines(self.console)
            calls = {"on_progress": lambda doing, done, total: bars.show("checking", done, total, doing)}
            yield calls if self.as_json else {**calls, "on_result": lambda result: _show_result(result, lines)}

    def show(self, result: Checked) -> None:
        say(self.console, f"{result.plugin.name}, sha256 {result.plugin.sha256}: {parts_in_words(result)}")
        if result.results:
            passed = sum(one.passed for one in result.results)
            say(self.console, f"{passed} of {len(result.results)} checks passed")
        else:
            say(
                self.console,
                "it has no technique, sampler or guidance, and only these have a contract to check; it was loaded "
                "without a mistake",
            )

    def document(self, result: Checked) -> documents.CheckedFile:
        return documents.CheckedFile(
            plugin={"name": result.plugin.name, "sha256": result.plugin.sha256},
            parts=result.parts,
            passed=result.passed,
            results=[asdict(one) for one in result.results],
        )


def _show_result(result: Result, console: Console) -> None:
    details = f" ({' '.join(result.details.split())})" if result.details else ""
    word, style = ("pass", None) if result.passed else ("FAIL", "red")
    say(console, f"{word}  {result.technique}: {result.check[0].lower()}{result.check[1:]}{details}", style)
