// SPDX-License-Identifier: GPL-2.0-only
//! `tandem profile`, as its users call it: exact on a program whose meetings are known, sampled on one that runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// The emulator, the plugin, and the program.
struct Set {
    qemu: PathBuf,
    plugin: PathBuf,
    visits: PathBuf,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What a program printed that had to succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Made once for all tests: the emulator is fetched and the plugin built if they are not there.
fn set() -> &'static Set {
    static SET: OnceLock<Set> = OnceLock::new();
    SET.get_or_init(|| {
        let root = root();
        let qemu = printed(Command::new(root.join("vm/setup/qemu-user.sh")).arg(root.join("build/cache")));
        printed(Command::new(root.join("vm/trace/build.sh")).arg(root.join("build")));
        let visits = Path::new(env!("CARGO_TARGET_TMPDIR")).join("visits");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/profile/visits.c");
        printed(Command::new("gcc").args(["-O1", "-o"]).arg(&visits).arg(source).arg("-lpthread"));
        Set { qemu: qemu.trim().into(), plugin: root.join("build/vm/trace.so"), visits }
    })
}

/// `tandem profile --exact OPTIONS -- COMMAND`.
fn profile(options: &[&str], command: &[&str]) -> Output {
    let set = set();
    let machine = root().join("vm/machines/ring4.toml");
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    tandem.args(["profile", "--exact", "--machine"]).arg(machine).arg("--qemu").arg(&set.qemu);
    tandem.arg("--plugin").arg(&set.plugin).args(options).arg("--").args(command);
    tandem.output().unwrap()
}

