#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A scheduler that the kernel ejects: the lab and scx_tandem both say why.

usage: ejection.py BIN_DIR KERNEL...     (about 30 s a kernel; KERNEL: a release in vm/kernels.list)
"""

import pathlib
import subprocess
import sys
import unittest

import guest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCX_EXIT = 120
# A real-time hog keeps a CPU from a thread that may run nowhere else, until the kernel's watchdog gives up on us. The
# kernel's servers, which would lend that thread some time, are switched off on that CPU.
STARVE = """
scx_tandem --dry-run > /tmp/log 2>&1 &
scheduler=$!
until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
	kill -0 $scheduler || exit 1
	sleep 0.1
done
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
for server in /sys/kernel/debug/sched/*_server/cpu1/runtime; do
	echo 0 > "$server"
done
taskset 2 chrt -f 10 sh -c 'while :; do :; done' &
hog=$!
# Its name is no text, as that of a thread may be; the kernel's dump has it.
sh -c 'printf "caf\\303" > /proc/$$/comm; taskset -p 2 $$ > /dev/null; while :; do :; done' &
# The hog must go before the rest: work that the kernel has for its CPU would wait for ever.
until [ "$(cat /sys/kernel/sched_ext/state)" = disabled ]; do
	sleep 0.1
done
kill -9 $hog
wait $scheduler
code=$?
tail -n 1 /tmp/log
grep -m 1 caf /tmp/log
ls -d /sys/fs/bpf/scx_tandem
echo "state $(cat /sys/kernel/sched_ext/state), exit code $code"
"""
BIN_DIR, KERNELS = pathlib.Path(), []


class Ejection(unittest.TestCase):
    def test_a_starved_thread_ends_the_scheduler_with_a_reason_everywhere(self):
        for kernel in KERNELS:
            with self.subTest(kernel):
                command = [
                    ROOT / "vm/lab.py", "run", "--quiet", "--machine", ROOT / "vm/machines/2x4.toml", "--kernel", kernel,
                    "--timeout", "180", "--add", BIN_DIR / "scx_tandem", "--add", "/usr/bin/chrt", "--", "sh", "-c", STARVE,
                ]
                for _ in range(guest.BOOTS):
                    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
                    if not guest.is_emulator_fault(done.returncode, done.stderr):
                        break
                self.assertEqual(done.returncode, SCX_EXIT, done.stdout + done.stderr)
                self.assertIn("runnable task stall", done.stderr)
                self.assertIn("runnable task stall", done.stdout)
                self.assertIn("caf\ufffd", done.stdout, "names in the dump are any bytes")
                self.assertIn("state disabled, exit code 1", done.stdout)
                self.assertIn("No such file", done.stdout, "nothing stays pinned")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    BIN_DIR, KERNELS = pathlib.Path(sys.argv[1]), sys.argv[2:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
