"""Options in messages are data: one text for the command line, one for Python, and none of the marks in either."""

from __future__ import annotations

import shlex

import pytest

from tintype.wording import MARKS, Language, Option, again, option, options_in, rendered, setting, technique


@pytest.mark.parametrize(
    ("text", "command", "python"),
    [
        (f"choose another {option('out')}", "choose another --out", "choose another `out`"),
        (
            f"choose a run with {option('arm')} and {option('arm-seed')}",
            "choose a run with --arm and --arm-seed",
            "choose a run with `arm` and `seed`",
        ),
        (option("arm", "muon"), "--arm muon", 'arm="muon"'),
        (option("arm", "two words"), '--arm "two words"', 'arm="two words"'),
        (option("ema-length", 0.1), "--ema-length 0.1", "ema_length=0.1"),
        (option("margin", "3%"), "--margin 3%", 'margin="3%"'),
        (option("baseline", "nan"), "--baseline nan", 'baseline="nan"'),
        (option("arm", ""), '--arm ""', 'arm=""'),
        (option("arm", 'a "b" $c'), "--arm 'a \"b\" $c'", 'arm="a \\"b\\" $c"'),
        (setting("seeds", "[0,1]"), '--set "seeds=[0,1]"', '"seeds=[0,1]"'),
        (setting("text.kind", "…"), "--set text.kind=…", '"text.kind=…"'),
        (technique("repa:weight=0.5"), "--technique repa:weight=0.5", '"repa:weight=0.5"'),
        (
            f"leave {option('set')} and {option('technique')} out",
            "leave --set and --technique out",
            "leave `settings` and `techniques` out",
        ),
        (
            f"make room, then {again()} again to resume",
            "make room, then run the same command again to resume",
            "make room, then make the same call again to resume",
        ),
        ("`tintype train RECIPE --out DIR` makes one", "`tintype train RECIPE --out DIR` makes one", None),
    ],
)
def test_a_message_is_rendered_for_the_command_line_and_for_python(text: str, command: str, python: str | None) -> None:
    assert rendered(text) == command
    assert rendered(text, "python") == (command if python is None else python)


def test_the_options_of_a_message_can_be_read() -> None:
    text = f"{option('arm', 'muon')}: take {setting('seeds', '[0,1]')}, {technique('muon')} or another {option('out')}"
    assert list(options_in(text)) == [
        Option("arm", "muon"),
        Option("set", "seeds=[0,1]"),
        Option("technique", "muon"),
        Option("out", None),
    ]


HOSTILE = ["\ufdd0", "\ufdd0out", "\ufdd2\ufdd0", "a\ufdd1b\ufdd3", "\ufdd0arm\ufdd1x\ufdd2", "\ufdd3\ufdd3"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("language", ["command", "python"])
def test_no_mark_survives_whatever_a_text_from_outside_has(text: str, language: Language) -> None:
    for message in (text, option("arm", text), f"{option('arm', text)} {text}", option("arm", text)[:-1]):
        assert not MARKS & set(rendered(message, language))


@pytest.mark.parametrize(
    "value", ["", "a b", "it's", 'a "b"', "$HOME", "`ls`", "a\\b", "!x", "[0,1]", "{a: b}", "~", "#", "…", "é", "a'$b"]
)
def test_a_shell_reads_the_value_that_was_given(value: str) -> None:
    assert shlex.split(rendered(option("arm", value))) == ["--arm", value]
