#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""CPUs that the kernel was told to keep apart: with isolcpus= the kernel loads no sched_ext scheduler, and scx_tandem says so
in one sentence; without the tick (nohz_full=) it schedules as ever.

usage: isolation.py BIN_DIR KERNEL     (some minutes; KERNEL: a release in vm/kernels.list)
"""

import pathlib
import sys
import unittest

import guest

BIN_DIR, KERNEL = pathlib.Path(), ""
# Who gets how much, with and without a thread bound to the CPU without a tick (the last one); and that CPU comes and goes.
WITHOUT_A_TICK = [
    "hogs_with_a_cpu_each_get_nearly_all_of_it", "cpu_time_goes_by_weight", "pinned_threads_run_on_their_cpu_only",
    "a_pinned_thread_shares_its_cpu_with_others", "every_cpu_comes_and_goes_without_an_agent",
]


class Isolation(unittest.TestCase):
    def test_isolated_cpus_are_refused_in_words(self):
        status, said = guest.lab("2x4", KERNEL, [BIN_DIR / "scx_tandem"], ["scx_tandem"], ("--append", "isolcpus=3"), 120)
        self.assertEqual(status, 1, said)
        self.assertIn("scx_tandem: the kernel was booted with isolcpus=3", said)

    def test_a_cpu_without_a_tick_is_scheduled_as_ever(self):
        programs = [BIN_DIR / "scx_tandem", BIN_DIR / "guest-tests"]
        each = "\n".join(f"guest-tests --exact {name} || exit 1" for name in WITHOUT_A_TICK)
        command = ["sh", "-c", f"cat /sys/devices/system/cpu/nohz_full\n{each}"]
        status, said = guest.lab("2x4", KERNEL, programs, command, ("--append", "nohz_full=7 rcu_nocbs=7"), 900)
        self.assertEqual(status, 0, said)
        self.assertTrue(said.startswith("7"), said)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    BIN_DIR, KERNEL = pathlib.Path(sys.argv[1]), sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)
