"""Files of one run in the place of another's, and of one step in that of another: no reader uses them silently."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.fault.promises import Promise
from tests.fault.test_damage import COMMAND, events_said, outcome, run_in_this_process
from tests.studies import by_command
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.export.model_folder import export_model
from tintype.plan import Plan
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.serve.live import LiveRun, LiveStudy
from tintype.study import lab
from tintype.study.results import StudyResults, read_results_file
from tintype.study.side_by_side import find_run
from tintype.study.study import load_study
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.reconstruct import reconstruction
from tintype.train.record import RunRecord

STUDY = """
question: Do files stay with their run?
recipe: PLAN
seeds: [0, 1]
arms: [{name: faster, set: [optimizer.lr=0.002]}]
score_at: [0.5]
evaluation:
  count: 8
  reference_count: 8
  validation_count: 2
  metrics: [fd]
  sampler: {steps: 1}
  also: []
"""
SAMPLER = SamplerSettings(steps=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished study whose runs have checkpoints, snapshots, scores and samples of two steps and more."""
    folder = tmp_path_factory.mktemp("made")
    plan = tiny_plan("text.buckets=64", "run.save_every_steps=2", techniques=["power-ema:snapshots=3"])
    (folder / "plan.yaml").write_text(plan.to_yaml())
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "run_tasks", run_in_this_process)
        ablate(folder / "out")
        for run in sorted((folder / "out" / "runs").iterdir()):
            RunFolder(run).log_event("noted", 6)
        yield folder / "out"


def ablate(out: Path) -> StudyResults:
    assert not lab.run_study(load_study(str(out.parent / "study.yaml")), out, 1, by_command(COMMAND)).failed
    return read_results_file(out / "results.json")


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Callable[[], Path]:
    """Return a function that makes a fresh copy of the study, in a folder of another name."""
    for name in ("plan.yaml", "study.yaml"):
        shutil.copy(made.parent / name, tmp_path)

    def fresh() -> Path:
        shutil.rmtree(tmp_path / "moved", ignore_errors=True)
        return Path(shutil.copytree(made, tmp_path / "moved"))

    return fresh


# --- what is exchanged ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """A file or folder of the study, relative to it, that takes the place of another."""

    source: Path
    target: Path

    def apply(self, made: Path, out: Path) -> Path:
        source, target = made / self.source, out / self.target
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        return target

    def __str__(self) -> str:
        return f"{self.target} ← {self.source}"


def runs_of(made: Path) -> list[Path]:
    """The runs of the baseline, of two seeds."""
    study = load_study(str(made.parent / "study.yaml"))
    return [Path("runs") / plan.hash for plan in study.arms[0].plans]


def between_runs(made: Path) -> list[Exchange]:
    """Return each kind of file, and each folder, of one seed in the place of the other seed's."""
    first, second = runs_of(made)
    names = sorted(path.relative_to(made / first) for path in (made / first).rglob("*") if path.name != ".lock")
    there = [name for name in names if (made / second / name).exists()]
    changed = [name for name in there if digest(made / first / name) != digest(made / second / name)]
    return [Exchange(second / name, first / name) for name in one_of_each_kind(changed)]


def between_steps(made: Path) -> list[Exchange]:
    """Return each kind of file, and each folder, of one step in the place of another step's, in one run."""
    first = runs_of(made)[0]
    names = sorted(path.relative_to(made / first) for path in (made / first).rglob("*") if "step-" in str(path))
    kinds: dict[str, list[Path]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"step-\d{9}", "step-N", str(name)), []).append(name)
    pairs = [(some[0], some[-1]) for some in kinds.values() if len(some) > 1]
    unlike = [pair for pair in pairs if digest(made / first / pair[0]) != digest(made / first / pair[1])]
    early_of = {late: early for early, late in unlike}
    return [Exchange(first / early_of[late], first / late) for late in one_of_each_kind(list(early_of))]


