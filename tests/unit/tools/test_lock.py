"""The lock files have a version of every package that tintype, its extras and their dependencies ask for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import lock

PROJECT = tomllib.loads(lock.PROJECT.read_text(encoding="utf-8"))["project"]
OURS = "tintype"


def asked(extras: list[str]) -> list[Requirement]:
    """Return what the package asks for with these extras, those that name other extras resolved."""
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    found = [Requirement(text) for text in texts]
    inner = sorted({name for one in found if one.name == OURS for name in one.extras} - set(extras))
    return [one for one in found if one.name != OURS] + (asked(inner) if inner else [])


def dependencies(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what an installed package asks for here; nothing of one that is not installed."""
    try:
        texts = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return
    for one in map(Requirement, texts):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            yield one


def lacking(file: Path, extras: list[str]) -> set[str]:
    """Return the requirements that the pins of a file do not meet."""
    pins, wrong, waiting, seen = lock.pins(file), set(), asked(extras), set[str]()
    while waiting:
        one = waiting.pop()
        version = pins.get(lock.normalised(one.name))
        if version is None or not one.specifier.contains(version, prereleases=True):
            wrong.add(f"{one}, and {file.name} has {version}")
        if str(one) not in seen:
            seen.add(str(one))
            waiting += dependencies(one)
    return wrong


@pytest.mark.parametrize("file", lock.extras(), ids=lambda file: file.name)
def test_everything_that_is_asked_for_is_pinned(file: Path) -> None:
    extras = lock.extras()[file]
    if file == lock.TRACKERS:  # its packages are not installed beside the others
        assert not {one for one in asked(extras) if lock.normalised(one.name) not in lock.pins(file)}
    else:
        assert not lacking(file, extras)


def test_a_missing_pin_is_found(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    text = lock.MAIN.read_text(encoding="utf-8")
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("rich==", "click=="))))
    assert any(text.startswith("rich>=13") for text in lacking(file, []))


def test_torch_and_triton_are_of_one_release() -> None:
    """PyPI's torch for Linux asks for one exact triton: with another one nothing could be installed there."""
    pins = lock.pins(lock.MAIN)
    assert {"2.13.0": "3.7.1"}[pins["torch"]] == pins["triton"]
