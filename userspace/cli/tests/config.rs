// SPDX-License-Identifier: GPL-2.0-only
//! `tandem config`, as its users call it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn config(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.arg("config").args(arguments).envs(environment.iter().copied());
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file with this text; `None` where its owner is not root, so that it would be refused for that.
fn file(directory: &TempDir, text: &str) -> Option<PathBuf> {
    let path = directory.path().join("tandem.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    (fs::metadata(&path).unwrap().uid() == 0).then_some(path)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn setting<'a>(effective: &'a Value, name: &str) -> &'a Value {
    effective["settings"].as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap()
}

#[test]
fn flags_come_before_the_environment_and_the_environment_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let Some(file) = file(&directory, "seed = 3\npage_rate = 3\ncooldown_s = 3\nexclude = ['uid=3']\n") else { return };
    let environment = [("TANDEM_SEED", "2"), ("TANDEM_PAGE_RATE", "2"), ("TANDEM_EXCLUDE", "uid=2,comm=b c")];
    let arguments = ["--show-effective", "--json", "--config", path(&file), "--", "--seed", "1"];
    let effective: Value = serde_json::from_str(&stdout(&config(&arguments, &environment))).unwrap();
    let value = |name| (&setting(&effective, name)["values"][0], setting(&effective, name)["source"].as_str().unwrap());
    assert_eq!(value("seed"), (&"1".into(), "flag"));
    assert_eq!(value("page_rate"), (&"2".into(), "environment"));
    assert_eq!(value("cooldown_s"), (&"3".into(), "file"));
    assert_eq!(value("mover_budget"), (&"10".into(), "default"));
    assert_eq!(
        setting(&effective, "exclude")["values"],
        serde_json::json!(["uid=2", "comm=b c"]),
        "replaces the file's"
    );
}

#[test]
fn what_is_shown_is_a_valid_file_that_says_the_same() {
    let flags = ["--manage", "uid=5", "--manage", "comm=7", "--dry-run", "--parameter", "tandem.errors=4"];
    let first = stdout(&config(&[&["--show-effective", "--"][..], &flags].concat(), &[]));
    for line in ["manage = [\"uid=5\", \"comm=7\"]  # --manage", "dry_run = true  # --dry-run", "seed = 1  # default"] {
        assert!(first.lines().any(|found| found == line), "{line} in {first}");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(file) = file(&directory, &first) else { return };
    let again = config(&["--check", path(&file)], &[]);
    // `policy` is not set; the two policies it stands for are.
    assert_eq!(stdout(&again), format!("{}: valid\n", file.display()));
    let second = stdout(&config(&["--show-effective", "--config", path(&file)], &[]));
    let values = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split("  #").next().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&second), values(&first));
}

#[test]
fn a_wrong_file_is_refused_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let Some(file) = file(&directory, "seed = 1\npage_rat = 64\n") else { return };
    let expected = format!("tandem: {}:2: \"page_rat\": there is no such option; ", file.display());
    for arguments in [&["--check", path(&file)][..], &["--show-effective", "--config", path(&file)]] {
        let said = refused(&config(arguments, &[]));
        assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn what_scx_tandem_would_refuse_of_files_and_options_together_is_not_valid() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there");
    fs::write(&there, "nothing\n").unwrap();
    let there = there.display();
    for (text, expected) in [
        ("seed = 1\nmover = 'kernel'\n".to_owned(), ":2: mover: kernel needs partial mode".to_owned()),
        ("calibration = '/nope'\n".to_owned(), ":1: calibration: /nope: cannot be read: No such file".to_owned()),
        (format!("calibration = '{there}'\n"), format!(":1: calibration: {there}: ")),
        (format!("record = '{there}'\n"), format!(":1: record: the recording {there} exists; ")),
        (
            "record = '/nope/x'\n".to_owned(),
            ":1: record: the recording /nope/x cannot be made: No such file".to_owned(),
        ),
    ] {
        let Some(file) = file(&directory, &text) else { return };
        let said = refused(&config(&["--check", path(&file)], &[]));
        assert!(said.contains(&expected) && said.lines().count() == 1, "{text}: {said}");
    }
    let Some(file) = file(&directory, "record = '/dev/null'\nmover = 'kernel'\npartial = true\n") else { return };
    stdout(&config(&["--check", path(&file)], &[]));
}

#[test]
fn what_a_check_would_not_look_at_is_refused_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(file) = file(&directory, "seed = 1\n") else { return };
    for more in [&["--", "--page-rate", "0"][..], &["--config", "missing"]] {
        let said = refused(&config(&[&["--check", path(&file)], more].concat(), &[]));
        assert!(said.contains("cannot be used with"), "{said}");
    }
    // The variable is for scx_tandem, and may be there for it.
    stdout(&config(&["--check", path(&file)], &[("TANDEM_CONFIG", "missing")]));
    let shown = refused(&config(&["--show-effective"], &[("TANDEM_CONFIG", "missing")]));
    assert_eq!(shown, "tandem: missing: cannot be read: No such file or directory (os error 2)\n");
}

#[test]
fn variables_that_contradict_flags_or_each_other_are_named() {
    let said = |flags: &[&str], environment: &[(&str, &str)]| {
        let said = refused(&config(&[&["--show-effective", "--"], flags].concat(), environment));
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let variable = "TANDEM_THREAD_POLICY in the environment";
    let both = said(&[], &[("TANDEM_POLICY", "auto"), ("TANDEM_THREAD_POLICY", "sma")]);
    assert!(both.contains("TANDEM_POLICY in the environment") && both.contains(variable), "{both}");
    let one = said(&["--policy", "auto"], &[("TANDEM_THREAD_POLICY", "sma")]);
    assert!(one.contains("--policy") && one.contains(variable) && one.contains("leave one of them out"), "{one}");
    let unknown = said(&[], &[("TANDEM_THREAD_POLICY", "smb")]);
    assert!(unknown.contains(&format!("{variable}: there is no thread policy \"smb\"")), "{unknown}");
    let sampler = said(&[], &[("TANDEM_SAMPLER", "nope")]);
    assert!(
        sampler.contains("TANDEM_SAMPLER in the environment: invalid value \"nope\": expected auto, "),
        "{sampler}"
    );
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some(file) = file(&directory, "seed = 1\n") else { return };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let said = refused(&config(&["--check", path(&file)], &[]));
    assert!(said.contains("others than root may write it (mode 0666): chmod go-w it"), "{said}");
}

#[test]
fn wrong_words_in_the_environment_are_refused() {
    let said = refused(&config(&["--show-effective"], &[("TANDEM_INTERVAL_MS", "5")]));
    assert!(said.contains("TANDEM_INTERVAL_MS in the environment: invalid value \"5\": "), "{said}");
    refused(&config(&[], &[]));
}
