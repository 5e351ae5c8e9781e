#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How right samplers are: runs workloads in timing guests, compares, and writes the tables of docs/signals.md.

A guest for each workload, two to ten minutes of both cores each. In it `sampler-accuracy` (tests/guest/src/accuracy.rs) samples with all
samplers at once and notes every half second what each of them says, and what is true: every sample of the lab's ring. What
is outside of the markers in the document is left alone. Runs are kept below build/accuracy, so that --only-written writes
the tables again without running anything.

usage: tests/accuracy.py [--machine NAME] [--workload NAME]... [--only-written]
"""

import argparse
import json
from pathlib import Path
import statistics
import subprocess
import sys

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "accuracy"
DOCUMENT = ROOT / "docs" / "signals.md"
PROGRAM = ROOT / "build/bin/sampler-accuracy"
# Where the tables are in the document, each between two of these.
ACCURACY = ("<!-- accuracy: written by tests/accuracy.py -->", "<!-- accuracy: end -->")
FILTER = ("<!-- filter: written by tests/accuracy.py -->", "<!-- filter: end -->")
# What the cache filter does is seen on these two, which differ in it alone.
FILTERED, UNFILTERED = "lookahead=10", "lookahead:unfiltered=10"
# As they are; with a budget in percent of a CPU; and without the filter that drops what caches absorb.
SAMPLERS = ("lookahead", FILTERED, UNFILTERED, "device", "fault")
# Four threads: the other CPUs are for those who look.
WORKLOADS = {
    "crossed": ["--threads", "4", "--processes", "2"],
    "pairs": ["--threads", "4"],
    "ring": ["--threads", "4"],
    "phases": ["--threads", "4", "--phases", "2"],
    "all-shared": ["--threads", "4"],
    "cg": ["--threads", "4"],
    # Beside far rows it reads lines that stay in the caches.
    "oltp": ["--threads", "4", "--requests", "1500000"],
}
# Programs in phases: in each they use other memory than in the one before, and what is true is forgotten with it.
PHASED = ("phases",)
SECONDS = 12
# Samplers remember with this half-life, so what is true is remembered alike.
HALF_LIFE_S = 3.0
# Signals are judged from here on: before, there is too little to see.
WARM_UP_S = 1.5
# Of several nodes that are nearly alike, each is right.
ALIKE = 0.95
# What may be saved up is spent by then: from here on the budget is kept.
SAVINGS_SPENT_S = 2.5
# Groups that have this share of all accesses are the hot ones.
HOT = 0.9
# Samples in half a second from which a thread counts as one that uses memory.
BUSY = 500


class Failed(Exception):
    """A guest did not do what it should."""


def guest(machine, command, added, timeout_s=1500):
    """Standard output of a command in a timing guest; its files in /out go to the folder that is returned too."""
    words = [word for program in added for word in ("--add", str(program))]
    done = subprocess.run(
        [ROOT / "vm/lab.py", "run", "--quiet", "--timing", "--machine", ROOT / f"vm/machines/{machine}.toml", "--timeout",
         str(timeout_s), *words, "--", "sh", "-c", command],
        capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        raise Failed(f"the guest failed with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def observed(machine, workload, arguments):
    """What was true and what was seen, interval by interval."""
    load = " ".join(["tandem-load", workload, *arguments])
    # The program may end before the samplers do; what it said is told only if nothing was seen of it.
    sample = f"sampler-accuracy tandem-load {SECONDS} {' '.join(SAMPLERS)} || sed 's/^/load: /' /tmp/load"
    # As under sched_ext: where pages are moved meanwhile, signals go by where they are and the truth by where they were.
    still = "echo 0 > /proc/sys/kernel/numa_balancing"
    command = f"{still}; {load} >/tmp/load 2>&1 & {sample}; kill $! 2>/dev/null || true"
    output = guest(machine, command, [ROOT / "build/bin/tandem-load", PROGRAM])
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"{workload}: nothing was seen: {output[-2000:]}")
    return [json.loads(line) for line in lines]


def argmax(row):
    """Where the greatest number is; None if there is none above 0."""
    best = max(range(len(row)), key=row.__getitem__, default=None)
    return best if best is not None and row[best] > 0 else None


def is_right(said, true):
    """Whether the node that `said` prefers is one of those that are truly preferred."""
    preferred = argmax(said) if said else None
    return preferred is not None and true[preferred] >= ALIKE * max(true)


def ranks(values):
    """Ranks from 1, equal values sharing theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in order[at:end]:
            ranked[place] = (at + 1 + end) / 2
        at = end
    return ranked


def correlation(true, said):
    """Pearson's; None if there is nothing to find, 0 if nothing was found."""
    if len(set(true)) < 2:
        return None
    return statistics.correlation(true, said) if len(set(said)) > 1 else 0.0


