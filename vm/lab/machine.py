# SPDX-License-Identifier: GPL-2.0-only
"""The machine, from the flat form that `tandem topo --emit lab` prints."""

from dataclasses import dataclass
import subprocess

from lab import BUILD, LabError


@dataclass(frozen=True)
class Node:
    id: int
    cpus: int
    memory_mb: int
    distance: tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    name: str
    threads_per_core: int
    llcs_per_node: int
    nodes: tuple[Node, ...]
    flat: str = ""
    "the form itself, with the costs that only the timing plugin reads"

    @property
    def cpus(self):
        return sum(node.cpus for node in self.nodes)

    @property
    def memory_mb(self):
        return sum(node.memory_mb for node in self.nodes)


def parse(text):
    """A Machine from flat `key=value` lines."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if not equals:
            raise LabError(f"the flat machine form has the line {line!r}, which is no key=value")
        values[key] = value
    try:
        nodes = tuple(
            Node(
                id=int(values[f"node.{i}.id"]),
                cpus=int(values[f"node.{i}.cpus"]),
                memory_mb=int(values[f"node.{i}.memory_mb"]),
                distance=tuple(int(d) for d in values[f"node.{i}.distance"].split()),
            )
            for i in range(int(values["nodes"]))
        )
        return Machine(
            values["name"], int(values["threads_per_core"]), int(values["llcs_per_node"]), nodes, flat=text
        )
    except KeyError as error:
        raise LabError(f"the flat machine form lacks the key {error.args[0]}: build `tandem` anew") from None
    except ValueError as error:
        raise LabError(f"the flat machine form has a value that is no number: {error}") from None


def toolbox():
    """The `tandem` program: the installed one, else the newest that Cargo built."""
    installed = BUILD / "bin" / "tandem"
    if installed.exists():
        return installed
    built = [path for kind in ("release", "debug") if (path := BUILD / "cargo" / kind / "tandem").exists()]
    if not built:
        raise LabError("the toolbox is not built: run `cargo build -p tandem-cli` first")
    return max(built, key=lambda path: path.stat().st_mtime)


def load(path):
    """The Machine of a machine file."""
    done = subprocess.run(
        [toolbox(), "topo", "--emit", "lab", "--machine", path], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(done.stderr.strip().removeprefix("tandem: ") or f"{path}: `tandem topo` failed")
    return parse(done.stdout)
