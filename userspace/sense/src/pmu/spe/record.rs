// SPDX-License-Identifier: GPL-2.0-only
//! Records of a trace: packets up to an end or a time make one sampled operation.

use super::packet::{self, AddressKind, Class, CycleKind, Packet, STORE, Step};

/// One sampled operation; what had no packet is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeRecord {
    /// Ticks of the generic timer.
    pub ticks: Option<u64>,
    /// Virtual address of the data.
    pub address: Option<u64>,
    /// Physical address of the data.
    pub physical: Option<u64>,
    /// Cycles from dispatch to completion.
    pub cycles: Option<u16>,
    /// Whether it was a store; `None`: no memory operation.
    pub store: Option<bool>,
    /// Bits of [`packet::event`].
    pub events: u64,
    /// What answered, by the code of the implementation.
    pub source: Option<u16>,
    /// Context, a thread id where the kernel is built to put it there.
    pub context: Option<u64>,
}

/// What [`records`] could not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLoss {
    /// Bytes where no packet starts.
    pub bad_bytes: u64,
    /// Records without an end.
    pub cut_records: u64,
}

/// Hands out the records of `trace`, which begins `offset` bytes into the buffer. Damage loses the record it is in.
pub fn records(trace: &[u8], offset: u64, mut each: impl FnMut(SpeRecord)) -> TraceLoss {
    let mut loss = TraceLoss::default();
    let (mut at, mut record) = (0, Some(SpeRecord::default()));
    while at < trace.len() {
        match packet::next(&trace[at..], offset.wrapping_add(at as u64)) {
            Step::Padding(length) => at += length,
            Step::Packet(packet, length) => {
                at += length;
                let ends = matches!(packet, Packet::End | Packet::Timestamp(_));
                record = record.map(|record| record.with(packet));
                if ends {
                    if let Some(record) = record {
                        each(record);
                    }
                    record = Some(SpeRecord::default());
                }
            }
            Step::Bad => {
                loss.bad_bytes += 1;
                at += 1;
                loss.cut_records += u64::from(record.take().is_some());
            }
            Step::Short => break,
        }
    }
    loss.cut_records += u64::from(record.is_some_and(|record| record != SpeRecord::default()));
    loss
}

impl SpeRecord {
    fn with(mut self, packet: Packet) -> Self {
        match packet {
            Packet::Timestamp(ticks) => self.ticks = Some(ticks),
            Packet::Address(AddressKind::Data, address) => self.address = Some(untagged(address)),
            // The top byte holds attributes.
            Packet::Address(AddressKind::Physical, address) => self.physical = Some(address & (u64::MAX >> 8)),
            Packet::Cycles(CycleKind::Total, cycles) => self.cycles = Some(cycles),
            Packet::Context(context) => self.context = Some(context),
            Packet::Operation(Class::Memory, bits) => self.store = Some(bits & STORE != 0),
            Packet::Events(events) => self.events = events,
            Packet::Source(source) => self.source = Some(source),
            Packet::End | Packet::Address(..) | Packet::Cycles(..) | Packet::Operation(Class::Other, _) => {}
        }
        self
    }
}

/// The top byte of a data address is a tag; bits 55 to 52 tell kernel addresses, which have ones there.
fn untagged(address: u64) -> u64 {
    let top = 0xff << 56;
    if address >> 52 & 0xf == 0xf { address | top } else { address & !top }
}

#[cfg(test)]
mod tests {
    use super::super::packet::event;
    use super::*;

    /// A load from address 0x7f00_1238, tag 0x5a, 300 cycles, source 0xd, at tick 9.
    fn load() -> Vec<u8> {
        let mut bytes = vec![0xb0, 0, 0x10, 0x40, 0, 0, 0, 0, 0, 0x65, 71, 0, 0, 0, 0x49, 0];
        bytes.extend([0x52, 0x08, 0x06, 0x98, 0x2c, 0x01, 0x43, 0x0d]);
        bytes.extend([0xb2, 0x38, 0x12, 0x00, 0x7f, 0, 0, 0, 0x5a]);
        bytes.extend([0xb3, 0x00, 0xd0, 0xbc, 0x0a, 0, 0, 0, 0x80]);
        bytes.extend([0x71, 9, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    fn expected() -> SpeRecord {
        SpeRecord {
            ticks: Some(9),
            address: Some(0x7f00_1238),
            physical: Some(0xabc_d000),
            cycles: Some(300),
            store: Some(false),
            events: event::L1_REFILL | event::LAST_LEVEL_MISS | event::REMOTE,
            source: Some(0xd),
            context: Some(71),
        }
    }

    fn read(trace: &[u8]) -> (Vec<SpeRecord>, TraceLoss) {
        let mut found = Vec::new();
        let loss = records(trace, 0, |record| found.push(record));
        (found, loss)
    }

    #[test]
    fn packets_up_to_the_time_are_one_record() {
        let trace = [load(), vec![0; 5], load(), vec![0x01]].concat();
        let (found, loss) = read(&trace);
        assert_eq!(found, [expected(), expected(), SpeRecord::default()]);
        assert_eq!(loss, TraceLoss::default());
    }

    #[test]
    fn damage_loses_its_own_record_only() {
        let mut damaged = load();
        damaged[9] = 0xff;
        let trace = [damaged, load()].concat();
        let (found, loss) = read(&trace);
        assert_eq!(found, [expected()]);
        assert!(loss.bad_bytes >= 1 && loss.cut_records == 1, "{loss:?}");
        let whole = load();
        let (found, loss) = read(&whole[..whole.len() - 3]);
        assert_eq!((found.len(), loss), (0, TraceLoss { bad_bytes: 0, cut_records: 1 }));
    }

    #[test]
    fn kernel_addresses_keep_their_top_byte() {
        assert_eq!(untagged(0xaaf0_0000_0000_1000), 0xfff0_0000_0000_1000);
        assert_eq!(untagged(0xaa0f_0000_0000_1000), 0x000f_0000_0000_1000);
    }
}
