"""The live page of a study: it fills as runs end, from its files alone, and writes nothing."""

from __future__ import annotations

import gc
import io
import json
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.edit_checked import write_plan
from tests.live_server import serving
from tests.tiny import tiny_plan
from tests.unit.study.example_results import draw_previews, example
from tests.written_runs import Drawer, Writer, written_runs
from tintype.cost.plan import cost_of_plan, estimated_speed
from tintype.evaluation.results import read_result, result_file, write_result
from tintype.runtime.files import append_line
from tintype.runtime.interrupt import Interrupt
from tintype.serve import live as live_module
from tintype.serve import names as names_module
from tintype.serve import server as server_module
from tintype.serve.curves import Curves, RunPlace, StoredCurves
from tintype.serve.links import Links
from tintype.serve.live import LiveCompare, LiveRun, LiveStudy
from tintype.serve.overview import LiveIndex, ago
from tintype.serve.server import follow
from tintype.study.compare import collect
from tintype.study.folder import stored_study
from tintype.study.lab import prepare_study, run_study
from tintype.study.looks import record_looks
from tintype.study.report import write_report
from tintype.study.results import Curve, Run, StudyResults
from tintype.study.runner import tasks_of
from tintype.study.study import Study, load_study
from tintype.train.loop import train
from tintype.train.record import RunRecord


def pocket(*changes: str) -> Study:
    return load_study("pocket", ["seeds=[0,1,2]", "control_seeds=[]", "primary=[validation_loss]", *changes])


def read(live: LiveStudy) -> None:
    """Look until all is read."""
    live._rested_s = 0.0
    while live.step():
        pass
    live.settle()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_are_incomplete_until_their_runs_are_done(tmp_path: Path) -> None:
    """The page of a study that was stopped halfway, then finished; nothing is written by looking."""
    with written_runs(Writer(effects={"x-prediction": -6.0}, stop_after=4)):
        run_study(pocket(), tmp_path, 1)
    for made in ("results.json", "results.csv", "verdicts.csv", "report.md", "report.html", "looks.json"):
        (tmp_path / made).unlink(missing_ok=True)
    before, live = files_of(tmp_path), LiveStudy(tmp_path, "study")
    read(live)
    assert not live.problem and files_of(tmp_path) == before
    assert "v-incomplete" in live.fragments["verdicts"] and "v-better" not in live.fragments["verdicts"]
    assert "<b>4</b> done" in live.fragments["queue"] and "<b>5</b> waiting" in live.fragments["queue"]
    assert "0 s of worker time spent" in live.fragments["queue"] and "hours" not in live.fragments["queue"]
    with written_runs(Writer(effects={"x-prediction": -6.0})):
        run_study(pocket(), tmp_path, 1)
    version = live.version
    read(live)
    assert live.version > version
    assert "v-better" in live.fragments["verdicts"] and "v-incomplete" not in live.fragments["verdicts"]
    assert "<b>9</b> done" in live.fragments["queue"]


