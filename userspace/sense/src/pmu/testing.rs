// SPDX-License-Identifier: GPL-2.0-only
//! Systems for tests: the few files of /proc and /sys that are read, below a folder of their own.

use std::path::Path;

use tempfile::TempDir;

/// A system to look at.
pub(crate) struct FakeSystem(TempDir);

impl FakeSystem {
    /// A system of root with perf events, on which nothing else is known.
    pub(crate) fn new() -> Self {
        let system = Self(tempfile::tempdir().expect("a folder"));
        system
            .file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
            .file("proc/sys/kernel/perf_event_paranoid", "2\n")
            .file("sys/bus/event_source/devices/software/type", "1\n")
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Adds or replaces a file.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("inside the system")).expect("a folder");
        std::fs::write(path, text).expect("a file");
        self
    }

    /// Somebody who may not more than others.
    pub(crate) fn unprivileged(self, paranoid: i64) -> Self {
        self.file("proc/self/status", "CapEff:\t0000000000000000\n")
            .file("proc/sys/kernel/perf_event_paranoid", &format!("{paranoid}\n"))
    }

    /// /proc/cpuinfo of an x86 CPU at 2 GHz.
    pub(crate) fn x86(self, vendor: &str, family: u32, model: u32, stepping: u32, flags: &str) -> Self {
        let text = format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: of tests\n\
             stepping\t: {stepping}\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu {flags}\n\n"
        );
        self.file("proc/cpuinfo", &text)
    }

    /// An Arm CPU.
    pub(crate) fn arm(self, midr: u64) -> Self {
        self.file("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\n")
            .file("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", &format!("{midr:#018x}\n"))
    }

    /// A PMU with files such as `events/mem-loads`.
    pub(crate) fn pmu(self, name: &str, kind: u32, files: &[(&str, &str)]) -> Self {
        let folder = format!("sys/bus/event_source/devices/{name}");
        let system = self.file(&format!("{folder}/type"), &format!("{kind}\n"));
        files.iter().fold(system, |system, (file, text)| system.file(&format!("{folder}/{file}"), &format!("{text}\n")))
    }

    /// The PMU of Intel cores that can count only.
    pub(crate) fn counting(self, name: &str, kind: u32) -> Self {
        let formats =
            [("format/event", "config:0-7"), ("format/umask", "config:8-15"), ("format/cmask", "config:24-31")];
        self.pmu(name, kind, &formats)
    }

    /// The same with sampling of loads and stores.
    pub(crate) fn load_latency(self, name: &str, kind: u32) -> Self {
        let files = [
            ("format/ldlat", "config1:0-15"),
            ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
            ("events/mem-stores", "event=0xd0,umask=0x82"),
            ("caps/max_precise", "3"),
        ];
        self.counting(name, kind).pmu(name, kind, &files)
    }

    /// Ivy Bridge server, the machine of SAM.
    pub(crate) fn ivy_bridge() -> Self {
        Self::new().x86("GenuineIntel", 6, 0x3e, 4, "vmx").load_latency("cpu", 4)
    }

    /// Sapphire Rapids: its loads need a second event beside them.
    pub(crate) fn sapphire_rapids() -> Self {
        let more = [("events/mem-loads-aux", "event=0x03,umask=0x82"), ("events/mem-stores", "event=0xcd,umask=0x2")];
        Self::new().x86("GenuineIntel", 6, 0x8f, 8, "vmx").load_latency("cpu", 4).pmu("cpu", 4, &more)
    }

    /// Alder Lake: two types of core.
    pub(crate) fn alder_lake() -> Self {
        Self::new()
            .x86("GenuineIntel", 6, 0x97, 2, "vmx")
            .load_latency("cpu_core", 4)
            .load_latency("cpu_atom", 10)
            .pmu("cpu_core", 4, &[("cpus", "0-7"), ("events/mem-loads-aux", "event=0x03,umask=0x82")])
            .pmu("cpu_atom", 10, &[("cpus", "8-15")])
    }

    /// An AMD server of this family and model; `format` are IBS terms such as `l3missonly`.
    pub(crate) fn amd(family: u32, model: u32, format: &[(&str, &str)]) -> Self {
        Self::new()
            .x86("AuthenticAMD", family, model, 1, "svm")
            .counting("cpu", 4)
            .pmu("ibs_op", 11, &[("format/cnt_ctl", "config:19")])
            .pmu("ibs_op", 11, format)
    }

    /// A Neoverse V2 with SPE on its CPUs 0 to 3.
    pub(crate) fn neoverse_v2() -> Self {
        let formats = [
            ("format/ts_enable", "config:0"),
            ("format/pa_enable", "config:1"),
            ("format/jitter", "config:16"),
            ("format/load_filter", "config:33"),
            ("format/store_filter", "config:34"),
            ("format/min_latency", "config2:0-11"),
            ("caps/min_interval", "256"),
            ("cpumask", "0-3"),
        ];
        Self::new()
            .arm(0x410f_d4f1)
            .pmu("armv8_pmuv3_0", 8, &[("format/event", "config:0-15"), ("cpus", "0-3")])
            .pmu("arm_spe_0", 9, &formats)
            .file("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000\n")
    }
}
