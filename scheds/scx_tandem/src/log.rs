// SPDX-License-Identifier: GPL-2.0-only
//! The log: a sentence a line for people, or a JSON object a line for programs.
//!
//! Events carry fields besides their sentence (`event`, threads, nodes, numbers). People get the sentence alone, which has all of
//! that in words; programs get both, with the time. RUST_LOG chooses levels as usual.

use std::io::IsTerminal;

use tandem_config::LogFormat;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Logs to standard output from now on.
pub fn init(format: LogFormat, verbose: u8) {
    // What scx_utils finds out about the kernel is of interest only when asked for.
    let level = if verbose > 0 { "debug" } else { "info,scx_utils=warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    logger(format, filter, std::io::stdout, std::io::stdout().is_terminal()).init();
}

/// What writes events to `writer`, for people in colours if `ansi`.
fn logger<W>(format: LogFormat, filter: EnvFilter, writer: W, ansi: bool) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let common = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
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
mod tests {
    use std::io::Write;
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
}
