# SPDX-License-Identifier: GPL-2.0-only
"""`tandem doctor --calibrate` where caches and distances are known, in a guest of the timing lab: SAM's thresholds.

usage: python3 -m unittest discover -v -s tests -p 'boot_calibration.py'
"""

import tomllib
import unittest

import accuracy

BEGIN = "--- calibration"


class Calibration(unittest.TestCase):
    def test_all_thresholds_are_found(self):
        command = f"tandem doctor --calibrate /tmp/calibration.toml >&2; echo '{BEGIN}'; cat /tmp/calibration.toml"
        output = accuracy.guest("2node", command, [accuracy.ROOT / "build/bin/tandem"])
        text = output.split(BEGIN)[1].replace("\r", "")
        print(text, flush=True)
        calibration = tomllib.loads(text)
        (near, far), _ = calibration["latency_ns"]
        self.assertTrue(near > 80 and 1.8 < far / near < 2.2, text)
        parameters = calibration["parameters"]
        sam = {name.removeprefix("sam."): value for name, value in parameters.items() if name.startswith("sam.")}
        # Remote memory takes longer than local memory here, so that there is a rate at which it costs 5 %.
        self.assertIn("remote_per_cycle", sam, text)
        self.assertTrue(0 < sam["remote_per_cycle"] < 1, text)
        self.assertGreater(sam["bandwidth_per_s"], 1e6, text)


if __name__ == "__main__":
    unittest.main()
