# SPDX-License-Identifier: GPL-2.0-only
"""HTML reports as a browser shows them: every plot is there, legible, and fits, in the light and in the dark.

usage: reports.py [BUILD_DIR [PICTURES_DIR]]     PICTURES_DIR: where to leave a picture of each page
"""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import SCHEMES, Browser, pixels

ROOT = Path(__file__).resolve().parent.parent
BUILD, PICTURES = ROOT / "build", None
PROFILE_PLOTS = ["Who shares with whom", "Phases", "Amount of sharing", "Exclusivity of pages", "Local accesses over time",
                 "Memory by node over time", "Balance of memories", "Footprint"]
AB_PLOTS = ["seconds per arm", "Remote share of memory accesses over time", "Load per node over time"]
SIM_PLOTS = ["Seconds per arm", "Remote share of memory accesses", "Moved memory"]
REPLAY_PLOTS = ["Remote share of memory accesses over time", "Mean latency over time", "Predicted gain", "Moves"]
# With two CPUs there is one number of threads and no axis to compare.
TUNE_PLOTS = ["The fastest configurations"] + (["Speed-ups by axis"] if os.cpu_count() > 2 else [])
# A program that is faster with more threads, up to what the machine has.
PROGRAM = "#!/bin/sh\nexec sleep $(awk -v threads=$2 'BEGIN { print 0.05 + 0.1 / threads }')\n"
# As userspace/ab/src/charts.rs has them.
COLOURS = [(43, 131, 217), (226, 106, 32), (47, 158, 82), (196, 62, 87), (139, 98, 208)]
# A browser rounds colours by a little where it blends.
NEAR = 12
LEAST_COLOURED, LEAST_INK = 30, 100
# Texts of plots that lie beyond their plot and are cut off there; a pixel is forgiven.
CUT = """return [...document.querySelectorAll('svg')].flatMap(svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => {
        const own = text.getBoundingClientRect();
        return own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1;
    }).map(text => text.textContent.trim()).filter(text => text);
})"""
TITLES = "return [...document.querySelectorAll('h2')].map(title => title.textContent)"
WIDER = "return document.documentElement.scrollWidth - window.innerWidth"
LOADED = "return performance.getEntriesByType('resource').map(entry => entry.name)"
HEIGHT = "return document.documentElement.scrollHeight"