class Truth:
    """What is true, remembered as the samplers do."""

    def __init__(self):
        self.threads, self.groups, self.pairs, self.time_s = {}, {}, {}, 0.0

    def add(self, time_s, picture):
        """An interval passes."""
        factor = 0.5 ** ((time_s - self.time_s) / HALF_LIFE_S)
        self.time_s = time_s
        for rows, new in ((self.threads, picture["threads"].items()), (self.groups, by_place(picture["groups"]).items())):
            for row in rows.values():
                row[:] = [value * factor for value in row]
            for key, row in new:
                rows[key] = [old + value for old, value in zip(rows.get(key, [0] * len(row)), row)]
        for pair in self.pairs:
            self.pairs[pair] *= factor
        for one, other, shared in picture["sharing"]:
            self.pairs[one, other] = self.pairs.get((one, other), 0) + shared

    def forget(self):
        """The program goes on to its next phase."""
        for rows in (self.threads, self.groups, self.pairs):
            rows.clear()

    def hot_groups(self):
        """The groups that have most accesses."""
        by_heat = sorted(self.groups.items(), key=lambda item: -sum(item[1]))
        left = HOT * sum(sum(row) for row in self.groups.values())
        hot = {}
        for key, row in by_heat:
            if left <= 0:
                break
            left -= sum(row)
            hot[key] = row
        return hot


def by_place(groups):
    """Rows of groups by process and address; regions that end within 2 MiB of each other are one."""
    rows = {}
    for process, start, row in groups:
        rows[process, start] = [old + new for old, new in zip(rows.get((process, start), [0] * len(row)), row)]
    return rows


def judged(truth, busy, said):
    """The measures of one picture that a sampler has, by name."""
    threads = {tid: row for tid, row in truth.threads.items() if tid in busy}
    rows = {tid: said["threads"].get(tid) for tid in threads}
    hot, groups = truth.hot_groups(), by_place(said["groups"])
    right = sum(sum(row) for key, row in hot.items() if is_right(groups.get(key), row))
    known = [tid for tid in threads if rows[tid]]
    pairs = [(one, other) for one in sorted(threads, key=int) for other in sorted(threads, key=int) if int(one) < int(other)]
    shared = {(str(one), str(other)): value for one, other, value in said["sharing"]}
    true_shared = {(str(one), str(other)): value for (one, other), value in truth.pairs.items()}
    return {
        "threads": sum(is_right(rows[tid], row) for tid, row in threads.items()) / len(threads),
        "groups": right / max(sum(sum(row) for row in hot.values()), 1e-9),
        "ranks": correlation(
            ranks([value for tid in known for value in threads[tid]]),
            ranks([value for tid in known for value in rows[tid]]),
        ),
        "sharing": correlation([true_shared.get(pair, 0) for pair in pairs], [shared.get(pair, 0) for pair in pairs]),
    }


def threads_of(lines):
    """All threads that truly use memory."""
    return {tid for line in lines for tid in line["truth"]["threads"]}


def turns(lines, tid):
    """The intervals from which on a thread truly prefers another node, with that node, and with the one before for two intervals."""
    true = [argmax(line["truth"]["threads"].get(tid, [])) for line in lines]
    for at in range(2, len(lines) - 1):
        before, now = true[at - 2:at], true[at:at + 2]
        if None not in before + now and len(set(before)) == len(set(now)) == 1 and before[0] != now[0]:
            yield at, now[0]


def lags_s(lines, sampler):
    """From each change of a thread's truly preferred node until the sampler says so; None where it never did."""
    lags = []
    for tid in threads_of(lines):
        said = [argmax(line["samplers"][sampler]["threads"].get(tid, [])) for line in lines]
        for at, now in turns(lines, tid):
            begun_s = lines[at - 1]["time_s"]
            follows = (line["time_s"] - begun_s for line, node in zip(lines[at:], said[at:]) if node == now)
            lags.append(next(follows, None))
    return lags


def busy_of(line):
    """Threads that use memory in an interval."""
    return {tid for tid, row in line["truth"]["threads"].items() if sum(row) >= BUSY}


