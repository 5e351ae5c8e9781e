// SPDX-License-Identifier: GPL-2.0-only
//! `--machine` of every command that has it: a name, or a file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");
/// What takes the machine as its last word but one.
const COMMANDS: [&[&str]; 4] = [
    &["topo"],
    &["sim", "--scenario", "crossed", "--policies", "oracle", "--seconds", "0.1"],
    &["map", "--graph", "g.edges"],
    &["profile", "--exact", "--qemu", "/no/qemu"],
];

/// `tandem` in a folder.
fn tandem(program: &Path, folder: &Path, words: &[&str], machine: &str) -> Output {
    let rest: &[&str] = if words[0] == "profile" { &["--", "/bin/true"] } else { &[] };
    let mut command = Command::new(program);
    command.current_dir(folder).args(words).args(["--machine", machine]).args(rest).output().unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("g.edges"), "0 1 3\n2 3 3\n").unwrap();
    folder
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_name_that_is_not_there_is_refused_with_those_that_are() {
    let folder = folder();
    for words in COMMANDS {
        let output = tandem(Path::new(TANDEM), folder.path(), words, "2nod");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let sentence = said(&output);
        assert!(
            sentence.starts_with(
                "tandem: the machine \"2nod\" is neither a file nor one of those that have a name: 1x4, 2node, "
            ),
            "{words:?}: {sentence}"
        );
        assert_eq!(sentence.lines().count(), 1);
    }
}

#[test]
fn a_name_stands_for_its_file() {
    let folder = folder();
    let file = format!("{}/../../vm/machines/ring4.toml", env!("CARGO_MANIFEST_DIR"));
    for words in COMMANDS {
        let [by_name, by_file] =
            ["ring4", &file].map(|machine| tandem(Path::new(TANDEM), folder.path(), words, machine));
        // Whatever machine it is, the emulator is missing.
        let missing = words[0] == "profile";
        assert_eq!(by_name.status.success(), !missing, "{words:?}: {}", said(&by_name));
        assert!(!missing || said(&by_name).contains("/no/qemu"), "{}", said(&by_name));
        // How long a search or a decision took differs.
        if words[0] == "topo" {
            assert_eq!(by_name.stdout, by_file.stdout);
        }
    }
}

#[test]
fn a_file_comes_before_a_name_and_an_installed_program_has_the_machines_of_its_prefix() {
    let folder = folder();
    let program = folder.path().join("bin/tandem");
    fs::create_dir(folder.path().join("bin")).unwrap();
    if fs::hard_link(TANDEM, &program).is_err() {
        fs::copy(TANDEM, &program).unwrap();
    }
    let machines = folder.path().join("share/tandem/machines");
    fs::create_dir_all(&machines).unwrap();
    fs::write(machines.join("mine.toml"), "name = 'installed'\nnodes = 2\ncpus_per_node = 4\n").unwrap();
    let shown = || {
        let output = tandem(&program, folder.path(), &["topo"], "mine");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(shown().starts_with("machine installed\n"), "{}", shown());
    fs::write(folder.path().join("mine"), "name = 'here'\nnodes = 2\ncpus_per_node = 4\n").unwrap();
    assert!(shown().starts_with("machine here\n"), "{}", shown());
}
