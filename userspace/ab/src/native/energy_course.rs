// SPDX-License-Identifier: GPL-2.0-only
//! Readings of the packages' energy counters while a workload runs. A counter wraps after some minutes at full load; by the
//! readings of its begin and end alone, which the arm's script takes, each further time would be missing.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;

use super::beside::beside;
use crate::energy;

/// Time between two readings: in it a package of 1 kW takes 60 kJ, and the least range of a counter is 65 kJ.
pub const EVERY: Duration = Duration::from_secs(60);

/// What to read, and when.
pub struct EnergyWatch<'a> {
    /// The kernel's directory of counters, [`energy::POWERCAP`].
    pub powercap: &'a Path,
    /// The file that is there from the program's begin on, when the script has read the counters for the first time.
    pub begun: PathBuf,
    /// The file that is there before the script reads them again.
    pub ended: PathBuf,
    /// Time between two readings.
    pub every: Duration,
}

impl EnergyWatch<'_> {
    /// Does `work` in the calling thread; its result, and the readings between the two of the script.
    ///
    /// # Errors
    /// A counter cannot be read.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Vec<String>)> {
        beside("energy counters", |done| self.readings(done), work)
    }

    fn readings(&self, done: &Receiver<()>) -> Result<Vec<String>> {
        let mut readings = Vec::new();
        while done.recv_timeout(self.every) == Err(RecvTimeoutError::Timeout) {
            readings.extend(self.reading()?);
        }
        Ok(readings)
    }

    /// A reading, if it lies between those of the script.
    fn reading(&self) -> Result<Option<String>> {
        if !self.begun.exists() {
            return Ok(None);
        }
        let reading = energy::read(self.powercap)?;
        Ok((!self.ended.exists()).then_some(reading))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_readings_between_those_of_the_script_count() {
        let folder = tempfile::tempdir().unwrap();
        let zone = folder.path().join("intel-rapl:0");
        fs::create_dir(&zone).unwrap();
        for (name, text) in [("name", "package-0\n"), ("energy_uj", "5\n"), ("max_energy_range_uj", "9\n")] {
            fs::write(zone.join(name), text).unwrap();
        }
        let (begun, ended) = (folder.path().join("begun"), folder.path().join("ended"));
        let watch =
            EnergyWatch { powercap: folder.path(), begun: begun.clone(), ended: ended.clone(), every: Duration::ZERO };
        assert_eq!(watch.reading().unwrap(), None);
        fs::write(begun, "").unwrap();
        assert_eq!(watch.reading().unwrap().as_deref(), Some("intel-rapl:0 5 9\n"));
        // By then the script may have read before.
        fs::write(ended, "").unwrap();
        assert_eq!(watch.reading().unwrap(), None);
    }

    #[test]
    fn it_reads_while_the_work_goes_on_and_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let every = Duration::from_millis(1);
        let here = |every| EnergyWatch {
            powercap: folder.path(),
            begun: "/".into(),
            ended: folder.path().join("ended"),
            every,
        };
        let (_, readings) = here(every).during(|| std::thread::sleep(Duration::from_secs(1))).unwrap();
        assert!(!readings.is_empty());
        assert_eq!(here(Duration::from_secs(600)).during(|| 7).unwrap(), (7, vec![]));
    }
}
