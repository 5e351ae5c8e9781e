// SPDX-License-Identifier: GPL-2.0-only
//! The log: a sentence a line for people, or a JSON object a line for programs.
//!
//! Events carry fields besides their sentence (`event`, threads, nodes, numbers). People get the sentence alone, which has all of
//! that in words; programs get both, with the time. RUST_LOG chooses levels as usual.
//!
//! Who reads either stream may be gone: the terminal closed, the pipe's other end ended. Nothing ends for that.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{IsTerminal, Write as _};

use tandem_config::LogFormat;
use tandem_policies::foreign::quoted;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What chooses levels.
const LEVELS: &str = "RUST_LOG";

/// Logs to standard output from now on.
pub fn init(format: LogFormat, verbose: u8) {
    // What scx_utils finds out about the kernel is of interest only when asked for.
    let usual = if verbose > 0 { "debug" } else { "info,scx_utils=warn" };
    let (filter, refused) = filter(std::env::var_os(LEVELS).as_deref(), usual);
    logger(format, filter, std::io::stdout, std::io::stdout().is_terminal()).init();
    if let Some(refused) = refused {
        tracing::warn!("{refused}");
    }
}

/// What `given` chooses, or else the `usual` levels, and then why it was not followed. Nothing at all chooses nothing.
fn filter(given: Option<&OsStr>, usual: &str) -> (EnvFilter, Option<String>) {
    let refused = match given.map(OsStr::to_str) {
        None | Some(Some("")) => None,
        Some(None) => Some("it is no text".to_owned()),
        Some(Some(text)) => match EnvFilter::try_new(text) {
            Ok(filter) => return (filter, None),
            Err(error) => Some(error.to_string()),
        },
    };
    let value = quoted(&given.unwrap_or_default().to_string_lossy());
    let told = refused.map(|why| format!("{LEVELS} in the environment is {value} ({why}): the levels are {usual}"));
    (EnvFilter::new(usual), told)
}

/// Says a sentence on standard error.
pub fn complain(sentence: impl Display) {
    // eprintln! would panic where nobody reads that any more, and what is still to be done would be left undone.
    let _ = writeln!(std::io::stderr(), "{sentence}");
}

/// What writes events to `writer`, for people in colours if `ansi`.
fn logger<W>(format: LogFormat, filter: EnvFilter, writer: W, ansi: bool) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // It would tell of lines that cannot be written by eprintln!, which panics if standard error is gone too.
    let common = tracing_subscriber::fmt().log_internal_errors(false);
    let common = common.with_env_filter(filter).with_writer(writer).with_target(false);
    match format {
        LogFormat::Json => Box::new(common.json().flatten_event(true).finish()),
        LogFormat::Text => {
            let sentence = debug_fn(|line, field, value| match field.name() {
                "message" => write!(line, "{value:?}"),
                _ => Ok(()),
            });
            Box::new(common.with_ansi(ansi).without_time().fmt_fields(sentence).finish())
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn said(format: LogFormat) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let logger = logger(format, EnvFilter::new("info"), move || writer.clone(), false);
        tracing::subscriber::with_default(logger, || {
            tracing::info!(event = "move", thread = 7, gain_ns_per_s = None::<f64>, "thread {}: \"away\"", 7);
            tracing::debug!("not asked for");
        });
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn people_get_the_sentence_alone() {
        assert_eq!(said(LogFormat::Text), " INFO thread 7: \"away\"\n");
    }

    #[test]
    fn programs_get_an_object_with_fields_a_line() {
        let text = said(LogFormat::Json);
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &"thread 7: \"away\"".into()));
        assert_eq!((&line["event"], &line["thread"]), (&"move".into(), &7.into()));
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z') && line.get("gain_ns_per_s").is_none(), "{text}");
    }

    /// A stream whose reader is gone.
    pub(crate) struct Unread;

    impl Write for Unread {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// In a process of its own, whose standard error nobody reads.
    #[test]
    fn a_log_that_nobody_reads_ends_nothing() {
        const ALONE: &str = "TANDEM_TEST_UNREAD";
        const REACHED: i32 = 7;
        if std::env::var_os(ALONE).is_some() {
            let logger = logger(LogFormat::Text, EnvFilter::new("info"), || Unread, false);
            tracing::subscriber::with_default(logger, || tracing::info!("nobody reads this"));
            complain("nor this");
            std::process::exit(REACHED);
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "log::tests::a_log_that_nobody_reads_ends_nothing", "--nocapture"]).env(ALONE, "1");
        let ended = test.stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(ended.code(), Some(REACHED), "{ended}");
    }

    #[test]
    fn levels_that_cannot_be_read_are_told_and_the_usual_ones_count() {
        let chosen = |given: Option<&[u8]>| {
            let (filter, told) = filter(given.map(OsStr::from_bytes), "info,scx_utils=warn");
            (filter.to_string(), told)
        };
        let usual = chosen(None);
        assert_eq!((usual.0.contains("info"), &usual.1), (true, &None));
        assert_eq!(chosen(Some(b"")), usual, "as if it were not set");
        assert_eq!(chosen(Some(b"debug")), ("debug".to_owned(), None));
        for wrong in [&b"scx_tandem=loud"[..], b"info,,=", b"\xff"] {
            let (filter, told) = chosen(Some(wrong));
            let told = told.unwrap_or_else(|| panic!("{wrong:?} gives {filter}"));
            assert!(told.starts_with("RUST_LOG in the environment is \"") && told.lines().count() == 1, "{told}");
            assert_eq!(filter, usual.0);
        }
    }
}
