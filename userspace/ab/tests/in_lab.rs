// SPDX-License-Identifier: GPL-2.0-only
//! Whole experiments against a program that plays the lab's part (`fake_lab.py`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use tandem_ab::experiment::Experiment;
use tandem_ab::in_lab::{Request, machine_file, run};
use tandem_ab::lab::Lab;
use tandem_ab::plan::Plan;
use tandem_ab::programs::Places;
use tandem_ab::runner::Runner;
use tandem_ab::stop::Stop;
use tandem_ab::store::Store;
use tandem_ab::{arm, workload};

/// A lab, its programs and a store in a folder of their own.
struct Bench {
    folder: tempfile::TempDir,
    said: Mutex<Vec<String>>,
    stop: Stop,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), said: Mutex::default(), stop: Stop::default() };
        for folder in ["vm/machines", "bin"] {
            fs::create_dir_all(bench.path(folder)).unwrap();
        }
        fs::write(bench.path("vm/lab.py"), include_str!("fake_lab.py")).unwrap();
        fs::set_permissions(bench.path("vm/lab.py"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(bench.path("vm/machines/2node.toml"), "nodes = 2\ncpus_per_node = 4\n").unwrap();
        for program in ["tandem-load", "scx_other"] {
            let program = bench.path("bin").join(program);
            fs::write(&program, "program").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bench.behave(json!({}));
        bench
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// Healthy arms and walks, but for what `other` says.
    fn behave(&self, other: serde_json::Value) {
        let mut behaviour = json!({
            "seconds": {"stock-nb0": 8.0, "stock-nb1": 4.9, "stock-nb0-thp": 7.9, "stock-nb1-thp": 5.0, "oracle": 4.0,
                "worst": 8.2, "scx_other": 7.0},
            "walks": [{"from": 0, "to": 0, "ns": 90.2, "file_ns": 90.0},
                {"from": 0, "to": 1, "ns": 180.4, "file_ns": 180.0}],
        });
        for (key, value) in other.as_object().unwrap() {
            behaviour[key] = value.clone();
        }
        fs::write(self.path("vm/behaviour.json"), behaviour.to_string()).unwrap();
    }

    fn request(&self, arms: &str, boots: u64) -> Request {
        let arms = arms.replace("scx_other", self.path("bin/scx_other").to_str().unwrap());
        Request {
            machine: self.path("vm/machines/2node.toml"),
            kernel: "7.3.4".into(),
            plan: Plan {
                workloads: workload::parse_lists(&["crossed".into()]),
                arms: arm::parse_lists(&[arms]).unwrap(),
                boots,
                first_seed: 1,
            },
            limit: Duration::from_secs(60),
        }
    }

    fn run(&self, arms: &str, boots: u64) -> Experiment {
        self.attempt(&self.request(arms, boots)).unwrap().remove(0)
    }

    fn attempt(&self, request: &Request) -> anyhow::Result<Vec<Experiment>> {
        let store = Store::open(&self.path("store"))?;
        let lab = Lab::at(&self.path("vm/lab.py"))?;
        let places = Places { binaries: self.path("bin"), vm: self.path("vm"), cache: self.path("cache") };
        let say = |line: &str| self.said.lock().unwrap().push(line.to_owned());
        let runner = Runner { store: &store, again: false, side_by_side: 2, stop: &self.stop, say: &say };
        run(request, &lab, &places, &runner)
    }

    /// How often the lab was called for `arm`.
    fn calls(&self, arm: &str) -> usize {
        let calls = fs::read_to_string(self.path("vm/calls.log")).unwrap_or_default();
        calls.lines().filter(|line| *line == arm).count()
    }
}

/// Waits, with an end, until it holds.
fn until(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "what is waited for does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_experiment_has_every_boot_of_every_arm() {
    let bench = Bench::new();
    let result = bench.run("stock,oracle,worst,scx_other", 3);
    assert!(result.is_valid(), "{:?}", result.notes);
    assert_eq!((result.machine.as_str(), result.arms.len()), ("2node", 7));
    for arm in &result.arms {
        assert_eq!(arm.runs.len(), 3, "{}", arm.name);
        assert_eq!((arm.page_moves, arm.numa_pte_updates), (Some(10.0), Some(3.0)));
    }
    assert_eq!(result.arm("oracle").unwrap().runs, [4.001, 4.002, 4.003], "each boot has another seed");
    assert_eq!(result.best_stock().unwrap().name, "stock-nb1");
    assert_eq!(result.arm("oracle").unwrap().remote_share, Some(0.0));
    assert!(!bench.path("store/attempts").read_dir().unwrap().any(|_| true), "finished runs leave no files behind");
}

#[test]
fn what_was_measured_is_not_measured_again() {
    let bench = Bench::new();
    let first = bench.run("stock-nb1,oracle", 2);
    let second = bench.run("stock-nb1,oracle", 3);
    assert_eq!((bench.calls("oracle"), bench.calls("calibrate")), (3, 1));
    assert_eq!(second.arms[0].runs[..2], first.arms[0].runs[..]);
    // A changed machine is another machine, and a changed program another program.
    fs::write(bench.path("vm/machines/2node.toml"), "nodes = 2\ncpus_per_node = 4\nmemory_mb = 256\n").unwrap();
    bench.run("stock-nb1,oracle", 1);
    assert_eq!((bench.calls("oracle"), bench.calls("calibrate")), (4, 2));
    fs::write(bench.path("bin/tandem-load"), "another program").unwrap();
    bench.run("stock-nb1,oracle", 1);
    assert_eq!(bench.calls("oracle"), 5);
}

#[test]
fn an_arm_that_crashes_its_guest_is_reported_and_the_rest_go_on() {
    let bench = Bench::new();
    bench.behave(json!({"crash": ["worst"], "eject": ["scx_other"]}));
    let result = bench.run("stock-nb1,worst,scx_other,oracle", 2);
    let worst = result.arm("worst").unwrap();
    assert!(!worst.valid && worst.runs.is_empty());
    assert!(
        worst.failures[0].contains("kernel panic: Attempted to kill init! (exit code 122)"),
        "{:?}",
        worst.failures
    );
    let ejected = &result.arms[2];
    assert!(
        ejected.failures[1].contains("ejected the BPF scheduler rusty (runnable task stall)"),
        "{:?}",
        ejected.failures
    );
    for name in ["stock-nb1", "oracle"] {
        assert!(result.arm(name).unwrap().valid);
    }
    // The files of a failed run are where its reason says.
    let folder = worst.failures[0].split("its files are in ").nth(1).unwrap().split(':').next().unwrap();
    assert!(Path::new(folder).join("lab.log").is_file(), "{folder}");
    // It is made again next time.
    bench.behave(json!({}));
    assert!(bench.run("stock-nb1,worst,scx_other,oracle", 2).is_valid());
    assert_eq!((bench.calls("worst"), bench.calls("oracle")), (4, 2));
}

#[test]
fn a_wrong_calibration_voids_the_experiment_before_it_costs_time() {
    let bench = Bench::new();
    bench.behave(json!({"calibration_code": 1, "walks": [{"from": 0, "to": 0, "ns": 92.0, "file_ns": 90.0}]}));
    let result = bench.run("stock-nb1,oracle", 2);
    assert!(!result.calibration.valid && !result.is_valid());
    assert!(result.notes[0].starts_with("void: the walk node 0 local takes 92.00 ns"), "{:?}", result.notes);
    assert_eq!(bench.calls("oracle"), 0);
    bench.behave(json!({"calibration_code": 125, "walks": null}));
    let said = bench.run("oracle", 1).calibration.reason.unwrap();
    assert!(said.starts_with("the calibration failed: "), "{said}");
    // A wrong calibration is not kept.
    bench.behave(json!({}));
    assert!(bench.run("stock-nb1,oracle", 2).is_valid());
}

#[test]
fn an_interrupt_keeps_what_is_done() {
    let bench = Bench::new();
    bench.behave(json!({"hang": ["worst"]}));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let finished = || bench.calls("oracle") == 1 && bench.path("vm/hanging").exists();
            until(|| finished() && bench.said.lock().unwrap().iter().any(|line| line.contains("oracle, boot 1")));
            bench.stop.wish();
        });
        let result = bench.run("oracle,worst", 1);
        assert_eq!(result.arm("oracle").unwrap().runs.len(), 1);
        assert!(!result.arm("worst").unwrap().valid && result.arm("worst").unwrap().failures.is_empty());
    });
    bench.behave(json!({}));
    let resumed = Bench { stop: Stop::default(), ..bench };
    assert!(resumed.run("oracle,worst", 1).is_valid());
    assert_eq!((resumed.calls("oracle"), resumed.calls("worst")), (1, 2));
}

