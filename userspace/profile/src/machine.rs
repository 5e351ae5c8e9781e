// SPDX-License-Identifier: GPL-2.0-only
//! The machine that threads are placed on: a machine file, or the running one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use tandem_machine::{MachineFile, read_running};
use tandem_policies::model::Topology;

/// Nodes, and all caches together.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub topology: Topology,
    /// Bytes of all caches of all levels, but for those of instructions; `None` if the system does not say.
    pub cache_bytes: Option<u64>,
}

impl Machine {
    /// The machine of a file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn of_file(file: &MachineFile) -> Result<Self> {
        let caches = &file.caches;
        let of_node = |&cpus: &u32| {
            let cores = u64::from(cpus.div_ceil(file.threads_per_core));
            let last_level = if cpus > 0 { u64::from(file.llcs_per_node) * caches.l3_kb_per_llc } else { 0 };
            (cores * (caches.l1_kb + caches.l2_kb) + last_level) << 10
        };
        let cache_bytes = Some(file.cpus_per_node.iter().map(of_node).sum());
        Ok(Self { name: file.name.clone(), topology: file.topology()?, cache_bytes })
    }

    /// The running machine.
    ///
    /// # Errors
    /// Its nodes cannot be read.
    pub fn running() -> Result<Self> {
        let topology = read_running()?.topology;
        let cache_bytes = caches_below(Path::new("/sys/devices/system/cpu"))?;
        Ok(Self { name: "this machine".to_owned(), topology, cache_bytes })
    }
}

/// The sum of the data caches that a folder of CPUs names, each once however many CPUs share it.
fn caches_below(cpus: &Path) -> Result<Option<u64>> {
    let mut found = BTreeSet::new();
    let mut sum = 0;
    for cpu in std::fs::read_dir(cpus).with_context(|| format!("{} cannot be read", cpus.display()))? {
        let Ok(caches) = std::fs::read_dir(cpu?.path().join("cache")) else { continue };
        for cache in caches {
            let path = cache?.path();
            let read = |name: &str| std::fs::read_to_string(path.join(name)).map(|text| text.trim().to_owned());
            let (Ok(level), Ok(kind), Ok(size), Ok(shared)) =
                (read("level"), read("type"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            let kb = size.strip_suffix('K').and_then(|kb| kb.parse::<u64>().ok());
            if let Some(kb) = kb.filter(|_| kind != "Instruction" && found.insert((level, kind, shared))) {
                sum += kb << 10;
            }
        }
    }
    Ok((sum > 0).then_some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn a_machine_files_caches_add_up() {
        // 8 cores with 32 KiB and 1 MiB, 4 LLCs with 16 MiB.
        let expected = (8 * (32 + 1024) + 4 * 16384) << 10;
        assert_eq!(Machine::of_file(&machine()).unwrap().cache_bytes, Some(expected));
    }

    #[test]
    fn shared_caches_count_once_and_those_of_instructions_never() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |cpu: &str, index: &str, values: [&str; 4]| {
            let path = folder.path().join(cpu).join("cache").join(index);
            std::fs::create_dir_all(&path).unwrap();
            for (name, value) in ["level", "type", "size", "shared_cpu_list"].iter().zip(values) {
                std::fs::write(path.join(name), format!("{value}\n")).unwrap();
            }
        };
        assert_eq!(caches_below(folder.path()).unwrap(), None);
        for cpu in ["cpu0", "cpu1"] {
            cache(cpu, "index0", ["1", "Data", "32K", &cpu[3..]]);
            cache(cpu, "index1", ["1", "Instruction", "64K", &cpu[3..]]);
            cache(cpu, "index3", ["3", "Unified", "1024K", "0-1"]);
        }
        assert_eq!(caches_below(folder.path()).unwrap(), Some((2 * 32 + 1024) << 10));
    }
}