def one_of_each_kind(names: Sequence[Path]) -> list[Path]:
    """Return the last of the files that differ by their step or number alone."""
    kinds = {re.sub(r"step-\d{9}|(?<=-)\d+(?=\.png)", "N", str(name)): name for name in names}
    return list(kinds.values())


def digest(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.name != ".lock":
            found.update(file.relative_to(path).as_posix().encode() + file.read_bytes())
    return found.hexdigest()


# --- the readers ----------------------------------------------------------------------------------------------------


def protocol_of(out: Path, count: int = 8) -> Protocol:
    stored = load_study(str(out.parent / "study.yaml")).settings.evaluation
    return stored.model_copy(update={"reference_count": count})


def weights_of(folder: Path) -> str:
    steps = checkpoint.steps(folder / "checkpoints")
    tensors, _ = checkpoint.read(checkpoint.folder_of(folder / "checkpoints", steps[-1]))
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def report(out: Path, run: Path) -> StudyResults:
    lab.report_study(out)
    return read_results_file(out / "results.json")


def rerun(out: Path, run: Path) -> StudyResults:
    return ablate(out)


def sample(out: Path, run: Path, length: float | None = None) -> str:
    """Sample with the checkpoint's weights, or with an average that is made of snapshots."""
    place = out.parent / "samples"
    shutil.rmtree(place, ignore_errors=True)
    options: dict[str, Any] = {"count": 1, "seed": 0, "size_px": None, "ema_length": length}
    sample_run(out / run, ["a red ball"], None, place, SAMPLER, **options)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(place.glob("*0.png")))).hexdigest()


def score(out: Path, run: Path) -> object:
    found = evaluate(out / run, protocol_of(out))
    return found.metrics, found.errors, found.details, found.previews_sha256


def score_anew(out: Path, run: Path) -> object:
    """Score by another protocol, with the images that were sampled for the first."""
    return evaluate(out / run, protocol_of(out, count=16)).metrics["fd_scenes"]


def score_average(out: Path, run: Path) -> object:
    return evaluate(out / run, protocol_of(out), average=reconstruction(out / run, 0.07)).metrics["fd_scenes"]


def resume(out: Path, run: Path) -> object:
    """Train on from the checkpoint before the last."""
    last = checkpoint.folder_of(out / run / "checkpoints", 6)
    shutil.rmtree(last)
    return trained(out, run)


def resume_done(out: Path, run: Path) -> object:
    return trained(out, run)


def trained(out: Path, run: Path) -> tuple[str, list[Any]]:
    folder, plan = out / run, plan_of(out, run)
    assert train(plan, folder, Interrupt()).finished
    lines = [(line["step"], line["loss"]) for line in RunRecord(folder).lines]
    return weights_of(folder), [*lines, *sorted(path.name for path in folder.iterdir() if path.suffix == ".json")]


def plan_of(out: Path, run: Path) -> Plan:
    plans = load_study(str(out.parent / "study.yaml")).arms[0].plans
    return next(plan for plan in plans if plan.hash == run.name)


def export(out: Path, run: Path) -> object:
    shutil.rmtree(out.parent / "export", ignore_errors=True)
    export_model(out / run, out.parent / "export")
    return weights_of(out.parent / "export"), (out.parent / "export" / "latents.json").read_bytes()


def serve(out: Path, run: Path) -> object:
    """Return what the pages of the study and of the run show, without times; refuse as they do."""
    study, one = LiveStudy(out, "study"), LiveRun(out / run, "run")
    for live in (study, one):
        while live.step():
            pass
    study.settle()
    for live in (study, one):
        if live.problem:
            raise UserError(live.problem)
    if study._compared:
        raise UserError(study._compared)
    curves = [live.curves.band(arm, name) for live in (study, one) for arm in live.plans for name in ("flow", "loss")]
    return curves, study.fragments["verdicts"], re.sub(r"\?[^\"]*", "", one.fragments.get("scores", ""))


