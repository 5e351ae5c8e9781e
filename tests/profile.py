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
    """Meetings of the eight working threads of a tandem-load workload, which its process creates first."""
    command = [BUILD / "bin/tandem", "profile", "--exact", "--machine", ROOT / "vm/machines/ring4.toml", "--json", "-", "--",
               BUILD / "bin/tandem-load", *workload, "--threads", str(THREADS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    profile = json.loads(done.stdout)
    busiest = max(profile["threads"], key=lambda thread: thread["instructions"])["process"]
    workers = [at for at, thread in enumerate(profile["threads"]) if thread["process"] == busiest][1:]
    cells = {(one, other): count for one, other, count in profile["events"]}
    assert len(workers) == THREADS, profile["threads"]
    return {(i, j): cells.get((workers[i], workers[j]), 0) for i in range(THREADS) for j in range(i + 1, THREADS)}, profile


class KnownSharing(unittest.TestCase):
    def test_pairs_share_with_their_partner_and_are_placed_with_it(self):
        cells, profile = matrix("pairs", "--shared-mib", "1", "--passes", "60")
        partners = {pair: count for pair, count in cells.items() if pair[1] == pair[0] + THREADS // 2}
        self.assertGreater(min(partners.values()), 100 * max(count for pair, count in cells.items() if pair not in partners))
        recommended = profile["placements"][-1]
        self.assertLess(recommended["across_nodes"], 0.01)

    def test_a_ring_shares_with_both_neighbours(self):
        cells, _ = matrix("ring", "--array-mib", "2", "--steps", "40")
        neighbours = {pair: count for pair, count in cells.items() if pair[1] - pair[0] in (1, THREADS - 1)}
        self.assertGreater(min(neighbours.values()), 5 * max(count for pair, count in cells.items() if pair not in neighbours))

    def test_all_shared_is_flat(self):
        cells, profile = matrix("all-shared", "--shared-mib", "1", "--passes", "60")
        self.assertGreater(min(cells.values()), 0.5 * max(cells.values()))
        heterogeneity = next(metric["value"] for metric in profile["metrics"] if metric["name"] == "C_H")
        self.assertLess(heterogeneity, 300)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = Path(sys.argv.pop())
    unittest.main()
