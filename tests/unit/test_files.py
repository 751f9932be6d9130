"""Files are whole or absent, and durable ones lie on the disk before anything goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tintype import files


@pytest.mark.parametrize("wrong", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_goes_wrong_leaves_the_file_as_it_was(tmp_path: Path, wrong: BaseException) -> None:
    file = tmp_path / "file"
    files.write_text(file, "before")
    with pytest.raises(type(wrong)), files.written_beside(file) as temporary:
        temporary.write_text("half of wh")
        raise wrong
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    file, flush, done = tmp_path / "file", files.flush, []

    def noted(path: Path) -> None:
        flush(path)
        done.append((path == tmp_path, path.read_bytes() if path.is_file() else b"", file.exists()))

    monkeypatch.setattr(files, "flush", noted)
    files.write_bytes(file, b"content", durable=durable)
    assert file.read_bytes() == b"content"
    assert done == ([(False, b"content", False), (True, b"", True)] if durable else [])
