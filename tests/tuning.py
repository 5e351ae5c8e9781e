#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs the lab's OpenMP programs under every configuration of a machine in the timing lab, and writes what the search makes of
that into docs/autotune.md.

Takes minutes a program. Runs are kept in build/tuning, so after an interruption the same command goes on; a program whose table
is in docs/tuning is measured again only with --again, or to add page placements (--pages).

usage: tests/tuning.py [--machine NAME]... [--program NAME]... [--pages NAME,...] [--repeats N] [--again] [--only-written]
"""

import argparse
import json
import os
from pathlib import Path
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TANDEM_BUILD", ROOT / "build"))
RESULTS = ROOT / "docs/tuning"
DOCUMENT = ROOT / "docs/autotune.md"
STORES = BUILD / "tuning"
MACHINES = ("2node", "ring4")
# By program, how often it repeats what it does: some tenths of a virtual second, several times what initialising takes.
PROGRAMS = {"cg": 24, "sp": 9, "is": 12, "bandwidth": 42, "master-init": 48, "conflict": 48, "streamcluster": 48}
# Where pages are matters little: threads have memory of their own that they touch first.
INSENSITIVE = ("cg", "sp", "is")
PAGES = "first-touch,interleave,dataset"
# How the store marks a configuration whose pages go by a map.
BY_A_MAP = ", by a map"
# Seconds of the guest's clock that one guest measures, and of the host's at most.
BUDGET = "15s"
LIMIT_S = 1800
BEGIN, END = "<!-- tests/tuning.py writes from here -->\n", "<!-- to here -->\n"


def table_file(machine, program):
    return RESULTS / f"{machine}-{program}.json"


def measure(machine, program, pages, repeats):
    """Measures for one guest's life; whether all that was asked for is there."""
    store = STORES / f"{machine}-{program}.sqlite"
    STORES.mkdir(parents=True, exist_ok=True)
    tune = (
        f"cd /out && tandem tune --exhaustive --codelets off --repeats {repeats} --pages {pages} --budget {BUDGET}"
        f" --store /out/runs --output /out/result.toml -- /bin/tandem-omp-{program} {PROGRAMS[program]}"
    )
    with tempfile.TemporaryDirectory() as out:
        additions = [BUILD / "bin/tandem", BUILD / f"bin/tandem-omp-{program}"]
        if store.exists():
            additions.append(f"{store}:/runs")
            tune = f"cp /runs /out/runs && {tune}"
        command = [
            ROOT / "vm/lab.py", "run", "--timing", "--machine", ROOT / f"vm/machines/{machine}.toml", "--timeout", str(LIMIT_S),
            "--out", out, *(word for one in additions for word in ("--add", str(one))), "--", "sh", "-c", tune,
        ]
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit(f"tuning.py: {program} on {machine}: the lab ended with {done.returncode}")
        shutil.copy(Path(out) / "runs", store)
        return "were not measured yet" not in (Path(out) / "result.toml").read_text()


def commit():
    return subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def keep_table(machine, program):
    """Writes the runs of the store as a table. A placement whose map did not fit has failed under it, and is no row."""
    runs = sqlite3.connect(STORES / f"{machine}-{program}.sqlite").execute(
        "SELECT configuration, outcome, seconds, regions FROM run"
        # An older build of the program is another experiment.
        " WHERE experiment = (SELECT experiment FROM run ORDER BY rowid DESC LIMIT 1) ORDER BY rowid")
    rows, failed = {}, set()
    for configuration, outcome, seconds, regions in runs:
        if outcome == "failed" and configuration.endswith(BY_A_MAP):
            failed.add(configuration)
            continue
        if outcome != "ended":
            sys.exit(f"tuning.py: {program} on {machine}, {configuration}: a run {outcome}")
        row = rows.setdefault(configuration, {"configuration": configuration, "seconds": [], "regions": {}})
        row["seconds"].append(round(seconds, 6))
        for region in json.loads(regions):
            row["regions"].setdefault(region["name"], []).append(round(region["seconds"], 6))
    for configuration in failed:
        print(f"tuning.py: {program} on {machine}, {configuration}: a run failed, it is left out", file=sys.stderr)
        rows.pop(configuration, None)
    for row in rows.values():
        row["regions"] = {name: statistics.median(seconds) for name, seconds in row["regions"].items()}
    table = {"program": program, "machine": machine, "commit": commit(), "rows": list(rows.values())}
    # One configuration a line.
    lines = ",\n".join(f"  {json.dumps(row)}" for row in table.pop("rows"))
    head = json.dumps(table, indent=1)[:-2]
    table_file(machine, program).write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