#[test]
fn two_experiments_at_a_time_on_one_store_make_each_run_once() {
    let bench = Bench::new();
    bench.behave(json!({"wait": ["calibrate", "oracle"]}));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.run("oracle,worst", 1));
        until(|| bench.path("vm/waiting").exists());
        let second = scope.spawn(|| bench.run("oracle,stock-nb1", 1));
        let waits = "calibration: another `tandem ab` measures it for this store now: waiting for it";
        until(|| bench.said.lock().unwrap().iter().any(|line| line == waits));
        fs::write(bench.path("vm/go"), "").unwrap();
        let both = [first, second].map(|experiment| experiment.join().unwrap());
        assert!(both.iter().all(Experiment::is_valid), "{both:?}");
        assert_eq!(both[0].arm("oracle").unwrap().runs, both[1].arm("oracle").unwrap().runs);
    });
    for made in ["calibrate", "oracle", "worst", "stock-nb1"] {
        assert_eq!(bench.calls(made), 1, "{made}");
    }
    assert!(!bench.path("store/attempts").read_dir().unwrap().any(|_| true));
}

#[test]
fn machines_go_by_name_or_file_and_others_are_refused() {
    let bench = Bench::new();
    let lab = Lab::at(&bench.path("vm/lab.py")).unwrap();
    let named = machine_file(Path::new("2node"), &lab).unwrap();
    assert_eq!(named.file_name().unwrap(), "2node.toml");
    assert_eq!(machine_file(&named, &lab).unwrap(), named);
    let said = machine_file(Path::new("9node"), &lab).unwrap_err().to_string();
    assert_eq!(said, "the machine \"9node\" is neither a file nor one of those that have a name: 2node");
    fs::write(bench.path("vm/machines/2node.toml"), "nodes = 2\ncpus_per_node = [4]\n").unwrap();
    let said = bench.attempt(&bench.request("oracle", 1)).unwrap_err().to_string();
    assert!(said.contains("2node.toml: cpus_per_node"), "{said}");
}
