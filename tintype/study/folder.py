"""The folder of a study: which study owns it, and the study stored there.

A folder belongs to one study. The study may get more arms, seeds and resolutions, but its baseline must stay the same.
Once its results were seen, its question and the settings of its arms must not change. If planned looks share all of the
study's error, no arms can be added after the first look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from tintype.config.paths import files_named_in
from tintype.config.strict import Document, read_file, read_yaml, write_yaml
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.prompts import read_prompts
from tintype.evaluation.protocol import Protocol
from tintype.plan import parts_of, plan_from_document, stored_plan
from tintype.plugins.record import FILE as PLUGINS
from tintype.plugins.record import check_plugins, naming_missing_plugin, record_of
from tintype.recipes import packaged
from tintype.runtime.files import (
    check_sha256,
    read_checked,
    read_sealed,
    write_bytes,
    write_checked,
    write_lines,
    write_sealed,
)
from tintype.runtime.locks import refuse_foreign
from tintype.runtime.redact import hide_passwords
from tintype.settings import plain
from tintype.study.bank import keep_bank
from tintype.study.compare import made_looks
from tintype.study.contrasts import between_key, is_tested
from tintype.study.looks import SeedPlan
from tintype.study.results import FORMAT, Command, TokenizerInfo, arm_label, remake_results
from tintype.study.runner import tasks_of
from tintype.study.runs import COMMANDS_FILE, metric_infos, read_commands, real_folder, reported_commands
from tintype.study.settings import StudySettings, section
from tintype.study.stats.contrast import OF_ARMS
from tintype.study.stored import name_of
from tintype.study.study import Study, load_study, override_study, read_settings, remake_study, resolve, set_labels
from tintype.study.tune import tuned, tuning_of, tuning_tasks
from tintype.study.version import VERSION, check_version, read_version, this_version
from tintype.tokenizers.part import Compression
from tintype.wording import option, setting

STUDY, RESULTS = "study.yaml", "results.json"
_BASELINE = "baseline.yaml"


def check_folder(study: Study, out: Path, note: Callable[[str], None] = lambda text: None) -> None:
    """Raise if a folder holds other files, or a study that this study cannot replace. Nothing is written."""
    if not (out / STUDY).exists() and not (out / "runs").exists():
        if out.is_dir():
            refuse_foreign(out, STUDY)
        elif out.exists():
            raise UserError(f"cannot write to {out}: this is a file, not a folder", f"choose another {option('out')}")
        return
    try:
        check_own_plugins(out)
        check_version(out)
        _refuse_another_study(study, untuned_study(out), out)
    except DamagedFileError as error:
        known = {task.plan.hash for task in (*tuning_tasks(study, out), *tasks_of(study, out))}
        there = {folder.name for folder in (out / "runs").glob("*")}
        if there and not there & known:
            raise  # the names of the runs do not prove that the folder is this study's
        note(f"{error.marked}: the runs in the folder belong to this study, so the damaged files are written again")


def claim_folder(study: Study, out: Path, note: Callable[[str], None] = lambda text: None) -> None:
    """Write the study into its folder. If the folder already has the study, its baseline must be the same."""
    check_folder(study, out, note)
    try:
        recorded = _plugins(out)
    except DamagedFileError:  # noted above
        recorded = {}
    for resolution, plan in study.baselines.items():
        file = _baseline_file(out, resolution)
        file.parent.mkdir(exist_ok=True)
        write_sealed(file, plan.to_yaml())
    settings = study.settings.model_copy(update={"evaluation": _keep_prompts(study.settings.evaluation, out)})
    if plugins := {**record_of(_parts(study)), **recorded}:
        write_checked(out / PLUGINS, plugins)
    try:
        version = read_version(out)
    except DamagedFileError:  # noted above
        version = {}
    if not version:
        write_checked(out / VERSION, this_version())
    write_sealed(out / STUDY, write_yaml({"name": study.name, **plain(settings)}))
    keep_bank(study, out, bool(made_looks(out)))
    _remove_leftovers(out, study.baselines)


def _refuse_another_study(study: Study, there: Study, out: Path) -> None:
    """Raise if this study cannot replace the study in the folder, `there`."""
    _refuse_another_baseline(study, there, out)
    if looks := made_looks(out):
        seen = {arm_label(key.arm, key.resolution) for look in looks for key in look.keys if key.kind in OF_ARMS}
        _refuse_other_looks(study, there, out)
        _refuse_added_arms(study, seen, out)
        _refuse_added_pairs(study, seen, {(key.arm, key.resolution) for look in looks for key in look.keys}, out)
        _refuse_changed_arms(study, there, seen, out)
        _refuse_other_questions(study, there, out)


def _refuse_another_baseline(study: Study, there: Study, out: Path) -> None:
    """Raise if a shared resolution has another baseline, or if the studies have no baseline in common."""
    mine, stored = ({name: plan.hash for name, plan in one.baselines.items()} for one in (study, there))
    changed = [name for name in mine if name in stored and mine[name] != stored[name]]
    if changed or not set(mine.values()) & set(stored.values()):
        where = f" at the resolution {changed[0]}" if changed and changed[0] else ""
        raise UserError(
            f"{out} contains a study ('{there.name}') with another baseline{where}", f"choose another {option('out')}"
        )


def _refuse_other_looks(study: Study, there: Study, out: Path) -> None:
    """Raise if planned looks change after a look at the study, since the planned looks share the study's error."""
    new, old = study.settings.seeds, there.settings.seeds
    if new != old and (isinstance(new, SeedPlan) or isinstance(old, SeedPlan)):
        raise UserError(
            f"seeds: {out} has results that were read with other planned seeds "
            f"({plain(there.settings)['seeds']}), and the planned looks share the study's error rate, so "
            f"the plan cannot change any more",
            f"keep the planned seeds, choose another {option('out')}, or test the verdicts on fresh seeds with "
            f"`tintype replicate`",
        )


