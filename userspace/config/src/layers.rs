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

use crate::file::{ConfigFile, FileError};
use crate::options::{Mistake, Options};

/// Id of the argument that names the configuration file, in every program that reads one.
const CONFIG: &str = "config";

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

/// The variable of the environment that sets the option `name`.
pub fn environment_of(name: &str) -> String {
    format!("TANDEM_{}", name.to_uppercase())
}

/// The flag of the option `name`; `None` if there is no such option.
pub fn flag_of(name: &str) -> Option<String> {
    let options = options();
    let arg = options.get_arguments().find(|arg| arg.get_id() == name)?;
    Some(format!("--{}", arg.get_long().expect("every option has a long flag")))
}

/// The options alone.
fn options() -> Command {
    Options::augment_args(Command::new("options").no_binary_name(true))
}

fn names() -> Vec<String> {
    options().get_arguments().map(|arg| arg.get_id().to_string()).collect()
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
    if let Some(file) = &file {
        judge(file)?;
        all.extend(flags(file, &given));
    }
    all.extend(arguments.iter().skip(1).cloned());
    let matches = command::<P>().try_get_matches_from(all)?;
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
        if let Err(error) = options().try_get_matches_from(words(arg, &entry.values)) {
            return Err(file.wrong(entry, format!("{name}: {}", reason(&error))).into());
        }
    }
    refuse_contradictions(file, &command)?;
    let words = file.entries.iter().flat_map(|(name, entry)| words_of(&command, name, &entry.values));
    let options = Options::from_arg_matches(&options().try_get_matches_from(words)?)?;
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

/// The flags that say what a file says, without those that `given` overrides.
fn flags(file: &ConfigFile, given: &ArgMatches) -> Vec<OsString> {
    let command = options();
    let is_set = |id: &str| !matches!(given.value_source(id), None | Some(ValueSource::DefaultValue));
    let is_overridden = |arg: &Arg| {
        is_set(arg.get_id().as_str())
            || command.get_arguments().any(|other| {
                let conflicts = |one: &Arg, two: &Arg| command.get_arg_conflicts_with(one).contains(&two);
                (conflicts(arg, other) || conflicts(other, arg)) && is_set(other.get_id().as_str())
            })
    };
    let mut flags = Vec::new();
    for (name, entry) in &file.entries {
        let arg = command.get_arguments().find(|arg| arg.get_id() == name.as_str());
        if arg.is_some_and(|arg| !is_overridden(arg)) {
            flags.extend(words_of(&command, name, &entry.values));
        }
    }
    flags
}

fn words_of(command: &Command, name: &str, values: &[String]) -> Vec<OsString> {
    let arg = command.get_arguments().find(|arg| arg.get_id() == name);
    arg.map_or_else(Vec::new, |arg| words(arg, values))
}

