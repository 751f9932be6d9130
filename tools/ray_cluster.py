"""A real Ray on this machine, for tests: a head without work and two nodes, each with a raylet and a pretend GPU.

It needs the extra `ray`. Its files are in Ray's own folder below the system's for temporary files.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NODE = {"num_cpus": 1, "num_gpus": 1}


def why_not() -> str:
    """Return why a cluster cannot run here; empty if it can."""
    return "" if importlib.util.find_spec("ray") else "ray is not installed: pip install 'tintype[ray]'"


class Cluster:
    """A running Ray."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False}
        made = importlib.import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
        self._made: Any = made
        self._nodes = [made.add_node(**_NODE) for _ in range(2)]

    @property
    def address(self) -> str:
        return str(self._made.address)

    def lose_node(self, number: int) -> None:
        """Kill the raylet of a node, and put another node in its place."""
        self._made.remove_node(self._nodes[number], allow_graceful=False)
        self._nodes[number] = self._made.add_node(**_NODE)

    def stop(self) -> None:
        self._made.shutdown()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a Ray and stop it. Its authentication would write a token into the home folder."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    made = Cluster()
    try:
        yield made
    finally:
        made.stop()
