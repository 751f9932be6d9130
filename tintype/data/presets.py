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

    image: str = Field(description="key of a line with the name of its image")
    files: dict[str, str] = Field(min_length=1, description="JSON Lines files, and the folder of images of each")


class Preset(Settings):
    """A public image set, in the form in which it is published."""

    title: str = Field(description="the set, in words")
    home: str = Field(description="web page of the set")
    get: list[str] = Field(
        min_length=1, description="steps that bring the set to the disk in the form that is imported"
    )
    license: str = Field(description="licence, in a few words")
    terms: str = Field("", description="what the licence covers, and other facts to know before using the set")
    format: str = Field(description="format of the files")
    listed: ListedSettings | None = Field(None, description="names of the files, for the format `listed`")
    captions: dict[str, str] = Field(min_length=1, description="kinds of captions, and their columns")
    attributes: dict[str, str] = Field({}, description="attributes, and their columns: COLUMN or COLUMN:KIND")
    split_column: str | None = Field(None, description="column that says train or eval; without, the hash decides")
    splits: dict[str, Split] = Field({}, description="meaning of further values of that column")
    eval_share: float = Field(0.1, ge=0, le=1, description="fraction of held-out images, without a split column")
    most_bad: float = Field(0.05, ge=0, le=1, description="largest fraction of records that may be set aside")
    records: dict[Literal["all", "train", "eval"], int] = Field(
        {}, description="expected records of the source (all), or in the store's splits"
    )
    unverified: list[str] = Field([], description="what was not checked against the publisher's own words or files")

    def problems(self) -> Iterator[str]:
        if self.format not in FORMATS:
            yield f"format: unknown format '{self.format}'; valid: {', '.join(FORMATS)}"
        if (self.format == "listed") != (self.listed is not None):
            yield "listed: give it with the format listed, and with no other"
        if self.splits and self.split_column is None:
            yield "splits: they say what the values of a column mean; give split_column too"

    def options(self, name: str) -> ImportOptions:
        """Return the options for importing this set."""
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
