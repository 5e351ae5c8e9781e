// SPDX-License-Identifier: GPL-2.0-only
//! `tandem map --qap` on small instances of QAPLIB, whose optima are proven. `cargo bench --bench qaplib` measures all of them.

mod instances;

use std::process::Command;

use serde_json::Value;

/// One of each family, small enough for a build without optimisation.
const NAMES: [&str; 12] = [
    "bur26a", "chr12a", "els19", "esc16a", "had12", "lipa20a", "nug12", "nug16a", "rou12", "scr12", "tai12a", "tai12b",
];
/// Goes far beyond what release builds need in a tenth of a second.
const STEPS: &str = "300000";

#[test]
fn the_optimum_of_small_instances_is_found() {
    let folder = instances::folder().unwrap();
    let instances = instances::instances(&folder).unwrap();
    for name in NAMES {
        let instance = instances.iter().find(|instance| instance.name == name).expect(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        let output = command.args(["map", "--json", "--steps", STEPS, "--qap"]).arg(&instance.path).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let places = answer["assignment"].as_array().unwrap();
        assert_eq!((places.len(), answer["cost"].as_f64()), (instance.size, Some(instance.known)), "{name}");
    }
}
