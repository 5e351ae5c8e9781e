// SPDX-License-Identifier: GPL-2.0-only
//! AMD's instruction-based sampling of operations (IBS op): registers of one sampled operation, as an access.
//!
//! The raw data of a sample is a 32-bit word of capabilities (CPUID 0x8000_001B EAX) and then the registers from
//! MSR C001_1033 on: control, instruction, OP_DATA, OP_DATA2, OP_DATA3, linear and physical data address; what
//! follows is not used. Fields and codes: AMD's Processor Programming Reference, and arch/x86/include/asm/amd/ibs.h.
//! OP_DATA2's source is valid for loads that missed the second level only.

use crate::source::{DataSource, Level, Snoop};

use super::model::CpuModel;

/// Capability: finer codes of data sources (family 19h model 10h and later).
const FINE_SOURCES: u32 = 1 << 11;
/// Capability: OP_DATA2 tells sockets apart.
const REMOTE_SOCKET: u32 = 1 << 16;

const OP_DATA2: usize = 3;
const OP_DATA3: usize = 4;
const LINEAR_ADDRESS: usize = 5;
const PHYSICAL_ADDRESS: usize = 6;

mod data2 {
    pub(super) const REMOTE_NODE: u64 = 1 << 4;
    pub(super) const CACHE_HIT_NOT_MODIFIED: u64 = 1 << 5;
    pub(super) const REMOTE_SOCKET: u64 = 1 << 9;
}

mod data3 {
    pub(super) const LOAD: u64 = 1;
    pub(super) const STORE: u64 = 1 << 1;
    pub(super) const L1_MISS: u64 = 1 << 7;
    pub(super) const UNCACHED: u64 = 1 << 14;
    pub(super) const NO_MISS_BUFFER: u64 = 1 << 16;
    pub(super) const LINEAR_VALID: u64 = 1 << 17;
    pub(super) const PHYSICAL_VALID: u64 = 1 << 18;
    pub(super) const L2_MISS: u64 = 1 << 20;
    pub(super) const SOFTWARE_PREFETCH: u64 = 1 << 21;
}

/// What of the registers can be believed on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsQuirks {
    /// Erratum 1293 (family 19h, models 00h to 0Fh): after a prefetch, or with no miss buffer, "L2 miss" and
    /// OP_DATA2 are void.
    pub void_after_prefetch: bool,
    /// OP_DATA2 does not tell whether the line was modified (family 19h before model 10h, and 20h to 5Fh).
    pub hit_state_void: bool,
}

impl IbsQuirks {
    /// Those of `model`.
    pub fn of(model: &CpuModel) -> Self {
        let CpuModel::X86 { family: 0x19, model, .. } = model else { return Self::default() };
        Self { void_after_prefetch: *model <= 0xf, hit_state_void: matches!(model, 0..=0xf | 0x20..=0x5f) }
    }
}

/// A sampled operation that accessed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbsAccess {
    /// Virtual address.
    pub address: u64,
    /// Physical address, if the hardware had it.
    pub physical: Option<u64>,
    /// Width; 0: not said.
    pub bytes: u16,
    /// A store; else a load.
    pub store: bool,
    /// Cycles that the miss took; `None` for stores and first-level hits.
    pub latency_cycles: Option<u32>,
    /// What answered.
    pub source: DataSource,
}

/// What a sampled operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It accessed memory.
    Access(IbsAccess),
    /// It did not, or its address is not known.
    NoAccess,
    /// The data is too short.
    Malformed,
}

/// The operation whose registers are in `raw`.
pub fn decode(raw: &[u8], quirks: IbsQuirks) -> Operation {
    let Some((capabilities, registers)) = raw.split_first_chunk() else { return Operation::Malformed };
    let capabilities = u32::from_le_bytes(*capabilities);
    let register = |at: usize| registers.get(at * 8..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (Some(data2), Some(data3), Some(linear), Some(physical)) =
        (register(OP_DATA2), register(OP_DATA3), register(LINEAR_ADDRESS), register(PHYSICAL_ADDRESS))
    else {
        return Operation::Malformed;
    };
    let store = data3 & data3::STORE != 0;
    let load = data3 & data3::LOAD != 0;
    if !(load || store) || data3 & data3::LINEAR_VALID == 0 {
        return Operation::NoAccess;
    }
    let missed = data3 & data3::L1_MISS != 0;
    let latency = (data3 >> 32) as u16;
    Operation::Access(IbsAccess {
        address: linear,
        physical: (data3 & data3::PHYSICAL_VALID != 0).then_some(physical),
        bytes: width((data3 >> 22) & 0xf),
        // An operation that is both (an atomic) needs the line as a store does.
        store,
        latency_cycles: (load && missed && latency > 0).then_some(u32::from(latency)),
        source: source(data2, data3, load, capabilities, quirks),
    })
}

/// 1: one byte, 2: two, and so on to 6: 32 bytes; 7: 64.
fn width(code: u64) -> u16 {
    if (1..=7).contains(&code) { 1 << (code - 1) } else { 0 }
}

fn source(data2: u64, data3: u64, load: bool, capabilities: u32, quirks: IbsQuirks) -> DataSource {
    let at = |level| DataSource { level, remote: Some(false), snoop: Snoop::Unknown };
    if data3 & data3::UNCACHED != 0 {
        return at(Level::Uncached);
    }
    if data3 & data3::L1_MISS == 0 {
        return at(Level::L1);
    }
    let void = quirks.void_after_prefetch && data3 & (data3::SOFTWARE_PREFETCH | data3::NO_MISS_BUFFER) != 0;
    if data3 & data3::L2_MISS == 0 && !void {
        return at(Level::L2);
    }
    let said = if load && !void { beyond_l2(data2, capabilities, quirks) } else { None };
    said.unwrap_or(if data3 & data3::NO_MISS_BUFFER != 0 {
        // Another miss of the same line was under way.
        at(Level::LineFillBuffer)
    } else {
        DataSource::UNKNOWN
    })
}

/// OP_DATA2; `None`: no valid code.
fn beyond_l2(data2: u64, capabilities: u32, quirks: IbsQuirks) -> Option<DataSource> {
    let fine = capabilities & FINE_SOURCES != 0;
    let code = if fine { (data2 & 7) | (data2 >> 3) & 0x18 } else { data2 & 7 };
    let remote_node =
        data2 & data2::REMOTE_NODE != 0 || capabilities & REMOTE_SOCKET != 0 && data2 & data2::REMOTE_SOCKET != 0;
    // Place, whether it belongs to another node, and whether the code comes with the state of the line.
    let (level, remote, has_state) = match (fine, code) {
        // This cluster's last level, or a core of it.
        (true, 1) | (false, 2) => (Level::L3, false, true),
        // Another cluster of the node; of another node.
        (true, 2) => (Level::PeerCache, false, true),
        (true, 5) => (Level::PeerCache, true, true),
        (false, 4) => (Level::PeerCache, true, false),
        // DRAM, persistent memory, memory behind a link, memory of a peer device.
        (_, 3) | (true, 6 | 8 | 12) => (Level::Memory, remote_node, false),
        (_, 7) => (Level::Uncached, false, false),
        _ => return None,
    };
    let modified = has_state && !quirks.hit_state_void && data2 & data2::CACHE_HIT_NOT_MODIFIED == 0;
    let snoop = if modified { Snoop::Modified } else { Snoop::Unknown };
    Some(DataSource { level, remote: Some(remote), snoop })
}

#[cfg(test)]
#[path = "ibs_tests.rs"]
mod tests;
