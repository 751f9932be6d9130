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
FILES = sorted(Path(tintype.__file__).parent.rglob("*.py"))


def offences(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(node.func.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.attr for pair in FORBIDDEN_ATTRIBUTES if (node.value.id, node.attr) == pair]
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            found.append("trust_remote_code")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_loader_can_run_code(file: Path) -> None:
    assert not offences(file.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
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
