"""Choose a launcher by name: `slurm`, `ray`, `ssh:host1,host2`, or a plugin's name."""

from __future__ import annotations

import re

from tintype.errors import UserError
from tintype.plugins.load import added
from tintype.plugins.registry import declare
from tintype.study.launch.launcher import Launcher
from tintype.study.launch.ray import Ray
from tintype.study.launch.slurm import Slurm
from tintype.study.launch.ssh import Ssh
from tintype.wording import option

declare("launchers", ("slurm", "ray", "ssh"), None)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def choose_launcher(name: str, address: str = "") -> Launcher:
    """Return the launcher; `address` is the address of a Ray cluster."""
    kind, _, where = name.partition(":")
    if name == "ray":
        return Ray(address)
    if address:
        raise UserError(
            f"{option('address', address)} applies only to Ray clusters", f"leave it out with {option('on', name)}"
        )
    if kind == "slurm" and not where:
        return Slurm()
    hosts = where.split(",")
    if kind == "ssh" and all(map(_HOST.fullmatch, hosts)):
        return Ssh(hosts)
    if kind in added("launchers"):
        made: Launcher = added("launchers")[kind].part(where)
        return made
    others = "".join(f", {other}" for other in added("launchers"))
    raise UserError(f"{option('on', name)} is unknown", f"valid: slurm, ray and ssh:HOST,HOST{others}")