def compare(out: Path, run: Path) -> object:
    found = find_run(str(out / run))
    return found.plan.hash, found.lines, found.results, found.environment, found.state


Reader: TypeAlias = Callable[[Path, Path], object]
READERS: dict[str, Reader] = {
    "report": report,
    "ablate": rerun,
    "sample": sample,
    "sample an average": partial(sample, length=0.07),
    "evaluate": score,
    "evaluate by another protocol": score_anew,
    "evaluate an average": score_average,
    "resume": resume,
    "train a run that is done": resume_done,
    "export": export,
    "serve": serve,
    "compare": compare,
}


def is_said(reader: str, run: Path, expected: object, found: Any, words: str) -> bool:
    """Return whether a result that differs says so: by an event of the run, or by a note that names the damage."""
    if reader in ("report", "ablate"):
        return events_said(expected, found, words)  # type: ignore[arg-type]
    kinds = {event["event"] for event in RunRecord(run).events}
    if reader in ("resume", "train a run that is done"):
        return bool(kinds & {"damaged-file", "damaged-checkpoint"}) and found[0] == expected[0]  # type: ignore[index]
    return "is damaged" in words or "is not used" in words


def problems(
    made: Path, fresh: Callable[[], Path], exchanges: Sequence[Exchange], readers: Mapping[str, Reader]
) -> Iterator[tuple[str, str]]:
    """Yield each exchange with a reader, and what was wrong with what came of it: '' for nothing."""
    run = runs_of(made)[0]
    expected = {name: read(fresh(), run) for name, read in readers.items()}
    for exchange in exchanges:
        for name, read in readers.items():
            out = fresh()
            path = exchange.apply(made, out)
            said = partial(is_said, name, out / run, expected[name])
            yield f"{name}, {exchange}", outcome(partial(read, out, run), expected[name], path, said)


@pytest.mark.slow
@pytest.mark.promise(31)
def test_no_file_of_another_run_is_used_silently(promise: Promise, made: Path, copy: Callable[[], Path]) -> None:
    """Put each kind of file of one seed into the run of another; then report, rerun, sample, score, resume, export."""
    for what, problem in problems(made, copy, promise.choose(between_runs(made), short=5), READERS):
        promise.count(not problem, f"{what}: {problem}")


@pytest.mark.slow
@pytest.mark.promise(31)
def test_no_file_of_another_step_is_used_silently(promise: Promise, made: Path, copy: Callable[[], Path]) -> None:
    """Put each kind of file of one step into the place of a later step's, and read the run in the same ways."""
    for what, problem in problems(made, copy, promise.choose(between_steps(made), short=5), READERS):
        promise.count(not problem, f"{what}: {problem}")


@pytest.mark.slow
@pytest.mark.promise(31, control="seals are not compared")
def test_without_seals_exchanged_files_are_used_silently(
    promise: Promise, made: Path, copy: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put checkpoints, logs and scores of another seed into a run, and read it without looking at the seals."""
    monkeypatch.setattr(files, "_foreign", lambda expected, found: "")
    wanted = ("checkpoints", "metrics.jsonl", "latents.json", "misread.json", "environment.json")
    exchanges = [one for one in between_runs(made) if one.target.name in wanted]
    readers = {name: READERS[name] for name in ("report", "sample", "export", "compare")}
    for what, problem in problems(made, copy, promise.choose(exchanges, short=3), readers):
        promise.count(not problem, f"{what}: {problem}")


@pytest.mark.slow
def test_the_whole_folder_of_another_run_is_refused_by_the_report(made: Path, copy: Callable[[], Path]) -> None:
    """Elsewhere the run would be read: a folder may have any name, but a study knows which run it wants."""
    out = copy()
    first, second = runs_of(made)
    Exchange(second, first).apply(made, out)
    with pytest.raises(UserError, match=rf"plan.yaml is damaged \(it is that of the run {second.name}\); `tintype abl"):
        report(out, first)
    assert sample(out, first)
