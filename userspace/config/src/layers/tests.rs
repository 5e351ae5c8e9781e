// SPDX-License-Identifier: GPL-2.0-only
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
    let file = file(text);
    let counting = counting(&file, &given);
    let flags = flags(&file, &counting);
    let all = arguments[..1].iter().chain(&flags).chain(&arguments[1..]);
    let matches = whole(command::<Program>(), |id| counting.contains(&id)).try_get_matches_from(all).unwrap();
    (Program::from_arg_matches(&matches).unwrap().options, flags)
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
fn an_element_of_a_list_in_a_file_is_one_value_whatever_is_in_it() {
    let selectors = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<crate::Selector>>();
    let both = "manage = ['comm=a,b', 'cgroup=/x,pid=1']\nexclude = 'uid=1,comm=c'\n";
    let (options, _) = layered(both, &[]);
    assert_eq!(options.manage, selectors(&["comm=a,b", "cgroup=/x,pid=1"]));
    assert_eq!(options.exclude, selectors(&["uid=1", "comm=c"]), "a text as a flag has it");
    let (options, _) = layered(both, &["--manage", "comm=a,uid=2"]);
    assert_eq!(options.manage, selectors(&["comm=a", "uid=2"]), "a flag as always");
    assert_eq!(check(&file(both)).unwrap().manage, selectors(&["comm=a,b", "cgroup=/x,pid=1"]));
    let error = wrong("exclude = ['uid=1,uid=2']\n");
    assert!(error.starts_with("tandem.toml:1: exclude: invalid value \"uid=1,uid=2\": expected all, "), "{error}");
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
        assert!(error.contains("\\u{1b}[31m\\nxxx") && error.len() < 500 && !error.contains('\u{1b}'), "{error:.600}");
    }
    let error = wrong(&format!("\"\\u001b{long}\" = 1\n"));
    assert!(error.contains("\\u{1b}xxx") && error.len() < 800, "{error:.900}");
}

#[test]
fn options_that_contradict_each_other_in_a_file_are_told_by_name_and_line() {
    for text in ["policy = 'auto'\nthread_policy = 'sma'\n", "thread_policy = 'sma'\n\npolicy = 'auto'\n"] {
        let (later, earlier) =
            if text.starts_with('p') { ("2: thread_policy", "policy") } else { ("3: policy", "thread_policy") };
        let expected = format!("tandem.toml:{later}: cannot be used with {earlier} in line 1: leave one of them out");
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