fn words(arg: &Arg, values: &[String]) -> Vec<OsString> {
    let flag = arg.get_long().expect("every option has a long flag");
    values.iter().map(|value| format!("--{flag}={value}").into()).collect()
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
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[arg(long)]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: Options,
    }

    fn file(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("tandem.toml"), text).unwrap()
    }

    fn wrong(text: &str) -> String {
        check(&file(text)).unwrap_err().to_string()
    }

    /// The options that a file and flags give together.
    fn layered(text: &str, arguments: &[&str]) -> (Options, Vec<OsString>) {
        let arguments: Vec<OsString> = ["test"].iter().chain(arguments).map(Into::into).collect();
        let given = command::<Program>().try_get_matches_from(&arguments).unwrap();
        let flags = flags(&file(text), &given);
        let all = arguments[..1].iter().chain(&flags).chain(&arguments[1..]);
        (Program::try_parse_from(all).unwrap().options, flags)
    }

    #[test]
    fn every_option_can_stand_in_a_file_and_in_the_environment() {
        for arg in options().get_arguments() {
            assert!(arg.get_long().is_some(), "{} has a flag", arg.get_id());
        }
        let command = command::<Program>();
        for name in names() {
            let arg = command.get_arguments().find(|arg| arg.get_id() == name.as_str()).unwrap();
            assert_eq!(arg.get_env().unwrap().to_str(), Some(environment_of(&name).as_str()));
        }
    }

    #[test]
    fn options_are_found_by_their_names_in_a_file() {
        assert_eq!(flag_of("parameters").as_deref(), Some("--parameter"));
        assert_eq!(flag_of("page-rate"), None);
    }

    #[test]
    fn a_flag_overrides_the_file_and_the_file_the_default() {
        let (options, _) = layered("page_rate = 64\ncooldown_s = 3\n", &["--page-rate", "7"]);
        assert_eq!((options.page_rate, options.cooldown_s, options.seed), (7, 3, 1));
    }

    #[test]
    fn a_list_replaces_the_list_below() {
        let (options, _) = layered("manage = ['uid=1', 'uid=2']\nexclude = ['uid=3']", &["--manage", "comm=x"]);
        assert_eq!(options.manage, ["comm=x".parse().unwrap()]);
        assert_eq!(options.exclude, ["uid=3".parse().unwrap()]);
    }

    #[test]
    fn an_empty_list_is_refused_where_it_would_be_the_default_and_taken_where_it_means_nothing() {
        assert_eq!(
            wrong("seed = 1\nmanage = []\n"),
            "tandem.toml:2: manage: the list is empty; name something, or leave the key out for the default: all"
        );
        assert!(check(&file("exclude = []\nparameters = []\n")).is_ok());
    }

    #[test]
    fn a_flag_silences_what_contradicts_it_in_the_file() {
        let (options, flags) = layered("policy = 'sam+none'\n", &["--thread-policy", "nimar"]);
        assert!(flags.is_empty(), "{flags:?}");
        assert_eq!((options.policy, options.thread_policy.as_deref()), (None, Some("nimar")));
        let (options, _) = layered("thread_policy = 'nimar'\npage_policy = 'none'\n", &["--policy", "sam+none"]);
        assert_eq!(options.policy.as_deref(), Some("sam+none"));
    }

    #[test]
    fn the_kernel_moves_pages_in_partial_mode_only() {
        let (options, _) = layered("mover = 'kernel'\n", &["--partial"]);
        assert_eq!(options.mover, crate::MoverName::Kernel);
        let words = ["scx_tandem", "--mover", "kernel"].map(OsString::from);
        let error = parse::<Program>(&words).unwrap_err().to_string();
        assert!(error.starts_with("--mover: kernel needs partial mode (") && error.lines().count() == 1, "{error}");
        assert!(wrong("seed = 1\nmover = 'kernel'\n").starts_with("tandem.toml:2: mover: kernel needs partial mode ("));
        assert!(check(&file("mover = 'kernel'\npartial = true\n")).is_ok());
    }

    #[test]
    fn a_wrong_value_is_told_with_what_is_allowed_and_not_at_length() {
        let samplers = "auto, lookahead, pmu, device, fault";
        let error = wrong("sampler = 'nope'\n");
        assert_eq!(error, format!("tandem.toml:1: sampler: invalid value \"nope\": expected {samplers}"));
        assert_eq!(wrong("dry_run = 'yes'\n"), "tandem.toml:1: dry_run: invalid value \"yes\": expected true, false");
        let long = "x".repeat(200_000);
        for key in ["sampler", "policy", "manage", "parameters", "seed", "metrics", "mover_budget"] {
            let error = wrong(&format!("{key} = \"\\u001b[31m\\n{long}\"\n"));
            assert!(
                error.contains("\\u{1b}[31m\\nxxx") && error.len() < 500 && !error.contains('\u{1b}'),
                "{error:.600}"
            );
        }
        let error = wrong(&format!("\"\\u001b{long}\" = 1\n"));
        assert!(error.contains("\\u{1b}xxx") && error.len() < 800, "{error:.900}");
    }

    #[test]
    fn options_that_contradict_each_other_in_a_file_are_told_by_name_and_line() {
        for text in ["policy = 'auto'\nthread_policy = 'sma'\n", "thread_policy = 'sma'\n\npolicy = 'auto'\n"] {
            let (later, earlier) =
                if text.starts_with('p') { ("2: thread_policy", "policy") } else { ("3: policy", "thread_policy") };
            let expected =
                format!("tandem.toml:{later}: cannot be used with {earlier} in line 1: leave one of them out");
            assert_eq!(wrong(text), expected);
        }
    }

    #[test]
    fn mistakes_are_told_with_their_lines() {
        for (text, expected) in [
            ("\npage_rat = 1\n", "tandem.toml:2: \"page_rat\": there is no such option; there are interval_ms, "),
            ("interval_ms = 5\n", "tandem.toml:1: interval_ms: invalid value \"5\": 5 is not in 100..=60000"),
            ("interval_ms = -5\n", "tandem.toml:1: interval_ms: invalid value \"-5\": "),
            ("page_rate = [1, 2]\n", "tandem.toml:1: page_rate: takes one value"),
            ("seed = []\n", "tandem.toml:1: seed: takes one value"),
            ("dry_run = 1\n", "tandem.toml:1: dry_run: invalid value \"1\": expected true, false"),
            (
                "seed = 1\nmanage = ['user=1']\n",
                "tandem.toml:2: manage: invalid value \"user=1\": expected all, comm=NAME, ",
            ),
            ("mover_budget = 1000\n", "tandem.toml:1: mover_budget: invalid value \"1000\": must be between"),
            ("seed = 1\nthread_policy = 'smb'\n", "tandem.toml:2: thread_policy: there is no thread policy \"smb\"; "),
            ("\nparameters = ['tandem.x=1']\n", "tandem.toml:2: parameters: \"tandem.x=1\": tandem has no parameter "),
        ] {
            let error = wrong(text);
            assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn settings_say_where_they_come_from() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tandem.toml");
        fs::write(&path, "page_rate = 64\nmanage = ['uid=1', 'uid=2']\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let arguments: Vec<OsString> =
            ["test", "--config", path.to_str().unwrap(), "--seed", "9"].iter().map(Into::into).collect();
        let parsed = parse::<Program>(&arguments);
        if fs::metadata(&path).unwrap().uid() != 0 {
            assert!(matches!(parsed, Err(Error::File(FileError::NotRoots { .. }))), "{parsed:?}");
            return;
        }
        let (program, effective) = parsed.unwrap();
        assert_eq!(program.config.as_deref(), effective.file());
        let setting = |name: &str| {
            let setting = effective.get(name).unwrap();
            (setting.values.join(" "), setting.source)
        };
        assert_eq!(setting("seed"), ("9".to_owned(), Source::Flag));
        assert_eq!(setting("page_rate"), ("64".to_owned(), Source::File));
        assert_eq!(setting("manage"), ("uid=1 uid=2".to_owned(), Source::File));
        assert_eq!(setting("cooldown_s"), ("10".to_owned(), Source::Default));
        assert_eq!(setting("record"), (String::new(), Source::Default));
    }
}
