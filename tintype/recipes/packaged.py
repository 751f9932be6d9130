"""Find packaged plans, studies, evaluation protocols, and presets of data sets by name."""

from __future__ import annotations

from importlib import resources
from itertools import takewhile
from pathlib import Path
from shlex import quote

from tintype.config.strict import Document, nearest, read_file, read_yaml
from tintype.errors import UserError


def names(kind: str) -> list[str]:
    """Return the names of the packaged files of a kind, which is `plans`, `studies`, `protocols` or `data`."""
    folder = resources.files("tintype.recipes").joinpath(kind)
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find(kind: str, name: str) -> Document:
    """Return the packaged file with this name, or the file at this path."""
    if name in names(kind):
        text = resources.files("tintype.recipes").joinpath(kind, f"{name}.yaml").read_text(encoding="utf-8")
        return read_yaml(text, f"{name} ({kind})")
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        return read_file(path)
    if path.is_dir():
        raise _folder_given(kind, path)
    if kind == "plans" and name in names("studies"):
        raise UserError(
            f"'{name}' is a study, not a recipe",
            f"`tintype ablate {quote(name)} --out DIR` runs it; with `--dry-run`, it shows the arms and their cost",
        )
    if kind == "studies" and name in names("plans"):
        raise UserError(f"'{name}' is a recipe, not a study", f"`tintype train {quote(name)} --out DIR` trains it")
    singular = {"plans": "recipe", "studies": "study", "protocols": "protocol", "data": "preset"}[kind]
    raise UserError(f"unknown {singular} '{name}'", f"{nearest(name, names(kind))} (or give the path of a .yaml file)")


def _folder_given(kind: str, folder: Path) -> UserError:
    """Return the error for a folder that was given instead of a file. The error names the right file."""
    if (folder / "study.yaml").is_file():
        again = f"`tintype ablate {quote(str(folder))} --out DIR` runs it again"
        baseline = folder / "baseline.yaml"
        return UserError(f"{folder} is the folder of a study", f"the plan of its baseline is {baseline}; {again}")
    if (folder / "plan.yaml").is_file():
        return UserError(f"{folder} is the folder of a run", f"give its plan: {folder / 'plan.yaml'}")
    what = "a study (no study.yaml)" if kind == "studies" else "a run (no plan.yaml)"
    return UserError(
        f"{folder} is a folder, but not the folder of {what}", "give a name from the list, or the path of a .yaml file"
    )


def describe(kind: str, name: str) -> str:
    """Return the first sentence of the comment at the top of a packaged file."""
    text = resources.files("tintype.recipes").joinpath(kind, f"{name}.yaml").read_text(encoding="utf-8")
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head).partition(". ")[0].removesuffix(".")
