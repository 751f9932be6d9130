"""Which batches of rows were read ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from tintype.runtime.transfer import ReadAhead


def note_taken(patch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, for each batch that is asked for from now on, whether it was read ahead."""
    taken: list[bool] = []
    take = ReadAhead.take

    def noted(ahead: ReadAhead, ids: Sequence[int]) -> Tensor | None:
        found = take(ahead, ids)
        taken.append(found is not None)
        return found

    patch.setattr(ReadAhead, "take", noted)
    return taken
