# SPDX-License-Identifier: GPL-2.0-only
"""Machines in the flat form, and the way to the lab, for the tests."""

from pathlib import Path
import sys

VM = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(VM))

from lab.machine import Machine, Node  # noqa: E402


def machine(cpus, ids=None, threads=1, llcs=1):
    """A machine with 256 MB a node, all nodes at distance 20."""
    ids = ids or range(len(cpus))
    nodes = [
        Node(id=node, cpus=count, memory_mb=256, distance=tuple(10 if j == node else 20 for j in ids))
        for node, count in zip(ids, cpus)
    ]
    return Machine("test", threads, llcs, tuple(nodes))


def values(arguments, option):
    """The values of every `option` in a list of QEMU arguments."""
    return [value for word, value in zip(arguments, arguments[1:]) if word == option]
