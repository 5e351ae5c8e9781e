// SPDX-License-Identifier: GPL-2.0-only
//! How a run that failed ends: which failures the service manager need not try again.

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
}