def test_an_update_reads_only_the_files_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work follows what is new, not how many runs the study has."""
    study = pocket(f"seeds={list(range(16))}")
    prepare_study(study, tmp_path / "study")
    tasks = tasks_of(study, tmp_path / "study")
    assert len(tasks) == 48
    for task in tasks[7:]:
        task.folder.mkdir(parents=True)
        append_line(task.folder / "metrics.jsonl", {"step": 1, "flow": 1.0, "seconds": 1.0})
    for task in tasks[:6]:
        Writer()._write(task, study.settings.evaluation)
    live, index = LiveStudy(tmp_path / "study", "study"), LiveIndex(tmp_path, Links(tmp_path))
    read(live)
    index.step()
    opened, usual = list[str](), io.open

    def noted(file: object, *given: object, **more: object) -> object:
        opened.append(str(file))
        return usual(file, *given, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", noted)
    index._rested_s = float("inf")
    for page in (live, index):
        page.step()
    assert opened == []
    grown = [task.folder / "metrics.jsonl" for task in tasks[10:13]]
    for log in grown:
        append_line(log, {"step": 2, "flow": 0.5, "seconds": 1.0})
    opened.clear()
    live.step()
    assert sorted(opened) == sorted(map(str, grown))
    Writer()._write(tasks[6], study.settings.evaluation)
    (tmp_path / "study" / "results.json").write_text("{}")
    record_looks([], tmp_path / "study")
    opened.clear()
    read(live)
    assert not any(file.endswith("results.json") for file in opened), "that of thousands of runs takes a second"
    assert "<b>7</b> done" in live.fragments["queue"]
    of_runs = [Path(file).relative_to(tmp_path / "study" / "runs") for file in opened if "/runs/" in file]
    names = {place.parts[0] for place in of_runs}
    assert names == {tasks[0].folder.name, tasks[6].folder.name}, "the new one, and one for the scores of real images"


def test_the_page_is_kept_fresh_while_verdicts_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that takes long holds up neither the queue nor the curves, and only one runs at a time."""
    with written_runs(Writer(stop_after=4)):
        run_study(pocket(), tmp_path, 1)
    go_on, begun = threading.Event(), list[int]()

    def slow(*given: object) -> StudyResults:
        begun.append(1)
        assert go_on.wait(20)
        return collect(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(live_module, "collect", slow)
    live = LiveStudy(tmp_path, "study")
    while live.step():
        pass
    with written_runs(Writer()):
        run_study(pocket(), tmp_path, 1)
    live.step()
    assert "<b>9</b> done" in live.fragments["queue"] and "verdicts" not in live.fragments and begun == [1]
    version = live.version
    go_on.set()
    live.settle()
    assert "v-incomplete" in live.fragments["verdicts"] and live.version > version
    read(live)
    assert "v-incomplete" not in live.fragments["verdicts"] and begun == [1, 1]


def test_failures_are_named_with_the_command_that_tries_again(tmp_path: Path) -> None:
    with written_runs(Writer(failing={("baseline", 1)})):
        run_study(pocket(), tmp_path, 1)
    live = LiveStudy(tmp_path, "a b")
    read(live)
    assert "it was made to fail" in live.fragments["queue"] and "tintype work" in live.fragments["queue"]


def test_a_study_that_cannot_be_read_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    prepare_study(pocket(), tmp_path)
    live = LiveStudy(tmp_path, "study")
    (tmp_path / "study.yaml").write_text("name: [")
    live.step()
    assert live.problem and live.version == 1


def test_a_study_without_its_runs_is_shown_from_its_results(tmp_path: Path) -> None:
    results = example()
    draw_previews(results, tmp_path)
    write_report(results, tmp_path)
    (tmp_path / "study.yaml").write_text("name: x\n")
    live = LiveStudy(tmp_path, "x")
    read(live)
    assert not live.problem
    assert all(arm.name in live.fragments["verdicts"] for arm in results.arms)
    assert live.fragments["images"].count('class="image"') == len(results.resolution.prompts) * (1 + len(results.arms))
    name = live.curves.names()[0]
    assert live.curves.band(results.arms[0].label, name)


def test_odd_numbers_end_neither_the_reading_nor_the_stream(tmp_path: Path) -> None:
    """Events without a time or a step are shown; values that are not finite or too large to be summed are no points."""
    write_plan(tmp_path, tiny_plan())
    deep = 900 * "[" + 900 * "]"
    with (tmp_path / "events.jsonl").open("a") as log:
        log.write('{"event": "odd", "time": "now", "step": Infinity}\n{"event": "odd", "time": [1], "step": NaN}\n')
        log.write(f'{{"event": "deep", "step": 1{"0" * 400}, "why": {deep}}}\n')
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 1, "line": 1, "large": 1e308}\n{"step": 1, "line": 2, "large": 1e308}\n')
        log.write('{"step": 1e300, "line": 3, "flow": 1.0, "loss": "x"}\n')
    live = LiveRun(tmp_path, "run")
    live.step()
    assert not live.problem and live.fragments["events"].count('<th scope="row">odd') == 2
    assert "deep" in live.fragments["events"] and live.curves.band("seed 0", "flow")
    json.dumps([live.curves.band("seed 0", name) for name in live.curves.names()], allow_nan=False)
    json.dumps(live.curves.event_steps(), allow_nan=False)


