"""Two machines in one: network namespaces with a cable between them, process numbers and host names of their own.

They share the file system, as machines of a cluster do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

PROGRAMS = ("ip", "unshare", "hostname")
CABLE = "cable"
"""The name of the network device in each namespace."""


@dataclass(frozen=True)
class Machine:
    """A pretended machine."""

    name: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this machine. Killing it kills all of its processes."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
        named = ["sh", "-c", f'hostname {self.name} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self.name, *apart, *named, *words]

    def connect(self, connected: bool) -> None:
        """Plug the cable in, or pull it out."""
        _ip("-n", self.name, "link", "set", CABLE, "up" if connected else "down")


@cache
def why_not() -> str:
    """Return why there can be no such machines here; empty where there can."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with two_machines() as (first, _):
            subprocess.run(first.command(["true"]), check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.decode(errors='replace').strip()}"
    return ""


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Make two machines with a cable between them, and remove them."""
    machines = [Machine(f"tintype-{os.getpid()}-{number}", f"10.213.7.{number}") for number in (1, 2)]
    try:
        for one in machines:
            _ip("netns", "add", one.name)
            _ip("-n", one.name, "link", "set", "lo", "up")
        first, second = machines
        peer = ("peer", "name", CABLE, "netns", second.name)
        _ip("-n", first.name, "link", "add", CABLE, "type", "veth", *peer)
        for one in machines:
            _ip("-n", one.name, "address", "add", f"{one.address}/24", "dev", CABLE)
            one.connect(True)
        yield first, second
    finally:
        for one in machines:
            subprocess.run(["ip", "netns", "delete", one.name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
