# SPDX-License-Identifier: GPL-2.0-only
"""One run: boot, stream, collect, judge."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
import json
import os
from pathlib import Path
import shlex
import subprocess
import sys
import tempfile
import time

from lab import BUILD, LabError, image, process, qemu, timing
from lab.follow import follow
from lab.verdict import LAB_ERROR, Ending, KernelLog, came_to, judge, records

# panic=-1 with QEMU's -no-reboot ends the run at once; an oops leaves a guest that proves nothing. Mitigations cost
# much under TCG, where each address space switch empties QEMU's TLB.
KERNEL_ARGUMENTS = ["console=ttyS0,115200", "panic=-1", "oops=panic", "mitigations=off"]


# About one boot in a hundred of an emulated machine with several CPUs hangs, runs a breakpoint that the kernel, while
# it patched its code, had removed before, or ends QEMU by a failed assertion of its own. A guest that does not come up
# for these reasons is booted once more.
BOOT_LIMIT_S = 45
# One host thread runs all vCPUs, and counts.
TIMING_BOOT_LIMIT_S, TIMING_BOOT_LIMIT_S_PER_CPU = 120, 12
STALE_BREAKPOINT = "int3"
# In the words of QEMU below virtme-ng, which ends with a code of its own where QEMU ended by a signal.
FAILED_ASSERTION = "Assertion `"
ONCE_MORE = "the guest did not come up, which lies in the emulator: once more"
# What a guest may print, and its kernel log, before either fills the disk.
MOST_B = 1 << 30


@dataclass(frozen=True)
class Request:
    """What to run, and where."""

    machine: object
    kernel: Path
    release: str
    accel: str
    timeout_s: float
    additions: tuple[str, ...]
    append: str
    out: Path | None
    quiet: bool
    verbose: bool
    allow_scx_exit: bool
    command: tuple[str, ...]
    seed: int = 0
    control: Path | None = None

    @property
    def timed(self):
        return self.accel == "timing"


def boot_limit_s(request):
    if not request.timed:
        return BOOT_LIMIT_S
    return TIMING_BOOT_LIMIT_S + TIMING_BOOT_LIMIT_S_PER_CPU * request.machine.cpus


def script(command):
    """A shell script that runs `command` exactly, byte for byte."""
    return os.fsencode(shlex.join(command)) + b"\n"


def delayed_script(request):
    """The script of a timing run: the command starts at a moment that the seed chooses."""
    delay = b"usleep %d\n" % timing.start_delay_us(request.seed) if request.timed else b""
    return delay + script(request.command)


def command_line(request):
    noise = [] if request.verbose else ["quiet"]
    clock = timing.KERNEL_ARGUMENTS if request.timed else []
    words = [*KERNEL_ARGUMENTS, *clock, *noise, *qemu.kernel_arguments(request.machine), request.append]
    return " ".join(word for word in words if word)


def arguments(request, initramfs):
    """QEMU's arguments but for where its serial lines and ports go."""
    return [
        qemu.PROGRAM, *qemu.machine_arguments(request.machine, request.accel),
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", str(request.kernel), "-initrd", str(initramfs), "-append", command_line(request),
        # Without vectors it interrupts by its pin: QEMU 10.0 at times fails an assertion when several emulated CPUs
        # boot and one writes to an MSI-X table.
        "-device", "virtio-serial-pci,vectors=0", *control_arguments(request.control),
    ]


def control_arguments(socket):
    """A socket on which QEMU takes commands, as to pause the guest."""
    return [] if socket is None else ["-qmp", f"unix:{qemu.value(socket)},server=on,wait=off"]


def log_path(request):
    directory = BUILD / "vm" / "logs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{request.machine.name}-{os.getpid()}.log"


def whole(stream):
    """`stream` as a file whose writes take all they are given: that of an unbuffered Python takes a part when a
    signal stops it midway."""
    return open(stream.fileno(), "wb", closefd=False)


def size(path):
    """The bytes of a file; none of one that somebody tidied away."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class Streams:
    """Takes the guest's three lines while it runs: kernel log, terminal, result port."""

    def __init__(self, request, begun, last_boot, paths=None):
        self.request, self._paths = request, paths or {}
        self.printed, self.said = whole(sys.stdout), whole(sys.stderr)
        self.kernel, self.result = KernelLog(), bytearray()
        self.started_after_s = None
        self.begun, self._last_boot = begun, last_boot
        self._booted = time.monotonic()
        self._partial = b""

    def too_much(self):
        """What the guest wrote too much of, in a sentence; None: nothing."""
        for name, what in (("terminal", "the command printed"), ("serial", "the kernel logged")):
            if name in self._paths and size(self._paths[name]) > MOST_B:
                return f"{what} more than {MOST_B >> 20} MiB, the guest is killed"
        return None

    def deadline(self):
        if self.too_much() is not None:
            return 0.0
        end = self.begun + self.request.timeout_s
        if self._last_boot or self.started_after_s is not None:
            return end
        return min(end, self._booted + boot_limit_s(self.request))

    def failed_by_emulation(self, qemu_code, qemu_words):
        """Whether it did not come up for a reason that lies in the emulator; `qemu_code` None: QEMU did not end."""
        if self._last_boot or self.started_after_s is not None or self.too_much() is not None:
            return False
        if qemu_code is not None and (qemu_code < 0 or qemu_code > 0 and FAILED_ASSERTION in qemu_words):
            return True
        if self.kernel.panic is not None:
            return STALE_BREAKPOINT in (self.kernel.oops or "")
        return time.monotonic() >= self.deadline() and self.deadline() < self.begun + self.request.timeout_s

    def take(self, name, data):
        getattr(self, name)(data)

    def serial(self, data):
        if self.request.verbose:
            self.said.write(data)
            self.said.flush()
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.kernel.line(line.decode(errors="replace"))

    def terminal(self, data):
        self.printed.write(data)
        self.printed.flush()

    def port(self, data):
        if self.started_after_s is None:
            self.started_after_s = time.monotonic() - self.begun
        self.result += data