def _refuse_added_arms(study: Study, seen: Collection[str], out: Path) -> None:
    """Raise if arms besides those `seen` are added to planned looks that share all of the error."""
    added = [arm.label for arm, _ in study.compared() if arm.label not in seen]
    if isinstance(study.settings.seeds, SeedPlan) and added:
        raise UserError(
            f"arms: {out} has results that were read without {', '.join(added)}, and the arms of the planned "
            f"looks already share all of the study's error rate",
            f"leave the new arms out, or choose another {option('out')}",
        )


def _refuse_added_pairs(study: Study, seen: Collection[str], asked: Collection[tuple[str, str]], out: Path) -> None:
    """Raise if a pair not `asked` before is added after both arms were `seen`, since the best pair could be chosen."""
    for first, second in study.declared():
        key = between_key(first.name, second.name, first.resolution, "")
        if {first.label, second.label} <= set(seen) and (key.arm, key.resolution) not in asked:
            raise UserError(
                f"compare: {out} has results that were read before {key.arm} was declared, and a pair chosen "
                f"after seeing results proves nothing",
                f"leave the pair out, or start a new study with other seeds in another {option('out')}",
            )


def _refuse_changed_arms(study: Study, there: Study, seen: Collection[str], out: Path) -> None:
    """Raise if an arm gets other settings after its results were `seen`. Each try would be another chance to win."""
    before = {arm.label: arm.changes for arm in there.arms if arm.label in seen}
    changed = [arm.label for arm in study.arms if arm.changes != before.get(arm.label, arm.changes)]
    if changed:
        raise UserError(
            f"arms: {out} has results that were read with other settings of {', '.join(changed)}; an arm cannot "
            f"change after its results were read",
            f"give the arm with the new settings another name, or choose another {option('out')}",
        )


def _refuse_other_questions(study: Study, there: Study, out: Path) -> None:
    """Raise if primary metrics, margins or tests change once results are known: they could be chosen to win."""
    new, old = (
        {
            "primary": list(one.settings.primary),
            "bank": [name_of(Path(path)) for path in one.settings.analysis.bank],
        }
        | {f"the margin of {name}": info.margin for name, info in metric_infos(one).items() if is_tested(name)}
        for one in (study, there)
    )
    changed = [name for name in new if name in old and new[name] != old[name]]
    if changed:
        was = ", ".join(f"{name} was {old[name]}" for name in changed)
        raise UserError(
            f"{', '.join(changed)}: {out} has results that were read before this change ({was}), and a choice "
            f"made after seeing results proves nothing",
            f"restore the earlier value, or start a new study with other seeds in another {option('out')}",
        )


