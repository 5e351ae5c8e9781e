// SPDX-License-Identifier: GPL-2.0-only
//! Configuration files: what is in one takes effect, also while the scheduler is loaded; what is wrong changes nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use tandem_guest_tests::{Scx, enable_seq, program, scx_tandem_fails, state, wait_until};

use crate::refusals::LASTING;
use crate::trial;

const FILE: &str = "/tmp/tandem.toml";
const OBSERVING: &str = "dry_run = true\nmanage = ['pid=1']\ninterval_ms = 200\n";

pub fn tests() -> Vec<Trial> {
    vec![
        trial("a_new_configuration_takes_effect_without_a_gap", a_new_configuration_takes_effect_without_a_gap),
        trial("a_wrong_configuration_loads_nothing", a_wrong_configuration_loads_nothing),
        trial(
            "a_wrong_configuration_leaves_no_scheduler_without_an_agent",
            a_wrong_configuration_leaves_no_scheduler_without_an_agent,
        ),
        trial("a_misspelt_variable_is_told", a_misspelt_variable_is_told),
    ]
}

fn write(text: &str) {
    fs::write(FILE, text).expect("/tmp can be written");
    fs::set_permissions(FILE, Permissions::from_mode(0o644)).expect("the file is ours");
}

fn a_new_configuration_takes_effect_without_a_gap() {
    write(OBSERVING);
    let scx = Scx::start(&["--config", FILE]);
    let seq = enable_seq();
    assert!(!scx.log().contains("covered"), "no statistics yet: {}", scx.log());
    for (wrong, said) in
        [("page_rat = 1\n", "\"page_rat\": there is no such option"), ("queue = 'node'\n", "queue takes effect")]
    {
        write(&[OBSERVING, "stats = 1\n", wrong].concat());
        scx.reload();
        wait_until("the wrong configuration is refused", || scx.log().contains(said));
    }
    assert!(!scx.log().contains("covered"), "what is refused has no effect: {}", scx.log());
    write(&[OBSERVING, "stats = 1\n"].concat());
    scx.reload();
    wait_until("statistics are printed", || scx.log().contains("covered"));
    assert!(scx.log().contains("took over"), "{}", scx.log());
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    assert!(scx.stop().success());
    assert_eq!(state(), "disabled");
}

fn a_wrong_configuration_loads_nothing() {
    write("interval_ms = 1\n");
    let failed = scx_tandem_fails(program().args(["--config", FILE]));
    assert!(failed.message.contains("/tmp/tandem.toml:1: interval_ms: "), "{}", failed.message);
    assert_eq!(failed.code, LASTING);
    write(OBSERVING);
    fs::set_permissions(FILE, Permissions::from_mode(0o666)).expect("the file is ours");
    let failed = scx_tandem_fails(program().args(["--config", FILE]));
    assert!(failed.message.contains("chmod go-w"), "{}", failed.message);
    assert_eq!(state(), "disabled");
}

/// What a killed agent left has nobody who looks after it then; what another one works with is not touched.
fn a_wrong_configuration_leaves_no_scheduler_without_an_agent() {
    write("interval_ms = 1\n");
    let scx = Scx::start_observing();
    assert_eq!(scx_tandem_fails(program().args(["--config", FILE])).code, LASTING);
    assert_eq!(state(), "enabled", "it has an agent");
    scx.kill();
    assert_eq!(state(), "enabled", "it lives longer than its agent");
    let refused = program().args(["--config", FILE]).output().expect("scx_tandem is in the guest");
    assert_eq!(refused.status.code(), LASTING, "{refused:?}");
    assert_eq!(state(), "disabled");
    // Nor does what is refused before anything is loaded, though it may be right later.
    Scx::start_observing().kill();
    let refused = program().args(["--dry-run", "--report", "/nowhere/report.json"]).output();
    let refused = refused.expect("scx_tandem is in the guest");
    assert_eq!((refused.status.code(), state().as_str()), (Some(1), "disabled"), "{refused:?}");
}

fn a_misspelt_variable_is_told() {
    let scx = Scx::start_as(program().args(["--dry-run", "--manage", "pid=1"]).env("TANDEM_PAGERATE", "1"));
    let log = scx.log();
    assert!(log.contains("\"TANDEM_PAGERATE\" in the environment has no effect"), "{log}");
    assert!(log.contains("did you mean TANDEM_PAGE_RATE?"), "{log}");
    assert!(scx.stop().success());
}