fn json(command: &[&str]) -> Value {
    let visits = set().visits.to_str().unwrap();
    let output = profile(&["--json", "-"], &[&[visits], command].concat());
    assert!(output.stdout.starts_with(b"{"), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Meetings of two threads over the run.
fn met(profile: &Value, one: u64, other: u64) -> u64 {
    let cells = profile["events"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell[0] == one && cell[1] == other);
    cell.map_or(0, |cell| cell[2].as_u64().unwrap())
}

/// What 2000 lines more in a block bring to each pair of the four threads (main is thread 0): what the C library's own lines
/// bring is the same for both lengths.
fn more_meetings(pattern: &str) -> Vec<(u64, u64, u64)> {
    let (few, many) = (json(&[pattern, "1000"]), json(&[pattern, "3000"]));
    let pairs = (1..=4).flat_map(|one| (one + 1..=4).map(move |other| (one, other)));
    pairs.map(|(one, other)| (one, other, met(&many, one, other) - met(&few, one, other))).collect()
}

#[test]
fn pairs_meet_once_a_line_and_nobody_else_does() {
    let expected = [(1, 2, 2000), (1, 3, 0), (1, 4, 0), (2, 3, 0), (2, 4, 0), (3, 4, 2000)];
    assert_eq!(more_meetings("pairs"), expected);
}

#[test]
fn neighbours_on_a_ring_meet_once_a_line() {
    let expected = [(1, 2, 2000), (1, 3, 0), (1, 4, 2000), (2, 3, 2000), (2, 4, 0), (3, 4, 2000)];
    assert_eq!(more_meetings("ring"), expected);
}

#[test]
fn threads_that_all_visit_a_line_meet_each_other_alike() {
    let expected = [(1, 2, 2000), (1, 3, 2000), (1, 4, 2000), (2, 3, 2000), (2, 4, 2000), (3, 4, 2000)];
    assert_eq!(more_meetings("all"), expected);
    assert!(more_meetings("none").iter().all(|&(_, _, more)| more == 0));
}

#[test]
fn lines_of_different_slices_do_not_meet() {
    let visits = set().visits.to_str().unwrap();
    // A thread's 3000 visits alone are longer than such a slice of 100 instructions.
    let options = ["--slice-ms", "0.1", "--instructions-per-ms", "1000", "--json", "-"];
    let output = profile(&options, &[visits, "pairs", "3000"]);
    let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(met(&profile, 1, 2) < 100, "{}", met(&profile, 1, 2));
    assert!(profile["slices"].as_array().unwrap().len() > 1000);
}

#[test]
fn every_access_is_counted_for_its_page_thread_and_first_touch() {
    let profile = json(&["none", "3000"]);
    // 3000 lines fill 46 pages and 56 lines of the next one; nothing else is in the blocks.
    for thread in 1..=4u64 {
        let alone = |page: &&Value| page["accesses"][0][0] == thread && page["accesses"].as_array().unwrap().len() == 1;
        let full = |page: &&Value| page["accesses"][0][1] == 64 && page["first"] == thread;
        let pages = profile["pages"].as_array().unwrap().iter().filter(alone).filter(full).count();
        assert_eq!(pages, 46, "thread {thread}");
    }
}

#[test]
fn a_child_process_is_followed_and_what_it_becomes_is_told() {
    let forked = json(&["pairs", "1000", "fork"]);
    let processes: Vec<u64> =
        forked["threads"].as_array().unwrap().iter().map(|thread| thread["process"].as_u64().unwrap()).collect();
    // The parent, then the child's main thread and four more.
    assert_eq!(processes, [0, 1, 1, 1, 1, 1]);
    assert!(met(&forked, 2, 3) >= 1000 && met(&forked, 3, 4) < 1000);
    let told = |profile: &Value, what: &str| {
        profile["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains(what))
    };
    assert!(told(&forked, "2 processes") && !told(&forked, "exec"));
    assert!(told(&json(&["pairs", "10", "exec"]), "another program (exec)"));
}

#[test]
fn the_table_the_page_and_the_programs_own_code_come_out() {
    let folder = tempfile::tempdir().unwrap();
    let (page, file) = (folder.path().join("p.html"), folder.path().join("p.json"));
    let plots = folder.path().join("all/plots");
    let paths = [&page, &file, &plots].map(|path| path.to_str().unwrap());
    let options = ["--html", paths[0], "--json", paths[1], "--plots", paths[2]];
    let output = profile(&options, &[set().visits.to_str().unwrap(), "all", "1000"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("visited\n") && text.contains("recommended") && text.contains("E_app at 64 MiB"),
        "{text}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(plots).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!((page.matches("<svg").count(), files.len() % 2), (files.len() / 2, 0), "{files:?}");
    for pair in files.chunks(2) {
        let [png, svg] = [&pair[0], &pair[1]].map(|path| std::fs::read(path).unwrap());
        assert!(png.starts_with(b"\x89PNG") && svg.starts_with(b"<svg") && svg.ends_with(b"</svg>\n"), "{pair:?}");
        assert_eq!(pair[0].file_stem(), pair[1].file_stem());
    }
    assert!(files.iter().any(|file| file.ends_with("who-shares-with-whom.svg")), "{files:?}");
    serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap();
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let sentence = |options: &[&str], command: &[&str]| {
        let output = profile(options, command);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert!(sentence(&[], &[]).contains("name the program to profile after --"));
    assert!(sentence(&[], &["no-such-program"]).contains("no program in PATH"));
    assert!(sentence(&[], &["/no/such/program"]).contains("there is no program /no/such/program"));
    let script = root().join("vm/setup/qemu-user.sh");
    assert!(sentence(&[], &[script.to_str().unwrap()]).contains("is a script"));
    assert!(sentence(&[], &[root().join("README.md").to_str().unwrap()]).contains("not executable"));
    assert!(sentence(&["--html", "/no/such/folder/p.html"], &["true"]).contains("p.html cannot be written"));
    assert!(sentence(&["--plots", "/proc/plots"], &["true"]).contains("the folder /proc/plots cannot be made"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plain.txt"), "#!/bin/sh\n").unwrap();
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    tandem.args(["profile", "--exact", "--qemu", "plain.txt", "--plugin"]).arg(&set().plugin).args(["--", "true"]);
    tandem.current_dir(folder.path());
    // A name alone is of a file here, not of one in PATH.
    for (mode, expected) in
        [(0o644, "plain.txt is not executable: give one by --qemu"), (0o755, "the emulator ended before it began")]
    {
        std::fs::set_permissions(folder.path().join("plain.txt"), std::fs::Permissions::from_mode(mode)).unwrap();
        let plain = tandem.output().unwrap();
        let said = String::from_utf8_lossy(&plain.stderr);
        assert!(plain.status.code() == Some(2) && said.contains(expected), "{said}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(["profile", "--exact", "--qemu", "/no/qemu", "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(
        missing.status.code() == Some(2)
            && said.contains("the emulator /no/qemu is missing")
            && said.lines().count() == 1,
        "{said}"
    );
}

/// A program that counts, with its memory; ended when dropped.
struct Busy(std::process::Child);

impl Busy {
    fn start() -> Self {
        Self::of(Path::new("sh"))
    }

    /// The same by another name of the shell.
    fn of(shell: &Path) -> Self {
        Self(Command::new(shell).args(["-c", BUSY]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const BUSY: &str = "i=0; while :; do i=$((i+1)); done";

#[test]
fn a_process_that_runs_is_profiled_by_samples_and_goes_on() {
    let mut busy = Busy::start();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("p.html");
    let pid = busy.0.id().to_string();
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    let said = printed(
        tandem
            .args(["profile", "-p", &pid, "--seconds", "4", "--sampler-budget", "50", "--json", "-", "--html"])
            .arg(&page),
    );
    let profile: Value = serde_json::from_str(&said).unwrap();
    assert!(
        profile["sampler"]["name"] == "lookahead" && profile["sampler"]["samples"].as_u64().unwrap() > 0,
        "{profile}"
    );
    assert!(profile["threads"][0]["name"].as_str().unwrap().starts_with(&format!("{pid} (")), "{profile}");
    assert!(profile["command"][2] == BUSY && profile["placements"][0]["name"] == "present", "{profile}");
    assert!((3.0..60.0).contains(&profile["seconds"].as_f64().unwrap()), "{profile}");
    let memory = profile["memory"].as_array().unwrap();
    assert!(memory.iter().any(|node| node["points"][0][1].as_f64().unwrap() > 0.1), "{profile}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Sampled by lookahead"));
    assert!(busy.0.try_wait().unwrap().is_none(), "it goes on");
}

#[test]
fn names_of_other_users_threads_hold_no_orders_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("x\u{1b}[31m\r\ny");
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    let busy = Busy::of(&shell);
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    let pid = busy.0.id().to_string();
    let said = printed(tandem.args(["profile", "-p", &pid, "--seconds", "4", "--sampler-budget", "50"]));
    assert!(!said.contains(['\u{1b}', '\r']), "{said:?}");
    assert!(said.contains(&format!("{pid} (x?[31m??y)")) && said.contains("/x?[31m??y -c "), "{said}");
}

#[test]
fn a_program_is_started_and_profiled_until_it_ends() {
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo counted; exit 5";
    let output = tandem.args(["profile", "--sampler-budget", "50", "--", "sh", "-c", script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(5), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("counted\n") && text.contains("sampled by lookahead: "), "{text}");
}

#[test]
fn how_a_program_ends_is_told_also_when_there_is_nothing_to_show() {
    let folder = tempfile::tempdir().unwrap();
    let ended = |script: &str, options: &[&str]| {
        let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
        let output = tandem.arg("profile").args(options).args(["--", "sh", "-c", script]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.lines().count() == 1 && output.stdout.is_empty(), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = ended("exit 7", &[]);
    assert!(code == Some(7) && said.starts_with("tandem: no access was seen: "), "{code:?}: {said}");
    let recording = folder.path().join("trace");
    assert_eq!(ended("exit 7", &["--record", recording.to_str().unwrap()]).0, Some(7));
    assert_eq!(ended("kill -9 $$", &[]).0, Some(128 + 9));
    assert_eq!(ended("exit 0", &[]).0, Some(2), "that there is no profile must be told, too");
}

#[test]
fn what_policies_would_see_of_a_program_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("busy.trace");
    let profile = |slice_ms: &str, command: &[&str]| {
        let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
        tandem.args(["profile", "--sampler-budget", "50", "--slice-ms", slice_ms, "--record"]).arg(&recording);
        tandem.arg("--").args(command).output().unwrap()
    };
    let output = profile("200", &["/no/such/program"]);
    assert!(output.status.code() == Some(2) && !recording.exists(), "{output:?}");
    let short = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let output = profile("60000", &["sh", "-c", short]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("nothing was recorded") && !recording.exists(), "{said}");
    let output = profile("200", &["timeout", "3", "sh", "-c", BUSY]);
    let (shown, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.code() == Some(124) && shown.contains("sampled by lookahead: "), "{shown}{said}");
    assert!(said.starts_with("recorded ") && said.lines().count() == 1, "{said}");
    let again = profile("200", &["true"]);
    assert!(again.status.code() == Some(2) && String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
    let replay = |options: &[&str]| {
        let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
        tandem.arg("replay").arg(&recording).args(options).output().unwrap()
    };
    let totals =
        &serde_json::from_slice::<Value>(&replay(&["--policy", "sma+locality", "--json"]).stdout).unwrap()["totals"];
    assert!((5..=30).contains(&totals["decisions"].as_u64().unwrap()), "{totals}");
    assert_eq!(totals["intervals"], totals["decisions"]);
    let said = String::from_utf8(replay(&["--policy", "none+locality"]).stdout).unwrap();
    assert!(said.contains(" with no policies, ") && said.contains("\ninterval 1, "), "{said}");
    assert!(!said.contains("as recorded"), "{said}");
    let output = replay(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("without policies: say with --policy"), "{said}");
}

#[test]
fn without_its_sampler_no_program_is_started_and_nothing_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    // No machine that tests run on has such a device.
    let command = tandem.args(["profile", "--sampler", "device", "--", "touch"]).arg(&started);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && output.stdout.is_empty() && said.lines().count() == 1, "{said}");
    assert!(!started.exists(), "{said}");
}

#[test]
fn files_are_written_though_nobody_reads_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let [file, page] = ["p.json", "p.html"].map(|name| folder.path().join(name));
    let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
    tandem.args(["profile", "--sampler-budget", "50", "--json"]).arg(&file).arg("--html").arg(&page);
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = tandem.args(["--", "sh", "-c", script]).stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("standard output cannot be written"), "{said}");
    assert!(file.is_file() && page.is_file(), "{said}");
}

#[test]
fn what_cannot_be_sampled_is_refused_in_one_sentence() {
    let refused = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tandem")).arg("profile").args(arguments).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(refused(&["-p", "4194305"]), "tandem: there is no process 4194305\n");
    assert!(refused(&[]).contains("or a process with --pid"));
    assert!(refused(&["--", "/no/such/program"]).contains("/no/such/program does not start"));
    assert!(refused(&["-p", "1", "--exact"]).contains("cannot be used with"));
    assert!(refused(&["--seconds", "5", "--", "true"]).contains("cannot be used with"));
    assert!(refused(&["--exact", "--seconds", "5", "--", "true"]).contains("cannot be used with"));
    assert!(refused(&["--machine", "x.toml", "--", "true"]).contains("--exact"));
    assert!(refused(&["--machine", "x.toml", "-p", "1"]).contains("cannot be used with"));
}
