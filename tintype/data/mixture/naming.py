"""Messages about one source of a mixture name the source, and its settings as they are written there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tintype.data.mixture.settings import SIZE, MixtureSettings
from tintype.errors import UserError


@contextmanager
def naming(data: MixtureSettings, source: str) -> Iterator[None]:
    """Rename settings in errors: `data.where` of a source stands deeper, but for the mixture's size."""
    try:
        yield
    except UserError as error:
        place = f"data.sources.{source}"
        keys = "|".join(sorted(set(type(data.sources[source].data).model_fields) - {SIZE}))
        message = re.sub(rf"(?<![\w./-])data\.(?=(?:{keys})\b)", f"{place}.data.", str(error))
        raise UserError(message if message.startswith(place) else f"{place}: {message}") from None
