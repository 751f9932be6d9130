"""The launcher of a name: `slurm`, or `ssh:host1,host2`."""

from __future__ import annotations

import re

from tintype.errors import UserError
from tintype.study.launch.launcher import Launcher
from tintype.study.launch.slurm import Slurm
from tintype.study.launch.ssh import Ssh

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def choose_launcher(name: str) -> Launcher:
    kind, _, where = name.partition(":")
    if kind == "slurm" and not where:
        return Slurm()
    hosts = where.split(",")
    if kind == "ssh" and all(map(_HOST.fullmatch, hosts)):
        return Ssh(hosts)
    raise UserError(f"--on {name}: valid are slurm and ssh:HOST,HOST")
