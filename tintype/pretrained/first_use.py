"""Check that content from the Hugging Face hub equals the content at its first use on this machine.

A repository at a branch or tag can change between two runs of a study. The first use writes the SHA-256 of the content
to `$TINTYPE_CACHE/first-use`. A later use with another SHA-256 is refused.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from tintype.errors import as_user_error
from tintype.runtime.cache import cache_folder, writing_cache
from tintype.runtime.files import read_json, write_json
from tintype.runtime.identity import check_same
from tintype.runtime.locks import taking_turns

_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


def hold(source: str, revision: str, item: str, sha256: str, commit: str | None) -> None:
    """At the first use of an item of a repository, record its SHA-256. Raise if a later use has another SHA-256."""
    file = record_file(source, revision)
    first = _first(file, item, {"sha256": sha256, "commit": commit, "date": time.strftime("%Y-%m-%d")})
    now = f" (commit {commit})" if commit else ""
    stay = f"to stay with the first one, set the revision to {first['commit']}; " if first.get("commit") else ""
    remedy = (
        f"{stay}to accept the change, remove {file}; if nobody changed the repository, the downloaded copy is damaged: "
        "remove it from the cache of the hub (`hf cache rm`) and load it again"
    )
    what = f"SHA-256 of {item} of {source} at {revision}{now}"
    check_same(f"the first use on {first.get('date')}", what, first.get("sha256"), sha256, remedy)


def record_file(source: str, revision: str) -> Path:
    return cache_folder() / "first-use" / f"{_UNSAFE.sub('--', source)}@{_UNSAFE.sub('--', revision)}.json"


def _first(file: Path, item: str, found: dict[str, str | None]) -> dict[str, str | None]:
    """Return the recorded entry of an item. If there is none, record `found`."""
    with writing_cache(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with taking_turns(file.parent / ".lock"):  # ranks and workers load the same repository at the same time
            with as_user_error(
                ValueError, f"{file} is damaged", "remove this file; the weights that are loaded next are then accepted"
            ):
                known = read_json(file)
            if item not in known:
                write_json(file, {**known, item: found})
            first: dict[str, str | None] = known.get(item, found)
    return first
