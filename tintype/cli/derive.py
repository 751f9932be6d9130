"""Derive commands from the library's functions.

Options come from a function's signature, and help comes from its docstring.

A positional parameter becomes an argument, a keyword parameter an option, and `*settings` becomes `--set`. A plan is
given as a recipe with `--set` and `--technique`, and a run as a folder with `--arm` and `--arm-seed`. If a function has
the parameters `arm` and `seed`, a folder can be given in place of a recipe, and the function chooses a run from it.

Callbacks, interrupts and the words of the command line (`argv`) are not options. The command's `View` passes them to
the function, and shows the result. With `--json`, the command writes the result as JSON.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from typer import Argument, Option

from tintype.cli import complete, options
from tintype.cli.shared import App, as_document, console, plan_of, refuse_unwritable, run_of
from tintype.errors import UserError
from tintype.library import kinds
from tintype.terminal.view import View

if TYPE_CHECKING:
    from tintype.plan import Plan

_LIBRARY, _TERMINAL = "tintype.library", "tintype.terminal"
_COMPLETED: Mapping[str, Callable[[str], list[tuple[str, str]]]] = {
    "preset": complete.preset_names,
    "study": complete.study_names,
    "of": complete.study_names,
    "recipe": complete.recipe_names,
    "techniques": complete.technique_names,
    "first": complete.recipe_names,
    "second": complete.recipe_names,
}
"""Maps each parameter that a shell can complete to the function that lists the parameter's values."""
_Expanded: TypeAlias = dict[str, inspect.Parameter]


@dataclass(frozen=True)
class Derived:
    """A command, with the names of the function that it calls and of its view."""

    command: str
    function: Callable[..., Any]
    view_place: str

    @property
    def view(self) -> type[View[Any]]:
        """Import and return the class of the command's view. The import loads heavy modules."""
        found: type[View[Any]] = _loaded(_TERMINAL, self.view_place) if self.view_place else View
        return found


COMMANDS: dict[str, Derived] = {}
"""All derived commands by name, such as `data import`."""


def command(app: App, name: str, function: str, view: str = "") -> None:
    """Add a command.

    The command calls a function of the library and shows the result with a view. Function and view are given as
    `module:name`.
    """
    called = _loaded(_LIBRARY, function)
    derived = Derived(f"{app.path}{name}", called, view)
    words = _Words(inspect.getdoc(called) or "")
    signature = inspect.signature(called)
    expanded = {one.name: _expanded(one, called, words) for one in signature.parameters.values() if not _is_call(one)}
    required: list[inspect.Parameter] = []
    optional: list[inspect.Parameter] = []
    for parameters in expanded.values():
        for one in parameters.values():
            (required if one.default is inspect.Parameter.empty else optional).append(one)

    def run(json_: bool = False, **given: Any) -> None:
        with as_document(json_):
            refuse_unwritable(given)
            positional, named = _given(signature, expanded, given)
            bound = signature.bind(*positional, **named)
            bound.apply_defaults()
            shown = derived.view(console, {**given, **bound.arguments}, json_)
            with shown.calls() as calls:
                result = called(*positional, **named, **calls)
            shown.finish(result)

    run.__doc__ = words.summary
    every = [*required, *optional, *_named(json_=(options.Json, False)).values()]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    COMMANDS[derived.command] = derived
    app.command(name)(run)


def _loaded(room: str, place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{room}.{module}"), name)


class _Words:
    """The summary and the descriptions of arguments in a docstring, which the command's help shows."""

    def __init__(self, text: str) -> None:
        lead, _, rest = text.partition("\nArgs:\n")
        self.summary = " ".join(lead.split("\n\n")[0].split())
        self.arguments: dict[str, str] = {}
        for line in rest.partition("\n\n")[0].splitlines():
            if found := re.match(r" {4}(\w+): (.*)", line):
                name, words = found.groups()
                self.arguments[name] = words[0].upper() + words[1:]
            elif self.arguments:
                self.arguments[name] += f" {line.strip()}"

    def of(self, name: str) -> str:
        return self.arguments[name].rstrip(".")


def _is_call(one: inspect.Parameter) -> bool:
    """Return whether the view passes this parameter. All other parameters come from the user."""
    return one.name.startswith("on_") or one.name in ("interrupt", "consent", "argv")


def _expanded(one: inspect.Parameter, function: Any, words: _Words) -> _Expanded:
    """Return the command's parameters that replace one parameter of the function."""
    kind = _without_none(evaluated(one.annotation, function))
    if _chooses(function) and one.name in _CHOICE:
        return _named(**{"arm_seed" if one.name == "seed" else one.name: _CHOICE[one.name]})
    if kind == kinds.AnyPlan or (kind == kinds.AnySource and one.name == "plan"):
        recipe = options.AnyPlan if kind == kinds.AnySource else options.Recipe
        return _named(recipe=recipe, set_=(options.Set, []), technique=(options.Techniques, []))
    if kind == kinds.AnyRun and one.kind is not inspect.Parameter.VAR_POSITIONAL:
        folder = options.RunFolder if one.default is inspect.Parameter.empty else (options.OptionalRunFolder, None)
        return _named(run=folder, arm=(options.Arm, None), arm_seed=(options.ArmSeed, None))
    if one.name == "settings":
        return _named(set_=(Annotated[list[str], Option("--set", help=words.of(one.name))], []))
    if one.kind is inspect.Parameter.VAR_POSITIONAL:
        return _named(**{one.name: Annotated[list[_typed(kind)], Argument(help=words.of(one.name))]})  # type: ignore[misc]
    return {one.name: _parameter(one, evaluated(one.annotation, function), words.of(one.name))}


_CHOICE = {"arm": (options.Arm, None), "seed": (options.ArmSeed, None)}


def _chooses(function: Any) -> bool:
    """Return whether the function has the parameters `arm` and `seed`, and thus chooses a run from a study's folder
    itself.
    """
    return _CHOICE.keys() <= inspect.signature(function).parameters.keys()


def _without_none(kind: Any) -> Any:
    """Return the type without None, if it is a union with None."""
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(one for one in get_args(kind) if one is not NoneType)]  # noqa: UP007
    return kind


