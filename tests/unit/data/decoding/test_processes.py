from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.tiny_store import tiny_store
from tintype.data.decoding.processes import Decoders
from tintype.data.fit import covering, stretched
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode
from tintype.data.store import source
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def two() -> Iterator[Decoders]:
    found = Decoders(2)
    yield found
    found.end()


def image(width: int, height: int, name: str = "one") -> Encoded:
    pixels = torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(width), dtype=torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, "JPEG")
    return Encoded(name, buffer.getvalue())


def out(height: int = 32, width: int = 48) -> Tensor:
    return torch.zeros(3, height, width, dtype=torch.uint8)


def test_a_process_gives_the_pixels_that_a_thread_gives(two: Decoders) -> None:
    for size in ((48, 32), (100, 70), (60, 400)):
        one, found = image(*size), out()
        two.fit(one, found)
        assert torch.equal(found, covering(decode(one), 32, 48))
        two.fit(one, found, stretch=True)
        assert torch.equal(found, stretched(decode(one), 32, 48))
    assert two.cpu_s > 0


def test_what_is_wrong_with_an_image_is_said_and_the_next_one_is_decoded(two: Decoders) -> None:
    with pytest.raises(UserError, match=r"^the färst cannot be read as an image"):
        two.fit(Encoded("the färst", b"no image"), out())
    found = out()
    two.fit(image(48, 32), found)
    assert torch.equal(found, decode(image(48, 32)))


def test_a_process_that_was_killed_is_replaced_and_its_image_is_not_lost(two: Decoders) -> None:
    two.fit(image(48, 32), out())
    killed = [one.process for one in two.running]
    for process in killed:
        process.kill()
        process.wait()
    found = out()
    two.fit(image(100, 70), found)
    assert torch.equal(found, covering(decode(image(100, 70)), 32, 48))
    assert not {process.pid for process in killed[-1:]} & {one.process.pid for one in two.running}


def test_an_image_at_which_every_process_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="one: the process that decoded this image ended 2 times, with exit code 1"):
        Decoders(1).fit(image(48, 32), out())


def test_a_process_that_cannot_be_started_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Decoders(1)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UserError, match="cannot be started: No such file or directory; allow more processes"):
        one.fit(image(48, 32), out())
    assert one._free.qsize() == 1, "the next does not wait for it"
    monkeypatch.undo()
    found = out()
    one.fit(image(48, 32), found)
    one.end()
    assert torch.equal(found, decode(image(48, 32)))


@pytest.mark.slow
def test_ctrl_c_is_not_for_them_and_they_end_with_their_run(tmp_path: Path) -> None:
    """The run is killed with SIGKILL: nothing in it can tell them."""
    script = (
        "import sys, time, torch\n"
        "from tintype.data.decoding.processes import Decoders\n"
        "from tintype.data.image_sets import Encoded\n"
        "two = Decoders(1)\n"
        "two.fit(Encoded('one', sys.stdin.buffer.read()), torch.zeros(3, 32, 48, dtype=torch.uint8))\n"
        "print(two.running[0].process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin and run.stdout
    with run:
        run.stdin.write(image(48, 32).content)
        run.stdin.close()
        decoder = int(run.stdout.readline())
        assert os.getpgid(decoder) != os.getpgid(run.pid)
        run.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not Path(f"/proc/{decoder}").exists() or "Z" in Path(f"/proc/{decoder}/stat").read_text().split(")")[1]:
            return
        time.sleep(0.1)
    os.kill(decoder, signal.SIGKILL)
    pytest.fail("the process outlived its run")


def test_a_source_reads_the_same_images_through_processes(
    two: Decoders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "decoders", lambda count: two)
    settings = StoreSettings(path=str(tiny_store(tmp_path, 20)), size_px=16)
    threads, processes = (
        StoreSource(settings, "train", CPU, keep=False, threads=2, processes=chosen) for chosen in (False, True)
    )
    assert threads.decoders is None and processes.decoders is two
    for ids in ([3, 1], [0, 5, 2]):
        processes.expect(ids)
    for ids in ([3, 1], [0, 5, 2]):
        assert torch.equal(processes.images(ids), threads.images(ids))