def test_stored_curves_leave_out_values_that_are_not_finite(tmp_path: Path) -> None:
    run = RunPlace("arm", 0, "hash", tmp_path, 1)
    odd = Curve(step=[1, 2, 3, 10**400], value=[1.0, float("inf"), 3.0, 1.0])
    values = {"grad_norm": odd, "flow": Curve(step=[1], value=[float("nan")])}
    stored = Run(seed=0, hash="hash", folder="runs/hash", state="done", curves=values)
    curves = StoredCurves({run: stored})
    assert curves.names() == ["grad_norm"] and curves.steps == 3
    assert [point[2] for point in curves.band("arm", "grad_norm")] == [1.0, 3.0]


def test_a_lease_with_odd_numbers_hides_no_queue(tmp_path: Path) -> None:
    prepare_study(pocket(), tmp_path)
    name = tasks_of(stored_study(tmp_path), tmp_path)[0].folder.name
    claim = tmp_path / "leases" / name / "000001.json"
    claim.parent.mkdir(parents=True)
    claim.write_text('{"process": {"machine": "m", "pid": 1}, "now": {"step": Infinity, "loss": 1' + "0" * 400 + "}}\n")
    live = LiveStudy(tmp_path, "study")
    read(live)
    assert not live.problem and "queue" in live.fragments


def test_bands_are_the_mean_and_the_range_over_seeds(tmp_path: Path) -> None:
    runs = [RunPlace("arm", seed, str(seed), tmp_path / str(seed), 12) for seed in range(3)]
    for run in runs:
        run.folder.mkdir()
        for step in range(1, 13):
            line = {"step": step, "flow": step + 10.0 * run.seed, "seconds": 2.0}
            append_line(run.folder / "metrics.jsonl", line)
    curves = Curves(runs)
    assert curves.read() and curves.versions == {"arm": 3}
    band = np.array(curves.band("arm", "flow"))
    assert band[:, 2] == pytest.approx(np.arange(1, 13) + 10) and band[:, 3] == pytest.approx(np.arange(1, 13))
    assert band[:, 4] == pytest.approx(np.arange(1, 13) + 20) and band[:, 1] == pytest.approx(2.0 * np.arange(1, 13))
    assert curves.band("arm", "nothing") == [] and curves.names() == ["flow"]


def test_a_loss_without_further_terms_is_no_curve_of_its_own(tmp_path: Path) -> None:
    """Flow and loss are then the same numbers; a term that begins later makes two curves of them."""
    run = RunPlace("arm", 0, "hash", tmp_path, 12)
    log, curves = tmp_path / "metrics.jsonl", Curves([run])
    append_line(log, {"step": 1, "flow": 0.5, "loss": 0.5, "seconds": 1.0})
    curves.read()
    assert curves.names() == ["flow"]
    append_line(log, {"step": 2, "flow": 0.5, "loss": 0.7, "seconds": 1.0})
    curves.read()
    assert curves.names() == ["flow", "loss"]


