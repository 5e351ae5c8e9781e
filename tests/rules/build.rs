// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `bpf/rules.h` for this machine.

fn main() {
    for file in ["rules.c", "../../bpf/rules.h", "../../bpf/intf.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new().file("rules.c").include("../../bpf").flag("-Wall").warnings_into_errors(true).compile("rules");
}
