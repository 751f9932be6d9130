"""The settings of a store as the data of a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tintype.data.resident import resident_bytes
from tintype.data.store.layout import Store, is_store, open_store
from tintype.data.store.selection import Selection, select
from tintype.errors import UserError
from tintype.runtime.identity import Pin
from tintype.settings import LARGEST_PX, DataPart, PathText

MOST_ON_GPU_BYTES = 2 << 30
"""Most bytes of decoded images that training keeps on a GPU. A larger store is read again in each epoch."""


def _tuples(value: object) -> object:
    """Turn lists into tuples: a mixture reads its sources' settings as plain data, without JSON's conversions."""
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


class StoreSettings(DataPart):
    """Your own images, in a store that `tintype data import` made.

    A run records the identity of its store's content, and resumes only with the same content. `sha256` pins the
    identity in the plan. The path is then not part of the run's name, so the store can be moved. `skip_sha256` does
    the same for the skip list.
    """

    count_key: ClassVar[str] = "limit"
    said_by_identity: ClassVar[frozenset[str]] = frozenset(
        {"path", "sha256", "skip", "skip_sha256", "where", "evaluate_path", "evaluate_sha256"}
    )

    kind: Literal["store"] = "store"
    size_px: int = Field(64, ge=16, le=LARGEST_PX, description="Width and height of the images")
    path: PathText = Field(min_length=1, description="Folder of the store")
    limit: int | None = Field(
        None, ge=1, description="Number of training images to use, counted from the first; null: all"
    )
    sha256: Pin = Field(
        None, description="First digits of the store's identity hash; a store with another identity is refused"
    )
    where: str | None = Field(
        None, min_length=1, description="Condition that selects records in both splits, for example width >= 256"
    )
    skip: PathText | None = Field(
        None, min_length=1, description="File with the hashes of records to leave out of both splits"
    )
    skip_sha256: Pin = Field(
        None, description="First digits of the skip list's identity hash; a list with another identity is refused"
    )

    buckets: Annotated[tuple[tuple[int, int], ...], BeforeValidator(_tuples)] = Field(
        (), description="Shapes (height, width) in pixels to which training images are cropped; empty: squares"
    )

    fit: Literal["crop", "resize"] = Field(
        "crop",
        description="How an image is fitted to the shape of its bucket. crop: shrink the image until it covers "
        "the shape, then crop the centre. resize: stretch the image to the shape, as in PRX, which changes "
        "its proportions slightly",
    )

    evaluate_path: PathText | None = Field(
        None,
        min_length=1,
        description="Folder of another store whose held-out images are the reference for scores; null: this "
        "store's own",
    )
    evaluate_sha256: Pin = Field(
        None,
        description="First digits of the identity hash of the store in evaluate_path; a store with "
        "another identity is refused",
    )

    @property
    def resident_bytes(self) -> int:
        """Bytes of all decoded images. Without `limit` their number is unknown, so return `MOST_ON_GPU_BYTES`."""
        if self.buckets:
            return 0
        size = MOST_ON_GPU_BYTES if self.limit is None else resident_bytes(self.limit, self.size_px)
        return size if size <= MOST_ON_GPU_BYTES else 0

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return self.buckets or super().shapes

    def content(self) -> dict[str, Any]:
        """Return the settings that decide the images, without bucket shapes: data in several shapes is not cached."""
        without = {"buckets"} if self.fit == "resize" else {"buckets", "fit"}
        return {key: value for key, value in super().content().items() if key not in without}

    def problems(self) -> Iterator[str]:
        if self.skip_sha256 is not None and self.skip is None:
            yield "skip_sha256 pins a skip list; give skip too"
        if self.evaluate_sha256 is not None and self.evaluate_path is None:
            yield "evaluate_sha256 pins the store that runs are scored against; give evaluate_path too"
        for height, width in self.buckets:
            if height < 1 or width < 1 or height * width > self.size_px**2:
                yield f"buckets: {height} × {width} is empty or has more than size_px² pixels"
        if self.buckets and (self.size_px, self.size_px) not in self.buckets:
            yield f"buckets: the square {self.size_px} × {self.size_px} must be one of them"
        if len(set(self.buckets)) < len(self.buckets):
            yield "buckets: a shape is given twice"
        if self.fit == "resize" and len(self.buckets) < 2:
            yield "fit: resize is for several buckets, of which one is near to each image's proportions; give them too"

    def at_size(self, size_px: int) -> StoreSettings:
        """Return the same images in another size. A single bucket is scaled, since it is the square; several stay."""
        sole = {"buckets": ((size_px, size_px),)} if len(self.buckets) == 1 else {}
        return self.model_copy(update={"size_px": size_px, **sole})

    @property
    def squared(self) -> StoreSettings:
        return self.model_copy(update={"buckets": (), "fit": "crop"})

    def held_out(self, count: int, shaped: bool = False) -> StoreSettings:
        """Return the whole evaluation split: square, or each image in the shape of its bucket."""
        scored = self.scored
        return (scored if shaped else scored.squared).model_copy(update={"limit": None})

    @property
    def scored(self) -> StoreSettings:
        """The store that runs are scored against. `where` and `skip` do not apply to a separate evaluation store."""
        if self.evaluate_path is None:
            return self
        own = {
            "path": self.evaluate_path,
            "sha256": self.evaluate_sha256,
            "evaluate_path": None,
            "evaluate_sha256": None,
        }
        return self.model_copy(update={**own, "limit": None, "where": None, "skip": None, "skip_sha256": None})

    @property
    def memorisable(self) -> StoreSettings:
        return self.model_copy(update={"evaluate_path": None, "evaluate_sha256": None})

    @property
    def scored_name(self) -> str:
        return super().scored_name if self.evaluate_path is None else f"{super().scored_name}/evaluate"

    @property
    def at_hand(self) -> bool:
        """Whether the held-out images are on this machine; a report needs them."""
        return is_store(Path(self.scored.path).expanduser())

    def describe(self) -> str:
        return "a store of images with captions"

    def describe_held_out(self) -> str:
        return "held-out images of the store" if self.evaluate_path is None else "held-out images of another store"

    def open(self) -> Store:
        return open_store(Path(self.path).expanduser())

    def select(self, store: Store) -> Selection:
        return select(store, self.where, None if self.skip is None else Path(self.skip), self.skip_sha256)

    def count_images(self, identity: str | None) -> int | None:
        if not is_store(Path(self.path).expanduser()):
            return self.limit
        store = self.open()
        try:
            selection = self.select(store)
        except UserError:
            return self.limit  # the skip list or a caption column of `where` is missing
        if identity not in (None, selection.identity(store.identity)):
            return self.limit  # the path now has another store, or `where` and `skip` select other records
        return len(selection.rows(store, "train")[: self.limit])

    def left_out_of_hash(self) -> Collection[str]:
        pins = {"path": self.sha256, "skip": self.skip_sha256, "evaluate_path": self.evaluate_sha256}
        return [name for name, pin in pins.items() if pin is not None]
