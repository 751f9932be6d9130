"""The output on docs/how-to/judge-other-trainers.md: of the command on the page, from the table on the page."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console

from tintype.library.judge import judge
from tintype.terminal.judge import show_judgement
from tools.figures.data import ROOT
from tools.figures.pages import Block, Claim

NAME = "docs/how-to/judge-other-trainers.md"


def judge_page() -> Iterator[Claim]:
    (table,) = re.findall(r"^```csv\n(.*?)^```", (ROOT / NAME).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    console = Console(file=io.StringIO(), width=110, color_system=None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.csv"
        file.write_text(table, encoding="utf-8")
        show_judgement(judge(file, baseline="adamw", primary="val_bpb", margin="0.5%"), console)
    assert isinstance(console.file, io.StringIO)
    yield Block("judged", ["```text", *map(str.rstrip, console.file.getvalue().splitlines()), "```"])


PAGES: dict[str, Callable[[], Iterable[Claim]]] = {NAME: judge_page}
