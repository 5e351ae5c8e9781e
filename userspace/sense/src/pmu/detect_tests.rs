// SPDX-License-Identifier: GPL-2.0-only
use super::super::testing::FakeSystem;
use super::*;

fn refusal(system: &FakeSystem) -> Unavailable {
    detect(system.root()).expect_err("not available")
}

fn found(system: &FakeSystem) -> Hardware {
    detect(system.root()).unwrap_or_else(|error| panic!("{error}")).hardware
}

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn intel_servers_sample_by_load_latency() {
    for system in [FakeSystem::ivy_bridge(), FakeSystem::sapphire_rapids()] {
        let Hardware::IntelLoadLatency(devices) = found(&system) else { panic!("load latency") };
        assert_eq!(names(&devices), ["cpu"]);
    }
}

#[test]
fn each_type_of_core_has_its_pmu() {
    let Hardware::IntelLoadLatency(devices) = found(&FakeSystem::alder_lake()) else { panic!("load latency") };
    assert_eq!(names(&devices), ["cpu_core", "cpu_atom"]);
    assert_eq!(devices[1].cpus.as_deref(), Some("8-15"));
}

#[test]
fn amd_and_hygon_sample_operations() {
    for (family, model) in [(0x17, 0x31), (0x19, 0x1), (0x19, 0x11), (0x1a, 0x2)] {
        assert!(matches!(found(&FakeSystem::amd(family, model, &[])), Hardware::AmdIbs(_)));
    }
    let hygon = FakeSystem::amd(0x18, 0, &[]).x86("HygonGenuine", 0x18, 0, 1, "");
    assert!(matches!(found(&hygon), Hardware::AmdIbs(_)));
}

#[test]
fn arm_samples_by_spe() {
    let Hardware::ArmSpe(devices) = found(&FakeSystem::neoverse_v2()) else { panic!("SPE") };
    assert_eq!(names(&devices), ["arm_spe_0"]);
}

#[test]
fn a_virtual_machine_without_pmu_is_told_from_a_machine_without() {
    let guest = FakeSystem::new().x86("AuthenticAMD", 0x1a, 2, 1, "hypervisor");
    assert_eq!(refusal(&guest), Unavailable::NoVirtualPmu);
    assert_eq!(counters(guest.root()), Err(Unavailable::NoVirtualPmu));
    let machine = FakeSystem::new().x86("GenuineIntel", 6, 0x8f, 8, "vmx");
    assert_eq!(refusal(&machine), Unavailable::NoPmu);
    assert!(refusal(&guest).to_string().contains("-cpu host,pmu=on"), "the remedy is said");
}

#[test]
fn a_pmu_that_only_counts_names_what_is_missing() {
    let guest = FakeSystem::new().x86("GenuineIntel", 6, 0x8f, 8, "hypervisor").counting("cpu", 4);
    assert_eq!(refusal(&guest), Unavailable::NoVirtualSampling { missing: "event mem-loads" });
    let imprecise = FakeSystem::ivy_bridge().pmu("cpu", 4, &[("caps/max_precise", "0")]);
    assert!(matches!(refusal(&imprecise), Unavailable::NoSampling { missing: "event mem-loads", .. }));
    let amd = FakeSystem::new().x86("AuthenticAMD", 0x19, 1, 1, "svm").counting("cpu", 4);
    assert!(refusal(&amd).to_string().contains("enable IBS in the firmware"));
    let arm = FakeSystem::new().arm(0x410f_d4f1).pmu("armv8_pmuv3_0", 8, &[]);
    assert!(refusal(&arm).to_string().contains("arm_spe_pmu"));
}

#[test]
fn rights_decide_last_and_say_what_to_do() {
    for (paranoid, allowed) in [(-1, true), (0, true), (1, false), (2, false), (4, false)] {
        let system = FakeSystem::ivy_bridge().unprivileged(paranoid);
        match detect(system.root()) {
            Ok(available) => assert!(allowed && available.rights.physical(), "{paranoid}"),
            Err(error) => {
                assert_eq!(error, Unavailable::NoRights { paranoid });
                assert!(!allowed && error.to_string().contains("CAP_PERFMON"));
            }
        }
    }
    let perfmon = FakeSystem::ivy_bridge().unprivileged(4).file("proc/self/status", "CapEff:\t0000004000000000\n");
    assert!(detect(perfmon.root()).is_ok());
}

#[test]
fn unknown_cpus_and_kernels_without_perf_are_said() {
    let other = FakeSystem::new().file("proc/cpuinfo", "processor : 0\ncpu\t\t: POWER9 (raw)\n");
    assert_eq!(refusal(&other), Unavailable::UnknownCpu { model: "POWER9 (raw)".to_owned() });
    assert_eq!(detect(std::path::Path::new("/nowhere")), Err(Unavailable::NoPerf));
    assert_eq!(counters(std::path::Path::new("/nowhere")), Err(Unavailable::NoPerf));
    for error in [Unavailable::NoPerf, Unavailable::NoPmu, refusal(&other)] {
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn counters_are_ready_where_the_model_has_events() {
    let sets = counters(FakeSystem::ivy_bridge().root()).unwrap();
    assert_eq!((sets.len(), sets[0].core.as_deref()), (1, Some("ivytown")));
    let remote = sets[0].get(Counter::RemoteMemory).unwrap();
    assert_eq!(remote[0].encoding, Encoding { kind: 4, config: [0xcd3, 0, 0, 0, 0] });
    assert_eq!(sets[0].get(Counter::Operations), None, "Ivy Bridge has no such events");
    let sets = counters(FakeSystem::alder_lake().root()).unwrap();
    let cores: Vec<_> = sets.iter().map(|set| (set.device.as_str(), set.get(Counter::Operations).is_some())).collect();
    assert_eq!(cores, [("cpu_atom", false), ("cpu_core", true)]);
    let sets = counters(FakeSystem::neoverse_v2().root()).unwrap();
    assert_eq!(sets[0].device, "armv8_pmuv3_0");
    assert!(sets[0].get(Counter::RemoteMemory).is_some() && sets[0].get(Counter::TransfersWithinNode).is_none());
}

#[test]
fn a_model_that_is_not_in_the_table_has_no_counters_but_is_no_error() {
    let sets = counters(FakeSystem::new().x86("GenuineIntel", 6, 0xfe, 0, "").counting("cpu", 4).root()).unwrap();
    assert_eq!((sets.len(), sets[0].core.as_deref(), sets[0].get(Counter::Cycles)), (1, None, None));
}
