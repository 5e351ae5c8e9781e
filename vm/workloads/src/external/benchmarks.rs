// SPDX-License-Identifier: GPL-2.0-only
//! Benchmarks that are one command each.

use crate::external::session::{Own, Session};
use crate::external::{External, Setting};
use crate::frame::spec::{Metric, Size, THREADS, size};
use anyhow::{Context, Result, bail};

/// `perf bench numa mem`: the kernel developers' measure of NUMA placement.
pub const PERF_NUMA: External = External {
    name: "perf-numa",
    summary: "perf bench numa mem: processes whose threads walk the process's memory, all first touched on one node",
    sizes: &[
        Size { name: "processes", default: 0, unit: "processes", help: "processes; 0: one for each node", least: 0 },
        Size { name: "threads", default: 0, unit: "threads", help: "threads each; 0: CPUs / processes", least: 0 },
        Size {
            name: "process-mib",
            default: 16,
            unit: "MiB",
            help: "memory of each process, which all its threads walk",
            least: 0,
        },
        Size { name: "thread-mib", default: 0, unit: "MiB", help: "memory of each thread besides", least: 0 },
        size("loops", 12, "walks", "walks of each thread over all that it uses"),
    ],
    metric: Metric::Seconds,
    work_unit: "MiB",
    needs: &["perf"],
    session: perf_numa,
};

/// `perf bench sched pipe` on one pair of CPUs.
pub const PIPE: External = External {
    name: "pipe",
    summary: "perf bench sched pipe: two processes on one pair of CPUs wake each other through pipes",
    sizes: &[size("loops", 20_000, "round trips", "round trips")],
    metric: Metric::Seconds,
    work_unit: "round trips",
    needs: &["perf"],
    session: pipe,
};

/// hackbench: messages through sockets, all CPU time is the kernel's.
pub const HACKBENCH: External = External {
    name: "hackbench",
    summary: "hackbench: groups of 20 senders and 20 receivers pass messages through sockets",
    sizes: &[size("groups", 2, "groups", "groups"), size("loops", 60, "messages", "messages of each pair")],
    metric: Metric::Seconds,
    work_unit: "messages",
    needs: &["hackbench"],
    session: hackbench,
};

/// stress-ng: its memory stressor in the manner of STREAM.
pub const STRESS_NG: External = External {
    name: "stress-ng",
    summary: "stress-ng --stream: processes that each scan their own arrays as STREAM does",
    sizes: &[
        Size { name: "processes", default: 0, unit: "processes", help: "processes; 0: one for each CPU", least: 0 },
        size("array-kib", 1024, "KiB", "cache that the arrays are made for; each is four times as large"),
        size("loops", 12, "scans", "scans of each process"),
    ],
    metric: Metric::Seconds,
    work_unit: "scans",
    needs: &["stress-ng"],
    session: stress_ng,
};

/// sysbench: threads that take turns at mutexes.
pub const SYSBENCH_THREADS: External = External {
    name: "sysbench-threads",
    summary: "sysbench threads: threads lock, yield and unlock a few mutexes",
    sizes: &[
        THREADS,
        size("locks", 4, "mutexes", "mutexes"),
        size("yields", 20, "yields", "yields of an event"),
        size("events", 4000, "events", "events of all threads together"),
    ],
    metric: Metric::Seconds,
    work_unit: "events",
    needs: &["sysbench"],
    session: sysbench_threads,
};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A session of one command, whose output `proof` is given.
fn one_command(command: &str, work: u64, proof: impl Fn(&str) -> Result<()> + 'static) -> Session {
    let proof = Box::new(move |printed: &[String]| proof(&printed[0]).map(|()| Own::default()));
    Session { commands: vec![words(command)], proof, ..Session::nothing(work) }
}

/// The number that stands `columns` words from the start of the first line that contains `text`.
fn number_in_line(printed: &str, text: &str, column: usize) -> Result<f64> {
    let line = printed.lines().find(|line| line.contains(text));
    let line = line.with_context(|| format!("the program printed no line with '{text}'"))?;
    let word = line.split_whitespace().nth(column).unwrap_or_default().trim_end_matches([',', 's']);
    word.parse().with_context(|| format!("the program printed no number where one was expected: {line}"))
}

fn perf_numa(setting: &Setting) -> Result<Session> {
    let sizes = setting.sizes;
    let processes = setting.or("processes", setting.nodes);
    let threads = setting.or("threads", (setting.cpus / processes).max(1));
    let (process_mib, thread_mib, loops) = (sizes.of("process-mib"), sizes.of("thread-mib"), sizes.of("loops"));
    if process_mib + thread_mib == 0 {
        bail!("--process-mib 0 and --thread-mib 0 leave nothing to walk: give one of them more");
    }
    let work = processes * threads * (process_mib + thread_mib) * loops;
    // Without a limit of loops it stops by time; -0 has one CPU touch everything first; huge pages as the system has it.
    let command = format!(
        "perf bench numa mem -p {processes} -t {threads} -G 0 -P {process_mib} -T {thread_mib} -l {loops} -s 1000000 \
         -0 -z -Z --thp -1"
    );
    Ok(one_command(&command, work, move |printed| {
        let done_gb = number_in_line(printed, "data-total", 1)?;
        let expected_gb = (work << 20) as f64 / 1e9;
        if (done_gb - expected_gb).abs() > 0.01 * expected_gb + 0.001 {
            bail!("perf bench walked over {done_gb} GB instead of {expected_gb:.3} GB");
        }
        Ok(())
    }))
}

