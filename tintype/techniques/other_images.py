"""other-images: train on other images, for example real instead of synthetic images.

If `data.evaluate_path` or `data.evaluate_style` is set, the run is still scored against those held-out images.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tintype.data.parts import Given, instead
from tintype.plan import Plan
from tintype.settings import PathText, Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    data: Given = Field(
        default_factory=dict,
        description="Settings of the other data; settings left out are those of the plan's own data",
    )
    store: PathText | None = Field(
        None,
        min_length=1,
        description="Folder of the other store, in place of `data` with this path, if the plan's data is a store",
    )

    def problems(self) -> Iterator[str]:
        if not self.data and self.store is None:
            yield "say which images: data.style=photo, or store=DIR for a plan whose data is a store"


def apply(plan: Plan, options: Options) -> Changes:
    return {"data": instead(plan.data, options.data, options.store, "technique 'other-images': data")}


TECHNIQUE = Technique(
    seam="data",
    summary="train on other images, and score against the same held-out images as before",
    apply=apply,
    options=Options,
)
