// SPDX-License-Identifier: GPL-2.0-only
//! Trials on other machines, which are this one under the names of others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use crate::bench::{Bench, known, text};

/// What stands for ssh: takes `-o OPTION... HOST COMMAND`, and runs the command here, with `added` words.
pub fn fake_ssh(bench: &Bench, before: &str, added: &str) -> String {
    let path = bench.path("reach");
    let skip = "while [ \"$1\" = -o ]; do shift 2; done";
    fs::write(&path, format!("#!/bin/bash\n{skip}\necho \"$1\" >> hosts\n{before}\nexec sh -c \"$2\" {added}\n"))
        .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn a_machine_with_another_program_refuses_and_nothing_is_kept() {
    let bench = Bench::new("sleep 0.04");
    let other = r#"< <(sed -u 's/"program_sha256":"[0-9a-f]*"/"program_sha256":"0"/')"#;
    let ssh = fake_ssh(&bench, "", other);
    let output = bench.tandem(&["tune", "--executor", "ssh-hosts", "--hosts", "a", "--ssh", &ssh, "--", "./prog"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 0), "{said}");
    assert!(said.contains("cannot: ") && said.contains("is not the program that was tuned"), "{said}");
}

#[test]
fn a_machine_with_another_program_in_a_script_refuses_from_the_second_run_on() {
    let bench = Bench::new("exec ./worker 0.04");
    fs::copy("/bin/sleep", bench.path("worker")).unwrap();
    let other = r#"< <(sed -u 's|/worker [0-9a-f]*"|/worker 0"|')"#;
    let ssh = fake_ssh(&bench, "", other);
    let output = bench.tandem(&["tune", "--executor", "ssh-hosts", "--hosts", "a", "--ssh", &ssh, "--", "./prog"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 1), "{said}");
    assert!(said.contains("cannot: its code ") && said.contains("/worker is not what it was"), "{said}");
}

#[test]
fn a_program_that_is_built_anew_meanwhile_ends_the_session_with_what_other_machines_had_measured() {
    let change = "cp prog other; echo '# anew' >> other; mv other prog";
    let bench = Bench::new(&format!("[ $(wc -l < runs) -lt 4 ] || {{ {change}; }}\nsleep 0.04"));
    let ssh = fake_ssh(&bench, "", "");
    let arguments =
        ["tune", "--repeats", "4", "--executor", "ssh-hosts", "--hosts", "a", "--ssh", &ssh, "--", "./prog"];
    let output = bench.tandem(&arguments);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 4), "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.contains("cannot: ./prog is not the file that it was when it began: the runs of before are"),
        "{said}"
    );
    let result: toml::Table = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap().parse().unwrap();
    let runs: i64 = result["measured"].as_array().unwrap().iter().map(|one| one["runs"].as_integer().unwrap()).sum();
    // One is there to see whether it follows a number of threads, which may be a candidate too.
    assert!((2..=3).contains(&runs), "{result}");
}

