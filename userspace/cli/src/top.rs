// SPDX-License-Identifier: GPL-2.0-only
//! `tandem top`: nodes, processes, threads and moves, live.
//!
//! It reads a running scx_tandem. Without one it observes alone: the same sampler, and nothing is moved.

mod keys;
mod rows;
mod screen;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tandem_view::{Client, SOCKET, Status};

use crate::observe::Observer;
use keys::{Reaction, State};

/// How often it is looked whether it was told to end.
const ATTENTION: Duration = Duration::from_millis(200);
/// How often samples are taken in: what is behind one must be read while it is fresh.
const SAMPLING: Duration = Duration::from_millis(20);

/// What to watch, and how.
#[derive(Args)]
pub struct Arguments {
    /// Time between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Observe alone, also when scx_tandem is running
    #[arg(long)]
    alone: bool,
    /// Observe only this process and its descendants; only alone
    #[arg(short, long, value_name = "PID", requires = "alone")]
    pid: Option<u32>,
    /// Use no colours (also: NO_COLOR in the environment)
    #[arg(long)]
    no_color: bool,
    /// Print one state as JSON instead; alone it is that of the time between two looks
    #[arg(long)]
    json: bool,
    /// The socket of the scheduler that is watched
    #[arg(long, value_name = "PATH", default_value = SOCKET, hide = true)]
    socket: PathBuf,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("must be between 0.1 and 3600 s".to_owned()) }
}

/// Where states come from.
enum Source {
    Scheduler(PathBuf, Option<Client>),
    Alone(Box<Observer>),
}

impl Source {
    fn open(arguments: &Arguments) -> Result<Self> {
        if !arguments.alone {
            match Client::connect(&arguments.socket) {
                Ok(client) => return Ok(Self::Scheduler(arguments.socket.clone(), Some(client))),
                // SAFETY: geteuid has no preconditions and cannot fail.
                Err(error) if unsafe { libc::geteuid() } != 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Self::Alone(Box::new(Observer::open(arguments.pid)?)))
    }

    /// The state now; `None` if there is none yet.
    fn look(&mut self) -> Result<Option<Status>> {
        match self {
            Self::Alone(observer) => observer.look().map(Some),
            Self::Scheduler(path, client) => {
                let open = match client.take() {
                    Some(open) => open,
                    None => Client::connect(path)?,
                };
                // One that failed is not asked again: the next look connects anew.
                let open = client.insert(open);
                let status = open.status();
                if status.is_err() {
                    *client = None;
                }
                status
            }
        }
    }

    /// How long it may be left alone.
    fn attention(&self) -> Duration {
        match self {
            Self::Alone(_) => SAMPLING,
            Self::Scheduler(..) => ATTENTION,
        }
    }

    /// Takes in samples.
    fn attend(&mut self) -> Result<()> {
        match self {
            Self::Alone(observer) => observer.sample().map(drop),
            Self::Scheduler(..) => Ok(()),
        }
    }
}

/// Shows the screen until it is told to end.
///
/// # Errors
/// There is no terminal, no scheduler, or the machine cannot be observed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut source = Source::open(arguments)?;
    let every = Duration::from_secs_f64(arguments.interval);
    if arguments.json {
        return print_json(&mut source, every);
    }
    // SAFETY: isatty only looks at a descriptor.
    if unsafe { libc::isatty(libc::STDOUT_FILENO) } != 1 {
        bail!("standard output is no terminal: run tandem top in one, or with --json");
    }
    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    ctrlc::set_handler(move || told.store(true, Ordering::Relaxed)).context("signals cannot be handled")?;
    let colors = !arguments.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let shown = show(&mut terminal, &mut source, every, State::new(colors), &ended);
    ratatui::try_restore().context("the terminal cannot be restored")?;
    shown
}

fn print_json(source: &mut Source, every: Duration) -> Result<()> {
    if let Source::Alone(observer) = source {
        observer.observe(every)?;
    }
    let status =
        source.look()?.context("scx_tandem has just started: its first interval is not over yet, ask again")?;
    let text = serde_json::to_string(&status)? + "\n";
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut Source,
    every: Duration,
    mut state: State,
    ended: &AtomicBool,
) -> Result<()> {
    let mut looked: Option<Instant> = None;
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        if looked.is_none_or(|at| at.elapsed() >= every) {
            looked = Some(Instant::now());
            if !state.paused {
                match source.look() {
                    Ok(status) => state.update(status),
                    Err(error) => state.complain(format!("{error:#}")),
                }
                changed = true;
            }
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| screen::draw(frame, &mut state)).context("the terminal cannot be written")?;
        }
        let left = looked.map_or(every, |at| every.saturating_sub(at.elapsed()));
        if event::poll(source.attention().min(left)).context("the terminal cannot be read")? {
            changed = true;
            let event = event::read().context("the terminal cannot be read")?;
            if let Event::Key(key) = event
                && key.kind != KeyEventKind::Release
                && state.press(key) == Reaction::Quit
            {
                return Ok(());
            }
        }
        source.attend()?;
    }
    Ok(())
}
