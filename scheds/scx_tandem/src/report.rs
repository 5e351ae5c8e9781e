// SPDX-License-Identifier: GPL-2.0-only
//! The report of `--report`: tried before anything is loaded, and not lost if it cannot be written after all.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Context, Result};
use tandem_agent::Report;
use tracing::warn;

/// Whether there can be a report at `path`. What is there stays as it is until there is one.
///
/// # Errors
/// There cannot.
pub fn check(path: &Path) -> Result<()> {
    let tried = match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(there) if there.is_file() => OpenOptions::new().append(true).open(path).map(drop),
        // A device or a pipe, which opening may change or wait for.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => tempfile::tempfile_in(folder_of(path)).map(drop),
        Err(error) => Err(error),
    };
    tried.with_context(|| {
        format!("the report {} cannot be written: name a file in a folder that can be", path.display())
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `report` to `path`, or into the log if that has become impossible.
///
/// # Errors
/// It is in the log.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    let written: io::Result<()> = fs::write(path, json + "\n");
    if written.is_err() {
        warn!(event = "report", "what was to be reported: {}", serde_json::to_string(report)?);
    }
    written.with_context(|| format!("the report {} cannot be written, it is in the log", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_is_refused_and_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [missing, there] = ["missing/report.json", "there"].map(|name| folder.path().join(name));
        for refused in [&missing, folder.path()] {
            let error = format!("{:#}", check(refused).unwrap_err());
            let named = format!("the report {} cannot be written: ", refused.display());
            assert!(error.starts_with(&named) && error.lines().count() == 1, "{error}");
        }
        fs::write(&there, "of before").unwrap();
        for taken in [&there, &folder.path().join("new"), Path::new("report.json"), Path::new("/dev/null")] {
            check(taken).unwrap();
        }
        assert_eq!(fs::read_to_string(&there).unwrap(), "of before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of trying");
    }

    #[test]
    fn a_report_takes_the_place_of_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        fs::write(&path, "x".repeat(1 << 20)).unwrap();
        write(&Report::default(), &path).unwrap();
        let _: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let error = write(&Report::default(), &folder.path().join("missing/report.json")).unwrap_err();
        assert!(error.to_string().ends_with("cannot be written, it is in the log"), "{error:#}");
    }
}
