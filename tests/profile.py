# SPDX-License-Identifier: GPL-2.0-only
"""The exact profile of workloads whose sharing is known.

usage: profile.py [BUILD_DIR]
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
THREADS = 8


def matrix(*workload):
    """Meetings of the eight working threads of a tandem-load workload, and the nodes recommended for them."""
    command = [BUILD / "bin/tandem", "profile", "--exact", "--machine", ROOT / "vm/machines/ring4.toml", "--json", "-", "--",
               BUILD / "bin/tandem-load", *workload, "--threads", str(THREADS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    profile = json.loads(done.stdout)
    busiest = max(profile["threads"], key=lambda thread: thread["instructions"])["process"]
    workers = [at for at, thread in enumerate(profile["threads"]) if thread["process"] == busiest][1:]
    cells = {(one, other): count for one, other, count in profile["events"]}
    assert len(workers) == THREADS, profile["threads"]
    return {(i, j): cells.get((workers[i], workers[j]), 0) for i in range(THREADS) for j in range(i + 1, THREADS)}, \
        [profile["placements"][-1]["nodes"][worker] for worker in workers]


class KnownSharing(unittest.TestCase):
    # Threads that wait for each other meet too, each with all, the more often the less the host runs them at the same time.
    def assert_apart(self, high, low, times):
        self.assertGreater(min(high.values()), times * max(low.values()))

    def test_pairs_share_with_their_partner_and_are_placed_with_it(self):
        cells, nodes = matrix("pairs", "--shared-mib", "1", "--passes", "60")
        partners = {pair: count for pair, count in cells.items() if pair[1] == pair[0] + THREADS // 2}
        self.assert_apart(partners, {pair: count for pair, count in cells.items() if pair not in partners}, 10)
        for one, other in partners:
            self.assertEqual(nodes[one], nodes[other], nodes)

    def test_a_ring_shares_with_both_neighbours(self):
        cells, _ = matrix("ring", "--array-mib", "8", "--steps", "20")
        neighbours = {pair: count for pair, count in cells.items() if pair[1] - pair[0] in (1, THREADS - 1)}
        self.assert_apart(neighbours, {pair: count for pair, count in cells.items() if pair not in neighbours}, 3)

    def test_all_shared_is_flat(self):
        cells, _ = matrix("all-shared", "--shared-mib", "1", "--passes", "60")
        self.assertGreater(min(cells.values()), 0.8 * max(cells.values()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = Path(sys.argv.pop())
    unittest.main()