def lines_of(request, directory):
    """Empty files for the guest's lines, by name; the kernel's log is kept."""
    paths = {"serial": log_path(request), "terminal": directory / "terminal", "port": directory / "port"}
    for path in paths.values():
        path.write_bytes(b"")
    return paths


def qemu_options(name):
    return {
        "serial": ["-serial", "chardev:serial"],
        "terminal": ["-device", "virtserialport,chardev=terminal,name=tandem.terminal"],
        "port": ["-device", "virtserialport,chardev=port,name=tandem.result"],
    }[name]


def direct(request):
    """Runs `request` in a QEMU of its own; (exit code, the lab's sentence or None)."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-lab-")))
        initramfs = directory / "initramfs.cpio"
        image.build(initramfs, request.kernel, request.release, request.additions, delayed_script(request))
        begun = time.monotonic()
        for last_boot in (False, True):
            paths = lines_of(request, directory)
            streams = Streams(request, begun, last_boot, paths)
            clock = timing.arguments(request.machine, request.seed, directory) if request.timed else []
            ended, code, said = boot(arguments(request, initramfs) + clock, paths, streams)
            if not streams.failed_by_emulation(code, said):
                break
            note(request, ONCE_MORE)
        ending = Ending(not ended, code, said, streams.too_much())
        return conclude(request, streams, paths["serial"], ending, directory)


def boot(words, paths, streams):
    """One boot: whether QEMU ended by itself, its code, its words."""
    for name, path in paths.items():
        words += ["-chardev", f"file,id={name},path={qemu.value(path)}", *qemu_options(name)]
    with tempfile.TemporaryFile("w+") as said:
        child = process.start(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            ended = follow(paths, streams.take, child, streams.deadline)
            code = child.wait() if ended else None
        finally:
            process.end(child)
        said.seek(0)
        return ended, code, said.read()


def note(request, words):
    """Tells about the run what is no verdict: those begin with `lab:`."""
    if not request.quiet:
        print(f"note: {words}", file=sys.stderr)


def conclude(request, streams, path, ending, directory):
    """Judges a run and leaves its files; (exit code, the lab's sentence or None)."""
    got = records(bytes(streams.result))
    verdict = judge(streams.kernel, got, ending, request.timeout_s, request.allow_scx_exit)
    if got.tar is not None and request.out is not None:
        verdict = leaving(verdict, lambda: unpack(got.tar, request.out, request.timed))
    if request.timed and request.out is not None:
        verdict = leaving(verdict, lambda: leave_truth(request, directory))
    code, sentence = verdict
    if sentence is not None:
        print(f"lab: {sentence}; kernel log: {path}", file=sys.stderr)
    ran = time.monotonic() - streams.begun
    booted = "never" if streams.started_after_s is None else f"{streams.started_after_s:.1f} s"
    note(request, f"{request.machine.name} on {request.release} ({request.accel}): "
                  f"booted after {booted}, ended after {ran:.1f} s")
    return code, sentence


def leaving(verdict, leave):
    """`verdict` after `leave()` left files; what fails there adds to it and hides nothing."""
    code, sentence = verdict
    try:
        leave()
    except (LabError, OSError) as error:
        return (LAB_ERROR, f"{error}{came_to(code)}") if sentence is None else (code, f"{sentence}; {error}")
    return verdict


def make_out(out):
    """Makes the folder of --out, before a guest spends time on what could not be left there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"--out {out}: cannot be made: {error.strerror}: name a folder") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise LabError(f"--out {out}: may not be written: name another folder, or change its rights")


def leave_truth(request, directory):
    text = json.dumps(timing.truth(request, directory)) + "\n"
    try:
        (request.out / "truth.json").write_text(text)
    except OSError as error:
        raise LabError(f"--out {request.out}: truth.json cannot be written: {error.strerror}") from None


def unpack(tar, out, timed):
    # In a timing run truth.json is the plugin's; what the command left under that name gets another one.
    rename = [r"--transform=s,^\./truth\.json\($\|/\),./command-truth.json\1,S"] if timed else []
    done = subprocess.run(
        ["tar", "-xf", "-", "--no-same-owner", "--no-overwrite-dir", *rename, "-C", out],
        input=tar, capture_output=True, check=False,
    )
    if done.returncode != 0:
        # Its last line only says that there are others.
        said = done.stderr.decode(errors="replace").splitlines() or ["tar failed"]
        raise LabError(f"--out {out}: {said[0]}")


def shell(request):
    """An interactive shell in the guest on this terminal."""
    if not sys.stdin.isatty():
        raise LabError("`shell` needs a terminal: use `run -- CMD` in scripts")
    import termios

    before = termios.tcgetattr(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="tandem-lab-") as directory:
        initramfs = Path(directory) / "initramfs.cpio"
        image.build(initramfs, request.kernel, request.release, request.additions, b"exec sh\n")
        words = [
            "-chardev", f"file,id=serial,path={log_path(request)}", "-serial", "chardev:serial",
            "-chardev", "stdio,id=terminal,mux=on,signal=off", "-serial", "chardev:terminal",
        ]
        print("note: booting; `exit` or Ctrl-A X ends", file=sys.stderr)
        child = process.start(arguments(request, initramfs) + words, own_session=False)
        try:
            return child.wait()
        finally:
            process.end(child)
            # It may be gone.
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
