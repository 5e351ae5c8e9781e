// SPDX-License-Identifier: GPL-2.0-only
//! `tandem config`: what scx_tandem would be told, and whether a configuration file is right.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tandem_config::{Cli, ConfigFile, Effective, Options, Setting, Source};
use tandem_machine::{Calibration, read_running};
use tandem_trace::Recorder;

/// Width of help texts.
const WIDTH: usize = 100;

/// What to do with the configuration.
#[derive(Args)]
#[command(
    override_usage = "tandem config --show-effective [--config <FILE>] [--json] [-- <FLAG>...]\n       tandem config --check <FILE> [--json]"
)]
pub struct Arguments {
    /// Say of every option of scx_tandem which value it has, and where that comes from
    #[arg(long, required_unless_present = "check")]
    show_effective: bool,
    /// Check a configuration file: exit code 0 if scx_tandem would take it
    #[arg(long, value_name = "FILE", conflicts_with = "show_effective")]
    check: Option<PathBuf>,
    /// The configuration file that scx_tandem would be given; by default the one that TANDEM_CONFIG names
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Flags that scx_tandem would be given
    #[arg(last = true, value_name = "FLAG", conflicts_with = "check")]
    flags: Vec<OsString>,
}

/// Shows or checks a configuration.
///
/// # Errors
/// The configuration is wrong; one sentence says what and where.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = match &arguments.check {
        Some(path) => {
            let file = ConfigFile::read(path)?;
            check_files(&tandem_config::check(&file)?, &file)?;
            checked(&file, arguments.json)?
        }
        None => shown(&effective(arguments)?, arguments.json)?,
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

/// Refuses files that scx_tandem would refuse, which `file` names.
fn check_files(options: &Options, file: &ConfigFile) -> Result<()> {
    if let Some(path) = &options.calibration {
        let refusal = |why: String| file.refusal("calibration", &why);
        let text = tandem_config::read_roots(path).map_err(|error| refusal(error.to_string()))?;
        let calibration = Calibration::parse(path, &text).map_err(|error| refusal(error.to_string()))?;
        let mut topology = read_running().context("the machine's topology cannot be read")?.topology;
        let applied = calibration.apply(&mut topology, &tandem_sense::cpu_model());
        applied.map_err(|error| refusal(format!("{}: {error}", path.display())))?;
        options.policies_on(&calibration.parameters).map_err(|mistake| file.refusal(mistake.option, &mistake.what))?;
    }
    if let Some(path) = &options.record {
        Recorder::check(path).map_err(|error| file.refusal("record", &error.to_string()))?;
    }
    Ok(())
}

fn checked(file: &ConfigFile, json: bool) -> Result<String> {
    Ok(if json {
        serde_json::to_string(&serde_json::json!({ "file": file.path(), "valid": true }))? + "\n"
    } else {
        format!("{}: valid\n", file.path().display())
    })
}

fn effective(arguments: &Arguments) -> Result<Effective> {
    let mut all = vec![OsString::from("scx_tandem")];
    if let Some(path) = &arguments.config {
        all.extend(["--config".into(), path.clone().into_os_string()]);
    }
    all.extend(arguments.flags.iter().cloned());
    match tandem_config::parse::<Cli>(&all) {
        Ok((_, effective)) => Ok(effective),
        Err(tandem_config::Error::Arguments(error)) => error.exit(),
        Err(error) => Err(error.into()),
    }
}

fn shown(effective: &Effective, json: bool) -> Result<String> {
    if json {
        return Ok(serde_json::to_string_pretty(effective)? + "\n");
    }
    let mut text = String::new();
    match effective.file() {
        Some(path) => writeln!(text, "# configuration file: {}", path.display())?,
        None => writeln!(text, "# no configuration file")?,
    }
    for setting in &effective.settings {
        write_setting(&mut text, setting)?;
    }
    Ok(text)
}

/// A setting as a line of a configuration file, so that the output can become one.
fn write_setting(text: &mut String, setting: &Setting) -> Result<()> {
    writeln!(text)?;
    for line in wrapped(&setting.help) {
        writeln!(text, "# {line}")?;
    }
    let source = match setting.source {
        Source::Flag => setting.flag.clone(),
        Source::Environment => setting.environment.clone(),
        Source::File => "file".to_owned(),
        Source::Default => "default".to_owned(),
    };
    match value(setting) {
        Some(value) => writeln!(text, "{} = {value}  # {source}", setting.name)?,
        None => writeln!(text, "# {} is not set", setting.name)?,
    }
    Ok(())
}

/// The lines of a help text.
fn wrapped(help: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in help.split_whitespace() {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= WIDTH) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The value in TOML.
fn value(setting: &Setting) -> Option<String> {
    let word = |word: &String| match word.parse::<toml::Value>() {
        Ok(value @ (toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_))) => value.to_string(),
        _ => toml::Value::String(word.clone()).to_string(),
    };
    match (setting.list, setting.values.as_slice()) {
        (true, values) => Some(format!("[{}]", values.iter().map(word).collect::<Vec<_>>().join(", "))),
        (false, values) => values.first().map(word),
    }
}
