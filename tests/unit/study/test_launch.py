"""Launchers: the script that Slurm gets, what it does with signals, and the commands that go over ssh."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tintype import cli
from tintype.errors import UserError
from tintype.study.launch.choose import choose_launcher
from tintype.study.launch.launcher import Crew
from tintype.study.launch.slurm import Slurm, slurm_time, write_script
from tintype.study.launch.ssh import Ssh

WORKER = """#!/bin/bash
trap 'echo saved >> "{log}"; exit 143' TERM
echo began "$@" >> "{log}"
for _ in $(seq 600); do sleep 0.05; done
"""


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def worker_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another program stand for Python in the command of a worker."""
    command = property(lambda self: shlex.join([str(file), "-m", "tintype", "work", str(self.study)]))
    monkeypatch.setattr(Crew, "command", command)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my study"
    made.mkdir()
    (made / "study.yaml").touch()
    return made


def test_the_script_of_slurm_can_be_read_and_has_what_was_asked_for(folder: Path) -> None:
    script = write_script(Crew(folder, 16, 2, 4 * 3600, "gpu")).read_text()
    options = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert {"--array=0-15", "--gpus-per-node=2", "--time=04:00:00", "--partition=gpu", "--requeue"} <= set(options)
    assert {"--open-mode=append", "--signal=B:TERM@120"} <= set(options)
    assert f"--output='{folder}/launch/worker-%a.log'" in options
    assert f"-m tintype work '{folder}' &" in script and "srun" not in script
    plain = write_script(Crew(folder, 1, 0)).read_text()
    assert "gpus" not in plain and "--time" not in plain and "--partition" not in plain
    assert (slurm_time(90), slurm_time(100 * 3600)) == ("00:01:30", "100:00:00")
    assert subprocess.run(["bash", "-n", str(folder / "launch" / "slurm.sh")], check=False).returncode == 0


@pytest.mark.parametrize("told", [True, False], ids=["told to stop", "ended"])
def test_a_task_of_slurm_passes_the_signal_on_and_is_queued_again(
    told: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ended by itself is not queued again."""
    log = tmp_path / "log"
    text = WORKER if told else '#!/bin/bash\necho began >> "{log}"\n'
    worker_is(program(tmp_path / "bin", "worker", text.format(log=log)), monkeypatch)
    program(tmp_path / "bin", "scontrol", f'#!/bin/bash\necho scontrol "$@" >> "{log}"\n')
    script = write_script(Crew(folder, 1))
    ids = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **ids}
    with subprocess.Popen(["bash", str(script)], env=env) as task:
        deadline_s = time.monotonic() + 60
        while not log.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if told:
            task.send_signal(signal.SIGTERM)
    assert task.returncode == (143 if told else 0)
    assert log.read_text().splitlines()[1:] == (["saved", "scontrol requeue 7_3"] if told else [])


def test_a_launch_submits_the_script_or_says_what_went_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "sbatch", "#!/bin/bash\necho Submitted batch job 42\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    done = CliRunner().invoke(cli.app, ["launch", str(folder), "--on", "slurm", "--workers", "3", "--time", "1h"])
    assert done.exit_code == 0 and "Submitted batch job 42" in done.stdout
    assert "#SBATCH --array=0-2" in (folder / "launch" / "slurm.sh").read_text()
    program(tmp_path / "bin", "sbatch", "#!/bin/bash\necho no such partition >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"sbatch .* failed: no such partition"):
        Slurm().launch(Crew(folder, 1))


def test_ssh_starts_workers_that_stay(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake ssh runs the command in a shell of this machine."""
    log = tmp_path / "log"
    worker = f'#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES" "$@" >> "{log}"\n'
    worker_is(program(tmp_path / "bin", "worker", worker), monkeypatch)
    program(tmp_path / "bin", "ssh", f'#!/bin/bash\necho hosts "${{@:1:5}}" >> "{tmp_path}/hosts"\neval "${{@: -1}}"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    lines = Ssh(["one", "me@two"]).launch(Crew(folder, 2, 2))
    assert [line.partition(" is process ")[0] for line in lines] == [
        f"{host}: worker {number}" for host in ("one", "me@two") for number in (0, 1)
    ]
    deadline_s = time.monotonic() + 60
    while (not log.exists() or len(log.read_text().splitlines()) < 4) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert sorted(log.read_text().splitlines()) == sorted(
        f"{gpus} -m tintype work {folder}" for gpus in ("0,1", "2,3", "0,1", "2,3")
    )
    assert (tmp_path / "hosts").read_text().splitlines()[0] == "hosts -n -o BatchMode=yes -- one"
    program(tmp_path / "bin", "ssh", "#!/bin/bash\necho no route to host >&2\nexit 255\n")
    with pytest.raises(UserError, match="no route to host"):
        Ssh(["three"]).launch(Crew(folder, 1))


@pytest.mark.parametrize("name", ["nowhere", "ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "slurm:x", "ray:x"])
def test_other_places_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"valid: slurm, ray and ssh:HOST,HOST"):
        choose_launcher(name)
