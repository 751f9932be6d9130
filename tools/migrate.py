"""Bring the files of runs and studies that an earlier version of tintype wrote to this version.

`python -m tools.migrate FOLDER…` takes runs, exported models, studies, and folders that hold them. It seals every file
unchanged (`tintype/runtime/files.py`): only the files themselves show that they belong together. If one file of a run
is damaged or names another run, nothing is written for that run.

Studies lose the parts of the older paired method: `analysis.method`, `test` and `interval` of study.yaml, and the tests
and earlier verdicts of results.json. A study that uses that method is refused. A results.json of format 1 gets the list
of resolutions of format 2. In format 3 intervals are values of their own. Numbers do not change.

A replication gets the first and the fresh difference as intervals, and the outcome that today's rule gives for the
stored fresh interval. That interval is wider than today's, which has a confidence of 90%. So an outcome may be open
that would hold or be contradicted today.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from tintype.config.strict import read_yaml, write_yaml
from tintype.errors import UserError
from tintype.evaluation.results import FORMAT, MISREAD_FILE, PER_IMAGE_FILE
from tintype.plan import plan_in
from tintype.runtime.files import (
    PLAN,
    SEAL,
    Seal,
    checked_text,
    damage_in,
    damaged,
    lines_text,
    parse_object,
    sealed_text,
    sha256_of,
    without_seal,
    write_bytes,
)
from tintype.runtime.locks import locked
from tintype.study import results
from tintype.study.replicate import FOLDER as REPLICATION
from tintype.study.replicate import judge_interval
from tintype.train.record import ABOUT, EVENTS, FAILURES, METRICS, RECORDS

_STEPS = tuple(f"{place}/step-*" for place in ("checkpoints", "snapshots", "kept"))
_IN_RUN = (
    *RECORDS,
    METRICS,
    EVENTS,
    *FAILURES.values(),
    "trackers/*.json",
    *(f"{place}/{name}" for place in _STEPS for name in ("manifest.json", "records.json")),
    *(f"evaluation/*/{name}" for name in ("result.json", PER_IMAGE_FILE, MISREAD_FILE)),
    "evaluation/samples/*/samples.json",
    "evaluation/samples/*/images-*.safetensors",
)
_IN_STUDY = (
    *("study.yaml", "baseline.yaml", "baselines/*.yaml", "results.json", "looks.json", "plugins.json"),
    *("commands.jsonl", "tuning.jsonl", "trackers/*.json", f"{REPLICATION}/replication.json"),
)
_OURS = ("checksum", "format", "line", SEAL)
_FORMATS = {"result.json": FORMAT, "results.json": results.FORMAT}
_USUAL_ANALYSIS = {"method": "shared", "test": "student", "interval": "student"}
"""Settings of older versions, with the values that give the comparison of this version."""
_COMPARED = ("better", "worse", "same", "undecided")
"""Verdicts on fresh runs without diverged, failed or collapsed ones."""


def migrate(folder: Path) -> list[Path]:
    """Seal all runs and studies in a folder, and return the files that were written."""
    studies = [folder, *(file.parent for file in folder.rglob("study.yaml") if file.parent != folder)]
    runs = [folder, *(file.parent for file in folder.rglob(PLAN) if file.parent != folder)]
    written = []
    for study in (one for one in studies if (one / "study.yaml").is_file()):
        written += _write(_sealed_study(study))
    for run in (one for one in runs if _is_run(one)):
        with locked(run, "run this again then"):
            written += _write(_sealed_run(run))
    return written


def _is_run(folder: Path) -> bool:
    marks = ("checkpoints", "metrics.jsonl", "environment.json", ABOUT, "failed.txt")
    return (folder / PLAN).is_file() and any((folder / name).exists() for name in marks)


def _write(content: Mapping[Path, bytes]) -> list[Path]:
    changed = [path for path, now in content.items() if path.read_bytes() != now]
    for path in changed:
        write_bytes(path, content[path])
    return changed


def _sealed_study(study: Path) -> dict[Path, bytes]:
    return {path: _sealed(path, None) for path in _found(study, _IN_STUDY)}


def _sealed_run(run: Path) -> dict[Path, bytes]:
    """Return the sealed content of each file of a run; raise if a file is damaged or of another run."""
    text = _whole_text(run / PLAN)
    own_hash = plan_in(text, run / PLAN).hash
    about: dict[str, Any] = parse_object((run / ABOUT).read_bytes()) if (run / ABOUT).is_file() else {}
    identity = str(about.get("plan", own_hash))  # the plan of an export names its weights otherwise
    content = {path: _sealed(path, Seal(identity, path.relative_to(run).as_posix())) for path in _found(run, _IN_RUN)}
    content[run / PLAN] = sealed_text(text, Seal(identity, PLAN)).encode()
    for name, digest in about.get("sha256", {}).items():
        if not (run / name).is_file() or sha256_of(run / name) != digest:
            raise _refused(run / name, f"it does not match {ABOUT}")
        if run / name in content:
            about["sha256"][name] = hashlib.sha256(content[run / name]).hexdigest()
    if about:
        content[run / ABOUT] = (json.dumps(about, indent=1) + "\n").encode()
    return content


def _found(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_file())


def _sealed(path: Path, seal: Seal | None) -> bytes:
    """Return a file's content with its seal."""
    if damage := damage_in(path):
        raise _refused(path, damage)
    kinds: dict[str, Callable[[Path, Seal | None], str]] = {".json": _sealed_json, ".jsonl": _sealed_lines}
    if path.suffix == ".safetensors":
        return _sealed_shard(path, seal)
    if path.suffix in kinds:
        return kinds[path.suffix](path, seal).encode()
    text = _whole_text(path)
    return sealed_text(_without_paired(text, path) if path.name == "study.yaml" else text, seal).encode()


