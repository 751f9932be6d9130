"""Loading never runs code, and a config cannot name code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tintype
from tintype.errors import UserError
from tintype.plan import plan_from_yaml

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
ALLOWED = {"vision/pickles.py": {"pickle"}}
"""The one file that opens pickles, with a table of the names that it knows; test_pickles.py attacks it."""


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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_loader_can_run_code(file: Path) -> None:
    allowed = ALLOWED.get(file.relative_to(PACKAGE).as_posix(), set())
    assert set(offences(file.read_text())) <= allowed


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
    assert offences(source)


@pytest.mark.parametrize(
    "text",
    [
        "_target_: os.system",
        "model: {_target_: os.system}",
        "objective: {kind: os.system}",
        "objective: {kind: tintype.techniques.x_prediction.XPrediction}",
        "text: {kind: '__import__(\"os\")'}",
        "seed: !!python/name:os.system",
        "? !!python/object/apply:os.system [echo]\n: 1",
    ],
)
def test_a_plan_cannot_name_code(text: str) -> None:
    with pytest.raises(UserError):
        plan_from_yaml(text, "hostile.yaml")


def test_a_plan_with_very_many_keys_is_refused_in_time() -> None:
    with pytest.raises(UserError, match="unknown key"):
        plan_from_yaml("\n".join(f"k{i}: 1" for i in range(2_000)), "big.yaml")
