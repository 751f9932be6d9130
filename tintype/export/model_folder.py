"""Implement `tintype export --to tintype`: write a run's plan and weights to a small folder.

tintype opens the folder like the run. Any run can be exported in this format. The folder has no optimizer state, no
logs and no path of this machine. If the plan names pretrained weights on this machine, they are copied into the folder.
`train/record.py` reads the folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath
from typing import Any

from tintype.config.strict import write_yaml
from tintype.export.model_card import CARD, exported_card, write_card
from tintype.export.pipeline_folder import CONFIGS, forget_places
from tintype.export.public import changed, is_local
from tintype.export.record import hub_place
from tintype.export.trained import USUAL, Exported, ExportOptions, load_trained
from tintype.export.whole import refuse_existing, written_whole
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.files import PLAN, read_json, sha256_of, write_json, write_sealed
from tintype.settings import Part, plain
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.record import ABOUT, CHECKPOINTS, ENVIRONMENT, FORM, MADE_OF, RunRecord

_MADE_ON = ("tintype", "torch", "python", "parameters")
"""Keys of the run's environment that matter for the model."""
_NOTE = "its plan names data by the last name of its path; tintype looks for it where a command runs"


def export_model(run: Path, out: Path, options: ExportOptions = USUAL) -> Exported:
    """Write the folder with its card. After an error, no folder is left."""
    refuse_existing(out)
    trained = load_trained(run, options.weights, options.ema_length)
    stored = trained.stored(trained.parts.modules, options.dtype)
    tensors = {f"modules/{name}": tensor for name, tensor in stored.items()}
    about = {**trained.about(options.dtype), "form": FORM, "notes": [] if trained.plan.data.of_scenes else [_NOTE]}
    made = exported_card(run, options.card, about)
    with written_whole(out) as temporary:
        temporary.mkdir()
        _write_plan(trained.plan, temporary)
        _write_records(run, temporary)
        checkpoint.commit(
            temporary / CHECKPOINTS, trained.step, tensors, {"step": trained.step}, what="export", stage="save"
        )
        written = sorted(file for file in temporary.rglob("*") if file.is_file())
        names = {file.relative_to(temporary).as_posix(): file for file in written}
        about["sha256"] = {name: sha256_of(names[name]) for name in names if not name.startswith(f"{CHECKPOINTS}/")}
        write_json(temporary / ABOUT, about)
        write_card(made, temporary / CARD)
        plan_from_folder(temporary)  # an export that cannot be read is removed
    return Exported(out, about, made.warnings)


def _write_plan(plan: Plan, folder: Path) -> None:
    content = _portable(plain(plan))
    content["text"] |= _copied(plan.text, folder, "text")
    content["tokenizer"] |= _copied(plan.tokenizer, folder, "tokenizer")
    write_sealed(folder / PLAN, write_yaml(content), run=plan.hash)


def _portable(value: Any) -> Any:
    """Return settings and records without paths of this machine. Relative paths are kept.

    The path of a repository in the hub's cache is replaced by the repository's name on the hub. Any other absolute path
    is replaced by its last component.
    """

    def change(text: str, key: str) -> str:
        path = PurePath(text)
        leads_out = path.is_absolute() or ".." in path.parts or text.startswith("~")
        return hub_place(text) or path.name if leads_out and is_local(text, key) else text

    return changed(value, change)


def _copied(part: Part, folder: Path, name: str) -> dict[str, str]:
    """Copy a part's pretrained weights from this machine into the folder; return the setting that names the copy."""
    found = part.local_files()
    if found is None:
        return {}
    for place, file in found.files.items():
        target = folder / name / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if place in found.records:
            write_json(target, _portable(read_json(file)))
        else:
            shutil.copyfile(file, target)
            if file.name in CONFIGS:
                forget_places(target)
    return {found.setting: f"./{name}"}


def _write_records(run: Path, folder: Path) -> None:
    """Write the identities of loaded parts, the source of the initial weights, and the size."""
    source, target = RunRecord(run), RunFolder(folder)
    for name in MADE_OF:
        if content := source.read(name):
            target.write_record(name, _portable(content))
    about = {key: source.environment[key] for key in _MADE_ON if key in source.environment}
    target.write_record(ENVIRONMENT, about)
