#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs every policy on every built-in scenario and three machines of the model, and writes the tables of docs/policies.md.

One command, about eight minutes of CPU time of one core; what is outside of the markers in the document is left alone. Runs are kept
below build/policies, so that --only-written writes the tables again without running anything.

usage: tests/policies.py [--seeds N] [--tandem PROGRAM] [--only-written | --only-extras]
"""

import argparse
import csv
import json
import math
from pathlib import Path
import statistics
import subprocess
import sys

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "policies"
DOCUMENT = ROOT / "docs" / "policies.md"
GRID = ROOT / "docs" / "policies.csv"
MACHINES = ("2node", "thanos-a", "thanos-b")
ARMS = "all,kmaf+kmaf,opt+opt"
REFERENCE = "autonuma"
BOUNDS = ("oracle", "worst", "direct", "interleave")
SYSTEM = ("eevdf", REFERENCE)
GATHERING = ("eevdf-llc", "autonuma-llc")
ADVERSARIAL = ("all-remote", "phase-thrash", "full-nodes", "oversubscribed")
FAMILIES = ("lab", "single", "thanos", "sam", "kmaf", "adversarial")
# Student's t at 97.5 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

# Times in per cent of the thesis's baseline: Single on its two machines, Interactive (accumulated) and Queue likewise.
THESIS = {
    "direct": ("Direct", 179, 275, 85.3, 895, 85, 90),
    "interleave": ("Interleave", 114, 78, 110.8, 99.7, 130, 117),
    "cra+none": ("CRA", 110, 91, 121.8, 113.1, 106, 105),
    "lbma+none": ("LBMA", 107, 93, 126.3, 106.2, 106, 97),
    "imar2+none": ("IMAR²", 97.5, 89, 105.5, 96.5, 105, 109),
    "cimar+none": ("CIMAR", 86.9, 86.5, 86.9, 96.6, 96, 93),
    "nimar+none": ("NIMAR", 86.6, 90, 91.2, 99.7, 89, 93),
    "sma+none": ("SMA", 87.7, 89, 87.8, 98.1, 89, 98),
    "dyrmma+none": ("DyRMMA", 92.5, 91, 111.8, 110.6, 117, 93),
    "none+rmma": ("RMMA", 175, 122, 132.4, 137.1, 121, 105),
    "none+tmma": ("TMMA", 96.7, 100.5, 97.0, 102.8, 100, 99),
    "none+lmma": ("LMMA", 96.2, 99, 100.1, 100.1, 99, 100),
}
THESIS_COLUMNS = (
    ("Single", "single"),
    ("Interactive", "thanos-interactive"),
    ("Queue", "thanos-queue"),
)

# What other papers say of time against their operating system, and which runs come nearest: claim, per cent of time in the
# paper, machine, scenarios, arm, source.
PAPERS = (
    ("kMAF, threads and pages", "86.2", "thanos-a", ("kmaf", "single"), "kmaf+kmaf", "kMAF: NAS, PARSEC, HPCC, mean"),
    ("its thread part alone", "93.6", "thanos-a", ("kmaf", "single"), "kmaf+none", "kMAF"),
    ("its page part alone", "98.0", "thanos-a", ("kmaf", "single"), "none+kmaf", "kMAF"),
    ("oracle", "84.7", "thanos-a", ("kmaf", "single"), "oracle", "kMAF: from full traces"),
    ("compact", "96.8", "thanos-a", ("kmaf", "single"), "compact+none", "kMAF"),
    ("OPT, threads and pages", "80.1", "thanos-a", ("kmaf", "single"), "opt+opt", "characterization: NAS D, PARSEC, HPCC, mean"),
    ("its thread part alone", "91.5", "thanos-a", ("kmaf", "single"), "opt+none", "characterization"),
    ("its page part alone", "96.8", "thanos-a", ("kmaf", "single"), "none+opt", "characterization"),
    ("autopin", "103.7", "thanos-a", ("kmaf", "single"), "autopin+none", "characterization: compact and 4 random mappings tried"),
    ("SAM, 26 mixes", "74..98", "2node", ("sam",), "sam+none", "SAM: +2 to +36 % speed"),
    ("SAM, mixes 1 to 3", "80", "2node", ("sam-1", "sam-2", "sam-3"), "sam+none", "SAM: about +25 % speed"),
    ("the 26 mixes, memory following", "74..98", "2node", ("sam",), "sam+tmma", "SAM"),
    ("sharers and CPU hogs only", "74..98", "2node", ("sam-18", "sam-19", "sam-20"), "sam+none", "SAM"),
    ("LBMA and TMMA, queue", "89", "thanos-b", ("thanos-queue",), "lbma+tmma", "thesis, of NUMA balancing"),
    ("SMA and TMMA, interactive", "96.6", "combinations", ("thanos-interactive",), "sma+tmma", "thesis, of NUMA balancing"),
    ("SMA and LMMA, interactive", "96.6", "combinations", ("thanos-interactive",), "sma+lmma", "thesis, of NUMA balancing"),
)

# Runs beside those of all policies: machine, scenario, arms, parameters.
ALONE = "none+balance,none+locality,none+mix,none+dataset,scatter+none,contiguous+none"
JOINT = "scatter+balance,contiguous+balance,scatter+locality"
# Half as many threads as CPUs: `compact` puts them on two of four nodes.
ON_TWO = "compact+none,compact+balance,compact+locality,compact+mix,compact+dataset"
STREAMCLUSTER = "tests/scenarios/streamcluster.toml"
EXTRAS = {
    "combinations": ("thanos-b", "thanos-interactive", "eevdf,autonuma,sma+tmma,sma+lmma", ()),
    "four page nodes": ("thanos-a", STREAMCLUSTER, "eevdf,autonuma,compact+balance", ("balance.page_nodes=4",)),
    "coupled": ("thanos-a", STREAMCLUSTER, f"eevdf,autonuma,interleave,oracle,{ALONE},{JOINT},{ON_TWO}", ()),
}

# Popov et al., ICS 2019: which pages and threads for a region that memory bounds, and for one whose data is private.
PLACEMENT_ARMS = ("interleave", "oracle", *ALONE.split(","), "scatter+tmma", "contiguous+tmma")
PLACEMENT_SCENARIOS = ("bandwidth", "master-init")
# Claim, per cent of time in the paper, runs, arm.
COUPLED = (
    ("threads on 2 nodes, pages on 2, balance", "74", "coupled", "compact+balance"),
    ("threads on 2 nodes, pages on 4, balance", "64", "four page nodes", "compact+balance"),
    ("threads on 2 nodes alone", "about 100", "coupled", "compact+none"),
    ("threads on 4 nodes alone", "about 100", "coupled", "scatter+none"),
    ("the same", "about 100", "coupled", "contiguous+none"),
    ("pages alone: balance", "about 100", "coupled", "none+balance"),
    ("pages alone: locality", "about 100", "coupled", "none+locality"),
    ("pages alone: mix", "about 100", "coupled", "none+mix"),
    ("pages alone: dataset", "about 100", "coupled", "none+dataset"),
    ("threads on 4 nodes, balance", "", "coupled", "scatter+balance"),
    ("threads on 2 nodes, locality", "", "coupled", "compact+locality"),
    ("threads on 2 nodes, mix", "", "coupled", "compact+mix"),
    ("threads on 2 nodes, dataset", "", "coupled", "compact+dataset"),
    ("oracle", "", "coupled", "oracle"),
)

# SAM: geometric mean over the mixes of the slowest program's speed, of that which it has alone.
FAIRNESS = (("operating system", "0.69", "eevdf"), ("SAM", "0.83", "sam+none"), ("SAM, memory following", "", "sam+tmma"), ("oracle", "", "oracle"))


def family(scenario):
    """The column in which a scenario is summed up."""
    if scenario in ADVERSARIAL:
        return "adversarial"
    prefix = scenario.partition("-")[0]
    return prefix if "-" in scenario and prefix in FAMILIES else "lab"


def interval(logs):
    """Mean and half the width of the 95 % interval, in per cent, of ratios given as logarithms, one per seed."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return 100 * math.exp(mean), None
    half = STUDENT[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return 100 * math.exp(mean), 100 * (math.exp(mean + half) - math.exp(mean - half)) / 2


def ratios(reports, arm, reference=REFERENCE):
    """By scenario, the logarithms of the arm's times over the reference's, seed by seed; None where a run was given up."""
    found = {}
    for report in reports:
        times = {entry["name"]: entry["times_s"] for entry in report["arms"]}
        pairs = zip(times[arm], times[reference], strict=True)
        logs = [None if own is None or other is None else math.log(own / other) for own, other in pairs]
        found[report["scenario"]] = None if None in logs else logs
    return found


def together(found, scenarios):
    """Geometric mean over scenarios, in per cent of the reference, with its half width; None if a run was given up."""
    rows = [found[scenario] for scenario in scenarios]
    if not rows or None in rows:
        return None
    return interval([statistics.fmean(seeds) for seeds in zip(*rows, strict=True)])


def cell(value):
    if value is None:
        return "gave up"
    middle, half = value
    return f"{middle:.0f}" if half is None else f"{middle:.0f} ±{half:.1f}" if half < 1 else f"{middle:.0f} ±{half:.0f}"


def arms_of(reports):
    return [arm["name"] for arm in reports[0]["arms"]]


def members(reports, wanted):
    """Names of the scenarios of these families, or of these names."""
    names = [report["scenario"] for report in reports]
    return [name for name in names if name in wanted or family(name) in wanted]


def losses(found):
    """In how many scenarios an arm is more than 5 % slower than the reference, over all seeds."""
    return sum(1 for logs in found.values() if logs is None or statistics.fmean(logs) > math.log(1.05))


def summary_table(reports):
    """Arms by families, the best over all scenarios first."""
    everything = [report["scenario"] for report in reports]
    rows = []
    for arm in arms_of(reports):
        found = ratios(reports, arm)
        cells = [cell(together(found, members(reports, (name,)))) for name in FAMILIES]
        whole = together(found, everything)
        rows.append((math.inf if whole is None else whole[0], [f"`{arm}`", cell(whole), *cells, f"{losses(found)}"]))
    head = ["arm", "all", *(f"{name} ({len(members(reports, (name,)))})" for name in FAMILIES), "loses"]
    return table(head, [row for _, row in sorted(rows, key=lambda row: row[0])])


def best_policy(report):
    """The policy with the least time and its value, or None if it is not a hundredth faster than the system's own arms."""
    values = {arm: together(ratios([report], arm), [report["scenario"]]) for arm in arms_of([report])}
    policies = {arm: value for arm, value in values.items() if value is not None and arm not in BOUNDS + SYSTEM + GATHERING}
    best = min(policies, key=lambda arm: (round(policies[arm][0], 1), arm))
    least = min(values[arm][0] for arm in SYSTEM if values.get(arm) is not None)
    return (best, policies[best]) if policies[best][0] < 0.99 * least else None


def scenario_table(by_machine):
    """Every scenario: the stock scheduler without balancing, the best policy and the oracle."""
    machines = list(by_machine)
    rows = []
    for reports in zip(*by_machine.values(), strict=True):
        row = [reports[0]["scenario"]]
        for report in reports:
            scenario = report["scenario"]
            eevdf, oracle = (cell(together(ratios([report], arm), [scenario])) for arm in ("eevdf", "oracle"))
            best = best_policy(report)
            row.append(f"{eevdf} / {f'**{cell(best[1])}** `{best[0]}`' if best else '-'} / {oracle}")
        rows.append(row)
    return table(["scenario", *machines], rows)


def thesis_table(by_machine):
    """The thesis's Table of times, its value and ours in each cell."""
    rows = []
    for arm, (name, *paper) in THESIS.items():
        row = [name, f"`{arm}`"]
        for at, (_, scenarios) in enumerate(THESIS_COLUMNS):
            for machine, value in zip(("thanos-a", "thanos-b"), paper[2 * at : 2 * at + 2], strict=True):
                reports = by_machine[machine]
                ours = together(ratios(reports, arm), members(reports, (scenarios,)))
                row.append(f"{value:g} / {cell(ours)}")
        rows.append(row)
    heads = [f"{name} {machine}" for name, _ in THESIS_COLUMNS for machine in ("a", "b")]
    return table(["in the thesis", "arm", *heads], rows)


def paper_table(by_machine):
    rows = []
    for claim, paper, machine, scenarios, arm, source in PAPERS:
        reports = by_machine[machine]
        ours = [cell(together(ratios(reports, arm, reference), members(reports, scenarios))) for reference in SYSTEM]
        place = EXTRAS[machine][0] if machine in EXTRAS else machine
        rows.append([claim, paper, *ours, f"`{arm}`, {', '.join(scenarios)} on {place}", source])
    return table(["claim", "paper", *(f"here, of `{name}`" for name in SYSTEM), "runs", "source"], rows)


def placement_table(by_machine):
    """Popov's placements on the two kinds of regions, in per cent of the scheduler alone."""
    rows = []
    for arm in PLACEMENT_ARMS:
        cells = []
        for scenario in PLACEMENT_SCENARIOS:
            for machine in MACHINES:
                cells.append(cell(together(ratios(by_machine[machine], arm, "eevdf"), [scenario])))
        rows.append([f"`{arm}`", *cells])
    heads = [f"{scenario}, {machine}" for scenario in PLACEMENT_SCENARIOS for machine in MACHINES]
    return table(["arm", *heads], rows)


def coupled_table(by_machine):
    rows = []
    for claim, paper, runs, arm in COUPLED:
        found = ratios(by_machine[runs], arm, "eevdf")
        given = ", ".join(f"`{one}`" for one in EXTRAS[runs][3]) or "-"
        rows.append([claim, paper or "-", cell(together(found, list(found))), f"`{arm}`", given])
    return table(["placement", "paper", "here", "arm", "parameters"], rows)


def slowest(reports, arm):
    """Geometric mean over scenarios and seeds of the slowest program's speed, of what it has alone and local; None if a run was given up."""
    speeds = []
    for report in reports:
        times = next(entry["times_s"] for entry in report["arms"] if entry["name"] == arm)
        if None in times:
            return None
        speeds.extend(math.log(report["ideal_seconds"] / time) for time in times)
    return math.exp(statistics.fmean(speeds))


def fairness_table(by_machine):
    mixes = [report for report in by_machine["2node"] if family(report["scenario"]) == "sam"]
    speeds = [(name, paper, slowest(mixes, arm), arm) for name, paper, arm in FAIRNESS]
    rows = [[name, paper or "-", "-" if speed is None else f"{speed:.2f}", f"`{arm}`"] for name, paper, speed, arm in speeds]
    return table(["placed by", "paper", "here", "arm"], rows)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(text, name, content):
    """The document with what is between the markers of this name replaced."""
    begin, end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no lines '{begin}' and '{end}' in the document; put them where the table goes")
    return f"{before}{begin}\n{content}\n{end}{after}"


def write_grid(by_machine):
    """Every arm on every scenario as CSV, in per cent of the reference with its half width."""
    with GRID.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        scenarios = [report["scenario"] for report in next(iter(by_machine.values()))]
        writer.writerow(["machine", "arm", *scenarios])
        for machine, reports in by_machine.items():
            for arm in arms_of(reports):
                found = ratios(reports, arm)
                writer.writerow([machine, arm, *(cell(together(found, [scenario])) for scenario in scenarios)])


def measure(tandem, machine, seeds):
    RESULTS.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run([tandem, "sim", "--list"], capture_output=True, check=True, text=True).stdout
    scenarios = ",".join(line.split()[0] for line in listed.splitlines())
    words = ["--machine", ROOT / f"vm/machines/{machine}.toml", "--scenario", scenarios, "--policies", ARMS, "--seeds", str(seeds), "--json"]
    done = subprocess.run([tandem, "sim", *words], stdout=subprocess.PIPE, check=True)
    (RESULTS / f"{machine}.json").write_bytes(done.stdout)


def measure_extra(tandem, name, seeds):
    machine, scenario, arms, parameters = EXTRAS[name]
    words = ["--machine", ROOT / f"vm/machines/{machine}.toml", "--policies", arms, "--seeds", str(seeds), "--json"]
    words += ["--scenario", ROOT / scenario if "/" in scenario else scenario]
    words += [word for parameter in parameters for word in ("--parameter", parameter)]
    done = subprocess.run([tandem, "sim", *words], stdout=subprocess.PIPE, check=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, choices=range(2, 11), metavar="2..10")
    parser.add_argument("--tandem", type=Path, default=ROOT / "build/bin/tandem")
    parser.add_argument("--only-written", action="store_true", help="run nothing, write the tables from the last runs")
    parser.add_argument("--only-extras", action="store_true", help="run only what is beside all policies on all scenarios")
    wanted = parser.parse_args()
    if not wanted.only_written:
        if not wanted.only_extras:
            for machine in MACHINES:
                measure(wanted.tandem, machine, wanted.seeds)
        for name in EXTRAS:
            measure_extra(wanted.tandem, name, wanted.seeds)
    by_machine = {machine: json.loads((RESULTS / f"{machine}.json").read_text()) for machine in MACHINES}
    extras = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in EXTRAS}
    extras = {name: reports if isinstance(reports, list) else [reports] for name, reports in extras.items()}
    text = DOCUMENT.read_text()
    for machine, reports in by_machine.items():
        text = put(text, machine, summary_table(reports))
    text = put(text, "thesis", thesis_table(by_machine))
    text = put(text, "papers", paper_table(by_machine | extras))
    text = put(text, "fairness", fairness_table(by_machine))
    text = put(text, "placements", placement_table(by_machine))
    text = put(text, "coupled", coupled_table(extras))
    text = put(text, "scenarios", scenario_table(by_machine))
    DOCUMENT.write_text(text)
    write_grid(by_machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
