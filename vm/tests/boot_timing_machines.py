# SPDX-License-Identifier: GPL-2.0-only
"""Every machine file in the timing lab: memory costs what the file says, between all nodes.

usage: python3 -m unittest discover -v -s vm/tests -p 'boot_timing_machines.py'     (half a minute to some minutes each)
"""

import json
from pathlib import Path
import subprocess
import tempfile
import unittest

from machines import VM


class Machines(unittest.TestCase):
    def check(self, path):
        done = subprocess.run(
            [VM / "lab.py", "calibrate", "--quiet", "--json", "--timeout", "900", "--machine", path],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads(done.stdout)
        self.assertLessEqual(result["worst_error"], 0.01)

    def test_as_many_cpus_and_nodes_as_the_plugin_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "most.toml"
            path.write_text((VM / "machines/8node.toml").read_text().replace("cpus_per_node = 2", "cpus_per_node = 4"))
            self.check(path)


def add_checks():
    for path in sorted((VM / "machines").glob("*.toml")):
        setattr(Machines, f"test_{path.stem}", lambda self, path=path: self.check(path))


add_checks()

if __name__ == "__main__":
    unittest.main()
