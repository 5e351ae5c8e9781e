// SPDX-License-Identifier: GPL-2.0-only
//! How long a cycle of a core is: the hardware counts latency in cycles, and we think in nanoseconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tandem_policies::model::CpuId;

use super::sysfs::read_text;

/// Frequencies change with load; they are read again after this time.
const FRESH_NS: u64 = 1_000_000_000;

/// Frequencies of CPUs.
#[derive(Debug)]
pub struct CoreClocks {
    root: PathBuf,
    nominal_khz: Option<u64>,
    read: BTreeMap<CpuId, (u64, Option<u64>)>,
}

impl CoreClocks {
    /// Those of the system whose root is `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), nominal_khz: nominal_khz(root), read: BTreeMap::new() }
    }

    /// Nanoseconds that `cycles` take on `cpu`; `None` if no frequency is known.
    pub fn ns(&mut self, cpu: CpuId, cycles: u32, now_ns: u64) -> Option<u32> {
        let (root, nominal_khz) = (&self.root, self.nominal_khz);
        let (read_ns, khz) = self.read.entry(cpu).or_insert_with(|| (now_ns, present_khz(root, cpu)));
        if now_ns.saturating_sub(*read_ns) >= FRESH_NS {
            (*read_ns, *khz) = (now_ns, present_khz(root, cpu));
        }
        let khz = khz.or(nominal_khz)?;
        u32::try_from(u64::from(cycles) * 1_000_000 / khz).ok()
    }
}

fn positive(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|khz| *khz > 0)
}

fn present_khz(root: &Path, cpu: CpuId) -> Option<u64> {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{}/cpufreq", cpu.0));
    positive(&read_text(&folder.join("scaling_cur_freq"))?)
}

/// What /proc/cpuinfo says.
fn nominal_khz(root: &Path) -> Option<u64> {
    let text = read_text(&root.join("proc/cpuinfo"))?;
    let mhz = text.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split_once(':'))?.1;
    mhz.trim().parse::<f64>().ok().map(|mhz| (mhz * 1000.0) as u64).filter(|khz| *khz > 0)
}

/// Highest frequency of the first CPU: a latency in cycles is longest there.
pub fn highest_khz(root: &Path) -> Option<u64> {
    let file = root.join("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    read_text(&file).and_then(|text| positive(&text)).or_else(|| nominal_khz(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_take_as_long_as_the_core_is_slow_now() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/devices/system/cpu/cpu0/cpufreq");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/cpuinfo"), "processor : 0\ncpu MHz\t\t: 2000.000\n").unwrap();
        std::fs::write(folder.join("scaling_cur_freq"), "4000000\n").unwrap();
        std::fs::write(folder.join("cpuinfo_max_freq"), "5000000\n").unwrap();
        let mut clocks = CoreClocks::new(root.path());
        assert_eq!(clocks.ns(CpuId(0), 400, 0), Some(100));
        assert_eq!(clocks.ns(CpuId(1), 400, 0), Some(200), "nominal where nothing is said");
        std::fs::write(folder.join("scaling_cur_freq"), "1000000\n").unwrap();
        assert_eq!(clocks.ns(CpuId(0), 400, FRESH_NS - 1), Some(100));
        assert_eq!(clocks.ns(CpuId(0), 400, FRESH_NS), Some(400));
        assert_eq!(highest_khz(root.path()), Some(5_000_000));
        assert_eq!(CoreClocks::new(Path::new("/nowhere")).ns(CpuId(0), 1, 0), None);
    }
}
