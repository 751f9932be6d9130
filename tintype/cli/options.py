"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import complete

Out = Annotated[Path, Option("--out", help="Folder to write to")]
Set = Annotated[list[str], Option("--set", help="Override a setting: key.path=value (repeatable)")]
Techniques = Annotated[
    list[str],
    Option(
        "--technique",
        help="Apply a technique: name or name:key=value (repeatable)",
        autocompletion=complete.technique_names,
    ),
]
Recipe = Annotated[str, Argument(help="Name of a recipe, or path of a plan file", autocompletion=complete.recipe_names)]
AnyPlan = Annotated[
    str,
    Argument(
        help="Name of a recipe, path of a plan file, folder of a run, or folder of a study with --arm",
        autocompletion=complete.recipe_names,
    ),
]


def folder_of(study: Path) -> Path:
    """Return the folder of a study. The input is this folder, or the path of the study.yaml in it."""
    return study.parent if study.name == "study.yaml" and study.is_file() else study


StudyFolder = Annotated[Path, Argument(help="Folder of a study", callback=folder_of)]
Device = Annotated[str | None, Option(help="auto, cpu, cuda or cuda:N; by default the device in the run's plan")]
EmaLength = Annotated[
    float | None,
    Option(
        help="Sample with the weight average of this length, reconstructed from the snapshots of the "
        "technique power-ema"
    ),
]
_OF_RUN = Argument(help="Folder of a run, or folder of a study (with --arm)")
RunFolder = Annotated[Path, _OF_RUN]
OptionalRunFolder = Annotated[Path | None, _OF_RUN]
Arm = Annotated[str | None, Option("--arm", help="Arm of the run to use, if the folder is that of a study")]
ArmSeed = Annotated[
    int | None,
    Option("--arm-seed", min=0, help="Seed of the run to use, together with --arm; by default the arm's first seed"),
]
Plugins = Annotated[
    list[Path],
    Option(
        "--plugin",
        help="Run your own Python file and load its techniques and other parts (repeatable; before or after a command)",
    ),
]
Json = Annotated[bool, Option("--json", help="Print JSON")]
