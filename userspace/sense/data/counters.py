#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Counters by CPU model, out of the kernel's event tables.

Reads tools/perf/pmu-events of a Linux source tree and writes the names and codes of the few events that Tandem
counts, by CPU model, as TOML: facts of the processors, no text of the tables. For the tree of Debian's
linux-source-7.3:

    apt-get download linux-source-7.3 && dpkg-deb -x linux-source-7.3_*.deb .
    tar -xf usr/src/linux-source-7.3.tar.xz --wildcards '*/tools/perf/pmu-events'
    userspace/sense/data/counters.py linux-source-7.3 "Linux 7.3.4" > userspace/sense/data/counters.toml

A counter is a sum of events with weights. For each counter the first list of which at least one event exists is taken.
Events that one hardware counter can count together, by the tables' own example, are made one.
"""

import csv
import json
import pathlib
import re
import sys

# Jevents writes fixed counters by these codes; the tables have pseudo codes for them.
FIXED = {
    "inst_retired.any": "event=0xc0",
    "cpu_clk_unhalted.thread": "event=0x3c",
    "cpu_clk_unhalted.core": "event=0x3c",
}

FLOPS = {"scalar_double": 1, "scalar_single": 1, "128b_packed_double": 2, "128b_packed_single": 4,
         "256b_packed_double": 4, "256b_packed_single": 8, "512b_packed_double": 8, "512b_packed_single": 16}

# By counter: lists in order of preference; an event is a name or (name, weight).
COUNTERS = {
    "instructions": [["inst_retired.any"], ["ex_ret_instr"], ["inst_retired"]],
    "cycles": [["cpu_clk_unhalted.thread"], ["cpu_clk_unhalted.core"], ["ls_not_halted_cyc"], ["cpu_cycles"]],
    # Floating-point operations, by those widths that the model has.
    "operations": [
        [(f"fp_arith_inst_retired.{width}", weight) for width, weight in FLOPS.items()],
        ["fp_ret_sse_avx_ops.all"],
    ],
    "l2_miss": [["mem_load_retired.l2_miss"], ["mem_load_uops_retired.l2_miss"], ["l2_cache_req_stat.ls_rd_blk_c"],
                ["l2d_cache_refill"]],
    # What leaves the last level, stores and prefetches included: the bandwidth signal.
    "l3_miss": [
        ["longest_lat_cache.miss"],
        ["ls_any_fills_from_sys.dram_io_near", "ls_any_fills_from_sys.dram_io_far"],
        ["ls_any_fills_from_sys.mem_io_local", "ls_any_fills_from_sys.mem_io_remote"],
        ["ls_refills_from_sys.ls_mabresp_lcl_dram", "ls_refills_from_sys.ls_mabresp_rmt_dram"],
        ["ll_cache_miss_rd"],
        ["l3d_cache_refill"],
    ],
    "remote_memory": [
        ["mem_load_l3_miss_retired.remote_dram", "mem_load_l3_miss_retired.remote_pmm",
         "mem_load_l3_miss_retired.remote_cxl_mem"],
        ["mem_load_uops_l3_miss_retired.remote_dram"],
        ["mem_load_uops_llc_miss_retired.remote_dram"],
        ["ls_any_fills_from_sys.dram_io_far"],
        ["ls_any_fills_from_sys.mem_io_remote"],
        ["ls_refills_from_sys.ls_mabresp_rmt_dram"],
        # Cache or memory of another socket.
        ["remote_access"],
    ],
    "transfers_across_nodes": [
        ["mem_load_l3_miss_retired.remote_hitm", "mem_load_l3_miss_retired.remote_fwd"],
        ["mem_load_uops_l3_miss_retired.remote_hitm", "mem_load_uops_l3_miss_retired.remote_fwd"],
        ["mem_load_uops_llc_miss_retired.remote_hitm", "mem_load_uops_llc_miss_retired.remote_fwd"],
        ["ls_any_fills_from_sys.far_cache"],
        ["ls_any_fills_from_sys.ext_cache_remote"],
        ["ls_refills_from_sys.ls_mabresp_rmt_cache"],
    ],
    # Loads that found the line in another core's cache of the socket.
    "transfers_within_node": [
        ["mem_load_l3_hit_retired.xsnp_fwd", "mem_load_l3_hit_retired.xsnp_no_fwd"],
        ["mem_load_l3_hit_retired.xsnp_hitm", "mem_load_l3_hit_retired.xsnp_hit"],
        ["mem_load_uops_l3_hit_retired.xsnp_hitm", "mem_load_uops_l3_hit_retired.xsnp_hit"],
        ["mem_load_uops_llc_hit_retired.xsnp_hitm", "mem_load_uops_llc_hit_retired.xsnp_hit"],
        ["ls_any_fills_from_sys.near_cache"],
        ["ls_any_fills_from_sys.ext_cache_local"],
    ],
}

# Their unit masks add up: the tables have such sums (FP_ARITH_INST_RETIRED.4_FLOPS, ls_any_fills_from_sys.far_all).
ADDING = ("fp_arith_inst_retired.", "ls_any_fills_from_sys.", "ls_refills_from_sys.")

# Units of the tables that are cores, and the PMU that counts them.
CORES = {None: "cpu", "cpu_core": "cpu_core", "cpu_atom": "cpu_atom", "cpu_lowpower": "cpu_lowpower"}


def events_of(folder, standard):
    """Events of the cores: {pmu: {lower-case name: (name, terms)}}."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        for entry in json.loads(file.read_text()):
            if not isinstance(entry, dict) or entry.get("Unit") not in CORES:
                continue
            entry = {**standard.get(entry.get("ArchStdEvent", "").lower(), {}), **entry}
            name, code = entry.get("EventName"), entry.get("EventCode")
            code = code or ("fixed" if str(name).lower() in FIXED else None)
            if name is None or code is None or "," in code or entry.get("Deprecated") == "1":
                continue
            of_pmu = found.setdefault(CORES[entry.get("Unit")], {})
            of_pmu.setdefault(name.lower(), (name, terms(name, entry)))
    return found


