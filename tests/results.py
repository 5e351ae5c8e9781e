#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Measures every workload under the stock scheduler and between its bounds, on two machines, and longer under scx_tandem and other
policies and schedulers beside it, on four; writes docs/results.md.

Takes hours. Finished runs are kept in the store of `tandem ab`, so after an interruption the same command goes on, and in
docs/results, so that it may go on elsewhere; what is to be said of them in words is in docs/results-prose. An experiment that has all arms and boots there is measured again only with --again;
else what is missing is measured, and what other programs than those of today measured.

usage: tests/results.py [--tandem] [--machine NAME]... [--workload NAME]... [--arms ARM[;ARM]...] [--boots N] [--again] [--only-written]
"""

import argparse
import json
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PROSE = ROOT / "docs" / "results-prose"
DOCUMENT = ROOT / "docs" / "results.md"
# The machines of both kinds of tables, and those for scx_tandem alone: servers of a publication.
MACHINES = ("2node", "ring4")
SERVERS = ("thanos-a", "thanos-b")
STOCK = ("stock-nb0", "stock-nb1", "stock-nb0-thp", "stock-nb1-thp")
# What follows a workload's name, which may be there in several forms, names the form.
# A virtual second or a few each: all of it is hours of two cores. NUMA balancing begins a second after a thread.
SIZES = {
    "crossed": "",
    "pairs": "--passes 20",
    "ring": "--steps 36",
    "master-init": "--passes 45",
    "phases": "--passes 10",
    "all-shared": "--passes 8",
    "hogs": "--steps 140000000",
    "bandwidth": "--passes 12",
    "ping-pong": "--turns 2400",
    "mixed": "--passes 100 --additions 1200000 --steps 70000000",
    "hubench": "--additions 2500000",
    "lubench": "--additions 800000",
    "membench": "--passes 24",
    "oltp": "--requests 100000",
    "queue": "--programs 1 --work 25",
    "interactive": "--work 25 --scale 3",
    "cg": "--solves 2",
    "sp": "--steps 14",
    "is": "--sorts 20",
    "migration": "--operations 450000",
    "perf-numa": "",
    "perf-numa 1x8-bw-thread": "--processes 1 --threads 8 --process-mib 0 --thread-mib 2 --loops 48",
    "perf-numa 8x1-bw-process": "--processes 8 --threads 1 --process-mib 2 --loops 48",
    "hackbench": "",
    "stress-ng": "",
    "sysbench-threads": "",
    "redis": "",
    "hpcc": "",
}
# Long enough for a scheduler that learns: some virtual seconds each. With more than two nodes, those that lose most under stock
# without balancing, by its table of ring4.
SENSITIVE_SIZES = {
    "ring": "--steps 300",
    "is": "--sorts 500",
    "cg": "--solves 20",
    "bandwidth": "--passes 150",
    "mixed": "--passes 500 --additions 6000000 --steps 350000000",
    "master-init": "--passes 120",
}
LONG_SIZES = {
    "2node": {
        "crossed": "--passes 90",
        "master-init": "--passes 180",
        "phases": "--passes 45",
        "phases of-4s": "--passes 140",
        "ring": "--steps 450",
        "bandwidth": "--passes 220",
        "pairs": "--passes 90",
        "all-shared": "--passes 30",
        "hogs": "--steps 560000000",
        "ping-pong": "--turns 8000",
        "mixed": "--passes 800 --additions 9600000 --steps 560000000",
        "hubench": "--additions 10000000",
        "lubench": "--additions 2000000",
        "membench": "--passes 600",
        "oltp": "--requests 800000",
        "interactive": "--work 50 --scale 3",
        "queue": "--programs 1 --work 100",
        "cg": "--solves 40",
        "sp": "--steps 600",
        "is": "--sorts 950",
        "migration": "--operations 2000000",
        "perf-numa": "--loops 450",
        "perf-numa 1x8-bw-thread": "--processes 1 --threads 8 --process-mib 0 --thread-mib 2 --loops 1000",
        "perf-numa 8x1-bw-process": "--processes 8 --threads 1 --process-mib 2 --loops 1000",
        "sysbench-threads": "--events 120000",
        "redis": "--requests 30000",
        "hpcc": "",
    },
    "ring4": SENSITIVE_SIZES,
    "thanos-a": SENSITIVE_SIZES,
    "thanos-b": SENSITIVE_SIZES,
}
TANDEM = ("scx_tandem", "scx_tandem:--sampler device")
# Pairs of a thread and a page policy, and a policy that places threads alone.
PAIRS = tuple(f"scx_tandem:--policy {pair}" for pair in ("sma+tmma", "nimar+lmma", "kmaf+kmaf", "sam+none"))
TANDEM_ARMS = {
    "2node": ("stock-nb0", "stock-nb1", *TANDEM, "oracle", "worst"),
    "ring4": (*STOCK, "direct", "interleave", "scx_rusty", "scx_bpfland", *PAIRS, *TANDEM, "oracle", "worst"),
    "thanos-a": ("stock-nb1", "scx_tandem", "oracle"),
    "thanos-b": ("stock-nb1", "scx_tandem", "oracle"),
}
HEAD = """<!-- SPDX-License-Identifier: GPL-2.0-only -->
# Results

