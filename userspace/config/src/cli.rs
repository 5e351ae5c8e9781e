// SPDX-License-Identifier: GPL-2.0-only
//! The command line of scx_tandem. It is here so that the toolbox can show it and make manual pages of it.

use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind;

use crate::layers::{Effective, Error, Source, reason};
use crate::options::Options;

/// It is of what is said, whatever is done.
const LOG_FORMAT: &str = "log_format";

/// A NUMA scheduler for Linux: places threads and their memory together.
///
/// Loads the sched_ext scheduler, then watches who touches which memory, assigns threads to nodes and moves pages, until
/// it is interrupted. Then the machine is as before, except that moved pages stay where they are. If this process is
/// killed, the loaded scheduler goes on without assignments until a new scx_tandem takes over or `--unload`.
///
/// Every option can stand in a configuration file (`page_rate = 64`) and in the environment (`TANDEM_PAGE_RATE=64`) as
/// well. Flags come before the environment, the environment before the file. SIGHUP reads the file again.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "scx_tandem",
    version,
    after_help = "Exit codes: 0 told to stop, and unloaded; 1 refused, failed, or thrown out by the kernel, with the reason on standard error; 2 wrong words on the command line; 78 refused for what waiting does not mend: the configuration, or this machine."
)]
pub struct Cli {
    /// Unload the scheduler that a killed scx_tandem left behind, and exit
    #[arg(long, conflicts_with = "help_stats")]
    pub unload: bool,

    /// Read options from FILE, which only root may be able to write
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print a line of a running scx_tandem's statistics every SECONDS, and load nothing
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["unload", "help_stats"], value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub monitor: Option<u64>,

    /// Say what each statistic is that can be read from the socket, and exit
    #[arg(long)]
    pub help_stats: bool,

    /// What can be chosen, and stand in FILE as well.
    #[command(flatten)]
    pub options: Options,

    /// Say more (-vv: what the BPF verifier says too)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Cli {
    /// The word that lets it start no scheduler.
    fn starts_nothing(&self) -> Option<&'static str> {
        let words =
            [(self.unload, "--unload"), (self.monitor.is_some(), "--monitor"), (self.help_stats, "--help-stats")];
        words.into_iter().find_map(|(given, word)| given.then_some(word))
    }

    /// Refuses flags that say how to schedule beside a word that lets it start no scheduler. The environment and the file may hold
    /// them: they are for whoever starts one.
    ///
    /// # Errors
    /// The first of them.
    pub fn check_alone(&self, effective: &Effective) -> Result<(), Error> {
        let Some(word) = self.starts_nothing() else { return Ok(()) };
        let given = |setting: &&crate::Setting| setting.source == Source::Flag && setting.name != LOG_FORMAT;
        match effective.settings.iter().find(given) {
            None => Ok(()),
            Some(setting) => Err(Error::Settings(format!(
                "{} cannot be used with {word}, which starts no scheduler: leave one of them out",
                setting.flag
            ))),
        }
    }
}

/// Whether scx_tandem would schedule if it were started with these `flags`, and nothing else were said.
///
/// # Errors
/// What it would refuse, in a sentence.
pub fn check_flags(flags: &[String]) -> Result<(), Error> {
    let words = std::iter::once("scx_tandem").chain(flags.iter().map(String::as_str));
    let cli = Cli::try_parse_from(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Error::Settings("help and version schedule nothing: leave them out".to_owned())
        }
        _ => Error::Settings(reason(&error)),
    })?;
    if let Some(word) = cli.starts_nothing() {
        return Err(Error::Settings(format!("{word} starts no scheduler: leave it out")));
    }
    cli.options.check().map_err(|mistake| Error::Settings(mistake.to_string()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn refused(words: &[&str]) -> Option<String> {
        let words: Vec<OsString> = ["scx_tandem"].iter().chain(words).map(Into::into).collect();
        let checked = crate::parse::<Cli>(&words).and_then(|(cli, effective)| cli.check_alone(&effective));
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn what_would_be_passed_over_is_refused() {
        for words in
            [&["--help-stats", "--unload"][..], &["--monitor", "1", "--help-stats"], &["--unload", "--monitor=1"]]
        {
            assert!(refused(words).is_some_and(|why| why.contains("cannot be used with")), "{words:?}");
        }
        let why = refused(&["--monitor", "1", "--stats", "1"]).unwrap();
        assert!(why.starts_with("--stats cannot be used with --monitor, "), "{why}");
        let why = refused(&["--unload", "--dry-run"]).unwrap();
        assert!(why.starts_with("--dry-run cannot be used with --unload, ") && why.lines().count() == 1, "{why}");
        for words in
            [&["--unload"][..], &["--monitor", "1", "-v"], &["--unload", "--log-format", "json"], &["--dry-run"]]
        {
            assert_eq!(refused(words), None, "{words:?}");
        }
    }

    #[test]
    fn flags_with_which_nothing_would_be_scheduled_are_refused_in_a_sentence() {
        let refused = |flags: &str| {
            let flags: Vec<String> = flags.split(' ').map(str::to_owned).collect();
            check_flags(&flags).err().map(|error| error.to_string())
        };
        for flags in [
            "--nope",
            "--policy nope",
            "--seed x",
            "--mover kernel",
            "--help",
            "--version",
            "--unload",
            "--stats 0",
            "x",
        ] {
            let why = refused(flags).unwrap_or_default();
            assert!(!why.is_empty() && why.lines().count() == 1, "{flags}: {why}");
        }
        assert_eq!(refused("--mover kernel --partial --manage uid=0,pid=1"), None);
    }
}
