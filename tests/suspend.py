#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A machine that its hypervisor suspends while scx_tandem runs, with more threads than CPUs: the scheduler is the same
afterwards, and every thread gets on.

usage: suspend.py BIN_DIR KERNEL     (about a minute; KERNEL: a release in vm/kernels.list)
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longer than the kernel lets a thread wait before it ejects a scheduler (20 s), and than a CPU may be stuck.
SUSPENDED_S = 45
HOGS = 12
SUSPEND_NOW = "suspend me now"
# It is suspended where it says so. The real-time clock goes on meanwhile, its uptime does not.
SCRIPT = """
scx_tandem > /tmp/log 2>&1 &
scheduler=$!
until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
	kill -0 $scheduler || {{ cat /tmp/log; exit 1; }}
	sleep 0.1
done
sequence=$(cat /sys/kernel/sched_ext/enable_seq)
hogs=
for hog in $(seq {hogs}); do
	(while :; do :; done) &
	hogs="$hogs $!"
done
ran() {{ cut -d' ' -f14 /proc/$1/stat; }}
asleep() {{ echo $(($(cat /sys/class/rtc/rtc0/since_epoch) - $(cut -d. -f1 /proc/uptime))); }}
before=$(asleep)
echo {suspend_now}
until [ $(asleep) -gt $((before + 30)) ]; do sleep 0.2; done
for hog in $hogs; do
	until_now=$(ran $hog)
	until [ "$(ran $hog)" -gt "$until_now" ]; do sleep 0.1; done
done
echo "all get on after $(($(asleep) - before)) s of sleep"
echo "state $(cat /sys/kernel/sched_ext/state), loaded $(($(cat /sys/kernel/sched_ext/enable_seq) - sequence)) times more"
kill $scheduler
wait $scheduler
echo "scx_tandem ended with $?"
"""
BIN_DIR, KERNEL = pathlib.Path(), ""


class Control:
    """Takes commands to QEMU."""

    def __init__(self, path: pathlib.Path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("rw")

    def __enter__(self) -> "Control":
        self.do("qmp_capabilities")
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.socket.close()

    def do(self, name: str) -> None:
        """Gives a command, and waits until it is done."""
        self.lines.write(json.dumps({"execute": name}) + "\n")
        self.lines.flush()
        for line in self.lines:
            answer = json.loads(line)
            if "return" in answer:
                return
            if "error" in answer:
                raise RuntimeError(f"{name}: {answer['error']['desc']}")
        raise RuntimeError(f"{name}: QEMU has ended")


def suspended() -> str:
    """Runs the script in a guest and suspends that; what it said, and the lab's own sentences."""
    with tempfile.TemporaryDirectory(prefix="tandem-suspend-") as directory:
        path = pathlib.Path(directory) / "control"
        script = SCRIPT.format(hogs=HOGS, suspend_now=SUSPEND_NOW)
        command = [
            ROOT / "vm/lab.py", "run", "--machine", ROOT / "vm/machines/2x4.toml", "--kernel", KERNEL, "--timeout", "300",
            "--control", path, "--add", BIN_DIR / "scx_tandem", "--", "sh", "-c", script,
        ]
        said = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
            for line in lab.stdout:
                said.append(line)
                if line.strip() == SUSPEND_NOW:
                    with Control(path) as control:
                        control.do("stop")
                        time.sleep(SUSPENDED_S)
                        control.do("cont")
        return "".join(said)


class Suspend(unittest.TestCase):
    def test_a_machine_that_was_suspended_goes_on_with_the_same_scheduler(self):
        said = suspended()
        self.assertIn("state enabled, loaded 0 times more", said)
        self.assertIn("scx_tandem ended with 0", said)
        slept_s = int(re.search(r"after (\d+) s of sleep", said)[1])
        self.assertGreaterEqual(slept_s, SUSPENDED_S - 2, said)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    BIN_DIR, KERNEL = pathlib.Path(sys.argv[1]), sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)
