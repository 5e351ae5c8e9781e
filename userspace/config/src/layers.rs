// SPDX-License-Identifier: GPL-2.0-only
//! Flags over environment over file over defaults.
//!
//! What a file says is put before the arguments as flags, as far as neither an argument nor the environment says
//! otherwise, so that one parser judges everything. A file is judged alone first: its mistakes are told with their lines.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser};
use serde::Serialize;
use tandem_policies::foreign::{message, quoted};
use thiserror::Error;

use crate::environment::environment_of;
use crate::file::{ConfigFile, Entry, FileError};
use crate::options::{Mistake, Options};

/// Id of the argument that names the configuration file, in every program that reads one.
pub(crate) const CONFIG: &str = "config";

/// Why there are no settings.
#[derive(Debug, Error)]
pub enum Error {
    /// The command line or the environment is wrong; also how clap says that help was asked for.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// The configuration file is.
    #[error(transparent)]
    File(#[from] FileError),
    /// Each word is right, but not together.
    #[error("{0}")]
    Settings(String),
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// An argument.
    Flag,
    /// A variable of the environment.
    Environment,
    /// The configuration file.
    File,
    /// Nobody said it.
    Default,
}

/// One option as it is in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its name in a configuration file.
    pub name: String,
    /// Its flag.
    pub flag: String,
    /// Its variable of the environment.
    pub environment: String,
    /// Its values; none if it is not set and has no default, several only for lists.
    pub values: Vec<String>,
    /// Whether it takes several.
    pub list: bool,
    /// Where they come from.
    pub source: Source,
    /// What it is.
    pub help: String,
}

/// All options as they are in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effective {
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// By name, in the order of the help.
    pub settings: Vec<Setting>,
}

/// The flag of the option `name`; `None` if there is no such option.
pub fn flag_of(name: &str) -> Option<String> {
    let options = options();
    let arg = options.get_arguments().find(|arg| arg.get_id() == name)?;
    Some(format!("--{}", arg.get_long().expect("every option has a long flag")))
}

/// The options alone.
pub(crate) fn options() -> Command {
    Options::augment_args(Command::new("options").no_binary_name(true))
}

pub(crate) fn names() -> Vec<String> {
    options().get_arguments().map(|arg| arg.get_id().to_string()).collect()
}

/// Takes what follows a list's flag as one value, commas and all, for the lists that `names` says.
fn whole(command: Command, names: impl Fn(&str) -> bool) -> Command {
    command.mut_args(|arg| if names(arg.get_id().as_str()) { arg.value_delimiter(None) } else { arg })
}

/// `P`'s command line with a variable of the environment for each option.
fn command<P: Parser>() -> Command {
    let names = names();
    P::command().mut_args(|arg| {
        let id = arg.get_id().to_string();
        if id == CONFIG || names.contains(&id) { arg.env(environment_of(&id)).hide_env_values(true) } else { arg }
    })
}

/// Reads `arguments` (with the program's name), the environment, and the file that `--config` names. `P` flattens
/// [`Options`], and may have an argument `config`.
///
/// # Errors
/// Any [`enum@Error`]; all that can be said without looking at the machine is checked.
pub fn parse<P: Parser>(arguments: &[OsString]) -> Result<(P, Effective), Error> {
    let given = command::<P>().try_get_matches_from(arguments).map_err(|error| blame(error, arguments))?;
    let path: Option<&PathBuf> = given.try_get_one(CONFIG).ok().flatten();
    let file = path.map(|path| ConfigFile::read(path)).transpose()?;
    let mut all: Vec<OsString> = arguments.iter().take(1).cloned().collect();
    let mut of_file = Vec::new();
    if let Some(file) = &file {
        judge(file)?;
        of_file = counting(file, &given);
        all.extend(flags(file, &of_file));
    }
    all.extend(arguments.iter().skip(1).cloned());
    let matches = whole(command::<P>(), |id| of_file.contains(&id)).try_get_matches_from(all)?;
    let parsed = P::from_arg_matches(&matches)?;
    let settings: Vec<Setting> = options().get_arguments().map(|arg| setting(arg, &given, &matches)).collect();
    Options::from_arg_matches(&matches)?.check().map_err(|mistake| told(&mistake, &settings, file.as_ref()))?;
    Ok((parsed, Effective { file: path.cloned(), settings }))
}

