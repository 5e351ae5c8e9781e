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
    assert!(said.contains("--interval-ms") && said.contains("TANDEM_INTERVAL_MS"), "{said}");
    refused(&config(&[], &[]));
}
