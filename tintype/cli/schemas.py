"""JSON schemas of the documents that commands write with `--json`, derived from the types of their results."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

import tintype
from tintype.cli.derive import COMMANDS, Derived, evaluated
from tintype.config.strict import nearest
from tintype.errors import UserError
from tintype.terminal import documents
from tintype.terminal.view import View


def _result_type(one: Derived) -> Any:
    """Return the type of a command's document.

    If the view has `document`, it is the return type of `document`, otherwise the result's type.
    """
    own = one.view.document is not View.document
    function: Any = one.view.document if own else one.function
    returned = function.__annotations__["return"]
    named = {name: getattr(tintype, name) for name in tintype.__all__ if name in returned}
    return evaluated(returned, function, named)


def document_type(command: str) -> TypeAdapter[Any]:
    """Return the type of the document that a command writes, which is a result or an error."""
    found: Any = _result_type(COMMANDS[command]) if command in COMMANDS else dict[str, Any]  # a schema
    return TypeAdapter(found | documents.ErrorDocument)


def schema_of(command: str, known: list[str]) -> dict[str, Any]:
    """Return the JSON schema of a command's document. `known` lists the names of all commands."""
    if command not in known:
        raise UserError(f"unknown command '{command}'", nearest(command, known))
    found = document_type(command).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"tintype {command} --json", **found}