def measures(lines, sampler, phased=False):
    """What the table says of one sampler on one workload, which goes through phases if it is `phased`."""
    truth, all_judged = Truth(), []
    begins = {at for tid in threads_of(lines) for at, _ in turns(lines, tid)} if phased else set()
    for at, line in enumerate(lines):
        if at in begins:
            truth.forget()
        truth.add(line["time_s"], line["truth"])
        if line["time_s"] >= WARM_UP_S and busy_of(line):
            all_judged.append(judged(truth, busy_of(line), line["samplers"][sampler]))
    if not all_judged:
        raise Failed("the workload ended before there was anything to see")
    mean = {}
    for name in all_judged[0]:
        values = [one[name] for one in all_judged if one[name] is not None]
        mean[name] = statistics.mean(values) if values else None
    lags = lags_s(lines, sampler)
    followed = [lag for lag in lags if lag is not None]
    mean["lag_s"] = statistics.mean(followed) if followed else None
    mean["changes"], mean["followed"] = len(lags), len(followed)
    mean["cost"] = cost(lines, sampler, 0)
    mean["lasting_cost"] = cost(lines, sampler, SAVINGS_SPENT_S)
    mean["intervals"] = len(all_judged)
    return mean


def cost(lines, sampler, from_s):
    """CPU time from then on, as a share of one CPU; None if the run ended before."""
    last = lines[-1]
    before = [(line["time_s"], line["samplers"][sampler]["cost_ns"]) for line in lines if line["time_s"] >= from_s > 0]
    begin_s, spent_ns = before[0] if before else (0, 0)
    if from_s >= last["time_s"] or begin_s == last["time_s"]:
        return None
    return (last["samplers"][sampler]["cost_ns"] - spent_ns) / ((last["time_s"] - begin_s) * 1e9)


def cell(value, form):
    return "-" if value is None else form.format(value)


def table(results):
    """The table, from the measures by workload and sampler."""
    rows = ["| workload | sampler | threads | hot groups | ranks | sharing | lag | CPU | later |", "|---|---|---|---|---|---|---|---|---|"]
    for workload, by_sampler in results.items():
        for sampler, found in by_sampler.items():
            lag = cell(found["lag_s"], "{:.1f} s") + (f" ({found['followed']} of {found['changes']})" if found["changes"] else "")
            name, _, percent = sampler.partition("=")
            name, _, unfiltered = name.partition(":")
            named = f"`{name}`" + (f" with {percent} %" if percent else "") + (", unfiltered" if unfiltered else "")
            rows.append(
                f"| `{workload}` | {named} | {found['threads']:.1%} | {found['groups']:.1%} | {cell(found['ranks'], '{:.2f}')} | "
                f"{cell(found['sharing'], '{:.2f}')} | {lag} | {found['cost']:.2%} | {cell(found['lasting_cost'], '{:.2%}')} |"
            )
    return "\n".join(rows)


def per_1000_instructions(line):
    """Second-level misses that the CPUs counted, accesses that lookahead kept, those that it saw without its filter, and misses of
    the last level, which the CPUs counted too."""
    rates = [line["counted"]["lines"]["l2_misses"] / line["counted"]["instructions"]]
    for sampler in (FILTERED, UNFILTERED):
        counters = line["samplers"][sampler]["counters"]
        rates.append(counters["accesses"] / counters["instructions"])
    rates.append(line["counted"]["lines"]["l3_misses"] / line["counted"]["instructions"])
    return [1000 * rate for rate in rates]


def filter_table(last_lines):
    """What the cache filter does, from the last line of each workload's run."""
    rows = ["| workload | second-level misses | of them last-level misses | `lookahead` | unfiltered |", "|---|---|---|---|---|"]
    for workload, line in last_lines.items():
        true, kept, seen, far = per_1000_instructions(line)
        rows.append(f"| `{workload}` | {true:.0f} | {far:.0f} | {kept:.0f} ({kept / true:.2f}x) | {seen:.0f} ({seen / true:.2f}x) |")
    return "\n".join(rows)


def written(text, markers, new):
    """`text` with what is between the markers replaced."""
    begin, end = markers
    before, rest = text.split(begin)
    return before + begin + "\n" + new + "\n" + end + rest.split(end)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="2node", help="a name in vm/machines")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; the others' runs stay")
    parser.add_argument("--only-written", action="store_true", help="run nothing")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = {name: RESULTS / f"{options.machine}-{name}.json" for name in WORKLOADS}
    if not options.only_written:
        for name in options.workload or WORKLOADS:
            print(f"{name}...", file=sys.stderr, flush=True)
            file[name].write_text(json.dumps(observed(options.machine, name, WORKLOADS[name])))
    lines = {name: json.loads(file[name].read_text()) for name in WORKLOADS if file[name].exists()}
    results = {name: {sampler: measures(seen, sampler, name in PHASED) for sampler in SAMPLERS} for name, seen in lines.items()}
    tables = {ACCURACY: table(results), FILTER: filter_table({name: seen[-1] for name, seen in lines.items()})}
    text = DOCUMENT.read_text()
    for markers, new in tables.items():
        text = written(text, markers, new)
        print(new)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"accuracy: {error}")
