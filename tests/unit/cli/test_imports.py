"""`tintype --help` starts fast, since it imports little. Imports are counted here: a time differs between machines."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "PIL",
    "diffusers",
    "fsspec",
    "huggingface_hub",
    "jinja2",
    "numpy",
    "pyarrow",
    "pydantic",
    "scipy",
    "torch",
    "transformers",
    "triton",
    "yaml",
}
MOST = 400
"""Modules of all kinds, those of Python's start included. They were 250 when this was written."""
PRINT = """
import sys
from tintype.__main__ import main
sys.argv = ["tintype", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.stderr.write("\\n".join(["modules:", *sys.modules]))
"""


def modules_of(*arguments: str) -> list[str]:
    """Run a command in a process of its own and return what was imported at its end."""
    command = [sys.executable, "-c", PRINT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.partition("modules:\n")[2].split("\n")


def heavy(modules: list[str]) -> set[str]:
    return HEAVY & {name.partition(".")[0] for name in modules}


def test_help_imports_little() -> None:
    modules = modules_of("--help")
    assert "tintype.cli" in modules
    assert not heavy(modules)
    assert len(modules) < MOST


def test_help_of_a_command_imports_nothing_heavy_but_what_typer_needs() -> None:
    assert heavy(modules_of("data", "import", "--help")) <= {"pydantic"}
