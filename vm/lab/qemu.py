# SPDX-License-Identifier: GPL-2.0-only
"""A Machine as QEMU arguments."""

from dataclasses import dataclass
from pathlib import Path

from lab import LabError

PROGRAM = "qemu-system-x86_64"
# What QEMU takes besides the guest's memory, and of that memory the part that the timing plugin's directory has.
OWN_MB, DIRECTORY_PART = 256, 8


# Intel's cache leaves exist under TCG, AMD's do not. Above leaf 0xd, QEMU 10.0 fails an assertion when a socket has dies.
TCG_CPU = "max", "vendor=GenuineIntel,l3-cache=on,level=0xd"
# Waiting by MWAIT is unknown to the timing plugin; without ERMS and FSRM the kernel copies by words, as it does by lines.
TIMING_CPU = "max", f"{TCG_CPU[1]},la57=off,monitor=off,erms=off,fsrm=off"
KVM_CPU = "host", "l3-cache=on"


@dataclass(frozen=True)
class Slot:
    """A place for a CPU: a node is a socket, an LLC a die."""

    socket: int
    die: int
    core: int
    thread: int
    node: int
    present: bool


def value(path):
    """A path in an option: QEMU's own separator is doubled to mean itself."""
    return str(path).replace(",", ",,")


def holes(machine):
    """Ids below the last node with CPUs that have no CPU of their own.

    Linux numbers nodes in the order in which the firmware first mentions them, CPUs first. Empty
    slots on such a node make the firmware mention it in its place.
    """
    with_cpus = {node.id for node in machine.nodes if node.cpus}
    return [i for i in range(max(with_cpus)) if i not in with_cpus]


def is_even(machine):
    """Whether every node has the same CPUs: then all slots are taken from the start."""
    return not holes(machine) and len({node.cpus for node in machine.nodes}) == 1


def sockets(machine):
    """Ids of the nodes that get a socket, ascending."""
    return sorted([node.id for node in machine.nodes if node.cpus] + holes(machine))


def cores_per_llc(machine):
    """Cores below the LLC of the largest node."""
    return max(node.cpus for node in machine.nodes) // machine.llcs_per_node // machine.threads_per_core


def check_memory(machine, timed, meminfo=Path("/proc/meminfo")):
    """Refuses a machine with more memory than this host has to give now; guests that began a moment ago have not taken theirs yet."""
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    available_mb = int(line.split()[1]) // 1024
    needed_mb = OWN_MB + machine.memory_mb + (machine.memory_mb // DIRECTORY_PART if timed else 0)
    if needed_mb > available_mb:
        raise LabError(f"{machine.name} needs {needed_mb} MB of this host's memory, {available_mb} MB are available: end other "
                       "programs, run fewer guests side by side, or give its nodes less memory_mb")


def slots(machine):
    """All CPU slots, ascending; where a node has fewer CPUs than the largest, the rest are empty."""
    cpus = {node.id: node.cpus for node in machine.nodes}
    llcs, threads = machine.llcs_per_node, machine.threads_per_core
    return [
        Slot(socket, die, core, thread, node, core < cpus.get(node, 0) // llcs // threads)
        for socket, node in enumerate(sockets(machine))
        for die in range(llcs)
        for core in range(cores_per_llc(machine))
        for thread in range(threads)
    ]


def cpu_model(accel):
    return {"kvm": KVM_CPU, "tcg": TCG_CPU, "tcg-in-turn": TCG_CPU, "timing": TIMING_CPU}[accel]


def accel_arguments(accel):
    in_turn = "tcg,thread=single"
    name = {"kvm": "kvm", "tcg": "tcg,thread=multi", "tcg-in-turn": in_turn, "timing": in_turn}[accel]
    return ["-accel", name, "-cpu", ",".join(cpu_model(accel))]


def memory_arguments(machine):
    """Every id up to the last one, distances included; ids that are absent have no memory."""
    by_id = {node.id: (index, node) for index, node in enumerate(machine.nodes)}
    arguments = ["-m", f"{machine.memory_mb}M"]
    for i in range(machine.nodes[-1].id + 1):
        if i not in by_id or by_id[i][1].memory_mb == 0:
            arguments += ["-numa", f"node,nodeid={i}"]
            continue
        arguments += ["-object", f"memory-backend-ram,id=m{i},size={by_id[i][1].memory_mb}M"]
        arguments += ["-numa", f"node,nodeid={i},memdev=m{i}"]
    for node in machine.nodes:
        for other, value in zip(machine.nodes, node.distance):
            if other.id != node.id:
                arguments += ["-numa", f"dist,src={node.id},dst={other.id},val={value}"]
    absent = [i for i in range(machine.nodes[-1].id + 1) if i not in by_id]
    for i in absent:
        # QEMU wants the whole matrix; nobody sees the rows of absent nodes.
        for j in range(machine.nodes[-1].id + 1):
            if i != j:
                arguments += ["-numa", f"dist,src={i},dst={j},val=20"]
                if j not in absent:
                    arguments += ["-numa", f"dist,src={j},dst={i},val=20"]
    return arguments


def smp_arguments(machine):
    places = slots(machine)
    first = len(places) if is_even(machine) else 1
    return [
        "-smp",
        f"{first},maxcpus={len(places)},sockets={len(sockets(machine))},dies={machine.llcs_per_node},"
        f"cores={cores_per_llc(machine)},threads={machine.threads_per_core}",
    ]


def numa_cpu_arguments(machine):
    arguments = []
    for socket, node in enumerate(sockets(machine)):
        arguments += ["-numa", f"cpu,node-id={node},socket-id={socket}"]
    return arguments


def plugged_cpu_arguments(machine, accel):
    """The CPUs of an uneven machine beside the one that boots, which has the first slot."""
    if is_even(machine):
        return []
    first, *rest = slots(machine)
    if not first.present or first.node != 0:
        raise LabError(f"{machine.name}: the lab boots from node 0: it must exist and have a CPU")
    model, options = cpu_model(accel)
    arguments = []
    for slot in rest:
        if slot.present:
            place = f"socket-id={slot.socket},die-id={slot.die},core-id={slot.core},thread-id={slot.thread}"
            arguments += ["-device", f"{model}-x86_64-cpu,{place},{options}"]
    return arguments


def kernel_arguments(machine):
    """What the machine needs on the kernel's command line."""
    return [] if is_even(machine) else [f"possible_cpus={machine.cpus}"]


def machine_arguments(machine, accel):
    """All QEMU arguments that describe `machine`."""
    return ["-machine", "q35", *accel_arguments(accel), *smp_arguments(machine), *memory_arguments(machine),
            *numa_cpu_arguments(machine), *plugged_cpu_arguments(machine, accel)]
