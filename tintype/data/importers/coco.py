"""Read COCO captions from `annotations/captions_NAME.json`, and images from the folder NAME.

The column `caption` is an image's first caption, `captions` is all captions as one text, and `folder` is NAME, such as
`train2017`. The format is only used if a preset names it; it is not detected from a folder's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tintype.data.folders import check_inside, leads_out
from tintype.data.image_file import read_file
from tintype.data.importers.importer import FOLDER, MOST_TABLE_BYTES, Importer, Item, Reading
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import Json, parse_object

_PREFIX = "captions_"
_FIRST, _ALL = "caption", "captions"
_COLUMNS = (_FIRST, _ALL, FOLDER)


def open_coco(path: Path, reading: Reading) -> CocoImporter | None:
    pattern = f"{_PREFIX}*.json"
    files = sorted([*path.glob(pattern), *path.glob(f"annotations/{pattern}")]) if path.is_dir() else []
    return CocoImporter(path, files, reading) if files else None


class CocoImporter(Importer):
    def __init__(self, path: Path, files: list[Path], reading: Reading) -> None:
        self._path, self._reading = path, reading
        check_inside(path, files, reading.follow_links)
        self._images: list[tuple[str, Path, list[str]]] = []
        for file in files:
            name = file.stem.removeprefix(_PREFIX)
            folder = next((one for one in (path / name, path / "images" / name) if one.is_dir()), None)
            if folder is None:
                raise UserError(f"{file} describes images in the folder {path / name}, which does not exist")
            self._images += [(name, folder / image, texts) for image, texts in _captioned(file)]
        kinds = {column: {"text"} for column in _COLUMNS}
        folders = sorted({image.parent for _, image, _ in self._images})
        present = [folder for folder in folders if folder.is_dir()]
        super().__init__([*files, *present], _COLUMNS, kinds, len(self._images), {"short": _FIRST, "long": _ALL})

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        for name, file, texts in self._images[first:]:
            source = f"{name}/{file.name}"
            try:
                check_inside(self._path, [file], self._reading.follow_links)
                content = read_file(file, self._reading.limits.bytes)
            except (OSError, UserError) as error:
                yield Item(source, problem=f"the image cannot be read: {error}")
                continue
            values = {_FIRST: texts[0] if texts else None, _ALL: " ".join(texts), FOLDER: name}
            yield Item(source, content, {column: values[column] for column in columns})


def _captioned(file: Path) -> list[tuple[str, list[str]]]:
    """Return the images of a file in the file's order. Each image has its captions, sorted by id."""
    with as_user_error(OSError, f"{file} cannot be read"), as_user_error(ValueError, str(file)):
        content = parse_object(read_file(file, MOST_TABLE_BYTES))
    names: dict[int, str] = {}
    for image in _objects(content, "images", file):
        name, id_ = image.get("file_name"), image.get("id")
        if not isinstance(name, str) or not isinstance(id_, int) or not name or leads_out(name):
            raise UserError(
                f"{file}: an entry of `images` lacks an integer `id` or a `file_name` inside the image folder"
            )
        names[id_] = name
    texts: dict[int, list[tuple[int, str]]] = {id_: [] for id_ in names}
    for note in _objects(content, "annotations", file):
        about, id_, text = note.get("image_id"), note.get("id"), note.get("caption")
        if not isinstance(about, int) or not isinstance(text, str) or not isinstance(id_, int) or about not in texts:
            raise UserError(
                f"{file}: an entry of `annotations` lacks an `id` or a `caption`, or has an unknown `image_id`"
            )
        texts[about].append((id_, text.strip()))
    return [(name, [text for _, text in sorted(texts[id_]) if text]) for id_, name in names.items()]


def _objects(content: Mapping[str, Json], key: str, file: Path) -> Iterator[dict[str, Json]]:
    listed = content.get(key)
    if not isinstance(listed, list):
        raise UserError(f"{file} has no list `{key}`, so it is not a file of COCO captions")
    for one in listed:
        if not isinstance(one, dict):
            raise UserError(f"{file}: an entry of `{key}` is not a JSON object")
        yield one
