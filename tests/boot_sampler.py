# SPDX-License-Identifier: GPL-2.0-only
"""The `device` sampler in a guest of the timing lab: does it see the right node for each thread?

usage: python3 -m unittest discover -v -s tests -p 'boot_sampler.py'     (about a minute)
"""

import json
import unittest

import accuracy

# CPUs 0 to 3 are node 0, 4 to 7 node 1.
CPUS_PER_NODE = 4
# The worst placement: threads are pinned, their memory is bound to the other node.
COMMAND = """
tandem-load crossed --placement worst --threads 4 --processes 2 --seconds 4 --truth /tmp/truth > /tmp/load &
until [ -e /tmp/truth ]; do sleep 0.1; done
sampler-accuracy tandem-load 3 device
for task in /proc/[0-9]*/task/*; do
    grep -q '^Name:.tandem-load' $task/status && echo "pinned ${task##*/} $(grep Cpus_allowed_list $task/status)"
done
cat /tmp/truth
wait
"""


class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        programs = [accuracy.ROOT / "build/bin/tandem-load", accuracy.PROGRAM]
        output = accuracy.guest("2node", COMMAND, programs)
        words = [line.split() for line in output.splitlines()]
        cls.cpus = {line[1]: line[-1] for line in words if line[:1] == ["pinned"]}
        documents = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        cls.lines = [document for document in documents if "samplers" in document]
        cls.threads = [document for document in documents if "workload" in document][0]["threads"]

    def test_it_sees_the_right_node_for_each_thread(self):
        self.assertEqual(len(self.threads), 4)
        rows = self.lines[-1]["samplers"]["device"]["threads"]
        for thread in self.threads:
            tid = str(thread["tid"])
            node = int(self.cpus[tid]) // CPUS_PER_NODE
            self.assertEqual(accuracy.argmax(rows.get(tid, [])), 1 - node, (tid, self.cpus, rows))
            # Nothing of the workload's is on its own node.
            self.assertGreater(rows[tid][1 - node], 0.95 * sum(rows[tid]))

    def test_it_sees_about_as_many_accesses_as_there_are(self):
        truth, said = self.lines[-1]["truth"], self.lines[-1]["samplers"]["device"]
        seconds = self.lines[-1]["time_s"] - self.lines[-2]["time_s"]
        for thread in self.threads:
            tid = str(thread["tid"])
            # One miss in 64 is in the ring.
            true_per_s = 64 * sum(truth["threads"][tid]) / seconds
            self.assertAlmostEqual(sum(said["threads"][tid]) / true_per_s, 1, delta=0.1, msg=tid)

    def test_counters_agree_with_samples_and_with_each_other(self):
        before, last = self.lines[-2], self.lines[-1]
        counted = {name: count - before["counted"]["lines"][name] for name, count in last["counted"]["lines"].items()}
        # One miss in 64 is in the ring, and these threads share nothing.
        seen = sum(sum(row) for row in last["truth"]["threads"].values())
        self.assertAlmostEqual(counted["l3_misses"] / (64 * seen), 1, delta=0.1, msg=counted)
        self.assertGreater(counted["remote_memory"], 0.95 * counted["l3_misses"])
        self.assertLess(counted["remote_modified"], 0.01 * counted["l3_misses"])
        self.assertGreaterEqual(counted["l2_misses"], counted["l3_hits"] + counted["l3_misses"])
        busy_ns = last["counted"]["cycles"] - before["counted"]["cycles"]
        interval_ns = 1e9 * (last["time_s"] - before["time_s"])
        # Each has a CPU of its own, whose clock has 1 GHz.
        self.assertAlmostEqual(busy_ns / interval_ns, len(self.threads), delta=0.04)
        instructions = last["counted"]["instructions"] - before["counted"]["instructions"]
        self.assertTrue(0 < instructions < busy_ns, (instructions, busy_ns))

    def test_nothing_of_the_ring_is_lost(self):
        self.assertEqual(self.lines[-1]["truth"]["overrun"], 0)


if __name__ == "__main__":
    unittest.main()
