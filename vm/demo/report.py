# SPDX-License-Identifier: GPL-2.0-only
"""What the demo's runs show: measures per arm, goals of `crossed`, and both in words. No I/O.

Inputs are the documents of the runs: `tandem-load observe` (observation), `scx_tandem --report`
(scheduler report). Shares are 0 to 1, times are seconds of guest time.
"""

PLACED_SHARE = 0.95
PLACED_WITHIN_S = 20.0
QUIET_S = 20.0
SETTLED_SAMPLES = 3
NOTE = (
    "QEMU's TCG emulates nodes and distances but no NUMA latency: remote memory is as fast as local memory in this guest,"
    " so placement is compared here, never time."
)


def measures(observation, scheduler_report):
    """One arm's figures, all from its runs; what is not known is None."""
    summary = observation["summary"]
    marked = [sample for sample in observation["samples"] if sample["time_s"] >= 0]
    first, last = marked[0], marked[-1]
    result = {
        "observed_s": summary["observed_s"],
        "remote_share_start": summary["remote_share_start"],
        "remote_share_end": summary["remote_share_end"],
        "local_pages_share_end": summary["local_pages_share_end"],
        "private_local_share_end": summary["private_local_share_end"],
        "pages_per_node_start": first["pages_per_node"],
        "pages_per_node_end": last["pages_per_node"],
        "threads_per_node_start": first["threads_per_node"],
        "threads_per_node_end": last["threads_per_node"],
        "right_place_share": summary["right_place_share"],
        "pairs": summary["pairs"],
        "pairs_together_end": summary["pairs_together_end"],
        "thread_moves": summary["thread_moves"],
        "thread_excursions": excursions(summary),
        "page_moves": summary["migrations"]["pgmigrate_success"],
        "numa_hint_faults": summary["migrations"]["numa_hint_faults"],
        "time_to_90_percent_local_s": summary["time_to_90_percent_local_s"],
        "observer_cpu_s": observation["observer_cpu_s"],
    }
    if scheduler_report is not None:
        result["decided_thread_moves"] = len(scheduler_report["thread_moves"])
        result["decided_page_moves"] = sum(move["moved_pages"] for move in scheduler_report["page_moves"])
        result["sampler"] = scheduler_report["sampler"]
        result["mover"] = scheduler_report["mover"]
    return result


def excursions(summary):
    """Node changes that are no part of a lasting move (a thread seen elsewhere once and then back)."""
    return max(0, summary["thread_node_changes"] - summary["thread_moves"])


def goals(observation, scheduler_report, within_s=PLACED_WITHIN_S):
    """The verdicts on `crossed` under scx_tandem: [{"goal", "measured", "met"}]. Placed is what is so after `within_s`.

    Times count from loading: the scheduler's own word or the first sample that shows it loaded, whichever is earlier.
    """
    samples = observation["samples"]
    marked_ns = next(sample["monotonic_ns"] for sample in samples if sample["time_s"] >= 0)
    loaded_ns = min(marked_ns, scheduler_report["loaded_at_ns"])
    timed = [((sample["monotonic_ns"] - loaded_ns) / 1e9, sample) for sample in samples if sample["time_s"] >= 0]
    pairs = len(observation["pairs"])
    return [
        _placed_goal(timed, within_s),
        _pairs_goal(timed, pairs, within_s),
        _quiet_goal(timed, loaded_ns, scheduler_report, within_s),
        _kept_goal(timed, pairs),
    ]


def _first_settled(timed, holds):
    """Time of the first of SETTLED_SAMPLES successive samples for which `holds`; None if there is none."""
    for index in range(len(timed) - SETTLED_SAMPLES + 1):
        if all(holds(sample) for _, sample in timed[index : index + SETTLED_SAMPLES]):
            return timed[index][0]
    return None


def _is_placed(sample):
    return sample["local_pages_share"] is not None and sample["local_pages_share"] >= PLACED_SHARE


def _placed_goal(timed, within_s):
    placed_s = _first_settled(timed, _is_placed)
    best = max((sample["local_pages_share"] or 0.0 for _, sample in timed), default=0.0)
    measured = f"never; at best {percent(best)}" if placed_s is None else f"after {placed_s:.1f} s"
    return {
        "goal": f"at least {percent(PLACED_SHARE)} of pages on the node of the thread that uses them"
        f" within {within_s:.0f} s of loading",
        "measured": measured,
        "met": placed_s is not None and placed_s <= within_s,
    }


def _pairs_goal(timed, pairs, within_s):
    together_s = _first_settled(timed, lambda sample: sample["pairs_together"] == pairs)
    most = max((sample["pairs_together"] for _, sample in timed), default=0)
    measured = f"never; at best {most} of {pairs}" if together_s is None else f"after {together_s:.1f} s"
    return {
        "goal": f"both threads of each of the {pairs} pairs on one node within {within_s:.0f} s of loading",
        "measured": measured,
        "met": together_s is not None and together_s <= within_s,
    }


