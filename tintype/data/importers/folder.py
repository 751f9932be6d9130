"""A folder of images, searched at any depth, with captions in text or JSON files of the same name.

The column `folder` is the first folder on the path to an image.
"""

from __future__ import annotations

from pathlib import Path

from tintype.data.folders import files_in, first_folder
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers.beside import Member, Sample, SideImporter
from tintype.data.importers.importer import FOLDER, Reading
from tintype.data.importers.metadata import is_metadata
from tintype.errors import UserError


def open_folder(path: Path, reading: Reading) -> SideImporter | None:
    if not path.is_dir():
        return None
    files = files_in(path, follow_links=reading.follow_links)
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not images or any(is_metadata(file) for file in files):
        return None
    samples: dict[Path, Sample] = {}
    for image in images:
        members = {image.suffix[1:].lower(): Member(image.name, image)}
        sample = Sample(str(image.relative_to(path)), members, {FOLDER: first_folder(image, path)})
        if (other := samples.setdefault(image.with_suffix(""), sample)) is not sample:
            twins = f"{Path(other.source).name} and {image.name}"
            raise UserError(
                f"{path} has images that differ only in the file ending, {twins}, and would share one caption file"
            )
    beside = [file for file in files if file.suffix.lower() in (".txt", ".json")]
    for file in beside:
        stem, ending = file.with_suffix(""), file.suffix.lower()
        if stem not in samples:
            stem, ending = stem.with_suffix(""), stem.suffix + ending
        if stem in samples:
            samples[stem].members[ending[1:]] = Member(file.name, file)
    return SideImporter(path, [*images, *beside], list(samples.values()), reading.limits.bytes, folder=True)
