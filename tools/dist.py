"""Check the published files: the wheel has the package alone, the source distribution also the files to build it.

`make dist` calls it on the folder with both. Before a release is published, `--tag` and `--source` are compared with
the version and the address in the wheel.
"""

from __future__ import annotations

import argparse
import email
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE = Path(__file__).parents[1] / "tintype"
BESIDE = {
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "MANIFEST.in",
    "PKG-INFO",
    "README.md",
    "constraints-trackers.txt",
    "constraints.txt",
    "pyproject.toml",
    "setup.cfg",
}
"""Files of the source distribution beside the package."""


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the one wheel and the one source distribution in a folder."""
    wheels, sources = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        return [f"{folder} has {len(wheels)} wheels and {len(sources)} source distributions, not one of each"]
    return [*_wheel_problems(wheels[0]), *_source_problems(sources[0])]


def _wheel_problems(file: Path) -> list[str]:
    with zipfile.ZipFile(file) as wheel:
        names = wheel.namelist()
    about = f"{'-'.join(file.name.split('-')[:2])}.dist-info/"
    own = {name for name in names if not name.startswith(about)}
    found = [f"{file.name} has {name}" for name in sorted(own - _package())]
    found += [f"{file.name} lacks {name}" for name in sorted(_package() - own)]
    needed = ("METADATA", "entry_points.txt", "licenses/LICENSE")
    return found + [f"{file.name} lacks {about}{name}" for name in needed if about + name not in names]


def _source_problems(file: Path) -> list[str]:
    with tarfile.open(file) as source:
        names = [member.name for member in source.getmembers() if member.isfile()]
    inside = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in names}
    inside = {name for name in inside if not name.startswith("tintype.egg-info/")}
    found = [f"{file.name} has {name}" for name in sorted(inside - _package() - BESIDE)]
    return found + [f"{file.name} lacks {name}" for name in sorted((_package() | BESIDE) - inside)]


def _package() -> set[str]:
    """Return the files of the package, seen from the folder that it lies in."""
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file.relative_to(PACKAGE.parent).as_posix() for file in files}


def misstated(folder: Path, tag: str | None, source: str | None) -> list[str]:
    """Return whether the wheel's version differs from the release's tag, or its address from the repository's."""
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(wheel.read(name))
    found = []
    if tag is not None and tag.removeprefix("v") != about["Version"]:
        found.append(f"the tag is {tag}, and the wheel has the version {about['Version']}")
    urls = dict(text.split(", ", 1) for text in about.get_all("Project-URL", []))
    if source is not None and urls["Source"] != source:
        found.append(f"the repository is {source}; {urls['Source']} stands in pyproject.toml: change it there")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", help="Tag of the release: v0.1.0")
    parser.add_argument("--source", help="Address of the repository")
    asked = parser.parse_args()
    if found := problems(asked.folder) or misstated(asked.folder, asked.tag, asked.source):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
