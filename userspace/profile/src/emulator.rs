// SPDX-License-Identifier: GPL-2.0-only
//! Running a program in qemu-x86_64 with the trace plugin.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use tandem_ab::stop::{self, Stop};

/// First bytes of an ELF file of 64-bit little-endian machines.
const ELF64: &[u8] = b"\x7fELF\x02\x01";
/// Place and value of the ELF header's machine field for x86-64.
const MACHINE_AT: usize = 18;
const X86_64: [u8; 2] = [62, 0];

/// The emulator and what it is given.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// `qemu-x86_64` with plugins.
    pub qemu: PathBuf,
    /// The trace plugin.
    pub plugin: PathBuf,
}

impl Emulator {
    /// Runs `command` to its end and leaves the trace files in `folder`. What it prints goes where ours goes, to standard
    /// error only if `quiet`. It gets SIGTERM when a stop is wished.
    ///
    /// # Errors
    /// The emulator or the plugin is missing, or cannot be started.
    pub fn run(
        &self,
        command: &[OsString],
        slice_instructions: u64,
        folder: &Path,
        quiet: bool,
        stop: &Stop,
    ) -> Result<ExitStatus> {
        let [name, arguments @ ..] = command else { bail!("no command: name the program to profile after --") };
        let program = program(name)?;
        for (what, path) in [("the emulator", &self.qemu), ("the trace plugin", &self.plugin)] {
            if !path.is_file() {
                bail!(
                    "{what} {} is missing: ./run build makes the plugin, vm/setup/qemu-user.sh gets the emulator",
                    path.display()
                );
            }
        }
        if !is_executable(&self.qemu) {
            bail!("the emulator {} is not executable: give one by --qemu", self.qemu.display());
        }
        // QEMU takes what follows a comma for another setting.
        if let Some(path) =
            [&*self.plugin, folder].iter().find(|path| path.as_os_str().as_encoded_bytes().contains(&b','))
        {
            bail!("the path {} has a comma, which the emulator cannot take: use another folder", path.display());
        }
        let mut plugin = OsString::from(&self.plugin);
        plugin.push(",folder=");
        plugin.push(folder);
        plugin.push(format!(",slice={slice_instructions}"));
        let mut emulator = Command::new(&self.qemu);
        emulator.args(["-cpu", "max", "-0"]).arg(name).arg("-plugin").arg(plugin).arg(program).args(arguments);
        if quiet {
            emulator.stdout(Stdio::from(std::io::stderr()));
        }
        let child = stop::start(&mut emulator).with_context(|| format!("{} cannot be started", self.qemu.display()))?;
        stop::wait(child, stop)
    }
}

/// The file of the program that a shell would start for `name`.
///
/// # Errors
/// There is none, or it is no program that the emulator can run.
pub fn program(name: &OsStr) -> Result<PathBuf> {
    let path = if name.as_encoded_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut files = std::env::split_paths(&folders).map(|folder| folder.join(name));
        let found = files.find(|file| is_executable(file));
        found.with_context(|| format!("{} is no program in PATH: give its path", name.display()))?
    };
    if !path.exists() {
        bail!("there is no program {}", path.display());
    }
    if !is_executable(&path) {
        bail!("{} is not executable: name a program", path.display());
    }
    let mut head = [0; MACHINE_AT + X86_64.len()];
    let read = File::open(&path).and_then(|mut file| file.read(&mut head));
    let read = read.with_context(|| format!("{} cannot be read", path.display()))?;
    if head.starts_with(b"#!") {
        bail!("{} is a script: name its interpreter, then the script", path.display());
    }
    if read < head.len() || !head.starts_with(ELF64) || head[MACHINE_AT..] != X86_64 {
        bail!("{} is no x86-64 program (ELF): only those can be traced", path.display());
    }
    Ok(path)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        program(path.as_os_str()).unwrap_err().to_string()
    }

    #[test]
    fn programs_are_found_in_path_and_by_path() {
        assert!(program(OsStr::new("true")).unwrap().ends_with("true"));
        program(&std::env::current_exe().unwrap().into_os_string()).unwrap();
        assert!(program(OsStr::new("no-such-program")).unwrap_err().to_string().contains("no program in PATH"));
    }

    #[test]
    fn what_cannot_be_traced_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8], mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let elf = |machine: u8| [ELF64, &[0; 12], &[machine, 0]].concat();
        assert!(program(file("good", &elf(62), 0o755).as_os_str()).is_ok());
        assert!(refusal(&file("arm", &elf(183), 0o755)).contains("no x86-64 program"));
        assert!(refusal(&file("short", b"\x7fELF", 0o755)).contains("no x86-64 program"));
        assert!(refusal(&file("script", b"#!/bin/sh\n", 0o755)).contains("is a script"));
        assert!(refusal(&file("text", b"", 0o644)).contains("not executable"));
        assert!(refusal(folder.path()).contains("not executable"));
        assert!(refusal(&folder.path().join("none")).contains("there is no program"));
    }
}
