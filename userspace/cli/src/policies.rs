// SPDX-License-Identifier: GPL-2.0-only
//! `tandem policies`: what decides, and what can be set.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tandem_policies::registry::{PolicyDescription, Signal, describe};

/// How to show the policies.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints all policies.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let policies = describe();
    let text = if arguments.json { serde_json::to_string_pretty(&policies)? + "\n" } else { words(&policies)? };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

/// One paragraph per policy.
fn words(policies: &[PolicyDescription]) -> Result<String> {
    let mut text = String::new();
    for policy in policies {
        writeln!(text, "{} policy {}", plain(&policy.kind)?, policy.name)?;
        writeln!(text, "    source: {}", policy.source)?;
        writeln!(text, "    needs: {}", needs(policy)?)?;
        for parameter in policy.parameters {
            let [least, most] = parameter.range;
            let (name, default, unit) = (parameter.name, parameter.default, parameter.unit);
            writeln!(text, "    {name} = {default} {unit}, {least} to {most}")?;
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    Ok(text + "\n")
}

/// Signals that `policy` needs, with the sets of which one is enough.
fn needs(policy: &PolicyDescription) -> Result<String> {
    let list = |signals: &[Signal]| Ok(signals.iter().map(plain).collect::<Result<Vec<_>>>()?.join(", "));
    let sets = policy.needs_one_of.iter().map(|set| list(set)).collect::<Result<Vec<_>>>()?.join("; or ");
    Ok(match (policy.needs.is_empty(), sets.is_empty()) {
        (true, true) => "nothing".to_owned(),
        (true, false) => sets,
        (false, true) => list(policy.needs)?,
        (false, false) => format!("{}, and {sets}", list(policy.needs)?),
    })
}

/// The name that a value has in JSON, so that both forms say the same.
fn plain(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_value(value)?.as_str().context("a name is a string")?.to_owned())
}
