"""The surface of `import tintype`: few names, loaded late, each typed, described, and with a page."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import tintype
from tintype.train.loop import Outcome

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "library"
COMMANDS = PAGES / "commands.md"
OF_COMMANDS = {name for row in re.findall(r"^\|.*", COMMANDS.read_text(), re.M) for name in re.findall(r"`(\w+)`", row)}
"""Names in the tables of that page, whose arguments are described by the docstring."""
FUNCTIONS = [name for name in tintype.__all__ if name.islower()]


@pytest.mark.parametrize(
    "program", ["import tintype", "from tintype.cli import app; from typer.main import get_command"]
)
def test_neither_the_import_nor_the_help_loads_torch(program: str) -> None:
    heavy = "{'torch', 'numpy', 'PIL', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys; {program}; assert not {heavy}, {heavy}"], check=True, cwd=ROOT)


def test_the_lists_of_names_agree() -> None:
    tree = ast.parse((ROOT / "tintype" / "__init__.py").read_text())
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in _homes()]
    assert {f"{node.module}.{alias.name}" for node in typed for alias in node.names} == {
        f"{home}.{name}" for name, home in tintype._HOMES.items()
    }
    assert tintype.__all__ == sorted(tintype._HOMES)
    assert set(tintype.__all__) <= set(dir(tintype))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        tintype.trian  # type: ignore[attr-defined]  # noqa: B018


def _homes() -> set[str]:
    return set(tintype._HOMES.values())


def test_train_is_the_function_after_the_room_of_that_name_was_imported() -> None:
    assert Outcome.__module__ in sys.modules
    from tintype import train

    assert isinstance(train, FunctionType) and train is tintype.train
    assert list(inspect.signature(train).parameters)[:2] == ["plan", "out"]


@pytest.mark.parametrize("name", tintype.__all__)
def test_every_name_has_a_docstring_and_a_page(name: str) -> None:
    assert inspect.getdoc(getattr(tintype, name)), name
    lines = [line for page in PAGES.glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    headings = [line for line in lines if re.match(rf"#+ .*`{name}\b", line)]
    assert headings or name in OF_COMMANDS, f"no heading and no row of {COMMANDS.name} names `{name}`"


def test_type_checkers_read_the_annotations() -> None:
    assert (ROOT / "tintype" / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text()


def _functions() -> dict[str, FunctionType]:
    found = {name: getattr(tintype, name) for name in FUNCTIONS}
    for owner in (tintype.Run, tintype.Results):
        methods = {name: value for name, value in vars(owner).items() if isinstance(value, FunctionType)}
        found |= {f"{owner.__name__}.{name}": value for name, value in methods.items() if not name.startswith("_")}
    return found


@pytest.mark.parametrize("name", _functions())
def test_every_function_is_typed_and_its_page_names_its_arguments(name: str) -> None:
    function = _functions()[name]
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.name != "self"]
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(one.annotation is not inspect.Parameter.empty for one in named)
    docs = inspect.getdoc(function) or ""
    if "Args:" in docs or name in OF_COMMANDS:
        assert not [one.name for one in named if f"{one.name}:" not in docs]
    if name in OF_COMMANDS:
        return
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert not [one.name for one in named if f"`{one.name}`" not in texts]