def judged(files):
    command = ["cargo", "run", "--quiet", "-p", "tandem-tune", "--bin", "judge-tuning", "--", ROOT / "vm/machines", *files]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def line(one):
    best, chosen = one["best"], one["chosen"]
    times = [one["as_it_is_s"], one["threads_only"]["seconds"], one["pages_only"]["seconds"], best["seconds"]]
    cells = [f"{1e3 * seconds:.1f}" for seconds in times]
    chosen_s = "the same" if chosen == best else f"{chosen['configuration']}: {chosen['seconds'] / best['seconds'] - 1:+.1%}"
    return (
        f"| `{one['program']}` | {one['configurations']} | {' | '.join(cells)} | {one['as_it_is_s'] / best['seconds']:.2f} | "
        f"{best['configuration']} | {chosen_s} | {one['share']:.0%} | {one['share_of_long_runs']:.0%} |"
    )


def summary(found):
    """The goals, with what was reached."""
    near = sum(one["chosen"]["seconds"] <= 1.02 * one["best"]["seconds"] for one in found)
    joint = [
        f"`{one['program']}` on {one['machine']}" for one in found
        if min(one["threads_only"]["seconds"], one["pages_only"]["seconds"]) > 1.02 * one["best"]["seconds"]
    ]
    speed_up = {one["program"] + one["machine"]: one["as_it_is_s"] / one["best"]["seconds"] for one in found}
    sensitive = [one for one in found if one["program"] not in INSENSITIVE]
    mean = statistics.geometric_mean(speed_up[one["program"] + one["machine"]] for one in sensitive) if sensitive else 1
    names = sorted({f"`{one['program']}`" for one in sensitive})
    cheap = sum(one["share"] <= 0.125 for one in found)
    cheap_long = sum(one["share_of_long_runs"] <= 0.125 for one in found)
    return (
        f"Within 2 % of the best of all: {near} of {len(found)}. At most 1/8 of the exhaustive time: {cheap} of {len(found)}; "
        f"{cheap_long}, were the runs longer. Better by more than 2 % than the best of threads only and of pages only: "
        f"{', '.join(joint) or 'none'}. As it is / best, geometric mean of {', '.join(names)}: {mean:.2f}.\n"
    )


def runs_of_tables(files):
    """How many runs the search had of each configuration: of one it reads the same time again and again."""
    said = []
    for machine in MACHINES:
        rows = [row for file in files if file.name.startswith(f"{machine}-") for row in json.loads(file.read_text())["rows"]]
        counts = [len(row["seconds"]) for row in rows]
        alone = counts.count(1)
        if rows:
            said.append(f"`{machine}`: {min(counts)} to {max(counts)}, {alone} of {len(rows)} configurations have one")
    return (
        f"Runs of each configuration in these tables: {'; '.join(said)}. Of those with one the search reads the same time whenever it asks, "
        "so chance cannot mislead it there.\n"
    )


def written():
    """The tables, from the results that there are."""
    files = [table_file(machine, program) for machine in MACHINES for program in PROGRAMS]
    files = [file for file in files if file.exists()]
    found = judged(files)
    parts = []
    for machine in sorted({one["machine"] for one in found}):
        parts.append(f"\n{machine}:\n")
        parts.append("| program | configurations | as it is, ms | threads only | pages only | best | as it is / best | best configuration "
                     "| the search's choice | share of time | of long runs |")
        parts.append("|---|" + "---|" * 10)
        parts += [line(one) for one in found if one["machine"] == machine]
    return "\n".join(parts) + "\n\n" + summary(found) + "\n" + runs_of_tables(files)


def write_document():
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + BEGIN + written() + END + after, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    parser.add_argument("--pages", default=PAGES)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--again", action="store_true", help="measure also what is in docs/tuning; runs in build/tuning count")
    parser.add_argument("--only-written", action="store_true", help="measure nothing, write the document from what there is")
    wanted = parser.parse_args()
    for machine in [] if wanted.only_written else wanted.machine or MACHINES:
        for program in wanted.program or PROGRAMS:
            if wanted.again or not table_file(machine, program).exists():
                while not measure(machine, program, wanted.pages, wanted.repeats):
                    pass
                keep_table(machine, program)
    write_document()


if __name__ == "__main__":
    main()