What scx_tandem reaches beside the stock scheduler, and what the stock scheduler reaches on every workload, between the best and
the worst placement known. Written by `tests/results.py`; times are virtual ([timing.md](timing.md)), arms and method are those
of [ab.md](ab.md), workloads those of [workloads.md](workloads.md). Medians; in brackets the range where it is wider than 1 % of the median.

`oracle` is the measure itself, the other columns are ratios to it: 1 is the best placement, `worst` the worst. A measure in
GB/s is better when it is higher, and its ratios are turned round. Programs of other projects place nothing: their ratios
are to `stock-nb0`, whose measure stands in brackets.

`timed part` is its length in virtual seconds, under `oracle` or else under `stock-nb0`.

NUMA balancing begins a second after a thread: of runs that last about as long, the arms with it show its start at most;
`crossed` is long enough to show what it reaches. Arms that are not between the bounds stand below each table with what they did
besides; on what is measured once, luck counts too.
"""
# Placement matters to a workload that takes so much longer under the stock scheduler, left alone, than under oracle.
MATTERS = 1.05
# Slower than stock by more than this is a goal missed; so is less than this part of the way to oracle.
SLOWER = 1.02
WAY = 0.8
TANDEM_HEAD = """**scx_tandem.** The joint policy at its defaults, with nothing told of the workload: it is loaded a second before, learns while the
workload runs, and all it does is in the time. `scx_tandem` samples with `lookahead`, which needs no hardware; `device` is the lab's
stand-in for hardware that samples memory accesses (PEBS, IBS, SPE). Ratios to `oracle`, which pins and binds itself and has nothing to
learn. `once placed`: how long all of the run would take at the accesses to memory per second of its third quarter, where placement matters;
in the last one threads that were well off from the start have ended.

Goals: not slower than the best stock arm by more than 2 %; at least 20 % less time than stock with balancing, as a geometric mean where
placement matters; 80 % of the way from the best stock arm to oracle, where that is 5 % at least.

To repeat a row: check out its commit, `./run build`, and its command below the table; all of them: `tests/results.py --tandem --boots 1` (many
hours). What each boot gave is in `docs/results`, as far as the tables tell of it.
"""


def workloads_known():
    listed = subprocess.run([ROOT / "build/bin/tandem-load", "list", "--json"], capture_output=True, check=True)
    return {workload["name"]: workload for workload in json.loads(listed.stdout)}


BOUNDS = ("oracle", "worst")


def arms_of(machine, workload, tandem):
    """The arms to measure: programs of others have no bounds, and are not measured under all that ours are."""
    if not tandem:
        return ["stock", *BOUNDS] if workload["best"] else ["stock"]
    return [arm for arm in TANDEM_ARMS[machine] if workload["best"] or arm not in (*BOUNDS, TANDEM[1])]


def workload_of(form):
    return form.split()[0]


def text_of(form, sizes):
    return f"{workload_of(form)}:{sizes[form]}" if sizes[form] else form


def words(machine, workload, arms, boots):
    return ["--machine", machine, "--workload", workload, "--arms", ",".join(arms), "--boots", str(boots)]


def result_file(machine, form, tandem=False):
    return RESULTS / f"{'tandem-' if tandem else ''}{machine}-{form.replace(' ', '-')}.json"


def without_series(experiment):
    """The experiment less the placement by time of each boot, which is most of its size and is not needed for the table."""
    for arm in experiment["arms"]:
        for boot in arm["boots"]:
            if boot["placement"]:
                boot["placement"].pop("series", None)
    return experiment


def commit():
    """What is measured: the last commit, with a + if there is more than that."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def boots_there(file):
    """Finished boots by arm of the result in `file`, if it is there."""
    if not file.exists():
        return {}
    return {arm["name"]: len(arm["boots"]) for arm in json.loads(file.read_text())["arms"]}


