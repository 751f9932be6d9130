"""Loading never runs code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tintype

FORBIDDEN_MODULES = {"pickle", "shelve", "marshal", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"),
    ("torch", "hub"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("os", "system"),
}
PACKAGE = Path(tintype.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ALLOWED = {"pretrained/pickles.py": {"pickle"}, "plugins/load.py": {"compile", "exec"}}
"""The one file that opens pickles, with a table of the names that it knows; test_pickles.py attacks it. And the one
that runs a plugin file, which the user has named by `--plugin` or TINTYPE_PLUGINS."""
GIVE_FILES = {"plugins/load.py", "cli/shared.py", "contract/run.py", "library/plugins.py"}
"""The files that may name a plugin file to be run: `--plugin`, the argument of `tintype check`, `load_plugins`."""


def reads_tensors_only(call: ast.Call) -> bool:
    """Whether it is `torch.load(..., weights_only=True)`, torch's own restricted reader."""
    name = ast.unparse(call.func) == "torch.load"
    return name and any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)


def offences(source: str) -> list[str]:
    found = []
    tree = ast.parse(source)
    harmless = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and reads_tensors_only(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(node.func.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in harmless:
            found += [node.attr for pair in FORBIDDEN_ATTRIBUTES if (node.value.id, node.attr) == pair]
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            found.append("trust_remote_code")
    return found


@pytest.mark.promise(17)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_loader_can_run_code(file: Path) -> None:
    """Read the syntax of each file of the package: no pickle, eval, exec, torch.hub, trust_remote_code."""
    allowed = ALLOWED.get(file.relative_to(PACKAGE).as_posix(), set())
    assert set(offences(file.read_text())) <= allowed


def test_only_the_command_line_names_plugin_files() -> None:
    """A plan, a study or a run cannot: their rooms never call what loads a file."""
    calls = {file.relative_to(PACKAGE).as_posix() for file in FILES if "load_files" in file.read_text()}
    assert "plugins/load.py" in calls and calls <= GIVE_FILES


@pytest.mark.promise(17, control="code that loads without care")
@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "load = torch.load",
        "eval('1')",
        "f(trust_remote_code=True)",
        "torch.hub",
    ],
)
def test_control_the_check_finds_each_kind(source: str) -> None:
    """Read the syntax of lines that would run code."""
    assert offences(source)