def terms(name, entry):
    """The event in the words of its PMU's format folder."""
    if name.lower() in FIXED:
        return FIXED[name.lower()]
    words = [f"event={int(entry['EventCode'], 0):#x}"]
    for key, term in (("UMask", "umask"), ("CounterMask", "cmask"), ("Invert", "inv"), ("EdgeDetect", "edge")):
        value = int(str(entry.get(key) or "0"), 0)
        if value:
            words.append(f"{term}={value:#x}")
    return ",".join(words)


def counters_of(events):
    """{counter: [(weight, name, terms)]} of what exists, no code twice in a counter."""
    counters = {}
    for counter, lists in COUNTERS.items():
        for names in lists:
            pairs = [(name, 1) if isinstance(name, str) else name for name in names]
            chosen = {events[name][1]: (weight, *events[name]) for name, weight in pairs if name in events}
            if chosen:
                counters[counter] = added(list(chosen.values()))
                break
    return counters


def added(entries):
    """Events of equal weight and code whose unit masks add up, as one."""
    sums, rest = {}, []
    for weight, name, code in entries:
        plain = re.fullmatch("event=(0x[0-9a-f]+),umask=(0x[0-9a-f]+)", code)
        if plain and name.lower().startswith(ADDING):
            names, mask = sums.get((weight, plain[1]), ([], 0))
            sums[weight, plain[1]] = (names + [name], mask | int(plain[2], 0))
        else:
            rest.append((weight, name, code))
    return rest + [(weight, "+".join([names[0]] + [name.split(".")[1] for name in names[1:]]),
                    f"event={event},umask={mask:#x}") for (weight, event), (names, mask) in sums.items()]


