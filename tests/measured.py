# SPDX-License-Identifier: GPL-2.0-only
"""Runs one experiment of `tandem ab` in the timing lab, for tests. It shares nothing with other experiments."""

import json
from pathlib import Path
import subprocess
import tempfile

TANDEM = Path(__file__).resolve().parent.parent / "build" / "bin" / "tandem"


def arms(test, workload, names, boots):
    """The arms of this workload on two nodes by name, so many boots each; `test` fails where one of them does."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [TANDEM, "ab", "--machine", "2node", "--workload", workload, "--arms", ",".join(names), "--boots", str(boots),
             "--json", out, "--store", Path(folder) / "store"],
            capture_output=True, text=True, check=False,
        )
        test.assertEqual(done.returncode, 0, done.stderr)
        return {arm["name"]: arm for arm in json.loads(out.read_text())["arms"]}
