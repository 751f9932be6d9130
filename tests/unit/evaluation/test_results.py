"""Results on disk: what is written is read back, other versions and damaged ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.edit_checked import edit_json
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.protocol import Condition, Protocol
from tintype.evaluation.results import (
    AverageInfo,
    EncoderInfo,
    EvaluationResult,
    numbers_of,
    read_per_image,
    read_result,
    result_file,
    write_misread,
    write_result,
)
from tintype.metrics.metric import Measured

PROTOCOL = Protocol(also=(Condition(name="fast", steps=3),))


def result(**changes: Any) -> EvaluationResult:
    fields: dict[str, Any] = {
        "plan": "abc",
        "step": 6,
        "weights": "raw",
        "protocol": PROTOCOL,
        "protocol_hash": PROTOCOL.hash,
        "encoders": {"scenes": EncoderInfo(identity="0" * 64, definition="any size")},
        **numbers_of({"fd_scenes": Measured(2.5, 0.5, "jackknife"), "images_per_s": Measured(100.0)}),
        "warnings": ("few images",),
        "details": {"scene_accuracy": {"shape": 0.5}},
        "samples": {"": "evaluation/samples/x"},
        "real": {},
        "time_split": {"forward": 1.0},
        "seconds": 1.5,
        "previews": (),
    }
    return EvaluationResult(**{**fields, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = result_file(tmp_path / "run", PROTOCOL, 6)
    found.parent.mkdir(parents=True)
    write_result(found, result())
    return found


@pytest.mark.parametrize("ema", [None, AverageInfo(length=0.1, residual=0.01)])
def test_a_result_is_read_back_as_it_was_written(file: Path, ema: AverageInfo | None) -> None:
    write_result(file, result(ema=ema))
    assert read_result(file) == result(ema=ema)
    assert ("ema" in result(ema=ema).dump()) == (ema is not None)


@pytest.mark.parametrize("name", ["per_image.json", "misread.json"])
def test_a_file_that_was_written_with_a_result_cannot_be_missing(file: Path, name: str) -> None:
    write_misread(file, ["a red ball"], [[]])
    write_result(file, result(), per_image={"validation_loss": [0.5, 0.25]})
    assert read_result(file) == result() and read_per_image(file) == {"validation_loss": [0.5, 0.25]}
    file.with_name(name).unlink()
    with pytest.raises(DamagedFileError, match=rf"{name} is damaged \(it is missing\); .*tintype evaluate"):
        read_result(file)


def test_only_measured_errors_are_recorded() -> None:
    found = result()
    assert found.errors == {"fd_scenes": 0.5} and found.error_methods == {"fd_scenes": "jackknife"}
    assert found.intervals == {"fd_scenes": pytest.approx((2.5 - 0.98, 2.5 + 0.98))}


def test_a_bias_is_recorded_where_it_is_known(file: Path) -> None:
    assert "biases" not in result().dump(), "stored results stay as they were written"
    found = result(**numbers_of({"fd_scenes": Measured(2.5, bias=0.15), "images_per_s": Measured(100.0)}))
    write_result(file, found)
    assert read_result(file).biases == found.dump()["biases"] == {"fd_scenes": 0.15}


@pytest.mark.parametrize(("version", "remedy"), [(1, "tintype evaluate"), (4, "install a newer version")])
def test_other_versions_are_refused(file: Path, version: int, remedy: str) -> None:
    edit_json(file, lambda content: content.update(format=version))
    with pytest.raises(UserError, match=rf"format {version}; .*{remedy}"):
        read_result(file)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda content: content.pop("real"), "real"),
        (lambda content: content["metrics"].update(fd_scenes="2.5"), "metrics.fd_scenes"),
        (lambda content: content.update(unknown=1), "unknown"),
        (lambda content: content["protocol"].update(counts=3), "protocol.counts"),
    ],
)
def test_a_result_with_other_fields_is_damaged(file: Path, change: Any, key: str) -> None:
    edit_json(file, change)
    with pytest.raises(DamagedFileError, match=rf"{key}: .*tintype evaluate"):
        read_result(file)


def test_a_missing_result_is_named(file: Path) -> None:
    file.unlink()
    with pytest.raises(DamagedFileError, match=r"result\.json"):
        read_result(file)
