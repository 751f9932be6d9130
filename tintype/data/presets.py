"""Presets are public image sets by name, with columns, splits, licence, expected counts, and download steps.

A preset is a file in `tintype/recipes/data`, or a user's own file. A preset downloads nothing; its `get` lists the
steps for the user. `unverified` lists the facts that could not be checked with the set's publisher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from tintype.config.strict import parse
from tintype.data.importers import FORMATS
from tintype.data.importers.importer import Listed
from tintype.data.store.attributes import read_attributes
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import Split
from tintype.recipes import packaged
from tintype.settings import Settings

_ALL = "all"


class ListedSettings(Settings):
    """Files of an image set in the format `listed`, and the folders of their images."""

    image: str = Field(description="JSON key of each line that has the name of the image")
    files: dict[str, str] = Field(min_length=1, description="JSON Lines files, and the image folder of each")


class Preset(Settings):
    """A public image set, in the form in which it is published."""

    title: str = Field(description="title of the data set")
    home: str = Field(description="web page of the data set")
    get: list[str] = Field(
        min_length=1, description="steps that download the data set in the form that the importer reads"
    )
    license: str = Field(description="short name of the licence")
    terms: str = Field("", description="what the licence covers, and other facts to know before using the set")
    format: str = Field(description="format of the files")
    listed: ListedSettings | None = Field(None, description="file names of a data set in the format `listed`")
    captions: dict[str, str] = Field(min_length=1, description="caption names, and the column of each")
    attributes: dict[str, str] = Field({}, description="attribute names, and the column of each: COLUMN or COLUMN:KIND")
    split_column: str | None = Field(
        None, description="column with the split (train or eval); without it, the image's hash decides the split"
    )
    splits: dict[str, Split] = Field({}, description="split (train or eval) for other values of split_column")
    eval_share: float = Field(0.1, ge=0, le=1, description="fraction of held-out images if there is no split_column")
    most_bad: float = Field(0.05, ge=0, le=1, description="largest fraction of records that the import may reject")
    records: dict[Literal["all", "train", "eval"], int] = Field(
        {}, description="expected number of records in the source (all) or in the store's splits (train, eval)"
    )
    unverified: list[str] = Field(
        [], description="facts that were not checked against the publisher's statements or files"
    )

    def problems(self) -> Iterator[str]:
        if self.format not in FORMATS:
            yield f"format: unknown format '{self.format}'; valid: {', '.join(FORMATS)}"
        if (self.format == "listed") != (self.listed is not None):
            yield "listed: give it with the format listed, and with no other"
        if self.splits and self.split_column is None:
            yield "splits: they say what the values of a column mean; give split_column too"

    def options(self, name: str) -> ImportOptions:
        return ImportOptions(
            captions=self.captions,
            attributes=read_attributes(self.attributes),
            split_column=self.split_column,
            splits=self.splits,
            eval_share=self.eval_share,
            most_bad=self.most_bad,
            preset=name,
            format=self.format,
            listed=None if self.listed is None else Listed(self.listed.image, self.listed.files),
        )

    def unexpected(self, done: int, counts: Mapping[str, int]) -> list[str]:
        """Return one line of text for each number of records that differs from the preset's expected number."""
        found = {_ALL: done, **counts}
        return [
            f"{found[which]:,} records{'' if which == _ALL else f' in the split {which}'} instead of {expected:,}"
            for which, expected in self.records.items()
            if found[which] != expected
        ]


class DataPreset(Preset):
    """A preset with its name."""

    name: str = Field(description="name of the preset")


def read_preset(name: str) -> Preset:
    """Return the built-in preset of that name, or the preset in the file at that path."""
    return parse(Preset, packaged.find("data", name))


def preset_names() -> list[str]:
    return packaged.names("data")