def names_of(arm):
    """The arms that a word for arms stands for."""
    return STOCK if arm == "stock" else (arm,)


def lacks(file, arms, boots):
    """Whether the result in `file` has fewer arms or boots than these."""
    there = boots_there(file)
    return any(there.get(name, 0) < boots for arm in arms for name in names_of(arm))


def arms_to_measure(arms, only, file):
    """Of `arms` those that are in `only`, if that is given, and those that the result in `file` has."""
    there = boots_there(file)
    return [arm for arm in arms if not only or arm in only or any(name in there for name in names_of(arm))]


def measure(machine, workload, arms, boots, file, again):
    """Runs the experiment and keeps its result in `file`; whether all of it is valid."""
    earlier = ["--again"] if again else ["--resume", file] if file.exists() else []
    with tempfile.NamedTemporaryFile(suffix=".json") as whole:
        command = [ROOT / "build/bin/tandem", "ab", *words(machine, workload, arms, boots), *earlier, "--json", whole.name]
        done = subprocess.run(command, check=False)
        if done.returncode == 130:
            raise KeyboardInterrupt
        text = Path(whole.name).read_text(encoding="utf-8")
    experiment = json.loads(text) if text else None
    if experiment and experiment["calibration"]["valid"] and not lost(file, experiment, again):
        RESULTS.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(".new")
        whole.write_text(json.dumps({"commit": commit(), **without_series(experiment)}, indent=1) + "\n")
        whole.rename(file)
    return done.returncode == 0


def lost(file, experiment, again):
    """Arms that have fewer boots than the result in `file`: that stays then, unless all is measured again."""
    there = {} if again else boots_there(file)
    have = {arm["name"]: len(arm["boots"]) for arm in experiment["arms"]}
    fewer = [name for name, boots in there.items() if have.get(name, 0) < boots]
    if fewer:
        print(f"results: {file.name} stays as it is: fewer boots of {', '.join(fewer)} than it has", file=sys.stderr)
    return fewer


def cell(arm, reference, better):
    """The ratio of an arm to the reference, with its range if that is wide."""
    if not arm or arm["median"] is None:
        return "-"
    ratio = (lambda value: value / reference) if better == "lower" else (lambda value: reference / value)
    low, high = sorted(ratio(value) for value in arm["range"])
    middle = ratio(arm["median"])
    wide = high - low > 0.01 * middle
    return f"{middle:.2f}" + (f" ({low:.2f}..{high:.2f})" if wide else "") + ("" if arm["valid"] else " (some boots failed)")


def timed_part_s(arm):
    """The length of an arm's timed part: the median of its boots."""
    return statistics.median(boot["report"]["seconds"] for boot in arm["boots"])


def row(experiment, columns):
    arms = {arm["name"]: arm for arm in experiment["arms"]}
    oracle = arms.get("oracle")
    reference = (oracle or arms.get("stock-nb0", {})).get("median")
    if reference is None:
        return f"| `{experiment['workload']}` | failed |" + " |" * (1 + len(columns))
    own = f"{oracle['median']:.4g} {experiment['unit']}" if oracle else f"({reference:.4g} {experiment['unit']})"
    length = f"{timed_part_s(oracle or arms['stock-nb0']):.3g} s"
    cells = [cell(arms.get(name), reference, experiment["better"]) for name in columns]
    return " | ".join([f"| `{experiment['workload']}`", own, length, *cells]) + " |"


def beyond(experiment, file):
    """A line for each arm that is not between the bounds: what `tandem ab` notes of it today."""
    shown = subprocess.run([ROOT / "build/bin/tandem", "ab", "--show", file, "--json", "-"], capture_output=True, check=True)
    notes = json.loads(shown.stdout)["notes"]
    outside = [note for note in notes if ": worse than worst" in note or ": better than oracle" in note]
    return [f"- `{experiment['workload']}`, {note}" for note in outside]