def x86_models(rows):
    """{folder: [cpuid ranges]}: the tables' patterns tried on every model, since the first that fits counts."""
    expressions = [(re.compile(row[0].replace("[[:xdigit:]]", "[0-9A-F]") + "$"), row[2]) for row in rows]
    families = sorted({tuple(row[0].split("-")[:2]) for row in rows})
    found = {}
    for vendor, family in families:
        for model in range(0x100):
            by_stepping = [first(expressions, f"{vendor}-{family}-{model:X}", stepping) for stepping in range(16)]
            for low, high, folder in runs(by_stepping):
                if folder is not None:
                    steppings = "" if (low, high) == (0, 15) else f"-{low:X}..{high:X}"
                    found.setdefault(folder, []).append((f"{vendor}-{family}", model, steppings))
    return {folder: merged(models) for folder, models in found.items()}


def first(expressions, prefix, stepping):
    """The folder of a model, as perf finds it: with the stepping where the pattern has one."""
    for expression, folder in expressions:
        if expression.match(prefix) or expression.match(f"{prefix}-{stepping:X}"):
            return folder
    return None


def runs(values):
    """(first index, last index, value) of equal neighbours."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield start, at - 1, values[start]
            start = at


def merged(models):
    """Texts such as `AuthenticAMD-25-10..1F` for neighbouring models."""
    texts, at = [], 0
    while at < len(models):
        family, low, steppings = models[at]
        high = low
        while at + 1 < len(models) and models[at + 1] == (family, high + 1, steppings) and not steppings:
            at, high = at + 1, high + 1
        texts.append(f"{family}-{low:X}" + (f"..{high:X}" if high > low else "") + steppings)
        at += 1
    return texts


def rows_of(file):
    """Rows of a map that are about cores."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [row for row in csv.reader(lines) if row[-1] == "core"]


def quoted(text):
    """A TOML string."""
    return json.dumps(text)


def write(name, cpus, found, into):
    """The tables of one core type."""
    for pmu, events in sorted(found.items()):
        counters = counters_of(events)
        if not counters:
            continue
        into.write(f"\n[[core]]\nname = {quoted(name)}\npmu = {quoted(pmu)}\n")
        into.write("cpus = [" + ", ".join(map(quoted, cpus)) + "]\n")
        into.write("[core.counters]\n")
        for counter, entries in counters.items():
            items = ", ".join(f"{{ weight = {weight}, name = {quoted(event)}, terms = {quoted(code)} }}"
                              for weight, event, code in entries)
            into.write(f"{counter} = [{items}]\n")


def main():
    """Writes the table of a source tree."""
    if len(sys.argv) != 3:
        sys.exit("usage: counters.py LINUX_SOURCE_TREE VERSION_IN_WORDS > counters.toml")
    arch = pathlib.Path(sys.argv[1]) / "tools/perf/pmu-events/arch"
    if not (arch / "x86/mapfile.csv").exists():
        sys.exit(f"counters.py: {arch} has no x86/mapfile.csv: name the root of a Linux source tree")
    out = sys.stdout
    out.write("# SPDX-License-Identifier: GPL-2.0-only\n")
    out.write(f"# Counters by CPU model. Written by counters.py from tools/perf/pmu-events of {sys.argv[2]}.\n")
    for folder, cpus in sorted(x86_models(rows_of(arch / "x86/mapfile.csv")).items()):
        write(folder, cpus, events_of(arch / "x86" / folder, {}), out)
    standard = {}
    for file in sorted((arch / "arm64").glob("*.json")):
        standard.update({entry["EventName"].lower(): entry for entry in json.loads(file.read_text())
                         if isinstance(entry, dict) and "EventName" in entry})
    by_folder = {}
    for midr, _, folder, _ in rows_of(arch / "arm64/mapfile.csv"):
        by_folder.setdefault(folder, []).append(f"{int(midr, 0):#x}")
    for folder, cpus in sorted(by_folder.items()):
        write(folder.replace("/", " "), cpus, events_of(arch / "arm64" / folder, standard), out)


if __name__ == "__main__":
    main()
