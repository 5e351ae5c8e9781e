#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own self-tests of sched_ext, from the source of the guest's kernel, in one guest: before scx_tandem was ever
loaded, and again after it was loaded and unloaded many times. Both must give the same results.

usage: selftests.py BIN_DIR KERNEL     (KERNEL: a release in vm/kernels.list; TANDEM_SELFTESTS: part of a self-test's name)
"""

import os
import pathlib
import re
import subprocess
import sys

import guest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = int(os.environ.get("TANDEM_GUEST_LIMIT_S", "3000"))
CYCLES = 50
# They have schedulers ejected on purpose; and they load so many programs that emulated CPUs side by side would not get through
# (guest.EMULATOR_FAULT).
OPTIONS = ("--allow-scx-exit", "--accel", "tcg-in-turn")
SCRIPT = """
selftests() {{
	echo "RESULTS $1"
	runner -q {chosen} 2>&1
	echo "END $1, state $(cat /sys/kernel/sched_ext/state)"
}}
selftests before
cycle=0
while [ $cycle -lt {cycles} ]; do
	scx_tandem > /tmp/log 2>&1 &
	until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
		kill -0 $! || {{ cat /tmp/log; exit 1; }}
		sleep 0.1
	done
	kill $!
	wait $! || {{ cat /tmp/log; exit 1; }}
	[ "$(cat /sys/kernel/sched_ext/state)" = disabled ] || exit 1
	cycle=$((cycle + 1))
done
echo "loaded and unloaded $cycle times"
selftests after
"""


def results(said: str, when: str) -> dict[str, str]:
    """What became of each self-test: `ok`, `not ok`, with SKIP if it was left out."""
    said = said.replace("\r", "")
    part = said.partition(f"RESULTS {when}\n")[2].partition(f"END {when}, state disabled\n")
    if not part[1]:
        sys.exit(f"the self-tests {when} did not end: see above")
    found = re.findall(r"^(ok|not ok) \d+ (\S+) # ?(SKIP)?", part[0], re.MULTILINE)
    return {name: f"{result} {skipped}".strip() for result, name, skipped in found}


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bin_dir, kernel = pathlib.Path(sys.argv[1]), sys.argv[2]
    built = subprocess.run([ROOT / "vm/setup/selftests.sh", ROOT / "build/cache", kernel], stdout=subprocess.PIPE, text=True, check=True)
    chosen = os.environ.get("TANDEM_SELFTESTS")
    script = SCRIPT.format(cycles=CYCLES, chosen=f"-t {chosen}" if chosen else "")
    programs = [bin_dir / "scx_tandem", pathlib.Path(built.stdout.strip())]
    status, said = guest.lab("2x4", kernel, programs, ["sh", "-c", script], OPTIONS, LIMIT_S)
    if status != 0:
        print(f"the guest ended with {status}")
        return 1
    before, after = results(said, "before"), results(said, "after")
    for name in sorted(before | after):
        print(f"{name:40} before: {before.get(name, 'not run'):10} after {CYCLES} cycles: {after.get(name, 'not run')}")
    if not before or before != after:
        print("the self-tests give other results after scx_tandem was loaded, or none ran")
        return 1
    print(f"{len(before)} self-tests give the same results: {sum(result == 'ok' for result in before.values())} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