#[test]
fn what_cannot_be_set_up_on_another_machine_has_failed_there_and_the_search_goes_on() {
    let bench = Bench::new("sleep 0.04");
    let no_place = "read -r line; [[ $line != *'\"plan\":{'* ]] || export TMPDIR=/no/such/place";
    let ssh = fake_ssh(&bench, no_place, "< <(echo \"$line\"; exec cat)");
    let arguments = ["tune", "--repeats", "4", "--pages", "first-touch", "--executor", "ssh-hosts", "--hosts", "a"];
    let output = bench.tandem(&[&arguments[..], &["--ssh", &ssh, "--", "./prog"]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("it could not be run: there is no place for what the program writes"), "{said}");
    assert!(bench.path("prog.tandem.toml").exists());
    let asked = fs::read_to_string(bench.path("hosts")).unwrap().lines().count();
    assert!(asked > bench.runs() + 1, "{asked} and {} runs", bench.runs());
}

#[test]
fn a_host_that_fails_is_left_out_and_the_others_do_its_work() {
    let bench = Bench::new("sleep 0.04");
    // Two that are never there lose the same run three times while the third one is at work.
    let ssh = fake_ssh(&bench, "[ \"$1\" = \"${1#bad}\" ] || exit 9", "");
    let hosts = ["--executor", "ssh-hosts", "--hosts", "bad1,good,bad2", "--ssh", &ssh];
    let output =
        bench.tandem(&[&["tune", "--repeats", "4", "--pages", "first-touch"], &hosts[..], &["--", "./prog"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("bad1: no reply (exit status: 9)"));
    let asked = fs::read_to_string(bench.path("hosts")).unwrap();
    let times = |name: &str| asked.lines().filter(|host| *host == name).count();
    assert_eq!(times("good"), bench.runs() + 1, "and once what machine it is: {asked}");
    assert_eq!([times("bad1"), times("bad2")], [2, 2], "and no more in later rounds: {asked}");
}

/// A program that stands for one of Slurm's.
fn write_command(bench: &Bench, name: &str, body: &str) {
    fs::create_dir_all(bench.path("slurm")).unwrap();
    let path = bench.path("slurm").join(name);
    fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Notes how many tasks each submission has.
const RUN_TASKS: &str = r#"for word; do [[ $word == --array=* ]] && last=${word#--array=0-}; done
echo $((last + 1)) >> submissions
number=$(wc -l < submissions) script=${!#}
run_tasks() {
	for SLURM_ARRAY_TASK_ID in $(seq 0 $last); do export SLURM_ARRAY_TASK_ID; sh -c "$script" >&2; done
}"#;

/// Tasks without a reply; FAILING is what happens before.
const SQUEUE: &str = r#"FAILING
while [[ $# -gt 0 ]]; do [[ $1 == --name ]] && name=$2; shift; done
for request in tandem-jobs/$name/*.request; do
	[[ -e $request && ! -e ${request%request}reply ]] && task=$(basename $request .request) && echo "$task 7_$task"
done
exit 0"#;

/// A Slurm of which `sbatch` does this once the number of its submission is in `number`: it may `run_tasks`.
fn write_slurm(bench: &Bench, sbatch: &str) {
    write_command(bench, "sbatch", &format!("{RUN_TASKS}\n{sbatch}"));
    write_command(bench, "squeue", &SQUEUE.replace("FAILING", ""));
    write_command(bench, "scancel", "echo \"$@\" >> cancelled");
}

/// Tunes with that Slurm and these options.
fn tune_with_slurm(bench: &Bench, options: &[&str]) -> Output {
    let path = format!("{}:{}", bench.path("slurm").display(), std::env::var("PATH").unwrap());
    let arguments = ["tune", "--repeats", "4", "--pages", "first-touch", "--executor", "slurm"];
    let mut command = bench.command(&[&arguments, options, &["--", "./prog", "data"]].concat());
    // No file system of a network hides anything here.
    command.env("PATH", path).env("TANDEM_SLURM_LOST_AFTER", "4").output().unwrap()
}

/// Tunes with a Slurm that runs what it takes at once, but refuses the submissions with these numbers, from 1 on.
fn tune_with_slurm_that_refuses(bench: &Bench, refused: &str) -> Output {
    let refuse = "echo 'controller is down' >&2; exit 1";
    write_slurm(bench, &format!("[[ ' {refused} ' == *\" $number \"* ]] && {{ {refuse}; }}\nrun_tasks"));
    tune_with_slurm(bench, &[])
}

#[test]
fn what_a_killed_session_submitted_is_taken_over_whether_it_is_done_or_under_way() {
    // The first is what the machine is, the second the program as it is, the fourth many runs at once.
    for (killed_at, run) in [(2, "run_tasks"), (4, "run_tasks"), (2, "later"), (4, "later")] {
        let bench = Bench::new("sleep 0.04");
        let later = "later() { (sleep 1; run_tasks) > /dev/null 2>&1 & }";
        write_slurm(
            &bench,
            &format!("{later}\n[[ $number == {killed_at} ]] || {{ run_tasks; exit; }}\n{run}; kill -9 $PPID"),
        );
        let killed = tune_with_slurm(&bench, &[]);
        assert_eq!(killed.status.code(), None, "{killed:?}");
        let again = tune_with_slurm(&bench, &[]);
        let said = text(&again.stderr);
        assert!(again.status.success() && said.matches("they are taken over").count() == 1, "{said}");
        let runs = bench.runs();
        assert_eq!(known(&tune_with_slurm(&bench, &[])), runs, "at {killed_at}, {run}: all runs are kept: {said}");
        let left: Vec<_> =
            fs::read_dir(bench.path("tandem-jobs")).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        assert!(!bench.path("cancelled").exists(), "{said}");
    }
}

#[test]
fn what_a_killed_session_submitted_is_cancelled_by_one_that_does_not_want_it() {
    let (bench, job) = killed_session();
    // One that is refused before it asks for any trial leaves it to the next.
    tune_with_slurm(&bench, &["--stdin", "missing"]);
    assert!(!bench.path("cancelled").exists() && bench.path("tandem-jobs").join(&job).exists());
    tune_with_slurm(&bench, &["--region", "work"]);
    let cancelled = fs::read_to_string(bench.path("cancelled")).unwrap();
    assert_eq!(cancelled, format!("--quiet --name {job}\n"));
    assert!(!bench.path("tandem-jobs").join(job).exists());
}

#[test]
fn what_a_killed_session_submitted_is_not_of_a_file_that_was_changed_since() {
    let (bench, job) = killed_session();
    fs::write(bench.path("data"), "other").unwrap();
    let again = tune_with_slurm(&bench, &[]);
    let said = text(&again.stderr);
    assert!(again.status.success() && !said.contains("taken over"), "{said}");
    assert_eq!(fs::read_to_string(bench.path("cancelled")).unwrap(), format!("--quiet --name {job}\n"));
}

/// What a session leaves that is killed when it has submitted its first trial: its files and its job.
fn killed_session() -> (Bench, String) {
    let bench = Bench::new("sleep 0.04");
    fs::write(bench.path("data"), "first").unwrap();
    write_slurm(&bench, "[[ $number == 2 ]] && kill -9 $PPID || run_tasks");
    assert_eq!(tune_with_slurm(&bench, &[]).status.code(), None);
    let jobs = fs::read_dir(bench.path("tandem-jobs")).unwrap().map(|file| file.unwrap().file_name());
    let job = jobs.map(|name| name.into_string().unwrap()).find(|name| name != "lock").unwrap();
    (bench, job)
}

#[test]
fn a_job_is_not_lost_because_slurm_does_not_answer() {
    let bench = Bench::new("sleep 0.04");
    // Longer than what is not known is waited for.
    write_slurm(&bench, "[[ $number == 2 ]] && { (sleep 9; run_tasks) > /dev/null 2>&1 & } || run_tasks");
    write_command(&bench, "squeue", &SQUEUE.replace("FAILING", "echo >> asked; exit 1"));
    let output = tune_with_slurm(&bench, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read_to_string(bench.path("asked")).unwrap().lines().count() >= 3);
    let submitted = fs::read_to_string(bench.path("submissions")).unwrap();
    let tasks: usize = submitted.lines().map(|tasks| tasks.parse::<usize>().unwrap()).sum();
    assert_eq!(tasks, bench.runs() + 1, "and once what machine it is: {}", text(&output.stderr));
}

#[test]
fn a_session_ends_with_its_budget_though_no_machine_runs_its_jobs() {
    let cases = [
        (0, Some("no machine has answered within --budget")),
        (1, Some("--budget was over before a machine had run the program once as it is")),
        (2, None),
    ];
    for (carried_out, refusal) in cases {
        let bench = Bench::new("sleep 0.04");
        write_slurm(&bench, &format!("(( number > {carried_out} )) || run_tasks"));
        let output = tune_with_slurm(&bench, &["--budget", "6s"]);
        let said = text(&output.stderr);
        let code = if refusal.is_some() { 2 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{carried_out}: {said}");
        assert!(refusal.is_none_or(|words| said.lines().last().unwrap().contains(words)), "{carried_out}: {said}");
        assert_eq!(bench.path("prog.tandem.toml").exists(), refusal.is_none(), "{carried_out}: {said}");
        let cancelled = fs::read_to_string(bench.path("cancelled")).unwrap();
        assert!(cancelled.starts_with("--quiet --name tandem-tune-"), "{carried_out}: {cancelled}");
    }
}

#[test]
fn a_submission_that_slurm_refuses_after_another_one_is_tried_again() {
    let bench = Bench::new("sleep 0.04");
    let output = tune_with_slurm_that_refuses(&bench, "3");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let words = "sbatch refused: controller is down; it is tried again";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(bench.runs() >= 4, "{said}");
}

#[test]
fn an_array_that_is_too_large_is_submitted_in_smaller_ones() {
    let bench = Bench::new("sleep 0.04");
    write_slurm(&bench, "(( last >= 3 )) && { echo 'Invalid job array specification' >&2; exit 1; }\nrun_tasks");
    let output = tune_with_slurm(&bench, &["--budget", "10m"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let submitted = fs::read_to_string(bench.path("submissions")).unwrap();
    let tasks: Vec<usize> = submitted.lines().map(|tasks| tasks.parse().unwrap()).collect();
    assert!(tasks.iter().any(|&tasks| tasks > 3) && said.contains("sbatch refused: Invalid job array"), "{tasks:?}");
    assert_eq!(tasks.iter().filter(|&&tasks| tasks <= 3).sum::<usize>(), bench.runs() + 1, "{tasks:?}");
}

#[test]
fn a_reply_that_cannot_be_read_costs_no_other_one() {
    let bench = Bench::new("sleep 0.04");
    // The first two are what the machine is, and the program as it is.
    let spoil = "for reply in tandem-jobs/*/0.reply; do echo spoilt > $reply; done";
    write_slurm(&bench, &format!("run_tasks\n(( last < 2 )) || {{ [[ -e spoilt ]] || {spoil}; touch spoilt; }}"));
    let output = tune_with_slurm(&bench, &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.lines().last().unwrap().contains("0.reply: is no reply"), "{said}");
    let runs = bench.runs();
    assert!(runs > 3, "{said}");
    let again = tune_with_slurm(&bench, &[]);
    assert_eq!((known(&again), again.status.code()), (runs - 1, Some(0)), "{}", text(&again.stderr));
}

#[test]
fn a_first_submission_that_slurm_refuses_ends_the_session() {
    let bench = Bench::new("sleep 0.04");
    let output = tune_with_slurm_that_refuses(&bench, "1");
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs(), said.lines().count()), (Some(2), 0, 1), "{said}");
    assert!(said.contains("sbatch refused: controller is down"), "{said}");
}

#[test]
fn who_runs_trials_is_told_without_contradiction() {
    let said = |options: &[&str]| {
        let output = Bench::new("").tandem(&[&["tune"], options, &["--", "./prog"]].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        text(&output.stderr)
    };
    assert!(said(&["--hosts", "a"]).contains("--hosts is for --executor ssh-hosts"));
    assert!(said(&["--executor", "slurm", "--ssh", "rsh"]).contains("--ssh is for --executor ssh-hosts"));
    assert!(said(&["--slurm-option=-x"]).contains("--slurm-option is for --executor slurm"));
    assert!(
        said(&["--executor", "ssh-hosts", "--jobs", "d", "--hosts", "a"]).contains("--jobs is for --executor slurm")
    );
    assert!(said(&["--worker", "t"]).contains("--worker is for --executor slurm or ssh-hosts"));
    assert!(said(&["--executor", "ssh-hosts"]).contains("needs --hosts HOST,..."));
    assert!(said(&["--executor", "ssh-hosts", "--hosts=a,-oProxyCommand=x"]).contains("is no name of a machine"));
    let twice = said(&["--executor", "ssh-hosts", "--hosts", "h1,h2,h1", "--ssh", "/no/such/ssh"]);
    assert!(twice.contains("--hosts: h1 is there twice"), "{twice}");
    let missing = said(&["--executor", "ssh-hosts", "--hosts", "a", "--ssh", "/no/such/ssh"]);
    assert!(missing.contains("/no/such/ssh does not start"), "{missing}");
}
