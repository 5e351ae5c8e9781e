// SPDX-License-Identifier: GPL-2.0-only
//! What a machine is made of: read from the running kernel ([`read_running`]) or from a machine
//! file ([`MachineFile::load`]).

mod calibration;
mod capabilities;
mod capacity;
mod clock;
mod cpu_list;
mod machine_file;
mod needs;
mod process_text;
mod rivals;
mod sysfs;

pub use calibration::{Calibration, CalibrationError};
pub use capabilities::{Capabilities, Capability};
pub use clock::{monotonic_ns, process_cpu_ns, thread_cpu_ns};
pub use cpu_list::{CpuListError, format_cpu_list, parse_cpu_list};
pub use machine_file::{Caches, Coherence, Core, MachineFile, MachineFileError, MemoryTiming};
pub use needs::{forbidding_isolation, missing_functions};
pub use process_text::{ProgramId, parent_of, process_text};
pub use rivals::{Rival, RivalChange, RivalKind, RivalWatch, kernel_balances, rivals};
pub use sysfs::{RunningMachine, SysfsError, online_cpus, online_nodes, read_running, read_sysfs, refresh_free_memory};

/// Bytes of a cache line, on all machines that are supported.
pub const LINE_BYTES: u64 = 64;