def run(*command):
    """Runs a program of ours, which must work."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def profile(page):
    """The profile of a program whose phases share differently, and whose path is one long word."""
    program = page.parent / ("a" * 60)
    program.symlink_to(BUILD / "bin/tandem-load")
    run(BUILD / "bin/tandem", "profile", "--exact", "--machine", ROOT / "vm/machines/ring4.toml", "--html", page, "--json",
        page.with_suffix(".json"), "--", program, "pairs", "--threads", 8, "--shared-mib", 1, "--passes", 40)


def experiment(page):
    """The report of an experiment in a lab that is only played."""
    folder = page.parent / "lab"
    (folder / "machines").mkdir(parents=True)
    shutil.copy(ROOT / "userspace/ab/tests/fake_lab.py", folder / "lab.py")
    (folder / "lab.py").chmod(0o755)
    shutil.copy(ROOT / "vm/machines/2node.toml", folder / "machines")
    shutil.copy(ROOT / "vm/kernels.list", folder)
    seconds = {"stock-nb0": 8.0, "stock-nb1": 4.9, "stock-nb0-thp": 7.9, "stock-nb1-thp": 5.5, "oracle": 4.0}
    walks = [{"from": 0, "to": node, "ns": ns, "file_ns": ns} for node, ns in ((0, 90.0), (1, 180.0))]
    (folder / "behaviour.json").write_text(json.dumps({"seconds": seconds, "walks": walks}))
    run(BUILD / "bin/tandem", "ab", "--lab", folder / "lab.py", "--store", page.parent / "store", "--machine", "2node",
        "--workload", "crossed", "--arms", "stock,oracle", "--boots", 2, "--html", page)


def simulation(page):
    """The report of a simulation."""
    run(BUILD / "bin/tandem", "sim", "--machine", ROOT / "vm/machines/2node.toml", "--scenario", "ring", "--policies",
        "eevdf,oracle,sma+tmma", "--seconds", "2", "--html", page)


def replay(page):
    """The report of a recording that is replayed with other policies."""
    recording = ROOT / "userspace/trace/tests/version-1.trace"
    run(BUILD / "bin/tandem", "replay", recording, "--policy", "none+locality", "--html", page)


def tuning(page):
    """The report of the search for the best configuration of a program."""
    folder = page.parent / "tuned"
    folder.mkdir()
    program = folder / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    run(BUILD / "bin/tandem", "tune", "--repeats", 4, "--output", folder / "result.toml", "--store", folder / "runs.sqlite",
        "--html", page, "--", program, "-t", "{threads}")


REPORTS = {"profile": profile, "ab": experiment, "sim": simulation, "replay": replay, "tune": tuning}


def near(one, other):
    """Whether two colours are the same but for rounding."""
    return all(abs(a - b) <= NEAR for a, b in zip(one, other))


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.pages = {name: Path(cls.folder.name) / f"{name}.html" for name in REPORTS}
        for name, report in REPORTS.items():
            report(cls.pages[name])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_plot_of_a_profile_is_drawn_and_legible(self):
        self.judge("profile", PROFILE_PLOTS)

    def test_every_plot_of_an_experiment_is_drawn_and_legible(self):
        self.judge("ab", AB_PLOTS)

    def test_every_plot_of_a_simulation_is_drawn_and_legible(self):
        self.judge("sim", SIM_PLOTS)

    def test_every_plot_of_a_replay_is_drawn_and_legible(self):
        self.judge("replay", REPLAY_PLOTS)

    def test_the_plot_of_a_tuning_is_drawn_and_legible(self):
        self.judge("tune", TUNE_PLOTS)

    def judge(self, name, plots):
        for scheme in SCHEMES:
            with self.subTest(f"{name}, {scheme}"), Browser(scheme) as browser:
                browser.open(self.pages[name])
                titles = browser.run(TITLES)
                self.assertEqual([plot for plot in plots if plot not in titles], [], titles)
                drawn = browser.all("svg")
                self.assertGreaterEqual(len(drawn), len(plots))
                # A picture of an element is of what the window shows of it.
                self.show_all(browser)
                for at, plot in enumerate(drawn):
                    self.assert_legible(pixels(browser.picture(plot)), scheme, f"plot {at}")
                self.assertEqual(browser.run(CUT), [], "labels that are cut off")
                self.assertEqual(browser.run(LOADED), [], "a report needs nothing but itself")
                browser.resize(500, 900)
                self.assertLessEqual(browser.run(WIDER), 0, "it fits a narrow window")
                if PICTURES:
                    self.leave_picture(browser, f"{name}-{scheme}")

    def assert_legible(self, rows, scheme, which):
        paper = rows[0][0]
        bright = sum(paper) / 3
        self.assertTrue(bright < 60 if scheme == "dark" else bright > 230, f"{which}: paper is {paper}")
        seen = [pixel for row in rows for pixel in row if pixel != paper]
        coloured = sum(any(near(pixel, colour) for colour in COLOURS) for pixel in seen)
        self.assertGreater(coloured, LEAST_COLOURED, f"{which}: no data")
        # Axes and labels are far from the paper, and grey.
        ink = sum(abs(sum(pixel) / 3 - bright) > 90 and max(pixel) - min(pixel) < 24 for pixel in seen)
        self.assertGreater(ink, LEAST_INK, f"{which}: no labels")

    @staticmethod
    def show_all(browser):
        browser.resize(1000, 900)
        browser.resize(1000, browser.run(HEIGHT) + 200)

    def leave_picture(self, browser, name):
        self.show_all(browser)
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(browser.picture())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        PICTURES = Path(sys.argv.pop())
    if len(sys.argv) > 1:
        BUILD = Path(sys.argv.pop()).resolve()
    unittest.main()