def test_curves_have_the_operations_that_plan_cost_counts(tmp_path: Path) -> None:
    """An arm that costs more a step lies further to the right; nothing is counted before a reader asks."""
    study = pocket("seeds=[0]", "arms=[{techniques: [x-prediction], set: [model.depth=3]}]")
    prepare_study(study, tmp_path)
    for task in tasks_of(stored_study(tmp_path), tmp_path):
        task.folder.mkdir(parents=True)
        for step in (300, 600):
            append_line(task.folder / "metrics.jsonl", {"step": step, "flow": 1.0, "seconds": 1.0})
    live = LiveStudy(tmp_path, "study")
    read(live)
    labels = list(live.plans)
    assert [point[5] for point in live.curves.band(labels[0], "flow")] == [None, None]
    live.count_flops()
    end = time.monotonic() + 20
    while len(live.curves.flops.costs) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    for label in labels:
        cost = cost_of_plan(live.plans[label], estimated_speed("h200"))
        points = live.curves.band(label, "flow")
        assert [point[5] for point in points] == pytest.approx([300 * cost.step_flops, cost.run_flops])
    assert live.curves.versions[labels[0]] > 1, "the curves are sent again"


def test_runs_side_by_side_show_what_compare_prints(tmp_path: Path) -> None:
    for name, changes in (("a", []), ("b", ["optimizer.lr=0.0007", "seed=5"])):
        train(tiny_plan("train.steps=2", *changes), tmp_path / name, Interrupt())
    with serving(tmp_path) as client:
        page = client.get("/compare?run=a&run=b").text
        assert "optimizer.lr" in page and "0.0007" in page and "2 of 2" in page and "No run was scored" in page
        sent = dict(client.events("/events/compare?run=a&run=b&metrics=flow", 2))
        curves = sent["curves"]
        assert isinstance(curves, dict) and set(curves["bands"]["flow"]) == {"A: a", "B: b"}
        assert "Choose two runs" in client.get("/compare?run=a").text
        assert client.get("/compare?run=a&run=..").status == 404 and client.get("/events/compare?run=a").status == 404


def test_runs_of_any_studies_show_images_of_the_same_prompts_and_noise(tmp_path: Path) -> None:
    """At every step that one of them has; runs that were sampled in another way are not beside them."""
    runs = dict[str, Path]()
    for name, effects in (("one", {}), ("two", {"baseline": 2.0})):
        with written_runs(Drawer(effects=effects)):
            run_study(pocket(), tmp_path / name, 1)
        runs[name] = tasks_of(stored_study(tmp_path / name), tmp_path / name)[0].folder
    shutil.copytree(runs["one"], tmp_path / "loose")
    for folder, step, seed in ((runs["one"], 300, 0), (runs["two"], 600, 9)):
        (final,) = RunRecord(folder).result_files
        result = read_result(final)
        protocol = result.protocol.model_copy(update={"seed": seed})
        file = result_file(folder, protocol, step)
        shutil.copytree(final.parent, file.parent)
        previews = tuple(f"{file.parent.relative_to(folder)}/preview-{index}.png" for index in range(2))
        scored = {"protocol": protocol, "protocol_hash": protocol.hash, "step": step, "previews": previews}
        write_result(file, result.model_copy(update=scored))
    paths = [folder.relative_to(tmp_path).as_posix() for folder in runs.values()]
    live = LiveCompare([(path, path, tmp_path / path) for path in [*paths, "loose"]])
    live.step()
    images, scores = live.fragments["images"], live.fragments["scores"]
    assert scores.count("images, protocol") == scores.count('<span class="minor">') == 2
    assert not live.problem and images.count('class="grid-of-images"') == 1 and 'data-steps="300,600"' in images
    assert images.count('class="image"') == 2 * 3 and "A render of" in images and "drawn red, asked blue" in images
    assert f"/image/{paths[1]}/evaluation/" in images and "/image/loose/evaluation/" in images
    with serving(tmp_path) as client:
        sources = set(re.findall(r"/image/[^&\"]+png", images))
        assert len(sources) == 2 * 4 and all(client.get(one).status == 200 for one in sources)
    shutil.rmtree(tmp_path / "loose" / "evaluation")
    alone = LiveCompare([(path, path, tmp_path / path) for path in (paths[0], "loose")])
    alone.step()
    scores = alone.fragments["scores"]
    assert scores.count("Scored on 256 images, protocol") == 1 and "minor" not in scores, "said once"
    assert "tintype evaluate" in alone.fragments["images"] and "beside=loose" in alone.fragments["images"]


