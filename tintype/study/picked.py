"""Store images that a user picked in the playground, for the report: a PNG and a record `NAME.json` for each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, ValidationError

from tintype.errors import DamagedFileError, UserError, as_user_error
from tintype.runtime.files import read_checked, write_bytes, write_checked
from tintype.study.results import Picked

FOLDER = "picked"
LEAD = (
    "Somebody picked these images by hand in the playground. They show what a run can draw, not how often it does: "
    "no verdict uses them, and no arm should be judged by them."
)
MOST = 64
"""Maximum number of images in a folder."""


def keep_image(folder: Path, image: bytes, about: Mapping[str, JsonValue]) -> Picked:
    """Store a PNG and its settings; raise if the report is full. An image that is picked again is stored only once."""
    place = folder / FOLDER
    digest = hashlib.sha256(image).hexdigest()
    for known in read_picked(folder):
        if known.sha256 == digest and dict(known.settings) == about:
            return known
    if place.is_dir() and len(list(place.glob("*.json"))) >= MOST:
        raise UserError(
            f"{place} already has {MOST} images, which is the limit",
            "remove some of these files, then save the image again",
        )
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{digest[:8]}"
    with as_user_error(OSError, f"cannot write to {place}"):
        place.mkdir(exist_ok=True)
        write_bytes(place / f"{name}.png", image)
        write_checked(place / f"{name}.json", {"sha256": digest, "settings": dict(about)})
    return Picked(image=f"{FOLDER}/{name}.png", sha256=digest, settings=dict(about))


def read_picked(folder: Path) -> list[Picked]:
    """Return the picked images, oldest first, without those whose files are damaged or incomplete."""
    place, found = folder / FOLDER, list[Picked]()
    if place.is_symlink():
        return []
    for file in sorted(place.glob("*.json"))[:MOST]:
        image = file.with_suffix(".png")
        if file.is_symlink() or image.is_symlink() or not image.is_file():
            continue
        try:
            content = read_checked(file, f"remove it, and pick the image again, to have it in {folder}'s report")
            found.append(Picked(image=f"{FOLDER}/{image.name}", **content))
        except (DamagedFileError, ValidationError, TypeError):
            continue
    return found