def _named(**given: Any) -> _Expanded:
    """Make parameters from names. Each value is an annotation, or a pair of annotation and default."""
    pairs = {name: one if isinstance(one, tuple) else (one, inspect.Parameter.empty) for name, one in given.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, keyword, annotation=annotation, default=default)
        for name, (annotation, default) in pairs.items()
    }


def _parameter(one: inspect.Parameter, kind: Any, help: str) -> inspect.Parameter:
    """Return the command's argument or option for one parameter of the function."""
    typed = _typed(kind)
    given: dict[str, Any] = {"help": help, "autocompletion": _COMPLETED.get(one.name), **_limits(kind)}
    many = get_origin(typed) is list
    if one.kind is not inspect.Parameter.KEYWORD_ONLY and one.name != "out":
        info = Argument(**given)
    elif _without_none(typed) is bool and one.default is not False:  # both --name and --no-name
        info = Option(**given)
    else:
        info = Option(f"--{_option_of(one.name, many)}", **given)
    default = [] if many and not one.default else one.default
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[typed, info], default=default
    )


def _option_of(name: str, many: bool) -> str:
    """Return the name of an option.

    The name of a list is singular, since the user repeats the option for each value.
    """
    return (name.removesuffix("s") if many else name.removesuffix("_")).replace("_", "-")


def evaluated(annotation: Any, function: Any, names: Mapping[str, object] = MappingProxyType({})) -> Any:
    """Evaluate the text of an annotation to a type. Forward references within the annotation are not resolved.

    `names` extends the names of the function's module.
    """
    if not isinstance(annotation, str):
        return annotation
    return _evaluated(ast.parse(annotation, mode="eval").body, {**vars(builtins), **names, **function.__globals__})


def _evaluated(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Evaluate an expression of names, attributes, unions and subscripts to a type. Refuse any other expression."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names[name]
        case ast.Attribute(owner, name):
            return getattr(_evaluated(owner, names), name)
        case ast.Subscript(generic, inner):
            return _evaluated(generic, names)[_evaluated(inner, names)]
        case ast.BinOp(first, ast.BitOr(), second):
            return _evaluated(first, names) | _evaluated(second, names)
        case ast.Tuple(inner):
            return tuple(_evaluated(one, names) for one in inner)
        case ast.List(inner):
            return [_evaluated(one, names) for one in inner]
        case ast.Call(made, given, []):  # a bound, such as Ge(1)
            return _evaluated(made, names)(*(_evaluated(one, names) for one in given))
    raise TypeError(f"unknown type in an annotation: {ast.unparse(node)}")


def _typed(kind: Any) -> Any:
    """Return the type that the command line parses.

    A union with a path becomes a path, and a sequence becomes a list.
    """
    if get_origin(kind) is Annotated:
        return _typed(get_args(kind)[0])
    if kind in (kinds.AnyStudy, kinds.AnyRun, kinds.AnySource):
        return str
    if get_origin(kind) in (Union, UnionType):
        inner = get_args(kind)
        if any(get_origin(one) in (Sequence, list) for one in inner):
            return list[str]
        if NoneType in inner:
            return _typed(_without_none(kind)) | None
        return Path if PathLike[str] in inner else str if str in inner else _typed(inner[0])
    if isinstance(kind, type) or get_origin(kind) in (Literal, tuple):
        return kind
    if get_origin(kind) in (Sequence, list):
        return list[_typed(get_args(kind)[0])]  # type: ignore[misc]
    raise TypeError(f"a command-line option cannot have the type {kind}")


def _limits(kind: Any) -> dict[str, Any]:
    """Return the bounds of a number as keyword arguments of an option."""
    found: dict[str, Any] = {}
    for one in (kind, *get_args(kind)):
        for bound in getattr(one, "__metadata__", ()):
            if isinstance(bound, Ge):
                found["min"] = bound.ge
            elif isinstance(bound, Le):
                found["max"] = bound.le
            elif isinstance(bound, Gt):
                raise TypeError("a command-line option cannot have a bound that excludes the limit itself (gt); use ge")
    return found


def _given(
    signature: inspect.Signature, expanded: Mapping[str, _Expanded], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments for the call of the function."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameters in expanded.items():
        one = signature.parameters[name]
        values = [given[inner] for inner in parameters]
        if "technique" in parameters:
            value: Any = (_plan_or_place if _CHOICE.keys() <= signature.parameters.keys() else plan_of)(*values)
        elif {"run", "arm"} <= parameters.keys():
            value = _run(*values)
        else:
            value = values[0]
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += value
        elif one.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return positional, named


def _plan_or_place(place: str, assignments: list[str], techniques: list[str]) -> Plan | str:
    """Return the plan of a recipe with changes. Without changes, return the given name or path."""
    if not assignments and not techniques:
        return place
    if Path(place).is_dir():
        raise UserError(
            f"{place} is a folder with a fixed plan; --set and --technique are only for recipes and plan files",
            "leave them out",
        )
    return plan_of(place, assignments, techniques)


def _run(folder: Path | None, arm: str | None, seed: int | None) -> Path | None:
    if folder is not None:
        return run_of(folder, arm, seed)
    if arm is not None or seed is not None:
        raise UserError(
            "--arm and --arm-seed choose a run of a study, but no folder of a study is given", "leave them out"
        )
    return None