fn pipe(setting: &Setting) -> Result<Session> {
    let loops = setting.sizes.of("loops");
    Ok(one_command(&format!("taskset -c 0,1 perf bench sched pipe --loop {loops}"), loops, move |printed| {
        let done = number_in_line(printed, "# Executed", 2)?;
        if done != loops as f64 || !printed.contains("Total time:") {
            bail!("perf bench counted {done} round trips instead of {loops}, or no time");
        }
        Ok(())
    }))
}

fn hackbench(setting: &Setting) -> Result<Session> {
    let (groups, loops) = (setting.sizes.of("groups"), setting.sizes.of("loops"));
    // Each of the 20 senders of a group writes to each of its 20 receivers.
    let work = groups * 20 * 20 * loops;
    Ok(one_command(&format!("hackbench --groups {groups} --loops {loops}"), work, |printed| {
        number_in_line(printed, "Time:", 1).map(drop)
    }))
}

fn stress_ng(setting: &Setting) -> Result<Session> {
    let (processes, loops) = (setting.or("processes", setting.cpus), setting.sizes.of("loops"));
    let (l3_kib, seed) = (setting.sizes.of("array-kib"), setting.seed);
    let work = processes * loops;
    // Its limit of operations is that of all processes together.
    let command = format!(
        "stress-ng --stream {processes} --stream-ops {work} --stream-l3-size {l3_kib}K --seed {seed} --metrics-brief \
         --timeout 0"
    );
    Ok(one_command(&command, work, move |printed| {
        let done = number_in_line(printed, "] stream ", 4)?;
        if done != work as f64 || !printed.contains("successful run completed") {
            bail!("stress-ng counted {done} scans instead of {work}, or does not say that its run was successful");
        }
        Ok(())
    }))
}

fn sysbench_threads(setting: &Setting) -> Result<Session> {
    let sizes = setting.sizes;
    let (threads, events) = (setting.or("threads", setting.cpus), sizes.of("events"));
    let (locks, yields, seed) = (sizes.of("locks"), sizes.of("yields"), setting.seed);
    let command = format!(
        "sysbench threads --threads={threads} --thread-locks={locks} --thread-yields={yields} --events={events} --time=0 \
         --rand-seed={seed} run"
    );
    Ok(one_command(&command, events, move |printed| {
        let done = number_in_line(printed, "total number of events", 4)?;
        if done != events as f64 {
            bail!("sysbench counted {done} events instead of {events}");
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::spec::Values;

    /// What each program printed, its counts as they were.
    const PERF: &str = " main,                                    0.084, GB,             data-total\n";
    const STRESS_NG_PRINTED: &str = "stress-ng: info:  [7] stream: stressor loosely based on STREAM\n\
        stress-ng: metrc: [7] stream               16      0.00      0.00\n";
    const PIPE_PRINTED: &str = "# Executed 100 pipe operations between two processes\n\n     Total time: 0.001 [sec]\n";
    const SYSBENCH: &str = "    total number of events:              400\n";

    #[test]
    fn counts_are_read_where_the_programs_print_them() {
        assert_eq!(number_in_line(PERF, "data-total", 1).unwrap(), 0.084);
        assert_eq!(number_in_line(STRESS_NG_PRINTED, "] stream ", 4).unwrap(), 16.0);
        assert_eq!(number_in_line(PIPE_PRINTED, "# Executed", 2).unwrap(), 100.0);
        assert_eq!(number_in_line(SYSBENCH, "total number of events", 4).unwrap(), 400.0);
        assert!(number_in_line("Time: soon", "Time:", 1).unwrap_err().to_string().ends_with("expected: Time: soon"));
        assert!(number_in_line("", "Time:", 1).is_err());
    }

    #[test]
    fn threads_with_nothing_to_walk_are_refused() {
        let mut sizes: Values = Values(PERF_NUMA.sizes.iter().map(|size| (size.name, size.default)).collect());
        sizes.0.iter_mut().filter(|(name, _)| name.ends_with("-mib")).for_each(|(_, value)| *value = 0);
        let setting = Setting { sizes: &sizes, cpus: 8, nodes: 2, seed: 1, folder: std::path::Path::new("/") };
        assert!(perf_numa(&setting).err().unwrap().to_string().contains("nothing to walk"));
    }

    #[test]
    fn less_work_than_asked_for_is_no_measurement() {
        let sizes = |external: &External| Values(external.sizes.iter().map(|size| (size.name, size.default)).collect());
        for (external, printed) in [
            (&PERF_NUMA, PERF),
            (&PIPE, PIPE_PRINTED),
            (&super::STRESS_NG, STRESS_NG_PRINTED),
            (&SYSBENCH_THREADS, SYSBENCH),
        ] {
            let sizes = sizes(external);
            let folder = std::path::Path::new("/");
            let session = (external.session)(&Setting { sizes: &sizes, cpus: 8, nodes: 2, seed: 1, folder }).unwrap();
            assert!((session.proof)(&[printed.to_owned()]).is_err(), "{}", external.name);
        }
    }
}
