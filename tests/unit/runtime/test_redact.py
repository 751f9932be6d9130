"""Paths of this machine are replaced in texts and in nested data; what only looks like one stays."""

from __future__ import annotations

import pytest

from tintype.runtime.redact import LOCAL, hide_all_passwords, hide_passwords, last_names, redact, redact_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read /home/al/photos, then stop", f"read {LOCAL}, then stop"),
        ("(/data/a.yaml:12: a mistake)", f"({LOCAL}: a mistake)"),
        ("/data/x:y", LOCAL),
        ("PATHS=/lab/one:/lab/two", f"PATHS={LOCAL}:{LOCAL}"),
        ("~/a ~al/b ../c/d ./run-1", " ".join([LOCAL] * 4)),
        ("file:///srv/x.png C:\\Users\\al \\\\host\\share", " ".join([LOCAL] * 3)),
    ],
)
def test_paths_are_replaced(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "text", ["3 images/s", "and/or", "https://arxiv.org/abs/2212.00001", "org/model", "p / weight", "1/2", "</b>"]
)
def test_what_only_looks_like_a_path_stays(text: str) -> None:
    assert redact_text(text) == text


def test_paths_of_one_last_name_get_numbers() -> None:
    data = {"a": "/x/vae", "b": ["/y/vae", "from /y/vae"], "c": {"d": "/z/my photos"}, "e": "no /z/my photos", "f": 3}
    assert redact(data, last_names()) == {
        "a": "vae", "b": ["vae-2", "from vae-2"], "c": {"d": "my photos"}, "e": "no my photos", "f": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://al:s3cret@host.org/x, or ask", "see https://(hidden)@host.org/x, or ask"),
        ("postgres://al:p@ss:word@host:5432/runs", "postgres://(hidden)@host:5432/runs"),
        ("HTTPS://:s3cret@host", "HTTPS://(hidden)@host"),
        ("https://ghp_s3cret@github.com/a/b", "https://(hidden)@github.com/a/b"),
        ("s3://bucket/a?X-Amz-Signature=dead&part=2", "s3://bucket/a?X-Amz-Signature=(hidden)&part=2"),
        ("http://host/a?part=2&amp;access_token=abc", "http://host/a?part=2&amp;access_token=(hidden)"),
        ('{"a":"http://al:s3cret@x","b":1}', '{"a":"http://(hidden)@x","b":1}'),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert hide_passwords(text) == shown == hide_passwords(shown)
    assert hide_all_passwords({text: [text, 1, None]}) == {shown: [shown, 1, None]}


@pytest.mark.parametrize(
    "text",
    [
        "ssh://git@github.com/a",
        "http://host:80/ me@x.org",
        '{"a":"http://x:1","b":"me@y"}',
        "git@host:a?key=1",
        "a:b@c",
    ],
)
def test_addresses_without_a_password_stay(text: str) -> None:
    assert hide_passwords(text) == text
