# SPDX-License-Identifier: GPL-2.0-only
"""The flat machine form, and QEMU's arguments for it."""

import unittest

from machines import machine, values

from lab import LabError, qemu
from lab.machine import parse

FLAT = """\
name=pair
nodes=2
threads_per_core=2
llcs_per_node=1
node.0.id=0
node.0.cpus=4
node.0.memory_mb=512
node.0.distance=10 21
node.1.id=3
node.1.cpus=0
node.1.memory_mb=64
node.1.distance=21 10
"""


class FlatForm(unittest.TestCase):
    def test_every_value_is_read(self):
        pair = parse(FLAT)
        self.assertEqual((pair.name, pair.threads_per_core, pair.llcs_per_node), ("pair", 2, 1))
        self.assertEqual((pair.nodes[1].id, pair.nodes[1].cpus, pair.nodes[1].memory_mb), (3, 0, 64))
        self.assertEqual(pair.nodes[0].distance, (10, 21))
        self.assertEqual((pair.cpus, pair.memory_mb), (4, 576))

    def test_a_missing_key_is_named(self):
        with self.assertRaisesRegex(LabError, r"node\.1\.cpus"):
            parse(FLAT.replace("node.1.cpus=0\n", ""))

    def test_a_line_without_equals_sign_is_shown(self):
        with self.assertRaisesRegex(LabError, "nonsense"):
            parse(FLAT + "nonsense\n")

    def test_a_value_that_is_no_number_is_shown(self):
        with self.assertRaisesRegex(LabError, "many"):
            parse(FLAT.replace("cpus=4", "cpus=many"))


class QemuArguments(unittest.TestCase):
    def test_equal_nodes_are_sockets_with_all_cpus_present(self):
        arguments = qemu.machine_arguments(machine([4, 4], threads=2, llcs=2), "tcg")
        self.assertEqual(values(arguments, "-smp"), ["8,maxcpus=8,sockets=2,dies=2,cores=1,threads=2"])
        self.assertEqual(values(arguments, "-device"), [])
        self.assertIn("cpu,node-id=1,socket-id=1", values(arguments, "-numa"))

    def test_every_distance_between_nodes_is_given(self):
        numa = values(qemu.machine_arguments(machine([2, 2, 2]), "tcg"), "-numa")
        self.assertEqual(sum(value.startswith("dist,") for value in numa), 6)

    def test_a_memory_only_node_at_the_end_needs_no_socket(self):
        lab = machine([2, 2, 0])
        self.assertEqual(qemu.sockets(lab), [0, 1])
        self.assertIn("node,nodeid=2,memdev=m2", values(qemu.machine_arguments(lab, "tcg"), "-numa"))

    def test_absent_ids_get_empty_slots_so_that_linux_keeps_the_numbers(self):
        sparse = machine([2, 2, 2], ids=[0, 2, 5])
        self.assertEqual(qemu.holes(sparse), [1, 3, 4])
        present = {slot.node for slot in qemu.slots(sparse) if slot.present}
        self.assertEqual(present, {0, 2, 5})
        self.assertEqual(sorted({slot.node for slot in qemu.slots(sparse)}), [0, 1, 2, 3, 4, 5])
        arguments = qemu.machine_arguments(sparse, "tcg")
        self.assertEqual(len(values(arguments, "-device")), 5, "six CPUs, one of which boots")
        self.assertEqual(qemu.kernel_arguments(sparse), ["possible_cpus=6"])
        self.assertIn("node,nodeid=4", values(arguments, "-numa"))

    def test_absent_ids_have_a_whole_distance_matrix(self):
        numa = values(qemu.machine_arguments(machine([1, 1], ids=[0, 3]), "tcg"), "-numa")
        pairs = [tuple(value.split(",")[1:3]) for value in numa if value.startswith("dist,")]
        self.assertEqual(len(pairs), len(set(pairs)))
        self.assertEqual(len(pairs), 12)

    def test_nodes_of_different_size_leave_slots_empty(self):
        lab = machine([3, 1])
        self.assertEqual([(slot.node, slot.present) for slot in qemu.slots(lab)],
                         [(0, True), (0, True), (0, True), (1, True), (1, False), (1, False)])

    def test_a_first_node_without_cpus_is_refused_in_words(self):
        with self.assertRaisesRegex(LabError, "node 0"):
            qemu.machine_arguments(machine([0, 2]), "tcg")


if __name__ == "__main__":
    unittest.main()