def arms_measured(experiment):
    """The arms as they are asked for."""
    names = [arm["name"] for arm in experiment["arms"]]
    stock = ["stock"] if set(STOCK) <= set(names) else []
    return ",".join(stock + [name for name in names if not stock or name not in STOCK])


def arm_medians(experiment):
    """Medians by arm, such that less is better."""
    medians = {arm["name"]: arm["median"] for arm in experiment["arms"] if arm["median"] is not None}
    return medians if experiment["better"] == "lower" else {name: 1 / median for name, median in medians.items()}


def way(medians, name, best_stock):
    """How far an arm came from the best stock arm to oracle, where there is a way of 5 % at least."""
    gap = best_stock - medians.get("oracle", best_stock)
    return f"{(best_stock - medians[name]) / gap:.0%}" if gap > 0.05 * best_stock else "-"


def local_after(experiment, name):
    """When 90 % of an arm's accesses were local first."""
    after_s = next((arm.get("local_after_s") for arm in experiment["arms"] if arm["name"] == name), None)
    return "-" if after_s is None else f"{after_s:.1f} s"


def placed(experiment, name):
    """How long a whole run of an arm would take at the pace of its third quarter, of oracle's time: the median of its boots."""
    arms = {arm["name"]: arm for arm in experiment["arms"]}
    boots = arms[name]["boots"] if "oracle" in arms else []
    paces = [(boot["report"]["seconds"], (boot["placement"] or {}).get("third_quarter_pace")) for boot in boots]
    lengths = [seconds / pace / timed_part_s(arms["oracle"]) for seconds, pace in paces if pace]
    return f"{statistics.median(lengths):.2f}" if lengths else "-"


def agent_percent(experiment, name):
    """What the agent of an arm took of one CPU: the median of its boots."""
    boots = next((arm["boots"] for arm in experiment["arms"] if arm["name"] == name), [])
    percents = [boot["scheduler_report"]["cost"]["cpu_percent"] for boot in boots if boot.get("scheduler_report")]
    return f"{statistics.median(percents):.0f} %" if percents else "-"


def matters(medians):
    """Whether it is placement that this workload takes its time by."""
    return "oracle" in medians and medians.get("stock-nb0", medians["stock-nb1"]) > MATTERS * medians["oracle"]


def judged(name, experiments):
    """A line on how an arm does by the goals that hold for every workload."""
    rows = [(experiment["workload"], arm_medians(experiment), experiment) for experiment in experiments]
    rows = [(workload, medians, experiment) for workload, medians, experiment in rows if name in medians and best_stock(experiment, medians)]
    slower, short, ways = [], [], 0
    for workload, medians, experiment in rows:
        best = medians[best_stock(experiment, medians)]
        if medians[name] > SLOWER * best:
            slower.append(f"`{workload}` ({medians[name] / best:.2f})")
        gap = best - medians.get("oracle", best)
        if gap > 0.05 * best:
            ways += 1
            short += [workload] if best - medians[name] < WAY * gap else []
    there = f"slower than the best stock arm by more than 2 % on {len(slower)} of {len(rows)} workloads"
    return f"- `{name}`: {there}{': ' if slower else ''}{', '.join(slower)}; 80 % of the way to oracle on {ways - len(short)} of {ways}."


def best_stock(experiment, medians):
    """The stock arm that takes least."""
    invalid = {arm["name"] for arm in experiment["arms"] if not arm["valid"]}
    return min((name for name in STOCK if name in medians and name not in invalid), key=medians.get, default=None)


def beside_stock(experiments, names):
    """What scx_tandem is of the best stock arm, how far it came to oracle, when and how well it was placed, and what its agent took."""
    of_one = "of it | way to oracle | local after | once placed, of oracle | agent, of a CPU"
    parts = [f"| workload | commit | best stock arm | {' | '.join(f'{name}, {of_one}' for name in names)} |"]
    parts.append("|---|---|---" + "|---|---|---|---|---" * len(names) + "|")
    of_balancing = {name: [] for name in names}
    for experiment in experiments:
        medians = arm_medians(experiment)
        if "stock-nb1" not in medians or not best_stock(experiment, medians):
            parts.append(f"| `{experiment['workload']}` | {experiment.get('commit', '-')} | failed |" + " - | - | - | - | - |" * len(names))
            continue
        best = best_stock(experiment, medians)
        cells = [
            f"{medians[name] / medians[best]:.2f} | {way(medians, name, medians[best])} | {local_after(experiment, name)} | "
            f"{placed(experiment, name) if matters(medians) else '-'} | {agent_percent(experiment, name)}" if name in medians else "- | - | - | - | -"
            for name in names
        ]
        parts.append(f"| `{experiment['workload']}` | {experiment.get('commit', '-')} | {best} | {' | '.join(cells)} |")
        if matters(medians):
            for name in set(names) & set(medians):
                of_balancing[name].append(medians[name] / medians["stock-nb1"])
    parts += ["", *(judged(name, experiments) for name in names)]
    means = [f"`{name}` {statistics.geometric_mean(ratios):.2f} ({len(ratios)} workloads)" for name, ratios in of_balancing.items() if ratios]
    parts += [f"- Geometric mean of the time under stock with balancing, where placement matters: {', '.join(means) or '-'}."]
    return parts


