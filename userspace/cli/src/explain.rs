// SPDX-License-Identifier: GPL-2.0-only
//! `tandem explain`: why threads are where they are.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use tandem_view::{Client, PlanView, ProcessView, SOCKET, Status, ThreadView};

/// Whom to explain.
#[derive(Args)]
pub struct Arguments {
    /// A thread, or a process with all its threads; all that is managed if it is left out
    #[arg(value_name = "PID|TID")]
    id: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The socket of the scheduler that is asked
    #[arg(long, value_name = "PATH", default_value = SOCKET, hide = true)]
    socket: PathBuf,
}

/// A process with some of its threads.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    process: &'a ProcessView,
    /// What accesses per second rest on; see [`tandem_view::SamplerView::rates`].
    rates: &'a str,
    memory: Vec<String>,
    explained: Vec<ExplainedThread<'a>>,
}

/// A thread with its sentences, and the plan that moved it last.
#[derive(Serialize)]
struct ExplainedThread<'a> {
    #[serde(flatten)]
    thread: &'a ThreadView,
    sentences: Vec<String>,
    plan: Option<&'a PlanView>,
}

/// Prints the sentences.
///
/// # Errors
/// No scheduler is running, or it does not manage what was asked for.
pub fn run(arguments: &Arguments) -> Result<()> {
    let status = Client::connect(&arguments.socket)?.status()?;
    let status = status.context("scx_tandem has just started: its first interval is not over yet, ask again")?;
    let explained = explain(&status, arguments.id)?;
    let text =
        if arguments.json { serde_json::to_string_pretty(&explained)? + "\n" } else { words(&status, &explained)? };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

fn explain(status: &Status, id: Option<u64>) -> Result<Vec<Explained<'_>>> {
    let is_wanted = |thread: &ThreadView| id.is_none_or(|id| thread.tid == id || thread.pid == id);
    let explain_thread = |thread| ExplainedThread {
        thread,
        sentences: status.explain(thread),
        plan: status.plan_of(thread.moved_generation),
    };
    let explained: Vec<Explained<'_>> = status
        .processes
        .iter()
        .map(|process| Explained {
            process,
            rates: &status.sampler.rates,
            memory: status.explain_memory(process),
            explained: status
                .threads
                .iter()
                .filter(|thread| thread.pid == process.pid && is_wanted(thread))
                .map(explain_thread)
                .collect(),
        })
        .filter(|process| !process.explained.is_empty())
        .collect();
    match id {
        Some(id) if explained.is_empty() => bail!("{}", why_unknown(id)),
        None if explained.is_empty() => bail!("scx_tandem manages no process: see its --manage and --exclude"),
        _ => Ok(explained),
    }
}

fn why_unknown(id: u64) -> String {
    if Path::new(&format!("/proc/{id}")).exists() {
        format!("{id} is not managed by scx_tandem: see its --manage and --exclude")
    } else {
        format!("there is no process or thread {id}")
    }
}

fn words(status: &Status, explained: &[Explained<'_>]) -> Result<String> {
    let mut text = String::new();
    if status.mode == "dry-run" {
        writeln!(text, "scx_tandem runs with --dry-run: it decides, but moves nothing.\n")?;
    }
    if let Some(sentence) = status.explain_rates() {
        writeln!(text, "{sentence}\n")?;
    }
    for one in explained {
        writeln!(text, "Process {} ({}), {} threads", one.process.pid, one.process.command, one.process.threads)?;
        one.memory.iter().try_for_each(|sentence| writeln!(text, "  {sentence}"))?;
        for thread in &one.explained {
            text.push('\n');
            thread.sentences.iter().try_for_each(|sentence| writeln!(text, "  {sentence}"))?;
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    Ok(text + "\n")
}
