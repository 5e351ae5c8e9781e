// SPDX-License-Identifier: GPL-2.0-only
//! What scx_tandem is told, from wherever it is told.
//!
//! There is one list of options, [`Options`]. Each of them can be given as a flag (`--page-rate 64`), in the environment
//! (`TANDEM_PAGE_RATE=64`) and in a configuration file (`page_rate = 64`), in this order of precedence; then come the
//! defaults. All of them go through the same parser, so that what is valid in one place is valid in the others, and a
//! list that is given in one place replaces the list of the places below it.

mod cli;
mod environment;
mod file;
mod layers;
mod options;
mod selector;

pub use cli::{Cli, check_flags};
pub use environment::{environment_of, unknown_variables};
pub use file::{ConfigFile, FileError, read_roots};
pub use layers::{Effective, Error, Setting, Source, check, flag_of, parse};
pub use options::{LogFormat, Mistake, MoverName, Options, QueueSharing, SamplerName, set_parameter};
pub use selector::{Named, Selector, SelectorError};