def machines(tandem):
    return (*MACHINES, *SERVERS) if tandem else MACHINES


def sizes_on(machine, tandem):
    return LONG_SIZES[machine] if tandem else SIZES


def told(machine):
    """What is to be said of the results of scx_tandem on a machine."""
    file = PROSE / f"{machine}.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def tables(title, tandem):
    """One table a machine, with the commands, from the results that there are."""
    parts = []
    for machine in machines(tandem):
        columns = [arm for arm in TANDEM_ARMS[machine] if arm != "oracle"] if tandem else [*STOCK, "worst"]
        files = [result_file(machine, form, tandem) for form in sizes_on(machine, tandem)]
        files = [file for file in files if file.exists()]
        found = [json.loads(file.read_text()) for file in files]
        if not found:
            continue
        boots = "/".join(sorted({str(experiment["boots_per_arm"]) for experiment in found}))
        parts.append(f"## {title}{machine}, kernel {found[0]['kernel']}, {boots} boots an arm\n")
        there = {arm["name"] for experiment in found for arm in experiment["arms"]}
        columns = [name for name in columns if name in there]
        parts.append(f"| workload | oracle | timed part | {' | '.join(columns)} |\n|---|---|---{'|---' * len(columns)}|")
        parts += [row(experiment, columns) for experiment in found]
        parts.append("")
        if tandem:
            parts += [*beside_stock(found, [name for name in TANDEM if name in columns]), "", told(machine)]
        for experiment in found:
            arms, count = arms_measured(experiment), experiment["boots_per_arm"]
            parts.append(f"    ./run ab --machine {machine} --workload '{experiment['workload']}' --arms '{arms}' --boots {count}")
        parts.append("")
        outside = [line for experiment, file in zip(found, files) for line in beyond(experiment, file)]
        if outside:
            parts += ["Not between the bounds:", *outside, ""]
    return parts


def written():
    """The document, from the results that there are."""
    parts = [HEAD, TANDEM_HEAD, *tables("scx_tandem on ", True), *tables("Stock on ", False)]
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tandem", action="store_true", help="measure scx_tandem beside the stock scheduler")
    parser.add_argument("--machine", action="append", choices=machines(True))
    forms = dict.fromkeys(form for sizes in (SIZES, *LONG_SIZES.values()) for form in sizes)
    parser.add_argument("--workload", action="append", choices=list(forms))
    parser.add_argument("--arms", type=lambda text: text.split(";"), help="of the arms only these, and those that docs/results has")
    parser.add_argument("--boots", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="measure also what is in docs/results")
    parser.add_argument("--only-written", action="store_true", help="measure nothing, write the document from what there is")
    wanted = parser.parse_args()
    known = workloads_known()
    valid = True
    if not wanted.only_written:
        for machine in wanted.machine or machines(wanted.tandem):
            sizes = sizes_on(machine, wanted.tandem)
            for form in wanted.workload or sizes:
                if form not in sizes:
                    parser.error(f"{form} is not among the workloads of {machine}: {', '.join(sizes)}")
                file = result_file(machine, form, wanted.tandem)
                arms = arms_to_measure(arms_of(machine, known[workload_of(form)], wanted.tandem), wanted.arms, file)
                if wanted.again or lacks(file, arms, wanted.boots):
                    valid &= measure(machine, text_of(form, sizes), arms, wanted.boots, file, wanted.again)
                    DOCUMENT.write_text(written())
    DOCUMENT.write_text(written())
    return 0 if valid else 1


if __name__ == "__main__":
    sys.exit(main())
