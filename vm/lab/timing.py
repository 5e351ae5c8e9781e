# SPDX-License-Identifier: GPL-2.0-only
"""Timing runs: QEMU with the timing plugin (vm/timing), and the truth that it leaves."""

import json
import random
import re
import subprocess

from lab import BUILD, LabError, qemu

PLUGIN = BUILD / "vm" / "timing.so"
# The plugin reaches into QEMU (vm/timing/qemu_hooks.c); in these versions it was seen to work.
KNOWN_QEMUS = ("10.0.2",)
MAX_VCPUS, MAX_NODES = 32, 8
LINE_B = 64
WINDOW_NS = 10_000
# The plugin's steps of time (timing.h), and how much of a time may be lost to them.
TICKS_PER_NS, MAX_ROUNDING = 16, 0.01
# L1 is indexed by a mask and holds a page at least (caches.c).
MIN_L1_KB = 4
# The ring that the guest sees (vm/timing/ring.h), and of how many misses one goes into it.
RING_MB, SAMPLE_PERIOD = 4, 64
# q35 has no memory from here to 4 GiB: for a machine that fits below, and for a larger one.
LOW_MEMORY_MB, LOW_MEMORY_OF_LARGE_MB = 2816, 2048
# A fixed clock, without calibration loops that would measure it.
KERNEL_ARGUMENTS = ["nokaslr", "tsc=reliable", "tsc_early_khz=1000000", "cryptomgr.notests"]
MAX_START_DELAY_US = 1_000_000
MAX_BOOT_OFFSET_NS = 10_000_000


def check(machine):
    """Refuses what the plugin cannot do."""
    if not PLUGIN.exists():
        raise LabError(f"--timing: {PLUGIN} is not built: run ./run build")
    said = subprocess.run([qemu.PROGRAM, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\S+)", said)
    if version is None or version[1] not in KNOWN_QEMUS:
        found = "an unknown version" if version is None else version[1]
        raise LabError(f"--timing: this QEMU is {found}, the timing plugin knows {', '.join(KNOWN_QEMUS)}: "
                       "install the QEMU of bookworm-backports (vm/setup/packages.sh)")
    slots = len(qemu.slots(machine))
    if slots > MAX_VCPUS:
        raise LabError(f"--timing: {machine.name} needs {slots} vCPUs, {MAX_VCPUS} is the most (empty places of uneven "
                       "nodes count)")
    if len(machine.nodes) > MAX_NODES:
        raise LabError(f"--timing: {machine.name} has {len(machine.nodes)} nodes, {MAX_NODES} is the most")
    values = flat(machine)
    if values["caches.line_b"] != str(LINE_B):
        raise LabError(f"--timing: {machine.name} has lines of {values['caches.line_b']} bytes, must be {LINE_B}")
    l1_kb = int(values["caches.l1_kb"])
    if l1_kb < MIN_L1_KB or l1_kb & l1_kb - 1:
        raise LabError(f"--timing: {machine.name}: caches.l1_kb is {l1_kb}, must be a power of two from {MIN_L1_KB} up")
    check_times(machine.name, values)


def check_times(name, values):
    """Refuses times of which the plugin, which counts in ticks, would make others."""
    for key, value in values.items():
        for ns in map(float, value.split() if key.endswith("_ns") else ()):
            counted = int(ns * TICKS_PER_NS + 0.5) / TICKS_PER_NS
            if abs(counted - ns) > MAX_ROUNDING * ns:
                raise LabError(f"--timing: {name}: {key} has {ns:g} ns, of which steps of 1/{TICKS_PER_NS} ns would make "
                               f"{counted:g}: give a multiple of {1 / TICKS_PER_NS:g}")


def flat(machine):
    """The machine's flat form as a dictionary."""
    return dict(line.split("=", 1) for line in machine.flat.splitlines())


def row(machine, index, key):
    """Row of a matrix: one number per node."""
    return [float(word) for word in flat(machine)[f"node.{index}.{key}"].split()]


def places(machine):
    """(node position, LLC) of every vCPU; (-1, -1) for an empty place."""
    position = {node.id: index for index, node in enumerate(machine.nodes)}
    return [
        (position[slot.node], slot.socket * machine.llcs_per_node + slot.die) if slot.present else (-1, -1)
        for slot in qemu.slots(machine)
    ]


def settings(machine, seed, directory):
    """The plugin's settings; its files are in `directory`."""
    where = places(machine)
    small = machine.memory_mb < LOW_MEMORY_MB
    lines = [
        f"vcpus={len(where)}",
        f"llcs={len(qemu.sockets(machine)) * machine.llcs_per_node}",
        f"vcpu_node={' '.join(str(node) for node, _ in where)}",
        f"vcpu_llc={' '.join(str(llc) for _, llc in where)}",
        f"low_memory_mb={LOW_MEMORY_MB if small else LOW_MEMORY_OF_LARGE_MB}",
        f"window_ns={WINDOW_NS}",
        f"boot_offset_ns={random.Random(seed).randrange(MAX_BOOT_OFFSET_NS)}",
        f"sample_period={SAMPLE_PERIOD}",
        f"ring={directory / 'ring'}",
        f"truth={directory / 'records'}",
    ]
    return machine.flat + "\n".join(lines) + "\n"


def start_delay_us(seed):
    """How long the guest waits before it starts the command."""
    return random.Random(f"start {seed}").randrange(MAX_START_DELAY_US)


def arguments(machine, seed, directory):
    """QEMU's arguments for the plugin, whose files go to `directory`."""
    path, ring = directory / "settings", directory / "ring"
    path.write_text(settings(machine, seed, directory))
    ring.touch()
    return [
        "-plugin", f"{qemu.value(PLUGIN)},settings={qemu.value(path)}",
        "-rtc", "clock=vm,base=2026-01-01", "-seed", str(seed),
        "-object", f"memory-backend-file,id=ring,share=on,size={RING_MB}M,mem-path={qemu.value(ring)}",
        "-device", "ivshmem-plain,memdev=ring",
    ]


def truth(request, directory):
    """The ground truth of a run as a dictionary."""
    values = flat(request.machine)
    return {
        "schema": 1,
        "machine": request.machine.name,
        "kernel": request.release,
        "nodes": [node.id for node in request.machine.nodes],
        "cpus_per_node": [node.cpus for node in request.machine.nodes],
        "seed": request.seed,
        "plugin": {"window_ns": WINDOW_NS} | {
            key: [float(word) for word in value.split()] if key.endswith(("latency_ns", "bandwidth_mb_s")) else float(value)
            for key, value in values.items()
            if key.startswith(("core.", "caches.", "memory.", "coherence.", "paging.")) or key.endswith(("latency_ns", "bandwidth_mb_s"))
        },
        "records": records(directory / "records"),
    }


def records(path):
    """All records of a file, which is not there if QEMU ended early; its last line may be cut off, where QEMU was killed while it wrote."""
    text = path.read_text(errors="replace") if path.exists() else ""
    finished, _, cut_off = text.rpartition("\n")
    try:
        found = [json.loads(line) for line in finished.splitlines()]
    except ValueError as error:
        raise LabError(f"{path} has a line that is no record ({error}): run it again") from error
    try:
        return [*found, json.loads(cut_off)] if cut_off else found
    except ValueError:
        return found
