# SPDX-License-Identifier: GPL-2.0-only
"""Compares the machine model with the timing lab, workload by workload, and writes the table of docs/machine-model.md.

The lab's side are the experiments in docs/results (tests/results.py). The model runs the scenario of the same name on the same
machine, made as long as the lab's oracle was, starts and phases too; so only ratios between arms are compared. Where the lab's
options change what runs, and where its bounds are built and not the best or worst there are, the model runs the same: VARIANTS and
BOUNDS. Seconds of one core.

usage: tests/model_lab.py [--tandem PROGRAM] [--seeds N]
"""

import argparse
import json
from pathlib import Path
import statistics
import subprocess
import sys

from policies import put, table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
DOCUMENT = ROOT / "docs" / "machine-model.md"
# The lab's arm for each of the model's; its kernel has cache-aware scheduling.
ARMS = {"eevdf-llc": "stock-nb0", "autonuma-llc": "stock-nb1", "worst": "worst"}
SCENARIOS = ROOT / "tests" / "scenarios"
# The scenario of an experiment whose options change which programs run when.
VARIANTS = {
    "queue:--programs 1 --work 25": SCENARIOS / "lab-queue.toml",
    "interactive:--work 25 --scale 3": SCENARIOS / "lab-interactive.toml",
}
# The model's arm with the lab's placement, and its scenario if that is another one; by workload, or by workload and machine. What
# is not here is searched for. The lab's worst of `migration` where no node has a CPU for each thread: as it starts.
ONE_NODE_EACH = {"oracle": ("direct", None), "worst": ("direct-far", None)}
BOUNDS = {
    "queue": ONE_NODE_EACH,
    "interactive": ONE_NODE_EACH,
    "mixed": {"oracle": ("eevdf", SCENARIOS / "lab-mixed.toml")},
    "migration, ring4": {"worst": ("eevdf", None)},
}
GOAL = 0.15
# NUMA balancing begins a second after a thread: shorter runs of the lab say nothing of what it reaches.
BALANCING_ACTS_S = 2.0
# Arms nearer to each other than this have no order.
ALIKE = 0.03


def lab_times(experiment):
    """Median seconds of each arm; of a workload that counts something else, of its timed part."""

    def seconds(arm):
        reports = [boot["report"] for boot in arm["boots"]]
        return statistics.median(report["value" if report["unit"] == "s" else "seconds"] for report in reports)

    return {arm["name"]: seconds(arm) for arm in experiment["arms"] if arm["boots"]}


def lab_ratios(experiment):
    """Ratio to oracle and remote share by the model's names of the arms; empty if the lab has no oracle."""
    times = lab_times(experiment)
    remote = {arm["name"]: arm["remote_share"] for arm in experiment["arms"]}
    if "oracle" not in times:
        return {}
    said = [theirs for theirs in times if theirs != "stock-nb1" or times[theirs] >= BALANCING_ACTS_S]
    return {ours: (times[theirs] / times["oracle"], remote[theirs]) for ours, theirs in ARMS.items() if theirs in said}


def model_ratios(arms):
    """Ratio to oracle and remote share, from each arm's seconds and remote share."""
    return {name: (arms[name][0] / arms["oracle"][0], arms[name][1]) for name in ARMS}


def chosen(workload, machine):
    """The scenario of an experiment, and for each of our names the model's arm and its scenario."""
    name = workload.partition(":")[0]
    scenario = VARIANTS.get(workload, name)
    bounds = BOUNDS.get(name, {}) | BOUNDS.get(f"{name}, {machine}", {})
    said = {ours: bounds.get(ours, (ours, None)) for ours in ("oracle", *ARMS)}
    return {ours: (arm, other or scenario) for ours, (arm, other) in said.items()}


