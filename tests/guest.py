#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs the in-guest tests on one machine with one kernel.

usage: guest.py BIN_DIR MACHINE KERNEL [ARGUMENT...]
(MACHINE: a name in vm/machines; KERNEL: a release in vm/kernels.list; with arguments for guest-tests only that runs)
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 800
PANIC = 122
# The kernel patches its code under a breakpoint. Emulated CPUs that run in parallel may, under load, still run the
# breakpoint after it is gone; hardware does not.
EMULATOR_FAULT = "Oops: int3"


def lab(machine: str, kernel: str, programs: list[pathlib.Path], command: list[str]) -> int:
    """Runs a command in a guest; its output goes to ours."""
    additions = [word for program in programs for word in ("--add", str(program))]
    arguments = [
        ROOT / "vm/lab.py", "run", "--machine", ROOT / f"vm/machines/{machine}.toml", "--kernel", kernel,
        "--timeout", str(LIMIT_S), *additions, "--", *command,
    ]
    for _ in range(3):
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, flush=True)
        if done.returncode != PANIC or EMULATOR_FAULT not in done.stdout:
            break
        print("the emulator ran a breakpoint that the kernel had removed before: once more")
    return done.returncode


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    bin_dir, machine, kernel, *chosen = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    scheduler = lab(machine, kernel, [bin_dir / "guest-tests", bin_dir / "scx_tandem"], ["guest-tests", *chosen])
    if chosen:
        sys.exit(scheduler)
    mover = lab(machine, kernel, [bin_dir / "two_nodes"], ["two_nodes"])
    sys.exit(scheduler or mover)


if __name__ == "__main__":
    main()