def test_the_stream_sends_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    study = pocket("seeds=[0,1]")
    prepare_study(study, tmp_path)
    folders = [task.folder for task in tasks_of(stored_study(tmp_path), tmp_path) if task.plan.seed == 0]
    live = LiveStudy(tmp_path, "study")
    for folder in folders:
        folder.mkdir(parents=True)
        append_line(folder / "metrics.jsonl", {"step": 1, "flow": 1.0, "seconds": 1.0})
    read(live)
    news = follow(_still(live), [])
    sent = [next(news), next(news)]
    assert [name for name, _ in sent] == ["fragments", "curves"]
    curves = sent[1][1]
    assert isinstance(curves, dict) and set(curves["bands"]["flow"]) == {"baseline", "short-captions", "x-prediction"}
    assert curves["labels"] == {"flow": "loss of the objective"}, "as in the report"
    assert json.dumps(sent, allow_nan=False)
    append_line(folders[0] / "metrics.jsonl", {"step": 2, "flow": 2.0, "seconds": 1.0})
    read(live)
    name, later = next(news)
    assert name == "curves" and isinstance(later, dict) and set(later["bands"]["flow"]) == {"baseline"}


def _still(live: LiveStudy) -> LiveStudy:
    """Return the page without the thread that reads it; the test looks itself."""
    live._reading = True
    return live


def test_images_of_all_arms_at_each_step(tmp_path: Path) -> None:
    with written_runs(Drawer()):
        run_study(pocket("score_at=[0.5]"), tmp_path / "study", 1)
    live = LiveStudy(tmp_path / "study", "study")
    read(live)
    images = live.fragments["images"]
    assert 'data-steps="300,600"' in images
    with serving(tmp_path) as client:
        addresses = {one.split('"')[0] for one in images.split('src="')[1:]}
        early = {address for address in re.findall(r"/image/[^&]+png", images) if "000300" in address}
        assert len(early) == 3 * 2
        assert all(client.get(address).status == 200 for address in addresses | early)
        assert client.get("/study/study").status == 200
        task = tasks_of(stored_study(tmp_path / "study"), tmp_path / "study")[0]
        run = client.get(f"/run/study/runs/{task.folder.name}")
        assert "baseline, seed 0</h1>" in run.text and '<a href="/study/study">its study</a>' in run.text


