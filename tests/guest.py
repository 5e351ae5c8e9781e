#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs the in-guest tests on one machine with one kernel.

usage: guest.py BIN_DIR MACHINE KERNEL [ARGUMENT...]
(MACHINE: a name in vm/machines; KERNEL: a release in vm/kernels.list; two_nodes, which moves pages, runs too unless guest-tests
is told what to run; what it is to leave out is no such thing)
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = int(os.environ.get("TANDEM_GUEST_LIMIT_S", "1800"))
PANIC = 122
# The kernel patches its code under a breakpoint. Emulated CPUs that run in parallel may, under load, still run the
# breakpoint after it is gone; hardware does not.
EMULATOR_FAULT = "Oops: int3"
BOOTS = 3
# An emulated machine shares its host: a test may miss its deadline for nothing. This many get a second attempt, alone in a
# machine of their own; more than that are a fault of the product.
SECOND_ATTEMPTS = 4


def is_emulator_fault(status: int, output: str) -> bool:
    """Whether a run of lab.py that ended with `status` and said `output` ended by no fault of the guest's."""
    return status == PANIC and EMULATOR_FAULT in output


def failed_tests(output: str) -> list[str]:
    """The names in the closing list of a run of guest-tests; none if it did not get that far."""
    *_, listed = output.replace("\r", "").rpartition("\nfailures:\n")
    names, ended, _ = listed.partition("\ntest result: ")
    return re.findall(r"^ {4}([\w:]+)$", names, re.MULTILINE) if ended else []


def passed_tests(output: str) -> list[str]:
    """The names of those that passed in a run of guest-tests that may have broken off."""
    blocks = re.split(r"^test (\w+)\s+\.\.\. ", output.replace("\r", ""), flags=re.MULTILINE)[1:]
    return [name for name, said in zip(blocks[::2], blocks[1::2]) if re.search(r"^ok\n+\Z", said, re.MULTILINE)]


def resumed(command: list[str], output: str) -> list[str]:
    """The command for what a broken run of guest-tests had not come to; any other begins anew."""
    passed = passed_tests(output) if command[0] == "guest-tests" else []
    if passed:
        print(f"test result: resumed. {len(passed)} passed; 0 failed")
    return command + [word for name in passed for word in ("--skip", name)]


def is_choice(arguments: list[str]) -> bool:
    """Whether arguments for guest-tests say more than what to leave out."""
    return arguments[::2] != ["--skip"] * (len(arguments) // 2) or len(arguments) % 2 == 1


def lab(
    machine: str, kernel: str, programs: list[pathlib.Path], command: list[str], options: tuple[str, ...] = (),
    limit_s: int = LIMIT_S,
) -> tuple[int, str]:
    """Runs a command in a guest, with more options of lab.py; its output goes to ours. Returns its exit status and the output."""
    additions = [word for program in programs for word in ("--add", str(program))]
    arguments = [
        ROOT / "vm/lab.py", "run", "--machine", ROOT / f"vm/machines/{machine}.toml", "--kernel", kernel,
        "--timeout", str(limit_s), *options, *additions, "--",
    ]
    for _ in range(BOOTS):
        done = subprocess.run([*arguments, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, flush=True)
        if not is_emulator_fault(done.returncode, done.stdout):
            break
        print("the emulator ran a breakpoint that the kernel had removed before: once more, from where it was")
        command = resumed(command, done.stdout)
    return done.returncode, done.stdout


def scheduler(bin_dir: pathlib.Path, machine: str, kernel: str, chosen: list[str]) -> int:
    """Runs guest-tests, and what failed of it a second time."""
    programs = [bin_dir / "guest-tests", bin_dir / "scx_tandem", bin_dir / "tandem"]
    status, output = lab(machine, kernel, programs, ["guest-tests", *chosen])
    failed = failed_tests(output)
    if not 0 < len(failed) <= SECOND_ATTEMPTS:
        return status
    for name in failed:
        print(f"{name} failed: a second attempt, alone", flush=True)
        again, _ = lab(machine, kernel, programs, ["guest-tests", "--include-ignored", "--exact", name])
        if again:
            return again
        print(f"passed at the second attempt: {name}", flush=True)
    return 0


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    bin_dir, machine, kernel, *chosen = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    scheduled = scheduler(bin_dir, machine, kernel, chosen)
    if is_choice(chosen):
        sys.exit(scheduled)
    moved, _ = lab(machine, kernel, [bin_dir / "two_nodes"], ["two_nodes"])
    sys.exit(scheduled or moved)


if __name__ == "__main__":
    main()
