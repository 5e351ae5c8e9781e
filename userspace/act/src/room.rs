// SPDX-License-Identifier: GPL-2.0-only
//! How many pages, and how many huge ones, each node can take without the kernel having to make room there.
//!
//! Problem: pages that are moved to a full node make the kernel evict what the node's own programs use; for a huge page
//! (2 MiB) that goes to a node whose free memory is in pieces it moves others' pages about, and failing that splits it.
//! Mechanism: a zone's free pages above its `high` watermark, and above what it keeps for allocations that can go nowhere
//! else (`protection`), are the node's room; the kernel begins to reclaim below `low`, which is less than `high`. Of huge pages a
//! zone takes as many as it has free blocks of that size, but for a few, within its room. Read from /proc/zoneinfo and
//! /proc/buddyinfo; what is moved there since then is taken off. Pages are base pages where nothing else is said.

use std::collections::BTreeMap;

use tandem_policies::model::NodeId;

/// Base pages in a huge page, and the order of such a block: 2 to so many pages.
const HUGE_PAGES: u64 = 512;
const HUGE_ORDER: u32 = HUGE_PAGES.ilog2();
/// Huge pages of each zone that are left alone. A CPU takes two free blocks at a time and keeps the second for itself: after a
/// thread has gone to another CPU, fewer are there for it than were counted.
pub(crate) const SPARE_HUGE_PAGES: u64 = 4;

/// A zone of a node, by its name.
type Zone<'text> = (NodeId, &'text str);

/// Room by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// In base pages.
    pages: BTreeMap<NodeId, u64>,
    /// In huge pages; empty if that is not known.
    huge_pages: BTreeMap<NodeId, u64>,
}

/// Room of each zone, in base pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRooms<'text>(BTreeMap<Zone<'text>, u64>);

/// Free blocks for huge pages of each zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugeBlocks<'text>(BTreeMap<Zone<'text>, u64>);

impl<'text> ZoneRooms<'text> {
    /// From the text of /proc/zoneinfo; `None` if it is not such a text.
    pub fn parse(zoneinfo: &'text str) -> Option<Self> {
        let mut rooms = BTreeMap::new();
        for text in zoneinfo.split("Node ").skip(1) {
            let (zone, _) = head(text)?;
            rooms.insert(zone, zone_pages(text)?);
        }
        (!rooms.is_empty()).then_some(Self(rooms))
    }
}

impl<'text> HugeBlocks<'text> {
    /// From the text of /proc/buddyinfo; `None` if it is not such a text.
    pub fn parse(buddyinfo: &'text str) -> Option<Self> {
        let mut blocks = BTreeMap::new();
        for text in buddyinfo.split("Node ").skip(1) {
            let (zone, counts) = head(text)?;
            let counts = counts.split_whitespace().map(|count| count.parse().ok()).collect::<Option<Vec<u64>>>()?;
            let larger = counts.iter().skip(HUGE_ORDER as usize).zip(0u32..);
            blocks.insert(zone, larger.map(|(count, doublings)| count << doublings).sum());
        }
        (!blocks.is_empty()).then_some(Self(blocks))
    }
}

impl Room {
    /// Of nodes with these zones. Without `blocks` nothing is known of huge pages.
    pub fn new(rooms: &ZoneRooms<'_>, blocks: Option<&HugeBlocks<'_>>) -> Self {
        let mut room = Self::default();
        for (zone, pages) in &rooms.0 {
            *room.pages.entry(zone.0).or_default() += pages;
            if let Some(blocks) = blocks {
                let free = blocks.0.get(zone).copied().unwrap_or(0).saturating_sub(SPARE_HUGE_PAGES);
                *room.huge_pages.entry(zone.0).or_default() += free.min(pages / HUGE_PAGES);
            }
        }
        room
    }

    /// Whether `pages` fit on the node. One that the kernel does not name is no one's to judge here.
    pub fn fits(&self, node: NodeId, pages: u64) -> bool {
        self.pages.get(&node).is_none_or(|room| *room >= pages)
    }

    /// Whether so many huge pages do, as far as is known.
    pub fn fits_huge(&self, node: NodeId, huge_pages: u64) -> bool {
        self.huge_pages.get(&node).is_none_or(|room| *room >= huge_pages)
    }

    /// Pages have come to the node; `huge` says that they are one huge page.
    pub fn take(&mut self, node: NodeId, pages: u64, huge: bool) {
        let less = |rooms: &mut BTreeMap<NodeId, u64>, pages| {
            if let Some(room) = rooms.get_mut(&node) {
                *room = room.saturating_sub(pages);
            }
        };
        less(&mut self.pages, pages);
        less(&mut self.huge_pages, u64::from(huge));
    }
}

