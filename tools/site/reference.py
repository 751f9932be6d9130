"""Pages of the reference on commands, techniques and metrics, and its index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from tintype.cli import app
from tintype.metrics import table as metrics
from tintype.metrics.metric import AnyMetric
from tintype.techniques import TECHNIQUES, Technique
from tintype.vision.encoders import ENCODERS
from tools.site import disk, settings
from tools.site.words import class_words, code, default_words, sentence, table, type_words

_ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{5})")


def pages() -> dict[str, str]:
    """Return the Markdown of all pages of the reference by their paths."""
    return {
        **settings.pages(),
        "reference/commands.md": "\n".join(_commands()),
        "reference/techniques.md": "\n".join(_techniques()),
        "reference/metrics.md": "\n".join(_metrics()),
        "reference/files.md": "\n".join(disk.page()),
    }


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "Every command of `tintype`, with its arguments and options. `tintype COMMAND --help` prints the same.\n"
    yield from _command(typer.main.get_command(app), ())


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if path:
        yield f"{'#' * (len(path) + 1)} {code(' '.join(('tintype', *path)))}\n"
        yield f"{cleandoc(command.help or '')}\n"
        yield from _options(command, path)
    for name, one in inner.items():
        if not one.hidden:
            yield from _command(one, (*path, name))


def _options(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    if getattr(command, "commands", None):
        return
    context = command.make_context(" ".join(("tintype", *path)), [], resilient_parsing=True)
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    shown = [parameter.get_help_record(context) for parameter in command.params if not parameter.hidden]
    records = [record for record in shown if record is not None]
    if records:
        yield from table(("argument or option", "meaning"), [(code(name), _plain(words)) for name, words in records])


def _plain(text: str) -> str:
    """Return a help text in which Markdown finds no markup."""
    return re.sub(r"([\[\]*_<>])", r"\\\1", text)


def _techniques() -> Iterator[str]:
    yield "# Techniques\n"
    yield (
        "Apply a technique by `--technique NAME` or `--technique NAME:option=value`, or in an arm of a study. "
        "[Techniques](../techniques.md) says what each does, what it needs and what goes together.\n"
    )
    rows = [(f"[{code(name)}](#technique-{name})", one.summary, one.seam) for name, one in TECHNIQUES.items()]
    yield from table(("technique", "what it does", "section of the plan"), rows)
    for name, one in TECHNIQUES.items():
        yield from _technique(name, one)


def _technique(name: str, one: Technique) -> Iterator[str]:
    yield f"(technique-{name})="
    yield f"## {name}\n"
    seams = ", ".join(f"[{code(seam)}](plan/{seam}.md)" for seam in sorted(one.seams))
    linked = _ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", one.paper or "")
    paper = f" Paper: {linked}." if linked else ""
    yield f"{sentence(one.summary)} It changes {seams}.{paper}\n"
    if one.needs:
        yield f"It needs {', '.join(code(f'{key}={value}') for key, value in one.needs.items())}.\n"
    fields = {field.alias or key: field for key, field in one.options.model_fields.items() if key != "kind"}
    rows = [
        (code(key), default_words(field), f"{sentence(field.description or '')} *{sentence(type_words(field))}*")
        for key, field in fields.items()
    ]
    if rows:
        yield from table(("option", "default", "meaning"), rows)


def _metrics() -> Iterator[str]:
    yield "# Metrics\n"
    yield (
        "The definitions are those that stand in every report. [Metrics](../metrics.md) says how to read them, and "
        "what biases them.\n"
    )
    groups: dict[str, list[AnyMetric]] = {
        "On features of generated and real images": list(metrics.FEATURE_METRICS.values()),
        "On features of generated, held-out and training images": list(metrics.TRAINING_METRICS.values()),
        "On images and their prompts": list(metrics.TEXT_METRICS),
        "On scenes": list(metrics.SCENE_METRICS["long"]),
        "On held-out images": list(metrics.HELD_OUT_METRICS),
        "On the log of a run": list(metrics.LOG_METRICS),
        "On pairs of images": list(metrics.PAIR_METRICS),
    }
    for title, found in groups.items():
        yield f"## {title}\n"
        for one in found:
            yield f"### {code(one.name)}\n"
            better = "Higher" if one.direction == "higher" else "Lower"
            yield f"{one.label}. {better} is better.\n"
            yield f"{_plain(sentence(one.definition.replace('{captions}', 'long or short')))}\n"
    yield "## Encoders\n"
    yield "Features are taken by these encoders (`evaluation.encoders`).\n"
    rows = [(code(one.kind_name()), sentence(class_words(one).split("\n\n")[0])) for one in ENCODERS]
    yield from table(("encoder", "what it is"), rows)
