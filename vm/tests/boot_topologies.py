# SPDX-License-Identifier: GPL-2.0-only
"""Machine files on every pinned kernel: the guest has the nodes, CPUs, caches and distances of the file. Files with
latencies have their own test (boot_timing_machines.py).

usage: python3 -m unittest discover -v -s vm/tests -p 'boot_topologies.py'     (about 2 minutes)
"""

import subprocess
import unittest

from machines import VM

from lab import kernels, machine

# Plain sysfs, not our own reader: the two are not to be wrong together.
SHOW = """
cd /sys/devices/system/node
echo online $(cat online)
for node in $(ls -d node[0-9]* | sed s/node//); do
	echo cpus $node $(cat node$node/cpulist)
	echo distance $node $(cat node$node/distance)
	echo memory $node $(sed -n 's/.*MemTotal: *//p' node$node/meminfo)
done
echo possible $(cat /sys/devices/system/cpu/possible)
cd /sys/devices/system/cpu
for cpu in cpu[0-9]*; do
	echo llc $cpu $(cat $cpu/cache/index3/shared_cpu_list)
	echo core $cpu $(cat $cpu/topology/thread_siblings_list)
done
"""


def cpu_range(first, count):
    return "" if count == 0 else str(first) if count == 1 else f"{first}-{first + count - 1}"


def id_list(ids):
    """The kernel's list of ascending ids."""
    runs = []
    for i in ids:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def expected(lab):
    """The lines that the guest must show, but for memory."""
    lines = {f"online {id_list([node.id for node in lab.nodes])}", f"possible 0-{lab.cpus - 1}"}
    first = 0
    for node in lab.nodes:
        lines.add(f"cpus {node.id} {cpu_range(first, node.cpus)}".strip())
        lines.add(f"distance {node.id} {' '.join(map(str, node.distance))}")
        for cpu in range(node.cpus):
            for word, size in (("llc", node.cpus // lab.llcs_per_node), ("core", lab.threads_per_core)):
                lines.add(f"{word} cpu{first + cpu} {cpu_range(first + cpu // size * size, size)}")
        first += node.cpus
    return lines


class Topologies(unittest.TestCase):
    def check(self, path, kernel):
        done = subprocess.run(
            [VM / "lab.py", "run", "--quiet", "--timeout", "90", "--machine", path, "--kernel", kernel, "--",
             "sh", "-c", SHOW],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        seen = set(done.stdout.splitlines())
        lab = machine.load(path)
        memory = {line for line in seen if line.startswith("memory ")}
        self.assertEqual(seen - memory, expected(lab))
        by_node = {int(line.split()[1]): int(line.split()[2]) // 1024 for line in memory}
        for node in lab.nodes:
            # The kernel keeps some for itself, most of it on the first node.
            self.assertLessEqual(by_node[node.id], node.memory_mb)
            self.assertGreater(by_node[node.id], node.memory_mb * 0.6)


def add_checks():
    for path in sorted((VM / "machines").glob("*.toml")):
        if "latency_ns" in path.read_text():
            continue
        for kernel in kernels.pinned():
            name = f"test_{path.stem}_on_{kernel.split('+')[0]}"
            setattr(Topologies, name, lambda self, path=path, kernel=kernel: self.check(path, kernel))


add_checks()

if __name__ == "__main__":
    unittest.main()