def check_own_plugins(out: Path) -> None:
    """Raise if a study is resumed with other plugins than it was made with."""
    check_plugins(out, _plugins(out))


def _plugins(out: Path) -> dict[str, Any]:
    return read_checked(out / PLUGINS, remake_study(out))


def _parts(study: Study) -> list[tuple[str, str]]:
    """Return the group and the name of each technique and part in a study that a plugin may have added."""
    found = [("techniques", one.technique.name) for arm in study.arms for one in arm.applications]
    found += [one for arm in study.arms for one in parts_of(arm.plans[0])]
    return [*found, *study.settings.evaluation.parts]


def _keep_prompts(protocol: Protocol, out: Path) -> Protocol:
    """Copy prompt files into the study's folder, so that its report can be written again anywhere."""

    def keep(prompts: str) -> str:
        place = Path("prompts") / read_prompts(Path(prompts)).sha256[:12] / Path(prompts).name
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out / place, Path(prompts).read_bytes())
        return str(place)

    return protocol.with_prompts(keep)


def _check_prompts(protocol: Protocol, out: Path) -> None:
    """Raise if the content of a copied prompt file does not match the hash in its folder's name."""
    for place in map(Path, protocol.prompt_files):
        if place.is_relative_to(out / "prompts"):
            check_sha256(place, place.parent.name, remake_study(out))


def _remove_leftovers(out: Path, resolutions: Collection[str]) -> None:
    """Remove baselines and real images of resolutions that are no longer in the study."""
    folders = {out / real_folder(name) for name in resolutions}
    baselines = {out / _BASELINE, *(out / "baselines").glob("*.yaml")}
    stale = baselines - {_baseline_file(out, name) for name in resolutions}
    stale |= {file for file in (out / "real").rglob("preview-*.png") if file.parent not in folders}
    for file in stale:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # the folder is not empty
            file.parent.rmdir()


def _baseline_file(out: Path, resolution: str) -> Path:
    return out / "baselines" / f"{resolution}.yaml" if resolution else out / _BASELINE


def stored_study(out: Path) -> Study:
    """Return the study of a folder, with its tuned values, and its baselines as they were when the study began."""
    study = untuned_study(out)
    return tuned(study, tuning_of(study, out))


def open_study(name: str, assignments: Sequence[str] = ()) -> Study:
    """Load a packaged study, a study file, or a stored study (its folder, or the study.yaml in it).

    A stored study uses its stored baselines, not today's recipes; `set` in `assignments` changes them further.
    """
    folder = Path(name).parent if Path(name).name == STUDY else Path(name)
    if name in packaged.names("studies") or not (folder / STUDY).is_file():
        return load_study(name, assignments)
    if not _is_stored(folder):
        return load_study(str(folder / STUDY), assignments)
    check_own_plugins(folder)
    with naming_missing_plugin(folder):
        study = _read_study(folder, {}, assignments)
    return replace(study, made_by=_making_commands(study, folder))


def _is_stored(folder: Path) -> bool:
    """Return whether tintype wrote the study.yaml of a folder. Such a file has a name, and baselines beside it."""
    written = read_file(folder / STUDY).data
    beside = (folder / _BASELINE).is_file() or (folder / "baselines").is_dir()
    return beside and isinstance(written, dict) and "name" in written


