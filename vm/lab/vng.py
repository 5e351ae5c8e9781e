# SPDX-License-Identifier: GPL-2.0-only
"""The same contract through virtme-ng: the guest sees this machine's files, with a writable layer."""

from contextlib import ExitStack
import os
from pathlib import Path
import shlex
import subprocess
import tempfile
import time

from lab import BUILD, CACHE, SETUP, LabError, image, process, qemu
from lab.follow import follow
from lab.run import ONCE_MORE, Streams, conclude, lines_of, note, script
from lab.verdict import Ending

GUEST = Path(__file__).with_name("vng-guest.sh")
# Interrupts by pins for all devices that virtme-ng adds, for the reason told in run.py at `vectors=0`.
KERNEL_ARGUMENTS = "oops=panic mitigations=off pci=nomsi"


def setup():
    """Folder with vng and virtiofsd, set up when it is not here yet."""
    done = subprocess.run([SETUP / "vng.sh", CACHE], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise LabError("virtme-ng cannot be set up: see above, or use --runner direct")
    return done.stdout.strip()


def overlay_module(kernel):
    found = list(kernel.parent.glob("root/usr/lib/modules/*/kernel/fs/overlayfs/overlay.ko*"))
    found += list(kernel.parent.glob("root/lib/modules/*/kernel/fs/overlayfs/overlay.ko*"))
    if not found:
        raise LabError(f"the kernel package below {kernel.parent} has no overlay module: use --runner direct")
    return found[0]


def machine_arguments(machine):
    """The machine in virtme-ng's words, which know equal nodes without SMT or several LLCs."""
    if not qemu.is_even(machine) or machine.threads_per_core > 1 or machine.llcs_per_node > 1:
        raise LabError(
            f"{machine.name}: --runner vng knows only nodes with equal CPUs, one thread a core and one LLC a node: "
            "use --runner direct"
        )
    words, first = ["--cpus", str(machine.cpus), "--memory", f"{machine.memory_mb}M"], 0
    for node in machine.nodes:
        words += ["--numa", f"{node.memory_mb}M,cpus={first}-{first + node.cpus - 1}"]
        first += node.cpus
    for node in machine.nodes:
        for other, value in zip(machine.nodes, node.distance):
            if node.id != other.id:
                words += ["--numa-distance", f"{node.id},{other.id}={value}"]
    return words


def stage(directory, request):
    """Puts the command and the additions where the guest finds them."""
    (directory / "add").mkdir()
    # By the same archive as the direct runner's, for the same rules.
    archive = image.Archive()
    archive.file("lab/command", script(request.command))
    for text in request.additions:
        image.add(archive, text, with_libraries=False)
    unpack = ["busybox", "cpio", "-id"]
    done = subprocess.run(unpack, cwd=directory / "add", input=archive.bytes(), capture_output=True, check=False)
    if done.returncode != 0:
        raise LabError(f"the files of --add cannot be unpacked: {done.stderr.decode(errors='replace').strip()}")


def arguments(request, machine, directory, port):
    guest = shlex.join([str(GUEST), str(directory), str(overlay_module(request.kernel))])
    options = (
        f"-device virtio-serial-pci -chardev file,id=port,path={port} "
        "-device virtserialport,chardev=port,name=tandem.result"
    )
    accel = ["--disable-kvm"] if request.accel == "tcg" else []
    noise = "" if request.verbose else "quiet"
    # --verbose: its serial line goes to standard error, else nowhere.
    return [
        "vng", "--run", str(request.kernel), "--verbose", *accel, "--disable-microvm",
        *machine, "--user", "root", "--cwd", "/",
        f"--append={KERNEL_ARGUMENTS} {noise} {request.append}", f"--qemu-opts={options}", "--exec", guest,
    ]


def run(request):
    """Runs `request` through virtme-ng; (exit code, the lab's sentence or None)."""
    # What it cannot do is refused before anything is set up.
    machine = machine_arguments(request.machine)
    tools = setup()
    with ExitStack() as stack:
        # Below the build folder, which the guest sees at the same place; /tmp is its own there.
        (BUILD / "vm").mkdir(parents=True, exist_ok=True)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vng-", dir=BUILD / "vm")))
        stage(directory, request)
        begun = time.monotonic()
        for last_boot in (False, True):
            paths = lines_of(request, directory)
            streams = Streams(request, begun, last_boot, paths)
            ended, code = boot(arguments(request, machine, directory, paths["port"]), tools, paths, streams)
            words = paths["serial"].read_text(errors="replace")
            if not streams.failed_by_emulation(code, words):
                break
            note(request, ONCE_MORE)
        ending = Ending(not ended, code, words, streams.too_much())
        return conclude(request, streams, paths["serial"], ending, directory)


def boot(words, tools, paths, streams):
    """One boot: whether it ended by itself, and its code."""
    with open(paths["terminal"], "ab") as terminal, open(paths["serial"], "ab") as serial:
        child = process.start(
            words, stdin=subprocess.DEVNULL, stdout=terminal, stderr=serial,
            env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        )
    try:
        ended = follow(paths, streams.take, child, streams.deadline)
        return ended, child.wait() if ended else None
    finally:
        process.end(child)
