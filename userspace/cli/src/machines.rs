// SPDX-License-Identifier: GPL-2.0-only
//! `--machine`: a machine file, or the name of one that is shipped.

use std::path::Path;

use anyhow::Result;
use tandem_machine::MachineFile;

/// Reads the machine that was `asked` for.
///
/// # Errors
/// It is neither a file nor a name, or the file is wrong.
pub fn load(asked: &Path) -> Result<MachineFile> {
    // Without /proc programs are not told where they are: then it is where packages put it.
    let program = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/tandem".into());
    Ok(MachineFile::load(MachineFile::find(asked, &MachineFile::folder_of(&program))?)?)
}