/// A mistake, with where the option was given.
fn told(mistake: &Mistake, settings: &[Setting], file: Option<&ConfigFile>) -> Error {
    let Mistake { option, what } = mistake;
    let setting = settings.iter().find(|setting| setting.name == *option);
    match (setting.map(|setting| (setting.source, setting)), file) {
        (Some((Source::File, _)), Some(file)) => file.refusal(option, what).into(),
        (Some((Source::Environment, setting)), _) => {
            Error::Settings(format!("{} in the environment: {what}", setting.environment))
        }
        (Some((_, setting)), _) => Error::Settings(format!("{}: {what}", setting.flag)),
        (None, _) => Error::Settings(mistake.to_string()),
    }
}

/// Says so if it was the environment that gave a wrong value or one that contradicts another, which clap does not.
fn blame(error: clap::Error, arguments: &[OsString]) -> Error {
    // As clap calls it, --flag <VALUE>, and the variable if that gave it.
    let giver = |called: &String| {
        let flag = called.split([' ', '=', '[']).next().unwrap_or_default().to_owned();
        let is_given = arguments.iter().any(|given| given.to_string_lossy().split('=').next() == Some(&flag));
        let options = options();
        let arg = options.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"));
        let variable = arg.map(|arg| environment_of(arg.get_id().as_str()));
        let variable = variable.filter(|variable| !is_given && std::env::var_os(variable).is_some());
        (flag, variable.map(|variable| format!("{variable} in the environment")))
    };
    let called = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![giver(one)],
        Some(ContextValue::Strings(several)) => several.iter().map(giver).collect(),
        _ => Vec::new(),
    };
    let mut involved = called(ContextKind::InvalidArg);
    if error.kind() == ErrorKind::ArgumentConflict {
        involved.extend(called(ContextKind::PriorArg));
    }
    if involved.iter().all(|(_, variable)| variable.is_none()) {
        return error.into();
    }
    let mut places = involved.into_iter().map(|(flag, variable)| variable.unwrap_or(flag));
    let first = places.next().unwrap_or_default();
    let others: Vec<String> = places.collect();
    Error::Settings(match others[..] {
        [] => format!("{first}: {}", reason(&error)),
        _ => format!("{first} cannot be used with {}: leave one of them out", others.join(" and ")),
    })
}

/// Judges a file alone, as if it were all that scx_tandem is told.
///
/// # Errors
/// The first mistake, with its line.
pub fn check(file: &ConfigFile) -> Result<Options, Error> {
    let options = judge(file)?;
    options.check().map_err(|mistake| file.refusal(mistake.option, &mistake.what))?;
    Ok(options)
}

/// Judges what is wrong in a file whatever flags and the environment say: key by key, then together.
fn judge(file: &ConfigFile) -> Result<Options, Error> {
    let command = options();
    for (name, entry) in &file.entries {
        let Some(arg) = command.get_arguments().find(|arg| arg.get_id() == name.as_str()) else {
            let known = names().join(", ");
            let name = quoted(name);
            return Err(file.wrong(entry, format!("{name}: there is no such option; there are {known}")).into());
        };
        if entry.values.len() != 1 && !is_list(arg) {
            return Err(file.wrong(entry, format!("{name}: takes one value, not a list")).into());
        }
        // No words at all would be the default, which is something else than nothing.
        if let ([], [_, ..]) = (entry.values.as_slice(), arg.get_default_values()) {
            let default = texts(arg.get_default_values()).join(", ");
            let what =
                format!("{name}: the list is empty; name something, or leave the key out for the default: {default}");
            return Err(file.wrong(entry, what).into());
        }
        if let Err(error) = whole(options(), |_| true).try_get_matches_from(words(arg, entry)) {
            return Err(file.wrong(entry, format!("{name}: {}", reason(&error))).into());
        }
    }
    refuse_contradictions(file, &command)?;
    let names: Vec<&str> = file.entries.keys().map(String::as_str).collect();
    let words = flags(file, &names);
    let options = Options::from_arg_matches(&whole(options(), |_| true).try_get_matches_from(words)?)?;
    options.policies().map_err(|mistake| file.refusal(mistake.option, &mistake.what))?;
    Ok(options)
}

