// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the BPF objects once for all kernels (CO-RE) and makes their skeletons, and the Rust view of `bpf/intf.h`.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    let vmlinux = root.join("build/meson/vmlinux.h");
    println!("cargo:rerun-if-changed={}", vmlinux.display());
    if !vmlinux.exists() {
        panic!("build/meson/vmlinux.h is missing: `./run build` makes it from the pinned kernel's BTF");
    }
    let bpf = root.join("bpf");
    let path = |name: &str| bpf.join(name).to_str().expect("the checkout's path is UTF-8").to_owned();
    for name in ["tandem", "counters", "sampled", "regions"] {
        scx_cargo::BpfBuilder::new()
            .and_then(|mut builder| {
                builder
                    .add_include_path(vmlinux.parent().and_then(Path::to_str).expect("the checkout's path is UTF-8"))
                    // Kernel structures embed tagged structures without a name.
                    .add_cflag("-fms-extensions")
                    .add_cflag("-Wno-microsoft-anon-tag")
                    .add_cflag("-Werror")
                    .enable_intf(&path("intf.h"), "intf.rs")
                    .enable_skel(&path(&format!("{name}.bpf.c")), name)
                    .build()
            })
            .unwrap_or_else(|error| panic!("the BPF object {name} was not built: {error:#}"));
    }

    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("tandem.bpf.o");
    let mut hasher = DefaultHasher::new();
    fs::read(&object).expect("the object was just built").hash(&mut hasher);
    println!("cargo:rustc-env=TANDEM_OBJECT_HASH={}", hasher.finish());
}
