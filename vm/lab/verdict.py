# SPDX-License-Identifier: GPL-2.0-only
"""What became of a run: read from the kernel's log and the guest's records."""

from dataclasses import dataclass, field
import hashlib
import re

SCX_EXIT, NOT_STARTED, PANIC, QEMU_DIED, TIME_LIMIT, LAB_ERROR, INTERRUPTED = 120, 121, 122, 123, 124, 125, 130

EXIT_CODES = """\
exit codes:
  the command's own, else
  120  a BPF scheduler was ejected by the kernel (unless --allow-scx-exit)
  121  the guest did not start the command, or stopped before it ended
  122  kernel panic or oops
  123  QEMU failed
  124  the command did not end within the time limit
  125  lab error: bad machine file, missing kernel or program, damaged files, too much output
  130  interrupted (Ctrl-C, TERM, HUP); the guest is killed
A command that exits with one of these itself is told apart by the absence of a `lab:` sentence.
"""

TIMESTAMP = re.compile(r"^\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ")
EJECTED = re.compile(r'sched_ext: BPF (\S+) "([^"]*)" disabled \((.*)\)')
PANICKED = re.compile(r"Kernel panic - not syncing: (.*)")
# Not "BUG: soft lockup": a busy host causes it in a guest that is right.
# Nor "traps: NAME[PID] general protection fault", a program's own; the kernel's begins the line where it is no "Oops: ".
OOPSED = re.compile(r"(?:Oops: .*|BUG: (?:unable|kernel|scheduling).*|^general protection fault.*)")
# The kernel's words for an orderly end: by user space, by the scheduler itself, by the kernel's shutdown.
ORDERLY = "unregistered from "


@dataclass
class KernelLog:
    """Collects what matters from the kernel's log, line by line."""

    panic: str | None = None
    oops: str | None = None
    ejected: list[str] = field(default_factory=list)
    _awaiting: str | None = None

    def line(self, text):
        text = TIMESTAMP.sub("", text.rstrip("\r\n"))
        if self._awaiting and text.startswith(f"sched_ext: {self._awaiting}: "):
            # The line after the verdict says which task or which call.
            self.ejected[-1] += ": " + text.removeprefix(f"sched_ext: {self._awaiting}: ")
            self._awaiting = None
        if match := EJECTED.search(text):
            kind, name, reason = match.groups()
            if not reason.startswith(ORDERLY):
                self.ejected.append(f"the kernel ejected the BPF {kind} {name} ({reason})")
                self._awaiting = name
        if self.panic is None and (match := PANICKED.search(text)):
            self.panic = match[1]
        if self.oops is None and (match := OOPSED.search(text)):
            self.oops = match[0]


@dataclass(frozen=True)
class Ending:
    """How QEMU ended; killed at the time limit, or since it wrote too much, it has no code."""

    timed_out: bool
    qemu_code: int | None
    qemu_words: str
    too_much: str | None = None


@dataclass(frozen=True)
class Records:
    """The guest's records: when the command started, its exit code, and the tar of /out."""

    started_s: float | None
    exit_code: int | None
    tar: bytes | None
    damage: str | None = None


def records(data):
    """Records from what came through the result port; a part that is missing is None."""
    started = exit_code = None
    rest = data
    while b"\n" in rest:
        line, after = rest.split(b"\n", 1)
        if line == b"files":
            tar, damage = files(after)
            return Records(started, exit_code, tar, damage)
        word, _, value = line.partition(b" ")
        if word == b"started":
            started = float(value)
        elif word == b"exit":
            exit_code = int(value)
        elif word == b"unpacked":
            return Records(started, exit_code, None, f"the files in /out could not be packed in the guest (tar failed with "
                           f"{value.decode(errors='replace')}): its memory must have room for them once more")
        else:
            return Records(started, exit_code, None, f"the guest sent an unknown record: {line[:40]!r}")
        rest = after
    return Records(started, exit_code, None)


def files(data):
    """The tar in front of `SHA256\\nend\\n`, and what is wrong with it, if anything."""
    trailer = 64 + len(b"\nend\n")
    tar, end = data[:-trailer], data[-trailer:]
    if not end.endswith(b"\nend\n"):
        return None, "the files in /out did not arrive whole"
    if hashlib.sha256(tar).hexdigest().encode() != end[:64]:
        return None, "the files in /out arrived damaged: their checksum differs"
    return tar, None


def judge(kernel, got, ending, limit_s, allow_scx_exit):
    """(exit code, sentence or None) of a run."""
    if kernel.panic is not None:
        reason = kernel.panic if kernel.oops is None else f"{kernel.panic} ({kernel.oops})"
        return PANIC, f"kernel panic: {reason}"
    if kernel.oops is not None:
        return PANIC, f"kernel oops: {kernel.oops}"
    if kernel.ejected and not allow_scx_exit:
        return SCX_EXIT, "; ".join(kernel.ejected)
    if ending.timed_out and ending.too_much is not None:
        return LAB_ERROR, ending.too_much + came_to(got.exit_code)
    if ending.timed_out and got.started_s is None:
        return NOT_STARTED, f"the guest did not start the command within {limit_s:g} s"
    if ending.timed_out:
        return TIME_LIMIT, f"the command did not end within {limit_s:g} s (--timeout)"
    if ending.qemu_code != 0:
        return QEMU_DIED, failure(ending) + came_to(got.exit_code)
    if got.exit_code is not None and got.tar is None:
        return LAB_ERROR, (got.damage or "the files in /out did not arrive") + came_to(got.exit_code)
    if got.exit_code is not None:
        return got.exit_code, None
    when = "before it started the command" if got.started_s is None else "before the command ended"
    return NOT_STARTED, f"the guest stopped {when}"


def failure(ending):
    """A failing QEMU in words, its own if it left any."""
    words = ending.qemu_words.strip().splitlines()
    how = f"signal {-ending.qemu_code}" if ending.qemu_code < 0 else f"exit code {ending.qemu_code}"
    return f"QEMU ended with {how}" + (f": {words[-1]}" if words else "")


def came_to(exit_code):
    """What a sentence of the lab's adds, so that the command's code is not lost."""
    return "" if exit_code is None else f"; the command ended with exit code {exit_code}"