def same_order(lab, model):
    """Whether no two arms stand the other way round; such as are alike in one of the two have no order."""
    names = [name for name in ARMS if name in lab]
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            in_lab, in_model = (ratios[one][0] / ratios[other][0] for ratios in (lab, model))
            clear = abs(in_lab - 1) > ALIKE and abs(in_model - 1) > ALIKE
            if clear and (in_lab > 1) != (in_model > 1):
                return False
    return True


def misses(lab, model):
    """Arms whose ratio in the model is off by more than the goal, with the share by which."""
    off = {name: model[name][0] / lab[name][0] - 1 for name in lab}
    return {name: share for name, share in off.items() if abs(share) > GOAL}


def row(machine, workload, seconds, lab, model):
    """The table's line for a workload with its options."""
    off = misses(lab, model)
    cells = []
    for name in ARMS:
        if name not in lab:
            cells.append("-")
            continue
        (in_lab, remote_lab), (in_model, remote_model) = lab[name], model[name]
        shares = f" ({100 * remote_lab:.0f} / {100 * remote_model:.0f} %)" if remote_lab is not None else ""
        mark = "**" if name in off else ""
        cells.append(f"{in_lab:.2f} / {mark}{in_model:.2f}{mark}{shares}")
    verdict = "yes" if same_order(lab, model) else "no"
    furthest = max((model[name][0] / lab[name][0] - 1 for name in lab), key=abs)
    return [f"{workload}, {machine}", f"{seconds:.2f} s", *cells, verdict, f"{100 * furthest:+.0f} %"]


def simulate(tandem, machine, workload, seconds, seeds):
    """Seconds and remote share by our names."""
    names, found = chosen(workload, machine), {}
    for scenario in {scenario for _, scenario in names.values()}:
        wanted = {ours: arm for ours, (arm, of) in names.items() if of == scenario}
        words = ["--machine", ROOT / f"vm/machines/{machine}.toml", "--scenario", scenario, "--policies", ",".join(wanted.values())]
        words += ["--seconds", f"{seconds:.6f}", "--scale-times", "--seeds", str(seeds), "--json"]
        done = subprocess.run([tandem, "sim", *words], stdout=subprocess.PIPE, check=True)
        arms = {arm["name"]: (arm["time_s"], arm["remote_share"]) for arm in json.loads(done.stdout)["arms"]}
        found |= {ours: arms[arm] for ours, arm in wanted.items()}
    return found


def as_long(tandem, machine, workload, lab_s, seeds):
    """The ideal length, and the model's run whose oracle takes about as long as the lab's: lengths are nearly in proportion."""
    seconds = lab_s * lab_s / simulate(tandem, machine, workload, lab_s, 1)["oracle"][0]
    return seconds, simulate(tandem, machine, workload, seconds, seeds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tandem", type=Path, default=ROOT / "build/bin/tandem")
    parser.add_argument("--seeds", type=int, default=3)
    wanted = parser.parse_args()
    listed = subprocess.run([wanted.tandem, "sim", "--list"], capture_output=True, check=True, text=True).stdout
    known = {line.split()[0] for line in listed.splitlines()}
    rows = []
    for file in sorted(RESULTS.rglob("*.json")):
        experiment = json.loads(file.read_text())
        machine, text = experiment["machine"], experiment["workload"]
        workload = text.partition(":")[0]
        lab = lab_ratios(experiment)
        if workload not in known or not lab:
            continue
        seconds, arms = as_long(wanted.tandem, machine, text, lab_times(experiment)["oracle"], wanted.seeds)
        rows.append(row(machine, text, seconds, lab, model_ratios(arms)))
    if not rows:
        print(f"no experiment with an oracle in {RESULTS}; measure some: tests/results.py", file=sys.stderr)
        return 1
    heads = [f"{ours}, {theirs}" if ours != theirs else ours for ours, theirs in ARMS.items()]
    content = table(["workload, machine", "length", *heads, "same order", "furthest off"], rows)
    DOCUMENT.write_text(put(DOCUMENT.read_text(), "lab", content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