def test_runs_of_many_studies_are_named_without_a_thread_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study is read once for the lists of runs, and again when it has changed."""
    prepare_study(pocket(), tmp_path / "s0")
    task = tasks_of(stored_study(tmp_path / "s0"), tmp_path / "s0")[0]
    (task.folder / "checkpoints" / "one").mkdir(parents=True)
    (task.folder / "plan.yaml").touch()
    shutil.copytree(tmp_path / "s0", tmp_path / "s1")
    prepare_study(pocket(), tmp_path / "no-weights")
    read = list[str]()

    def noted(folder: Path) -> Study:
        read.append(folder.name)
        return stored_study(folder)

    monkeypatch.setattr(names_module, "stored_study", noted)
    with serving(tmp_path) as client:
        for target in ("/playground", "/compare"):
            text = client.get(target).text
            assert "s0: baseline, seed 0" in text and "s1: baseline, seed 0" in text, "both are studies of one name"
        assert read == ["s0", "s1"] and not client.server._lives
        (tmp_path / "s1" / "runs" / "another").mkdir()
        client.get("/playground")
        assert read == ["s0", "s1", "s1"]
        (tmp_path / "s0" / "study.yaml").write_text("name: [")
        page = client.get("/playground")
        assert page.status == 200 and "s1: baseline, seed 0" in page.text and task.folder.name in page.text


def test_pages_that_are_put_away_are_read_no_more_unless_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MOST_LIVE", 1)
    monkeypatch.setattr(live_module, "EVERY_S", 0.01)
    with serving(tmp_path) as client:
        waited = client.server.live(LiveRun, tmp_path / "a")
        waited.ask(5.0)
        reader = threading.Thread(target=waited.wait, args=(waited.version, 5.0))
        reader.start()
        while not waited._waiting:
            time.sleep(0.01)
        idle = client.server.live(LiveRun, tmp_path / "b")  # puts the first one away
        idle.ask(5.0)
        client.server.live(LiveRun, tmp_path / "c")
        end = time.monotonic() + 5
        while idle._reading and time.monotonic() < end:
            time.sleep(0.01)
        assert not idle._reading and waited._reading
        with waited.changed:
            waited.version += 1
            waited.changed.notify_all()
        reader.join()


def test_a_closed_server_reads_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "EVERY_S", 0.01)
    with serving(tmp_path) as client:
        page = client.server.live(LiveRun, tmp_path / "closed")
        page.ask(5.0)
        (reading,) = (thread for thread in threading.enumerate() if thread.name == "live closed")
    reading.join(5.0)
    assert not reading.is_alive()


def test_after_much_was_read_the_garbage_collector_runs_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise run in the middle of a later update."""
    live, more, collected = LiveRun(tmp_path / "run", "run"), iter([True, True, False, False]), list[str]()
    monkeypatch.setattr(live, "look", lambda: next(more))
    monkeypatch.setattr(gc, "collect", lambda: collected.append("whole"))
    assert [(live.step(), len(collected)) for _ in range(4)] == [(True, 0), (True, 0), (False, 1), (False, 1)]


def test_a_run_has_a_page_of_its_own(tmp_path: Path) -> None:
    train(tiny_plan("train.steps=2"), tmp_path / "run", Interrupt())
    live = LiveRun(tmp_path / "run", "run")
    live.step()
    assert "Step <b>2</b> of 2" in live.fragments["queue"] and not live.problem
    assert "<dt>loss of the objective</dt>" in live.fragments["queue"] and "_" not in live.fragments["queue"]
    with serving(tmp_path) as client:
        page = client.get("/run/run")
        assert page.status == 200 and "train:" in page.text
        client.server.index.step()
        assert 'href="/run/run"' in client.get("/").text


def test_the_first_page_shows_how_far_a_running_study_is(tmp_path: Path) -> None:
    """Its progress, the time left, when it was last active, and an image of the first run that is scored."""
    with written_runs(Drawer(effects={"x-prediction": -6.0}, stop_after=4)):
        run_study(pocket(), tmp_path / "begun", 1)
    for made in ("results.json", "report.html"):
        (tmp_path / "begun" / made).unlink(missing_ok=True)
    prepare_study(pocket(), tmp_path / "waiting")
    live = LiveIndex(tmp_path, Links(tmp_path))
    while live.step():
        pass
    begun, waiting = live.fragments["index"].split('<li class="card')[1:]
    assert "<b>4</b> of 9 runs done, no worker is running" in begun and "active just now" in begun
    assert 'src="/image/begun/runs/' in begun and "preview-0.png" in begun
    assert "<b>0</b> of 9 runs done" in waiting and "not begun" in waiting and "<img" not in waiting
    with written_runs(Drawer(effects={"x-prediction": -6.0})):
        run_study(pocket(), tmp_path / "begun", 1)
    live.step()
    begun = live.fragments["index"].split('<li class="card')[1]
    assert "<b>9</b> of 9 runs done</p>" in begun and "better</span> x-prediction" in begun


@pytest.mark.parametrize(
    ("passed_s", "words"),
    [
        (5, "just now"),
        (61, "1 min ago"),
        (7300, "2 h ago"),
        (3 * 86400, "3 days ago"),
        (30 * 86400, "on 16 December 2026"),
    ],
)
def test_times_are_told_by_how_long_ago_they_were(passed_s: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.8e9)
    assert ago(1.8e9 - passed_s).startswith(words)