def _without_paired(text: str, path: Path) -> str:
    """Return a study file without the settings of the paired method; raise if it uses this method."""
    study = read_yaml(text, str(path)).data
    if not isinstance(study, dict) or not isinstance(analysis := study.get("analysis"), dict):
        return text
    for key, usual in _USUAL_ANALYSIS.items():
        if (value := analysis.pop(key, usual)) != usual:
            raise UserError(f"{path}: analysis.{key} is '{value}', which only older versions have: report it by one")
    if not analysis:
        del study["analysis"]
    return write_yaml(study)


def _without_tests(results: dict[str, Any]) -> None:
    """Remove the earlier verdicts and the names of tests and intervals; give corrected estimates their type."""
    results.pop("earlier", None)
    arms = [row for arm in results["arms"] for row in arm["comparisons"].values()]
    others = [one["comparison"] for key in ("trends", "factors") for one in results.get(key, [])]
    for row in (row for row in (*arms, *others) if row is not None):
        row.pop("test", None)
        row.pop("interval", None)
        if row["verdict"] == "not shown":
            row["verdict"] = "undecided"
        if isinstance(row.get("corrected"), float):
            row["corrected"] = {"value": row["corrected"]}


def _with_intervals(replication: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Bring the rows of a replication to this version. `found` are the results of the study, which have the margins.

    The stored interval has the confidence of a family, at least 95%. If a verdict of same has no margin, it is open.
    """
    margins = {
        (results.arm_label(arm["name"], arm.get("resolution", "")), metric): row.get("margin")
        for arm in found["arms"]
        for metric, row in arm["comparisons"].items()
    }
    for row in replication["rows"]:
        if isinstance(row["first"], dict):
            continue
        value, low, high = (row.pop(key) for key in ("difference", "low", "high"))
        margin, before = margins.get((row["arm"], row["metric"])), row["outcome"]
        if before != "incomplete":
            known = low is not None and high is not None and row["words"] in _COMPARED
            known = known and (row["verdict"] != "same" or margin is not None)
            row["outcome"] = judge_interval(row["verdict"], row["first"], low, high, margin or 0.0) if known else "open"
        row["first"] = {"value": row["first"]}
        row["fresh"] = None if value is None else {"value": value, "low": low, "high": high}
        row |= {"pooled": None, "seeds_needed": None}


def _whole_text(path: Path) -> str:
    if damage := damage_in(path):
        raise _refused(path, damage)
    return without_seal(path.read_text(encoding="utf-8"))


def _sealed_json(path: Path, seal: Seal | None) -> str:
    found: dict[str, Any] = parse_object(path.read_bytes())
    _check_own(path, found.get(SEAL), seal)
    wrote = found.get("plan") if path.name in ("result.json", "environment.json") else None
    if seal is not None and wrote not in (None, "", seal.run):
        raise _refused(path, f"it was written for the plan {wrote}, and the run is {seal.run}")
    content = {key: value for key, value in found.items() if key not in _OURS}
    if path.name == "manifest.json":
        _check_files(path, content["sha256"])
        content.setdefault("records", (path.parent / "records.json").is_file())
    if path.name == "results.json":
        _without_tests(content)
        if content.get("replication"):
            _with_intervals(content["replication"], content)
    if path.name == "replication.json":
        _with_intervals(content, parse_object((path.parents[1] / "results.json").read_bytes()))
    if path.name == "looks.json":
        for look in content["looks"]:
            look["family"] = _typed_family(look["family"], path.parent)
    if path.name == "result.json":
        beside = [name for name in (PER_IMAGE_FILE, MISREAD_FILE) if (path.parent / name).is_file()]
        content.setdefault("beside", beside)
    if path.name == "results.json" and found.get("format", 1) == 1:
        content = _with_resolutions(content)
    if path.name == "results.json" and found.get("format", 1) < results.FORMAT:
        _nest_intervals(content)
    return checked_text(content, _FORMATS.get(path.name, 1), seal)


def _with_resolutions(content: dict[str, Any]) -> dict[str, Any]:
    """Return results of format 1 in format 2, in which a study of one resolution lists it too."""
    own = {key: content.pop(key) for key in ("plan", "prompts", "real_previews", "reference")}
    return {**content, "resolutions": content.get("resolutions") or [{"name": "", **own}]}


_RENAMED = {
    "fallen": "collapsed",
    "baseline_fallen": "baseline_collapsed",
    "fallen_later": "collapsed_later",
    "baseline_fallen_later": "baseline_collapsed_later",
}


def _rename(row: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison with today's names of collapsed runs, in the same order."""
    return {_RENAMED.get(key, key): value for key, value in row.items()}


def _nest_intervals(content: dict[str, Any]) -> None:
    """Give values along training, of trends and of banks their intervals as one value each."""

    def nested(one: dict[str, Any], value: str) -> dict[str, Any]:
        return {key: one.pop(name) for key, name in (("value", value), ("low", "low"), ("high", "high"))}

    for one in (*content["arms"], *content.get("between", [])):
        one["comparisons"] = {metric: _rename(row) for metric, row in one["comparisons"].items()}
    for one in (*content.get("trends", []), *content.get("factors", [])):
        one["comparison"] = one["comparison"] and _rename(one["comparison"])
    for trend in content.get("trends", []):
        trend["effects"] = {one["resolution"]: nested(one, "value") for one in trend["effects"]}
    for along in content.get("along", []):
        for one in along["differences"]:
            one["difference"] = nested(one, "value")
        spread, reach = all(one["difference"]["low"] is not None for one in along["differences"]), along["reach"]
        for place in ("step", "seconds"):
            keys = {"value": place, "low": f"{place}_low", "high": f"{place}_high"}
            found = {key: reach.pop(name) for key, name in keys.items()}
            never = {key for key, end in found.items() if end is None and (spread or key == "value")}
            reach[place] = found | dict.fromkeys(never, "Infinity")
        reach["at_first"] = reach.pop("at_first")  # comes last, as do the reasons
        then = nested(along["equal_time"], "value")
        along["equal_time"]["difference"] = None if then["value"] is None else then
        along["equal_time"]["refused"] = along["equal_time"].pop("refused")
    for check in content.get("bank", {}).get("checks", []):
        check["difference"] = nested(check, "difference")


def _typed_family(family: dict[str, list[str]] | list[dict[str, Any]], study: Path) -> list[dict[str, Any]]:
    """Return the family of a look with typed rows; older versions had labels that no arm could have."""
    if isinstance(family, list):
        return family
    results: dict[str, Any] = parse_object((study / "results.json").read_bytes())
    arms = results["arms"]
    places = [(arm["name"], arm.get("resolution", "")) for arm in arms]
    known = {f"{name} @ {resolution}" if resolution else name: (name, resolution) for name, resolution in places}
    controls, rows = {arm["name"] for arm in arms if arm["role"] == "control"}, []
    for label, metrics in family.items():
        name, _, place = label.rpartition(" @ ")
        if label in known or not (place == "more tokens" or place.startswith("factors")):
            name, resolution = known.get(label, (label, ""))
            kind = "control" if name in controls else "arm"
        elif place == "more tokens":
            resolution, kind = "", "trend"
        else:
            resolution, kind = place.removeprefix("factors").strip(), "interaction" if " × " in name else "main effect"
        rows.append({"arm": name, "resolution": resolution, "kind": kind, "metrics": metrics})
    return rows


def _sealed_lines(path: Path, seal: Seal | None) -> str:
    texts = path.read_bytes().split(b"\n")
    lines = [parse_object(text) for text in texts[:-1]]  # the last one was cut short, or is empty
    if lines:
        _check_own(path, lines[0].get(SEAL), seal)
    ours = ("checksum", "line", SEAL)
    return lines_text([{key: value for key, value in line.items() if key not in ours} for line in lines], seal)


def _sealed_shard(path: Path, seal: Seal | None) -> bytes:
    with safe_open(path, "pt") as file:
        about, images = dict(file.metadata() or {}), file.get_tensor("images")
    _check_own(path, json.loads(about[SEAL]) if SEAL in about else None, seal)
    if seal is None or SEAL in about:
        return path.read_bytes()
    about[SEAL] = json.dumps(seal.content)
    return save({"images": images}, metadata=about)


def _check_files(manifest: Path, wanted: Mapping[str, str]) -> None:
    for name, digest in wanted.items():
        file = manifest.parent / name
        if not file.is_file() or sha256_of(file) != digest:
            raise _refused(file, "it does not match manifest.json")


def _check_own(path: Path, found: object, seal: Seal | None) -> None:
    """Raise if a file already has the seal of another run or place."""
    if found is not None and seal is not None and found != seal.content:
        raise _refused(path, f"its seal says {found}, and it lies where {seal} belongs")


def _refused(path: Path, reason: str) -> UserError:
    return damaged(path, reason, "nothing of its folder was sealed. Remove it, or put back what was there")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.migrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a run, a study, or a folder of them")
    for folder in parser.parse_args().folders:
        try:
            print(f"{folder}: wrote {len(migrate(folder))} files")
        except (UserError, OSError, ValueError, KeyError) as error:
            sys.exit(f"{folder}: {error}")


if __name__ == "__main__":
    main()