def _quiet_goal(timed, loaded_ns, scheduler_report, within_s):
    begin_s, end_s = within_s, within_s + QUIET_S
    window = [sample for time_s, sample in timed if begin_s < time_s <= end_s]

    def decided(moves):
        return [move for move in moves if begin_s < (move["time_ns"] - loaded_ns) / 1e9 <= end_s]

    counts = {
        "thread moves decided": len(decided(scheduler_report["thread_moves"])),
        "pages moved by decision": sum(move["moved_pages"] for move in decided(scheduler_report["page_moves"])),
        "thread moves seen": sum(sample["thread_moves"] for sample in window),
        "page moves seen": sum(sample["page_home_changes"] for sample in window),
        "pages migrated by the kernel's count": sum(sample["migrations"]["pgmigrate_success"] for sample in window),
    }
    covered = bool(timed) and timed[-1][0] >= end_s
    return {
        "goal": f"no move of a thread or page from {begin_s:.0f} s to {end_s:.0f} s after loading",
        "measured": ", ".join(f"{count} {what}" for what, count in counts.items())
        if covered
        else f"observed only until {timed[-1][0] if timed else 0:.1f} s",
        "met": covered and not any(counts.values()),
    }


def _kept_goal(timed, pairs):
    ending = timed[-SETTLED_SAMPLES:]
    met = len(ending) == SETTLED_SAMPLES and all(
        _is_placed(sample) and sample["pairs_together"] == pairs for _, sample in ending
    )
    last = timed[-1][1] if timed else {"local_pages_share": None, "pairs_together": 0}
    return {
        "goal": f"still so at the end ({SETTLED_SAMPLES} last samples)",
        "measured": f"{percent(last['local_pages_share'])} of pages, {last['pairs_together']} of {pairs} pairs",
        "met": met,
    }


def percent(share):
    """A share as text; a dash when unknown."""
    return "-" if share is None else f"{100 * share:.1f} %"


def seconds(value):
    """Seconds as text; "not reached" when None."""
    return "not reached" if value is None else f"{value:.1f} s"


def per_node(counts, nodes):
    """Counts of all `nodes` in their order: `0/12/0/4`."""
    return "/".join(str(counts.get(str(node), 0)) for node in nodes)


def rows(nodes, arm):
    """The table's rows of one arm: [(title, text)]."""
    result = [
        ("remote share of accesses, start", percent(arm["remote_share_start"])),
        ("remote share of accesses, end", percent(arm["remote_share_end"])),
        ("pages on their user's node, end", percent(arm["local_pages_share_end"])),
        ("  of private pages", percent(arm["private_local_share_end"])),
        ("pages per node, start", per_node(arm["pages_per_node_start"], nodes)),
        ("pages per node, end", per_node(arm["pages_per_node_end"], nodes)),
        ("threads per node, start", per_node(arm["threads_per_node_start"], nodes)),
        ("threads per node, end", per_node(arm["threads_per_node_end"], nodes)),
        ("thread time in the right place", percent(arm["right_place_share"])),
        ("pairs on one node, end", f"{arm['pairs_together_end']} of {arm['pairs']}"),
        ("thread moves (and excursions)", f"{arm['thread_moves']} ({arm['thread_excursions']})"),
        ("page moves (kernel's count)", str(arm["page_moves"])),
        ("NUMA hint faults", str(arm["numa_hint_faults"])),
        ("time to 90 % local", seconds(arm["time_to_90_percent_local_s"])),
    ]
    if "decided_thread_moves" in arm:
        result.append(("moves decided by scx_tandem", f"{arm['decided_thread_moves']} threads, {arm['decided_page_moves']} pages"))
    return result


def table(nodes, arms):
    """Lines that compare `arms` ({name: measures}) side by side."""
    columns = {name: dict(rows(nodes, arm)) for name, arm in arms.items()}
    titles = list(dict.fromkeys(title for column in columns.values() for title in column))
    title_width = max(len(title) for title in titles)
    widths = {name: max(len(name), *(len(text) for text in column.values())) for name, column in columns.items()}

    def line(title, texts):
        cells = [text.rjust(widths[name]) for name, text in texts.items()]
        return "  ".join([title.ljust(title_width), *cells]).rstrip()

    lines = [line("", {name: name for name in columns})]
    for title in titles:
        lines.append(line(title, {name: column.get(title, "-") for name, column in columns.items()}))
    return lines


def sampler_line(sampler):
    """What sampling was allowed and what it gave."""
    return (
        f"sampler {sampler['name']}: budget {sampler['budget_percent']:.0f} % of one CPU, used {sampler['used_percent']:.1f} %, "
        f"{sampler['covered_threads']} of {sampler['busy_threads']} busy threads covered, "
        f"{sampler['counters']['emulated']} samples, {sampler['counters']['accesses']} accesses"
    )


def mover_line(mover):
    """What moving pages was allowed and what it cost."""
    return (
        f"mover: budget {mover['budget_pages_per_s'] * 4096 >> 20} MiB/s and {mover['budget_call_ns_per_s'] / 1e7:.0f} % of one CPU, "
        f"{mover['moved_pages']} pages in {mover['call_ns'] / 1e9:.2f} s of system calls"
    )


def text(demo):
    """The whole report in lines."""
    lines = []
    for workload in demo["workloads"]:
        arms = {arm["name"]: arm["measures"] for arm in workload["arms"]}
        lines += ["", f"{workload['name']}: {workload['description']}", *table(demo["machine"]["node_ids"], arms)]
        for name, arm in arms.items():
            if "sampler" in arm:
                lines += [f"  {name}: {sampler_line(arm['sampler'])}", f"  {name}: {mover_line(arm['mover'])}"]
    lines += ["", NOTE]
    if demo["goals"]:
        lines += ["", "Goals under scx_tandem:"]
        for goal in demo["goals"]:
            verdict = "met   " if goal["met"] else "MISSED"
            lines.append(f"  {verdict} {goal['workload']}: {goal['goal']}: {goal['measured']}")
    return lines
