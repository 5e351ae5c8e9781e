#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs a command in a NUMA machine that a machine file describes."""

import argparse
import contextlib
import json
import os
from pathlib import Path
import signal
import sys

from lab import LabError, calibrate, image, kernels, machine, qemu, run, timing, verdict, vng


def parser():
    top = argparse.ArgumentParser(
        prog="lab.py", description=__doc__, epilog=verdict.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="what", required=True)
    for name, help_text in (
        ("run", "run a command in a guest, print what it prints, exit with its code"),
        ("shell", "open an interactive shell in a guest"),
        ("calibrate", "measure in a timing guest what memory costs, against the machine file; exit code 1: over 1 %% off"),
    ):
        sub = commands.add_parser(
            name, help=help_text, epilog=verdict.EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument("--machine", type=Path, required=True, metavar="FILE", help="machine file (vm/machines/)")
        sub.add_argument("--kernel", default=kernels.pinned()[0], metavar="RELEASE",
                         help="pinned kernel (vm/kernels.list), default %(default)s")
        sub.add_argument("--accel", choices=["auto", "tcg", "tcg-in-turn", "kvm"], default="auto",
                         help="auto: KVM where a probe shows that it boots, else TCG; tcg-in-turn: emulated CPUs take "
                              "turns on one of the host's, and code that the kernel patches is never run as it was")
        sub.add_argument("--add", action="append", default=[], metavar="HOST[:GUEST]",
                         help="put a file or folder into the guest (default /bin/NAME), with its libraries")
        sub.add_argument("--append", default="", metavar="ARGS", help="more kernel arguments")
    for name in ("run", "calibrate"):
        run_options(commands.choices[name])
    sub = commands.choices["calibrate"]
    sub.set_defaults(timing=True, runner="direct", allow_scx_exit=False)
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub = commands.choices["run"]
    sub.add_argument("--runner", choices=["direct", "vng"], default="direct",
                     help="direct: QEMU with a small initramfs; vng: virtme-ng, this machine's files in the guest")
    sub.add_argument("--out", type=Path, metavar="DIR", help="where files of the guest's /out go")
    sub.add_argument("--timing", action="store_true",
                     help="memory, caches and the guest's clocks cost what the machine file says (docs/timing.md); "
                          "the counts go to DIR/truth.json of --out")
    sub.add_argument("--control", type=Path, metavar="SOCKET",
                     help="QEMU takes commands (QMP) there, as to pause the guest; not with --runner vng")
    sub.add_argument("--allow-scx-exit", action="store_true",
                     help="do not fail when the kernel ejects a BPF scheduler")
    sub.add_argument("command", nargs="+", metavar="CMD", help="command and its arguments, after --")
    return top


def run_options(sub):
    """What a run and a calibration have in common."""
    sub.add_argument("--timeout", type=seconds, default=300.0, metavar="SEC",
                     help="limit for boot and command together, default 300")
    sub.add_argument("--seed", type=seed, default=0, metavar="N",
                     help="timing guests: vary boot and start of the command, default %(default)s")
    noise = sub.add_mutually_exclusive_group()
    noise.add_argument("--quiet", action="store_true", help="no line about the run itself")
    noise.add_argument("--verbose", action="store_true", help="kernel log to standard error as it comes")


def seed(text):
    # As QEMU takes it.
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 64):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 0 to {(1 << 64) - 1}")
    return int(text)


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds above 0")
    return value


def chosen_accel(options, kernel, described):
    if getattr(options, "timing", False):
        if options.accel == "kvm" or options.runner != "direct":
            raise LabError("--timing needs QEMU's emulation and --runner direct: leave --accel and --runner away")
        timing.check(described)
        return "timing"
    if options.accel == "auto":
        return "kvm" if kernels.kvm_boots(kernel, image.base()) else "tcg"
    if options.accel == "kvm" and not kernels.kvm_boots(kernel, image.base()):
        raise LabError("--accel kvm: KVM does not boot a guest on this machine: use --accel tcg")
    return options.accel


def request(options):
    if getattr(options, "control", None) and options.runner != "direct":
        raise LabError("--control needs --runner direct")
    if options.accel == "tcg-in-turn" and getattr(options, "runner", "direct") != "direct":
        raise LabError("--accel tcg-in-turn needs --runner direct")
    if getattr(options, "out", None) is not None:
        run.make_out(options.out)
    kernel = kernels.vmlinux(options.kernel)
    described = machine.load(options.machine)
    accel = chosen_accel(options, kernel, described)
    qemu.check_memory(described, accel == "timing")
    running = options.what != "shell"
    return run.Request(
        machine=described, kernel=kernel, release=options.kernel, accel=accel,
        timeout_s=options.timeout if running else 0.0, additions=tuple(options.add), append=options.append,
        out=getattr(options, "out", None), quiet=running and options.quiet,
        verbose=running and options.verbose, allow_scx_exit=running and options.allow_scx_exit,
        command=tuple(getattr(options, "command", ())), seed=options.seed if running else 0,
        control=getattr(options, "control", None),
    )


def calibration(wanted, as_json):
    code, result = calibrate.calibrate(wanted)
    if result is None:
        return code
    print(json.dumps(result) if as_json else calibrate.table(result))
    return 0 if result["valid"] else 1


def say(words):
    """Tells it on standard error, which may be a terminal that is gone."""
    with contextlib.suppress(OSError):
        print(f"lab: {words}", file=sys.stderr, flush=True)


def main():
    options = parser().parse_args()
    # A polite kill and a terminal that goes away end as Ctrl-C does: the guest is killed, nothing is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        wanted = request(options)
        if options.what == "shell":
            return run.shell(wanted)
        if options.what == "calibrate":
            return calibration(wanted, options.json)
        return (vng.run if options.runner == "vng" else run.direct)(wanted)[0]
    except LabError as error:
        say(error)
        return verdict.LAB_ERROR
    except KeyboardInterrupt:
        say("interrupted, the guest is killed")
        return verdict.INTERRUPTED
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say("nobody reads the output any more, the guest is killed")
        return verdict.INTERRUPTED
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else error)
        return verdict.LAB_ERROR


if __name__ == "__main__":
    sys.exit(main())