/// Node and zone at the head of a zone's part, and what follows them.
fn head(text: &str) -> Option<(Zone<'_>, &str)> {
    let (node, rest) = text.split_once(", zone")?;
    let rest = rest.trim_start();
    let (name, after) = rest.split_once(char::is_whitespace)?;
    Some(((NodeId(node.trim().parse().ok()?), name), after))
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

    /// Of the same machine, but for the last two zones.
    const BUDDYINFO: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone    DMA32      2      2      4      2      5      4      4      4      5      3    751
Node 0, zone   Normal   2263   3792   1580   1450   1180    706    310    115     59     34   1786
Node 0, zone  Movable      0      0      0      0      0      0      0      0      0      0      0
Node 10, zone   Normal  1000    500      0      0      0      0      0      0      9      4      0
";

    fn room(zoneinfo: &str, buddyinfo: Option<&str>) -> Room {
        let blocks = buddyinfo.map(|text| HugeBlocks::parse(text).unwrap());
        Room::new(&ZoneRooms::parse(zoneinfo).unwrap(), blocks.as_ref())
    }

    #[test]
    fn a_node_has_what_its_zones_have_above_watermark_and_reserve() {
        let pages = (769_976 - 3660 - 21071) + (5_116_295 - 25557);
        // The zone of node 10 has four blocks, all of them below its watermark.
        let (dma32, normal) = ((769_976 - 3660 - 21071) / 512, 34 + 2 * 1786 - 4);
        assert!(dma32 < 3 + 2 * 751 - 4, "the watermark bounds it");
        let found = room(ZONEINFO, Some(BUDDYINFO));
        assert_eq!(found.pages, [(NodeId(0), pages), (NodeId(10), 0)].into());
        assert_eq!(found.huge_pages, [(NodeId(0), dma32 + normal), (NodeId(10), 0)].into());
    }

    #[test]
    fn the_running_kernel_tells() {
        let [zoneinfo, buddyinfo] =
            ["zoneinfo", "buddyinfo"].map(|file| std::fs::read_to_string(format!("/proc/{file}")).unwrap());
        let (rooms, blocks) = (ZoneRooms::parse(&zoneinfo), HugeBlocks::parse(&buddyinfo));
        let has = |zones: Option<&BTreeMap<Zone<'_>, u64>>| {
            zones.is_some_and(|zones| zones.contains_key(&(NodeId(0), "Normal")))
        };
        assert!(has(rooms.as_ref().map(|rooms| &rooms.0)), "{zoneinfo}");
        assert!(has(blocks.as_ref().map(|blocks| &blocks.0)), "{buddyinfo}");
    }

    #[test]
    fn another_text_is_told() {
        for odd in ["", "no zones", "Node 0, zone Normal\n  pages free 12\n", "Node x, zone Normal\n"] {
            assert_eq!(ZoneRooms::parse(odd), None, "{odd:?}");
        }
        let number = ZONEINFO.replace("25557", "many");
        assert_eq!(ZoneRooms::parse(&number), None);
        for odd in ["", "no zones", "Node 0, zone", "Node 0, zone Normal 1 2 many\n", "Node x, zone Normal 1 2\n"] {
            assert_eq!(HugeBlocks::parse(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn what_has_come_is_taken_off_until_nothing_is_left() {
        let node = NodeId(1);
        let mut room = Room { pages: [(node, 1100)].into(), huge_pages: [(node, 1)].into() };
        assert!(room.fits(node, 1100) && !room.fits(node, 1101) && room.fits(NodeId(2), u64::MAX));
        room.take(node, 100, false);
        assert!(room.fits(node, 1000) && !room.fits(node, 1001) && room.fits_huge(node, 1) && !room.fits_huge(node, 2));
        room.take(node, 512, true);
        assert!(room.fits(node, 488) && !room.fits_huge(node, 1) && room.fits_huge(NodeId(2), 9));
        room.take(node, 501, true);
        room.take(NodeId(2), 1, true);
        assert!(room.fits(node, 0) && !room.fits(node, 1));
    }

    #[test]
    fn a_few_blocks_of_a_zone_are_left_alone() {
        let has_room = |blocks: u64| {
            let buddyinfo = format!("Node 0, zone   Normal {} {blocks} 0\n", "0 ".repeat(9));
            room(ZONEINFO, Some(&buddyinfo)).fits_huge(NodeId(0), 1)
        };
        assert_eq!([0, 3, 4, 5, 6].map(has_room), [false, false, false, true, true]);
    }

    #[test]
    fn without_blocks_no_huge_page_is_kept_away() {
        assert!(
            room(ZONEINFO, None).fits_huge(NodeId(10), 1) && !room(ZONEINFO, Some(BUDDYINFO)).fits_huge(NodeId(10), 1)
        );
    }
}
