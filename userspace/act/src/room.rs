// SPDX-License-Identifier: GPL-2.0-only
//! How many pages each node can take without the kernel having to free others there.
//!
//! Problem: pages that are moved to a full node make the kernel evict what the node's own programs use. Mechanism: a
//! zone's free pages above its `high` watermark, and above what it keeps for allocations that can go nowhere else
//! (`protection`), are the node's room; the kernel begins to reclaim below `low`, which is less than `high`. Read from
//! /proc/zoneinfo; what is moved there since then is taken off. Pages are base pages.

use std::collections::BTreeMap;

use tandem_policies::model::NodeId;

/// Room by node, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room(BTreeMap<NodeId, u64>);

impl Room {
    /// From the text of /proc/zoneinfo; `None` if it is not such a text.
    pub fn parse(zoneinfo: &str) -> Option<Self> {
        let mut rooms = BTreeMap::new();
        for zone in zoneinfo.split("Node ").skip(1) {
            let node = NodeId(zone.split_once(", zone")?.0.trim().parse().ok()?);
            *rooms.entry(node).or_default() += zone_pages(zone)?;
        }
        (!rooms.is_empty()).then_some(Self(rooms))
    }

    /// Whether `pages` fit on the node. One that the kernel does not name is no one's to judge here.
    pub fn fits(&self, node: NodeId, pages: u64) -> bool {
        self.0.get(&node).is_none_or(|room| *room >= pages)
    }

    /// Pages have come to the node.
    pub fn take(&mut self, node: NodeId, pages: u64) {
        if let Some(room) = self.0.get_mut(&node) {
            *room = room.saturating_sub(pages);
        }
    }
}

/// Room of one zone, from its part of the text. `None` if a number is missing.
fn zone_pages(zone: &str) -> Option<u64> {
    let (mut free, mut high, mut kept) = (None, None, None);
    for line in zone.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("pages"), Some("free")) => free = words.next()?.parse::<u64>().ok(),
            (Some("high"), Some(pages)) => high = pages.parse::<u64>().ok(),
            (Some("protection:"), Some(_)) => kept = largest(line),
            _ => {}
        }
    }
    Some(free?.saturating_sub(high?.saturating_add(kept?)))
}

/// Largest number of `protection: (0, 3019, 24090)`: what is kept of the zone from allocations that may use all others.
fn largest(line: &str) -> Option<u64> {
    let (_, list) = line.split_once('(')?;
    let numbers = list.trim_end().strip_suffix(')')?.split(", ");
    numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Linux 6.18 on a machine with 24 GiB, statistics left out; and the head of a second node's zone.
    const ZONEINFO: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 45815
      nr_free_highmem 7
  pages free     3840
        boost    0
        min      10
        low      13
        high     16
        promo    19
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 3019, 24090, 24090, 24090)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count:    0
              high:     0
              batch:    1
              high_min: 6
              high_max: 240
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone    DMA32
  pages free     769976
        boost    0
        min      2116
        low      2888
        high     3660
        promo    4432
        protection: (0, 0, 21071, 21071, 21071)
  pagesets
    cpu: 0
              count:    18
              high:     1444
Node 0, zone   Normal
  pages free     5116295
        boost    0
        min      14769
        low      20163
        high     25557
        promo    30951
        protection: (0, 0, 0, 0, 0)
Node 0, zone  Movable
  pages free     0
        boost    0
        min      32
        low      32
        high     32
        promo    32
        protection: (0, 0, 0, 0, 0)
Node 10, zone   Normal
  pages free     25000
        high     25557
        protection: (0, 0, 0, 0, 0)
";

    #[test]
    fn a_node_has_what_its_zones_have_above_watermark_and_reserve() {
        let room = Room::parse(ZONEINFO).unwrap();
        let expected = (769_976 - 3660 - 21071) + (5_116_295 - 25557);
        assert_eq!(room, Room([(NodeId(0), expected), (NodeId(10), 0)].into()));
    }

    #[test]
    fn the_running_kernel_tells() {
        let text = std::fs::read_to_string("/proc/zoneinfo").unwrap();
        assert!(Room::parse(&text).is_some(), "{text}");
    }

    #[test]
    fn another_text_is_told() {
        for odd in ["", "no zones", "Node 0, zone Normal\n  pages free 12\n", "Node x, zone Normal\n"] {
            assert_eq!(Room::parse(odd), None, "{odd:?}");
        }
        let number = ZONEINFO.replace("25557", "many");
        assert_eq!(Room::parse(&number), None);
    }

    #[test]
    fn what_has_come_is_taken_off_until_nothing_is_left() {
        let mut room = Room([(NodeId(1), 600)].into());
        assert!(room.fits(NodeId(1), 600) && !room.fits(NodeId(1), 601) && room.fits(NodeId(2), u64::MAX));
        room.take(NodeId(1), 100);
        assert!(room.fits(NodeId(1), 500) && !room.fits(NodeId(1), 501));
        room.take(NodeId(1), 501);
        room.take(NodeId(2), 1);
        assert!(room.fits(NodeId(1), 0) && !room.fits(NodeId(1), 1));
    }
}
