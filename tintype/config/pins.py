"""Settings that pin what is loaded by the first digits of its identity."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tintype.errors import UserError

Pin = Annotated[str | None, Field(pattern="^[0-9a-f]{8,64}$")]
"""None where any will do."""


def check_pin(setting: str, pin: Pin, what: str, identity: str, otherwise: str) -> None:
    """Refuse what has another identity. `otherwise` is the remedy for a user who means to keep the setting."""
    if pin is not None and not identity.startswith(pin):
        name = setting.rpartition(".")[2]
        raise UserError(
            f"{setting} is {pin}, but the identity of {what} is {identity}; {otherwise}, or leave {name} out"
        )
