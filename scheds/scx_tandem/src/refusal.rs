// SPDX-License-Identifier: GPL-2.0-only
//! How a run that failed ends: which failures the service manager need not try again.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

use thiserror::Error;

use crate::log;

/// As sysexits.h has it (EX_CONFIG); the unit starts nothing anew after it.
const LASTING: u8 = 78;

/// A refusal that is the same however long one waits: of the configuration, or of the machine.
#[derive(Debug, Error)]
#[error("{0:#}")]
struct Lasting(anyhow::Error);

/// Notes of an error that waiting does not mend it.
pub fn lasting(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Lasting(error.into()).into()
}

/// Notes the same of an error by which the file system, the user's rights or the unit forbid something. A folder may be mounted later,
/// and an address may become free.
pub fn lasting_if_forbidden(error: anyhow::Error) -> anyhow::Error {
    let forbidden = error.chain().filter_map(|cause| cause.downcast_ref::<Error>()).any(forbids);
    if forbidden { lasting(error) } else { error }
}

/// Whether this is so however long one waits.
pub fn forbids(error: &Error) -> bool {
    // What RestrictAddressFamilies= of a unit makes of an address.
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
        || matches!(
            error.kind(),
            ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::IsADirectory
                | ErrorKind::NotADirectory
        )
}

/// Says why it ends, and with which code.
pub fn told(error: &anyhow::Error) -> ExitCode {
    log::complain(format_args!("scx_tandem: {error:#}"));
    ExitCode::from(code(error))
}

/// Whether waiting does not mend it.
pub fn lasts(error: &anyhow::Error) -> bool {
    error.is::<Lasting>()
}

fn code(error: &anyhow::Error) -> u8 {
    if lasts(error) { LASTING } else { 1 }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_waiting_does_not_mend_has_a_code_of_its_own() {
        let cause = || anyhow!("of another machine").context("calibration.toml");
        let refused = lasting(cause());
        assert_eq!((code(&refused), format!("{refused:#}")), (78, "calibration.toml: of another machine".to_owned()));
        let left = refused.context("the scheduler is still loaded");
        assert_eq!(code(&left), 78, "{left:#}");
        assert_eq!(code(&cause()), 1);
    }

    #[test]
    fn what_is_forbidden_lasts_and_what_may_come_or_become_free_does_not() {
        let code_of =
            |number| code(&lasting_if_forbidden(anyhow!(Error::from_raw_os_error(number)).context("metrics")));
        for number in [libc::EAFNOSUPPORT, libc::EROFS, libc::EACCES, libc::EPERM, libc::EISDIR] {
            assert_eq!(code_of(number), 78, "{number}");
        }
        for number in [libc::EADDRINUSE, libc::EADDRNOTAVAIL, libc::ENOENT, libc::ENOSPC] {
            assert_eq!(code_of(number), 1, "{number}");
        }
        assert_eq!(code(&lasting_if_forbidden(anyhow!("another cause"))), 1);
    }
}
