#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs the lab's OpenMP programs under every configuration of a machine in the timing lab, and writes what the search makes of
that into docs/autotune.md.

Takes minutes a program. Runs are kept in build/tuning, so after an interruption the same command goes on; a program whose table
is in docs/tuning is measured again only with --again, or to add page placements (--pages). --more adds runs to tables that there
are, from whatever clone they come, as long as program, argument and machine are the same to the byte. --predictions tunes with
regions one by one, and keeps what was predicted and what became of it. --check writes nothing, and fails where --only-written
would change the document.

usage: tests/tuning.py [--machine NAME]... [--program NAME]... [--pages NAME,...] [--repeats N] [--judge FILE]
                       [--again | --more | --predictions | --only-written | --check]
"""

import argparse
import hashlib
import itertools
import json
import os
import re
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
# Beside the tables, which are all that the search's tests read there.
PREDICTIONS = "predictions"
DOCUMENT = ROOT / "docs/autotune.md"
STORES = BUILD / "tuning"
# By program, how often it repeats what it does: some tenths of a virtual second, several times what initialising takes.
PROGRAMS = {"cg": 24, "sp": 9, "is": 12, "bandwidth": 42, "master-init": 48, "conflict": 48, "streamcluster": 24}
# By machine, the programs that are measured there unless others are named.
MACHINES = {"2node": list(PROGRAMS), "ring4": list(PROGRAMS), "narrow4": ["streamcluster"]}
# Where pages are matters little: threads have memory of their own that they touch first.
INSENSITIVE = ("cg", "sp", "is")
PAGES = "first-touch,interleave,dataset"
# How the store marks a configuration whose pages go by a map.
BY_A_MAP = ", by a map"
# Seconds of the guest's clock that one guest measures, and of the host's at most.
BUDGET = "15s"
# The same for plans: what there is no time for is left out of them, not put off.
BUDGET_FOR_PLANS = "60s"
# What a guest did is lost if it does not end by itself. It may take so long on a host that has other things to do.
LIMIT_S = 7200
# Medians of runs that are added are as near to those of the table, over all configurations; else the lab has changed.
ALIKE = 0.03
# What the search makes of tables.
JUDGE = ["cargo", "run", "--quiet", "-p", "tandem-tune", "--bin", "judge-tuning", "--"]
BEGIN, END = "<!-- tests/tuning.py writes from here -->\n", "<!-- to here -->\n"


def table_file(machine, program):
    return RESULTS / f"{machine}-{program}.json"


def contents(program):
    """Of a program, without what differs from one build folder to another."""
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / program
        built = BUILD / f"bin/tandem-omp-{program}"
        subprocess.run(["objcopy", "--strip-all", "--remove-section", ".note.gnu.build-id", built, stripped], check=True)
        return stripped.read_bytes()


def subject(machine, program):
    """Names what is measured: the program's code, its argument, and what the machine file says."""
    lines = (ROOT / f"vm/machines/{machine}.toml").read_text().splitlines()
    said = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    parts = contents(program), str(PROGRAMS[program]).encode(), said.encode()
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def measure(machine, program, store, options, budget=BUDGET):
    """Tunes for one guest's life, its runs in `store`; the result, or None where not all that was asked for is there."""
    STORES.mkdir(parents=True, exist_ok=True)
    tune = (
        f"cd /out && tandem tune {options} --budget {budget} --store /out/runs --output /out/result.toml --json"
        f" -- /bin/tandem-omp-{program} {PROGRAMS[program]} > /out/result.json"
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
        result = json.loads((Path(out) / "result.json").read_text())
        return None if any("the same command goes on" in note for note in result["notes"]) else result


def measured(machine, program, store, options, budget=BUDGET):
    """The result, from as many guests as it takes."""
    result = None
    while result is None:
        result = measure(machine, program, store, options, budget)
    return result


def commit():
    return subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def rows_of(machine, program, store):
    """The runs of a store, by configuration. A placement whose map did not fit has failed under it, and is no row."""
    runs = sqlite3.connect(store).execute(
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
    return list(rows.values())


def with_more(rows, added):
    """Runs of both. A table has one time for each region; it is that of the larger number of runs, and the mean of equal ones."""
    more = {row["configuration"]: row for row in added}
    if more.keys() != {row["configuration"] for row in rows}:
        sys.exit("tuning.py: the runs to add are of other configurations than the table")
    ratios = [statistics.median(more[row["configuration"]]["seconds"]) / statistics.median(row["seconds"]) for row in rows]
    apart = statistics.median(ratios) - 1
    if abs(apart) > ALIKE:
        sys.exit(f"tuning.py: the runs to add take {apart:+.1%} of the table's time: something else has changed; --again records anew")
    both = []
    for row in rows:
        other = more[row["configuration"]]
        runs = len(row["seconds"]), len(other["seconds"])
        regions = {name: round((runs[0] * row["regions"][name] + runs[1] * other["regions"][name]) / sum(runs), 6)
                   for name in row["regions"] if name in other["regions"]}
        both.append({**row, "seconds": row["seconds"] + other["seconds"], "regions": regions})
    return both


def lines(table, name, rows):
    """As JSON, one of the `rows` a line."""
    head = json.dumps(table, indent=1)[:-2]
    return f'{head},\n "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]\n}\n"


def head(machine, program):
    return {"program": program, "machine": machine, "commit": commit(), "subject": subject(machine, program)}


def write_table(machine, program, rows):
    table_file(machine, program).write_text(lines(head(machine, program), "rows", rows))


def record(machine, program, pages, repeats):
    store = STORES / f"{machine}-{program}.sqlite"
    measured(machine, program, store, f"--exhaustive --codelets off --repeats {repeats} --pages {pages}")
    write_table(machine, program, rows_of(machine, program, store))


def placements_of(rows):
    """The placements of pages in a table, as --pages takes them."""
    named = (re.search(r"pages ([a-z-]+)", row["configuration"]) for row in rows)
    return ",".join(sorted({one.group(1) for one in named if one}))


def add_runs(machine, program, pages, repeats):
    """As many more of each configuration of a table; they are in no store after that."""
    table = json.loads(table_file(machine, program).read_text())
    if table.get("subject") != subject(machine, program):
        sys.exit(f"tuning.py: {program} on {machine}: its table is not of this program, argument and machine; --again records anew")
    store = STORES / f"{machine}-{program}-more.sqlite"
    pages = pages or placements_of(table["rows"])
    measured(machine, program, store, f"--exhaustive --codelets off --repeats {repeats} --pages {pages}")
    write_table(machine, program, with_more(table["rows"], rows_of(machine, program, store)))
    store.unlink()


def prediction_file(machine, program):
    return RESULTS / PREDICTIONS / f"{machine}-{program}.json"


def predict(machine, program, pages, repeats):
    """The whole of `tandem tune`, regions in place."""
    options = f"--repeats {repeats} --pages {pages or PAGES}"
    result = measured(machine, program, STORES / f"{machine}-{program}-predictions.sqlite", options, BUDGET_FOR_PLANS)
    keep_predictions(machine, program, options, result)


def keep_predictions(machine, program, options, result):
    kept = {**head(machine, program), "options": options, "evidence": result.get("evidence"), "has_plan": bool(result.get("seats")),
            "notes": result["notes"]}
    prediction_file(machine, program).parent.mkdir(parents=True, exist_ok=True)
    prediction_file(machine, program).write_text(lines(kept, "predictions", result.get("prediction", [])))


def judged(files, judge):
    command = [*judge, ROOT / "vm/machines", *files]
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


def written(judge):
    """The tables, from the results that there are."""
    files = [table_file(machine, program) for machine in MACHINES for program in PROGRAMS]
    files = [file for file in files if file.exists()]
    found = judged(files, judge)
    parts = []
    for machine in [name for name in MACHINES if any(one["machine"] == name for one in found)]:
        parts.append(f"\n{machine}:\n")
        parts.append("| program | configurations | as it is, ms | threads only | pages only | best | as it is / best | best configuration "
                     "| the search's choice | share of time | of long runs |")
        parts.append("|---|" + "---|" * 10)
        parts += [line(one) for one in found if one["machine"] == machine]
    return "\n".join(parts) + "\n\n" + summary(found) + "\n" + runs_of_tables(files)


def error(one):
    return one["predicted_s"] / one["real_s"] - 1


def foretold(kept):
    """Plans that ran."""
    return [one for one in kept["predictions"] if one.get("real_s")]


def prediction_line(kept):
    plans = foretold(kept)
    name = f"| `{kept['program']}` | {kept['machine']} | {len(plans)} | "
    if not plans:
        return name + "| | | none |"
    worst, first = max(plans, key=lambda one: abs(error(one))), min(plans, key=lambda one: one["predicted_s"])
    chosen = "one configuration"
    if kept["has_plan"]:
        plan = min(kept["predictions"], key=lambda one: abs(one.get("real_s", 0) - kept["evidence"]["tuned_s"]))
        chosen = f"{error(plan):+.1%}"
    runs = "to".join(f" {end} " for end in sorted({least_or_most(one["runs"] for one in plans) for least_or_most in (min, max)})).strip()
    return name + f"{runs} | {error(worst):+.1%} | {error(first):+.1%} | {chosen} |"


def written_predictions():
    """How far predictions were from what they predict, from the results that there are."""
    files = [prediction_file(machine, program) for machine in MACHINES for program in PROGRAMS]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    if not found:
        return ""
    errors = [abs(error(one)) for kept in found for one in foretold(kept)]
    near = sum(one <= 0.1 for one in errors)
    return "\n".join([
        "\nPredicted against real times of plans for single regions, each run as a whole program:\n",
        "| program | machine | plans | runs of each | worst error | of the best predicted | of the chosen |",
        "|---|" + "---|" * 6,
        *map(prediction_line, found),
        f"\nWithin 10 % of the real time: {near} of {len(errors)}.\n" if errors else "",
    ])


def with_generated(text, generated):
    """The document with this between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + generated + END + after


def first_difference(text, other):
    """The first line of each that is not the same, or None."""
    lines_of_both = itertools.zip_longest(text.splitlines(), other.splitlines(), fillvalue="(nothing)")
    return next((both for both in lines_of_both if both[0] != both[1]), None)


def write_document(judge, only_check=False):
    text = DOCUMENT.read_text(encoding="utf-8")
    new = with_generated(text, written(judge) + written_predictions())
    differs = first_difference(text, new)
    if only_check and differs:
        sys.exit("tuning.py: {} has\n{}\nwhere --only-written writes\n{}".format(DOCUMENT.relative_to(ROOT), *differs))
    if not only_check:
        DOCUMENT.write_text(new, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    parser.add_argument("--pages", help=f"{PAGES} by default; with --more those of the table")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--judge", type=Path, help="judge-tuning as it was built; built by cargo by default")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--again", action="store_true", help="measure also what is in docs/tuning; runs in build/tuning count")
    ways.add_argument("--more", action="store_true", help="add --repeats runs of each configuration to the tables")
    ways.add_argument("--predictions", action="store_true", help="tune regions one by one, and keep what was predicted")
    ways.add_argument("--only-written", action="store_true", help="measure nothing, write the document from what there is")
    ways.add_argument("--check", action="store_true", help="measure and write nothing, fail if the document is not what --only-written writes")
    wanted = parser.parse_args()
    for machine in [] if wanted.only_written or wanted.check else wanted.machine or MACHINES:
        for program in wanted.program or MACHINES[machine]:
            if wanted.predictions or wanted.more:
                (predict if wanted.predictions else add_runs)(machine, program, wanted.pages, wanted.repeats)
            elif wanted.again or not table_file(machine, program).exists():
                record(machine, program, wanted.pages or PAGES, wanted.repeats)
    write_document([wanted.judge] if wanted.judge else JUDGE, wanted.check)


if __name__ == "__main__":
    main()
