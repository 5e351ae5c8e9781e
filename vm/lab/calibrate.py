# SPDX-License-Identifier: GPL-2.0-only
"""Calibration: what memory costs in a timing guest, measured there, against the machine file."""

import dataclasses
import json
from pathlib import Path
import tempfile

from lab import BUILD, LabError, run, timing

PROGRAM = BUILD / "bin" / "tandem-calibrate"
# An experiment whose calibration is farther off is void.
LIMIT = 0.01
# Buffers of this many times L2 and L3 leave no line in a cache from one pass to the next.
TIMES_CACHES = 2


def lines(machine):
    """Lines of one walk, a power of two."""
    values = timing.flat(machine)
    kib = int(values["caches.l2_kb"]) + int(values["caches.l3_kb_per_llc"])
    count = 1
    while count * timing.LINE_B < TIMES_CACHES * kib * 1024:
        count *= 2
    return count


def compare(machine, walks):
    """Each walk beside what the machine file says, and whether all are within the limit."""
    latency = {
        (node.id, other.id): value
        for index, node in enumerate(machine.nodes)
        for other, value in zip(machine.nodes, timing.row(machine, index, "latency_ns"))
    }
    rows = [
        walk | {"file_ns": (right := latency[walk["from"], walk["to"]]), "error": walk["ns"] / right - 1}
        for walk in walks
    ]
    worst = max(abs(row["error"]) for row in rows)
    return {"walks": rows, "worst_error": worst, "limit": LIMIT, "valid": worst <= LIMIT}


def calibrate(request):
    """Walks between all nodes in a guest; (the lab's exit code, the comparison or None)."""
    if not PROGRAM.exists():
        raise LabError(f"{PROGRAM} is not built: run ./run build")
    nodes = [str(node.id) for node in request.machine.nodes if node.memory_mb]
    words = ["tandem-calibrate", str(lines(request.machine)), *nodes]
    with tempfile.TemporaryDirectory(prefix="tandem-lab-") as directory:
        out = Path(directory)
        code, sentence = run.direct(dataclasses.replace(
            request, additions=(*request.additions, str(PROGRAM)), out=out,
            command=("sh", "-c", f"{' '.join(words)} > /out/walks.json"),
        ))
        if sentence is not None:
            return code, None
        if code != 0:
            raise LabError(f"tandem-calibrate failed with {code} in the guest: what it said is above")
        walks = json.loads((out / "walks.json").read_text())
    about = {"machine": request.machine.name, "kernel": request.release, "seed": request.seed}
    return 0, about | compare(request.machine, walks)


def table(result):
    """The comparison in words."""
    text = [f"{'CPUs of':>8} {'memory of':>10} {'file ns':>9} {'measured':>9} {'error':>8}"]
    for row in result["walks"]:
        text.append(f"{row['from']:>8} {row['to']:>10} {row['file_ns']:>9.1f} {row['ns']:>9.2f} {row['error']:>+8.2%}")
    text.append(f"worst error {result['worst_error']:.2%}, limit {result['limit']:.0%}: "
                + ("valid" if result["valid"] else "void"))
    return "\n".join(text)