/// Refuses a file in which two options stand of which there can be one.
fn refuse_contradictions(file: &ConfigFile, command: &Command) -> Result<(), FileError> {
    let pairs = command.get_arguments().flat_map(|arg| {
        command
            .get_arg_conflicts_with(arg)
            .into_iter()
            .map(move |other| (arg.get_id().as_str(), other.get_id().as_str()))
    });
    for (one, other) in pairs {
        let (Some(first), Some(second)) = (file.entries.get(one), file.entries.get(other)) else { continue };
        let (earlier, (name, later)) =
            if first.line < second.line { (one, (other, second)) } else { (other, (one, first)) };
        let line = file.entries[earlier].line;
        let what = format!("{name}: cannot be used with {earlier} in line {line}: leave one of them out");
        return Err(file.wrong(later, what));
    }
    Ok(())
}

/// The options of a file that count: those that `given` does not override.
fn counting<'file>(file: &'file ConfigFile, given: &ArgMatches) -> Vec<&'file str> {
    let command = options();
    let is_set = |id: &str| !matches!(given.value_source(id), None | Some(ValueSource::DefaultValue));
    let is_overridden = |arg: &Arg| {
        is_set(arg.get_id().as_str())
            || command.get_arguments().any(|other| {
                let conflicts = |one: &Arg, two: &Arg| command.get_arg_conflicts_with(one).contains(&two);
                (conflicts(arg, other) || conflicts(other, arg)) && is_set(other.get_id().as_str())
            })
    };
    let arg_of = |name: &str| command.get_arguments().find(|arg| arg.get_id() == name);
    let names = file.entries.keys().map(String::as_str);
    names.filter(|name| arg_of(name).is_some_and(|arg| !is_overridden(arg))).collect()
}

/// The flags that say what a file says of the options `names`.
fn flags(file: &ConfigFile, names: &[&str]) -> Vec<OsString> {
    let command = options();
    let said = names.iter().filter_map(|name| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == *name)?;
        Some(words(arg, file.entries.get(*name)?))
    });
    said.flatten().collect()
}

/// A flag for each value. An element of a list is one, whatever is in it; a single text is what a flag would be given.
fn words(arg: &Arg, entry: &Entry) -> Vec<OsString> {
    let flag = arg.get_long().expect("every option has a long flag");
    let delimiter = arg.get_value_delimiter().filter(|_| !entry.list);
    let parts = |value: &'_ String| -> Vec<String> {
        delimiter.map_or_else(|| vec![value.clone()], |comma| value.split(comma).map(str::to_owned).collect())
    };
    entry.values.iter().flat_map(parts).map(|value| format!("--{flag}={value}").into()).collect()
}

fn texts<T: AsRef<OsStr>>(values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| value.as_ref().to_string_lossy().into_owned()).collect()
}

fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), clap::ArgAction::Append)
}

/// What clap says of a wrong value, without its headings and hints, and what is allowed.
pub(crate) fn reason(error: &clap::Error) -> String {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let why = match (error.get(ContextKind::ValidValue), error.source()) {
            (Some(ContextValue::Strings(valid)), _) if !valid.is_empty() => format!(": expected {}", valid.join(", ")),
            (_, Some(why)) => format!(": {}", message(&why.to_string())),
            (_, None) => String::new(),
        };
        return format!("invalid value {}{why}", quoted(value));
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

fn setting(arg: &Arg, given: &ArgMatches, all: &ArgMatches) -> Setting {
    let id = arg.get_id().as_str();
    let source = match (given.value_source(id), all.value_source(id)) {
        (Some(ValueSource::CommandLine), _) => Source::Flag,
        (Some(ValueSource::EnvVariable), _) => Source::Environment,
        (_, Some(ValueSource::CommandLine)) => Source::File,
        _ => Source::Default,
    };
    Setting {
        name: id.to_owned(),
        flag: format!("--{}", arg.get_long().expect("every option has a long flag")),
        environment: environment_of(id),
        values: texts(all.get_raw(id).into_iter().flatten()),
        list: is_list(arg),
        source,
        help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
    }
}

impl Effective {
    /// The setting of this name.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// The configuration file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

#[cfg(test)]
mod tests;