def _making_commands(study: Study, folder: Path) -> dict[str, str]:
    """Return the commands in the folder's README that make files named in the study's plans, by path."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    named = {path for arm in study.arms for path in files_named_in(arm.plans[0])}
    commands = [" ".join(one.split()) for one in _COMMAND.findall(text)]
    return {made: one for one in commands for made in _MADE.findall(one) if made in named}


_COMMAND = re.compile(r"(?:`|^)((?:tintype|hf) [^`]+?)(?:`|$)", re.MULTILINE)
_MADE = re.compile(r" (?:--out|--local-dir) (\S+)")


def untuned_study(out: Path, changes: Mapping[str, object] = MappingProxyType({})) -> Study:
    """Return the study of a folder before tuning, with other settings if given."""
    with naming_missing_plugin(out):
        return _read_study(out, changes)


def stored_protocol(out: Path) -> Protocol:
    with naming_missing_plugin(out):
        return _read_settings(out)[1].evaluation


def _read_settings(out: Path, assignments: Sequence[str] = ()) -> tuple[str, StudySettings, Document]:
    document = read_yaml(read_sealed(out / STUDY, remake_study(out)), str(out / STUDY))
    if not isinstance(document.data, dict) or not isinstance(document.data.get("name"), str):
        raise UserError(f"{out / STUDY} was not written by `tintype ablate`", f"choose another {option('out')}")
    name = document.data.pop("name")
    if fixed := {"recipe", "resolutions"} & set(map(section, assignments)):
        raise UserError(
            f"{min(fixed)}: a stored study has its own baseline ({_baseline_file(out, '')})",
            f"change the baseline with {setting('set', '[key.path=value]')}, or write a new study file",
        )
    override_study(document, assignments)
    settings = read_settings(document, out)
    _check_prompts(settings.evaluation, out)
    return name, settings, document


def _read_study(out: Path, changes: Mapping[str, object], assignments: Sequence[str] = ()) -> Study:
    name, settings, document = _read_settings(out, assignments)
    settings = settings.model_copy(update=dict(changes))
    known = KnownTokenizers(out / RESULTS)
    names = [one.name for one in settings.resolutions] or [""]
    baselines = {name: stored_plan(_baseline_file(out, name), remake_study(out), known) for name in names}
    if "set" in map(section, assignments):  # the stored baselines already include the study's own `set`
        labels = set_labels(settings.set, ("set",), document.place)
        for name_of, plan in baselines.items():
            changed = Document("the stored baseline", plain(plan))
            baselines[name_of] = plan_from_document(changed, settings.set, labels, known)
        settings = settings.model_copy(update={"set": (*_read_settings(out)[1].set, *settings.set)})
    return resolve(name, settings, baselines, document.place, known)


class KnownTokenizers(Mapping[str, Compression]):
    """Small-vae facts of the last report, by folder. The report is read only if a folder is missing, to save time."""

    def __init__(self, stored: Path) -> None:
        self._stored = stored

    @cached_property
    def _found(self) -> dict[str, Compression]:
        found: dict[str, Compression] = {}
        try:
            runs = _runs_of(self._stored)
        except UserError:  # results.json is damaged; a report is made again from the runs
            return found
        for run in runs:
            with suppress(ValidationError):  # the run has not finished, or is of an older version
                known = TokenizerInfo.model_validate(run.get("tokenizer"))
                if folder := known.settings.get("folder"):
                    found[str(folder)] = Compression(known.channels, known.stride_px)
        return found

    def __getitem__(self, folder: str) -> Compression:
        return self._found[folder]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def finished_runs(stored: Path) -> int:
    return sum(run.get("state") == "done" for run in _runs_of(stored))


def passed_on(out: Path) -> dict[tuple[str, int], str]:
    """Return how the runs of each arm's label and seed ended, from results.json, if the run folders are missing.

    A run is not looked up by its hash, since settings may have joined the plan since the study was stored.
    """
    if (out / "runs").is_dir():
        return {}
    return {(run["arm"], run["seed"]): run["state"] for run in _runs_of(out / RESULTS)}


def _runs_of(stored: Path) -> list[dict[str, Any]]:
    """Read the runs of a results.json, with their arms' labels; none if it is missing. Raise if damaged or older."""
    found = read_checked(stored, remake_results(stored), FORMAT)
    try:
        return [
            {**run, "arm": arm_label(arm["name"], arm["resolution"])}
            for arm in found.get("arms", ())
            for run in arm["runs"]
        ]
    except (ValueError, KeyError, TypeError):
        return []


def note_command(argv: Sequence[str], out: Path, note: Callable[[str], None]) -> None:
    """Record a command line in the study's folder. A repeated command, which resumes the study, is recorded once."""
    argv = [hide_passwords(word) for word in argv]
    try:
        known = read_commands(out)
    except DamagedFileError as error:
        note(f"{error.marked}: the file is written again from the last report")
        known = reported_commands(out)
        write_lines(out / COMMANDS_FILE, [command.model_dump() for command in known])
    if argv and argv not in [command.argv for command in known]:
        new = Command(argv=argv, date=datetime.now(UTC).isoformat(timespec="seconds"))
        write_lines(out / COMMANDS_FILE, [command.model_dump() for command in [*known, new]])
