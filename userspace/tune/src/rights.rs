// SPDX-License-Identifier: GPL-2.0-only
//! Rights that a program's file gives to it, and that the kernel withholds where a tracer does not have them itself.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The extended attribute of a file with capabilities.
const CAPABILITIES: &std::ffi::CStr = c"security.capability";

/// What the program of this file would be given and is not while it is traced, in words; `None` if nothing. Root gives all.
pub fn withheld(program: &Path, is_root: bool) -> Option<String> {
    // SAFETY: these have no preconditions and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if is_root { None } else { withheld_from(user, group, program) }
}

/// The same of one that is run by this user and group.
fn withheld_from(user: u32, group: u32, program: &Path) -> Option<String> {
    let file = program.metadata().ok()?;
    let rights = [
        (file.mode() & libc::S_ISUID != 0 && file.uid() != user, "set-user-ID"),
        (file.mode() & libc::S_ISGID != 0 && file.gid() != group, "set-group-ID"),
        (has_capabilities(program), "capabilities"),
    ];
    let names: Vec<&str> = rights.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(" and ");
        format!("{} has {names}, which a traced program is not given: only root runs it as it is", program.display())
    })
}

fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names live through the call, which writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), CAPABILITIES.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn rights_that_a_file_gives_are_named_unless_root_runs_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let owner = file.as_file().metadata().unwrap();
        let set_mode = |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o6755);
        assert_eq!(withheld_from(owner.uid(), owner.gid(), file.path()), None, "it has them anyway");
        let with_mode = |mode| {
            set_mode(mode);
            withheld_from(owner.uid() + 1, owner.gid() + 1, file.path()).unwrap_or_default()
        };
        assert_eq!(with_mode(0o755), "");
        assert!(with_mode(0o4755).contains("has set-user-ID, which"));
        assert!(with_mode(0o2755).contains("has set-group-ID, which"));
        assert_eq!(withheld(file.path(), true), None);
        // CAP_NET_RAW, permitted and effective, as linux/capability.h has it.
        let capability: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0].map(u32::to_le);
        let path = CString::new(file.path().as_os_str().as_bytes()).unwrap();
        let (name, value) = (CAPABILITIES.as_ptr(), (&raw const capability).cast());
        // SAFETY: all lives through the call, which reads as many bytes as it is told.
        let given = unsafe { libc::setxattr(path.as_ptr(), name, value, size_of_val(&capability), 0) } == 0;
        // Only root may give them.
        assert_eq!(given, owner.uid() == 0, "{}", std::io::Error::last_os_error());
        let expected = if given { "has set-user-ID and capabilities, which" } else { "has set-user-ID, which" };
        assert!(with_mode(0o4755).contains(expected), "{}", with_mode(0o4755));
    }
}
