// SPDX-License-Identifier: GPL-2.0-only
//! The instances of QAPLIB, from Debian's package r-cran-qap.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A quadratic assignment problem.
pub struct Instance {
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    pub size: usize,
    /// Cost of the best permutation known.
    pub known: f64,
}

/// Where the instances are; they are fetched the first time.
pub fn folder() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("vm/setup/qaplib.sh")).arg(root.join("build/cache")).output()?;
    ensure!(output.status.success(), "QAPLIB cannot be fetched: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// All instances of which a good permutation is known, by name.
pub fn instances(folder: &Path) -> Result<Vec<Instance>> {
    let mut instances = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let solution = path.with_extension("sln");
        if path.extension().is_none_or(|end| end != "dat") || !solution.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&solution)?;
        let mut words = text.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<f64>().ok());
        let (size, known) = (number(), number());
        let what = || format!("{} does not begin with a size and a cost", solution.display());
        let (size, known) = (size.with_context(what)? as usize, known.with_context(what)?);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        instances.push(Instance { name, path, size, known });
    }
    instances.sort_by(|a, b| a.size.cmp(&b.size).then_with(|| a.name.cmp(&b.name)));
    Ok(instances)
}
