// SPDX-License-Identifier: GPL-2.0-only
//! `tandem generate`: manual pages and completions, for packages. They are made of the commands themselves.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate_to};

/// Where to.
#[derive(Args)]
pub struct Arguments {
    /// Write manual pages of all commands to DIR
    #[arg(long, value_name = "DIR", required_unless_present = "completions")]
    man: Option<PathBuf>,
    /// Write completions for bash, zsh and fish to DIR
    #[arg(long, value_name = "DIR")]
    completions: Option<PathBuf>,
}

/// Writes the files.
///
/// # Errors
/// A file cannot be written.
pub fn run(arguments: &Arguments, toolbox: Command) -> Result<()> {
    let programs = [toolbox, tandem_config::Cli::command()];
    for directory in [&arguments.man, &arguments.completions].into_iter().flatten() {
        fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
    }
    for program in programs {
        let name = program.get_name().to_owned();
        if let Some(directory) = &arguments.man {
            clap_mangen::generate_to(program.clone(), directory)
                .with_context(|| format!("{}: cannot be written", directory.display()))?;
        }
        if let Some(directory) = &arguments.completions {
            for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
                generate_to(shell, &mut program.clone(), &name, directory)
                    .with_context(|| format!("{}: cannot be written", directory.display()))?;
            }
        }
    }
    Ok(())
}
