from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tests.tiny_store import captioned, tiny_store
from tintype.bench.data import measure_data, measure_import
from tintype.cli import app
from tintype.data.decoding.threads import usual_threads
from tintype.errors import UserError
from tintype.terminal.measure import show_data_speeds


def test_the_loader_is_measured_alone_and_in_training(tmp_path: Path) -> None:
    plan = tiny_plan(f'data={{"kind":"store","path":"{tiny_store(tmp_path)}","size_px":16}}')
    result = measure_data(plan, steps=2)
    assert [one.threads for one in result.loader] == sorted({1, usual_threads()})
    for one in result.loader:
        assert one.images_per_s > 0 and one.images_per_s_per_core == pytest.approx(1000 / one.cpu_ms_per_image)
    training = result.training
    assert 0 < training["data_share"] < 1
    assert result.loader_times_training == result.loader[-1].images_per_s / training["images_per_s"]
    console = Console(width=200)
    with console.capture() as captured:
        show_data_speeds(result, console)
    assert captured.get().startswith("loader, 1 thread: ")
    assert f"which is {training['data_share']:.2%} of a step" in captured.get()


def test_an_import_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = captioned(tmp_path / "few.parquet", 6)
    result = CliRunner().invoke(app, ["bench", "--import", str(source)])
    assert result.stdout.startswith("6 images (0 set aside): ") and list(tmp_path.iterdir()) == [source]
    found = measure_import(source)
    assert found.images == 6 and found.images_per_s_per_core == pytest.approx(1000 / found.cpu_ms_per_image)


def test_scenes_have_nothing_to_decode_and_other_measurements_are_not_mixed_in() -> None:
    with pytest.raises(UserError, match="data is of the kind 'scenes'; use a store"):
        measure_data(tiny_plan(), steps=2)
    result = CliRunner().invoke(app, ["bench", "--data", "--metrics"])
    assert "--data and --metrics cannot be measured together" in str(result.exception) + result.output
