// SPDX-License-Identifier: GPL-2.0-only
//! The scenarios that come with the model: files, and those that are made from tables of programs.
//!
//! The tables hold programs *in kind*: misses, sharing and lengths are chosen after what the sources say of them in words
//! and classes; nobody has measured these numbers.

use std::fmt::Write as _;

use super::Scenario;

/// Texts of the scenarios that are files.
const FILES: &[&str] = &[
    include_str!("../../scenarios/crossed.toml"),
    include_str!("../../scenarios/pairs.toml"),
    include_str!("../../scenarios/ring.toml"),
    include_str!("../../scenarios/master-init.toml"),
    include_str!("../../scenarios/phases.toml"),
    include_str!("../../scenarios/all-shared.toml"),
    include_str!("../../scenarios/bandwidth.toml"),
    include_str!("../../scenarios/ping-pong.toml"),
    include_str!("../../scenarios/mixed.toml"),
    include_str!("../../scenarios/hubench.toml"),
    include_str!("../../scenarios/lubench.toml"),
    include_str!("../../scenarios/membench.toml"),
    include_str!("../../scenarios/oltp.toml"),
    include_str!("../../scenarios/migration.toml"),
    include_str!("../../scenarios/kmaf-pairs.toml"),
    include_str!("../../scenarios/kmaf-stencil.toml"),
    include_str!("../../scenarios/kmaf-grid.toml"),
    include_str!("../../scenarios/kmaf-all-to-all.toml"),
    include_str!("../../scenarios/kmaf-master.toml"),
    include_str!("../../scenarios/all-remote.toml"),
    include_str!("../../scenarios/phase-thrash.toml"),
    include_str!("../../scenarios/full-nodes.toml"),
    include_str!("../../scenarios/oversubscribed.toml"),
];

/// A program that partitions its memory among threads which wait for each other.
struct Code {
    name: &'static str,
    compute_ns: f64,
    overlap: f64,
    /// Share of the accesses below the second-level cache that no cache holds.
    miss: f64,
    /// Share of the missing lines that are written back.
    write: f64,
    /// Weights of accesses to the own part, the neighbours' and everybody's.
    parts: [f64; 3],
    /// MiB of each thread's part.
    mb: f64,
    /// Ideal length on the whole machine.
    seconds: f64,
}

#[allow(clippy::too_many_arguments)]
const fn code(
    name: &'static str,
    compute_ns: f64,
    overlap: f64,
    miss: f64,
    write: f64,
    parts: [f64; 3],
    mb: f64,
    seconds: f64,
) -> Code {
    Code { name, compute_ns, overlap, miss, write, parts, mb, seconds }
}

/// After the nine NAS codes of the Thanos thesis: its classes of misses (low .1, medium .3, high .7), the partition of each
/// code, and about the times of the best operating-system setting on its first machine; parts are cut down to the lab's
/// machines.
const NAS: [Code; 9] = [
    code("bt", 12.0, 4.0, 0.1, 0.3, [0.85, 0.15, 0.0], 12.0, 38.0),
    code("cg", 3.0, 4.0, 0.1, 0.05, [0.55, 0.0, 0.45], 8.0, 17.0),
    code("ep", 60.0, 1.0, 0.02, 0.0, [1.0, 0.0, 0.0], 2.0, 73.0),
    code("ft", 5.0, 8.0, 0.3, 0.5, [0.5, 0.0, 0.5], 16.0, 9.0),
    code("is", 4.0, 8.0, 0.1, 0.5, [0.5, 0.0, 0.5], 12.0, 26.0),
    code("lu", 6.0, 3.0, 0.7, 0.3, [0.9, 0.1, 0.0], 8.0, 33.0),
    code("mg", 4.0, 8.0, 0.3, 0.4, [0.85, 0.15, 0.0], 16.0, 63.0),
    code("sp", 4.0, 6.0, 0.7, 0.4, [0.7, 0.1, 0.2], 10.0, 27.0),
    code("ua", 8.0, 2.0, 0.3, 0.2, [0.8, 0.1, 0.1], 8.0, 32.0),
];

/// The lab's kernels of the same names. Shares of lines from the other node are what the lab counted of the best placement on
/// two nodes, lines written of those read are after the kernels' code, and computing is what latency leaves of a line's time
/// there; of `is`, which bandwidth limits, it is a guess.
const KERNELS: [Code; 3] = [
    code("cg", 4.6, 10.0, 1.0, 0.11, [0.676, 0.0, 0.324], 11.0, 5.0),
    code("sp", 33.0, 10.0, 1.0, 1.0, [0.67, 0.0, 0.33], 4.0, 5.0),
    code("is", 4.0, 10.0, 1.0, 0.33, [0.667, 0.0, 0.333], 12.0, 5.0),
];

/// Codes and starts of the thesis's scenario `interactive` on its first machine, in seconds.
const INTERACTIVE: [(&str, f64); 8] = [
    ("lu", 0.0),
    ("bt", 18.0),
    ("cg", 137.0),
    ("sp", 190.0),
    ("lu", 224.0),
    ("bt", 244.0),
    ("cg", 269.0),
    ("sp", 316.0),
];
/// Ideal seconds of the lab's programs at 100 % of their work: 6 solves of `cg`, 100 steps of `sp`, 170 sorts of `is`, from the
/// lengths that the model needs for the lab's experiments with each alone.
const LAB_WORK: [(&str, f64); 3] = [("cg", 0.6), ("sp", 0.79), ("is", 0.68)];
/// The lab's default work of a program, as a share: of `queue` and of `interactive`.
const LAB_SHARES: [f64; 2] = [2.0, 2.5];

/// The lab plays LU and BT by `sp`.
const LAB_INTERACTIVE: [(&str, f64); 8] = [
    ("sp", 0.0),
    ("sp", 18.0),
    ("cg", 137.0),
    ("sp", 190.0),
    ("sp", 224.0),
    ("sp", 244.0),
    ("cg", 269.0),
    ("sp", 316.0),
];

/// Of 20 threads: MemBench, HuBench, LuBench and CPU hogs. The first three mixes are the paper's first three; the others,
/// whose programs it names but whose counters it does not give, cover the same range of kinds.
const SAM: [[u32; 4]; 26] = [
    [12, 8, 0, 0],
    [14, 6, 0, 0],
    [10, 6, 0, 4],
    [8, 12, 0, 0],
    [16, 4, 0, 0],
    [6, 8, 0, 6],
    [4, 8, 0, 8],
    [8, 4, 0, 8],
    [12, 0, 8, 0],
    [14, 0, 6, 0],
    [10, 0, 6, 4],
    [8, 0, 12, 0],
    [6, 0, 8, 6],
    [4, 0, 8, 8],
    [10, 4, 6, 0],
    [8, 6, 6, 0],
    [6, 4, 6, 4],
    [0, 8, 0, 12],
    [0, 0, 8, 12],
    [0, 8, 8, 4],
    [12, 0, 0, 8],
    [16, 0, 0, 4],
    [4, 4, 4, 8],
    [8, 8, 0, 4],
    [4, 12, 0, 4],
    [10, 10, 0, 0],
];

/// All of them.
pub fn builtins() -> Vec<Scenario> {
    let files = FILES.iter().map(|text| (*text).to_owned());
    let kernels = KERNELS.iter().map(|code| alone("", code, "first", "the lab's workload, after NAS"));
    let lab = [
        lab_queue(),
        interactive(
            "interactive",
            &KERNELS,
            &LAB_INTERACTIVE,
            |code| LAB_SHARES[1] * lab_work(code),
            0.02,
            ["first", "round_up = true\nfills = true", "the lab's workload, after the Thanos thesis"],
        ),
    ];
    let singles = NAS.iter().map(|code| alone("single-", code, "half-away", "Thanos thesis, Single"));
    let thesis = [
        queue("thanos-queue", &NAS, 0.5, "Thanos thesis, Queue"),
        interactive(
            "thanos-interactive",
            &NAS,
            &INTERACTIVE,
            |name| 5.0 * of_table(&NAS, name).seconds,
            1.0,
            ["local", "", "Thanos thesis, Interactive"],
        ),
    ];
    let mixes = SAM.iter().enumerate().map(|(at, mix)| sam(at + 1, mix));
    let texts = files.chain(kernels).chain(lab).chain(singles).chain(thesis).chain(mixes);
    texts.map(|text| Scenario::parse(&text, "built-in scenario").expect("a test reads them all")).collect()
}

/// The one of this name.
pub fn builtin(name: &str) -> Option<Scenario> {
    builtins().into_iter().find(|scenario| scenario.name == name)
}

fn head(name: &str, summary: &str, source: &str, seconds: f64, more: &str) -> String {
    format!("name = '{name}'\nsummary = '{summary}'\nsource = \"{source}\"\nseconds = {seconds}\n{more}\n")
}

/// A `[[program]]` of a code; `more` are lines of its own.
fn program(code: &Code, name: &str, home: &str, more: &str) -> String {
    let Code { compute_ns, overlap, miss, write, parts, mb, .. } = code;
    let mut uses = String::new();
    for (of, share) in ["own", "neighbours", "all"].iter().zip(parts).filter(|(_, share)| **share > 0.0) {
        write!(uses, "{{ region = 'part', share = {share}, of = '{of}', miss = {miss}, write = {write} }}, ")
            .expect("a String takes all");
    }
    format!(
        "[[program]]\nname = '{name}'\ncompute_ns = {compute_ns}\noverlap = {overlap}\nbarrier = true\n{more}\n\
         uses = [{uses}]\n[[program.region]]\nname = 'part'\nmb = {mb}\nhome = '{home}'\n"
    )
}

/// One code on the whole machine.
fn alone(prefix: &str, code: &Code, home: &str, source: &str) -> String {
    let name = format!("{prefix}{}", code.name);
    let summary = format!("one program in kind of {} on all CPUs", code.name.to_uppercase());
    head(&name, &summary, source, code.seconds, "") + &program(code, code.name, home, "cpus = 1")
}

/// As many users as nodes, each running all codes one after the other, with as many threads as a node has CPUs; `share` of
/// the codes' lengths.
fn queue(name: &str, codes: &[Code], share: f64, source: &str) -> String {
    let summary = "as many users as nodes, each running one program after the other: the machine is always full";
    let mut text = head(name, summary, source, 1.0, "");
    for (at, code) in codes.iter().enumerate() {
        let after = if at == 0 { String::new() } else { format!("after = '{}'\n", codes[at - 1].name) };
        let work = share * code.seconds;
        let more = format!("copies_per_node = 1\nnode_cpus = 1\nplace = 'free'\nwork = {work}\n{after}");
        text += &program(code, code.name, "local", &more);
    }
    text
}

/// The code of this name in a table.
fn of_table<'a>(codes: &'a [Code], name: &str) -> &'a Code {
    codes.iter().find(|code| code.name == name).expect("a code of the table")
}

/// Ideal seconds of one of the lab's programs at 100 % of its work.
fn lab_work(name: &str) -> f64 {
    LAB_WORK.iter().find(|(code, _)| *code == name).expect("a code of the lab").1
}

/// The lab's queue: users begin with different codes, and a program's main thread fills all of its memory.
fn lab_queue() -> String {
    let summary = "as many users as nodes, each running one program after the other: the machine is always full";
    let mut text = head("queue", summary, "the lab's workload, after the Thanos thesis", 1.0, "");
    let kinds = KERNELS.len();
    for turn in 0..kinds {
        for user in 0..kinds {
            let code = &KERNELS[(turn + user) % kinds];
            let after = if turn == 0 { String::new() } else { format!("after = 'turn-{turn}-{user}'\n") };
            let work = LAB_SHARES[0] * lab_work(code.name);
            let more = format!(
                "copies_per_node = 1\nnode_step = {kinds}\nfirst_node = {user}\nnode_cpus = 1\nplace = 'free'\n\
                 fills = true\nwork = {work}\n{after}"
            );
            text += &program(code, &format!("turn-{}-{user}", turn + 1), "first", &more);
        }
    }
    text
}

/// Eight programs at given times, each on a fifth of the CPUs; `work` are the codes' lengths, `scale` that of the starts;
/// where their memory is, lines for all of them, and the source.
fn interactive(
    name: &str,
    codes: &[Code],
    starts: &[(&str, f64)],
    work: impl Fn(&str) -> f64,
    scale: f64,
    [home, lines, source]: [&str; 3],
) -> String {
    let summary = "eight programs at given times, at the peak more threads than CPUs; the sum of their times counts";
    let mut text = head(name, summary, source, 1.0, "metric = 'accumulated'");
    for (at, (which, start_s)) in starts.iter().enumerate() {
        let (start_s, work) = (start_s * scale, work(which));
        let more = format!("cpus = 0.2\n{lines}\nplace = 'free'\nstart_s = {start_s}\nwork = {work}");
        text += &program(of_table(codes, which), &format!("{which}-{}", at + 1), home, &more);
    }
    text
}

/// A mix of SAM: sharers scattered, hogs where room is left.
fn sam(number: usize, mix: &[u32; 4]) -> String {
    let kinds = ["MemBench", "HuBench", "LuBench", "CPU hogs"];
    let named = mix.iter().zip(kinds).filter(|(threads, _)| **threads > 0);
    let words: Vec<String> = named.map(|(threads, kind)| format!("{threads} {kind}")).collect();
    let summary = format!("of 20 threads {}", words.join(", "));
    let source = if number <= 3 { "SAM, its mix of this number" } else { "SAM, a mix in kind" };
    let mut text = head(&format!("sam-{number}"), &summary, source, 20.0, "");
    let cpus = |threads: u32| f64::from(threads) / 20.0;
    for (name, compute_ns, threads) in [("hubench", 317.0, mix[1]), ("lubench", 1757.0, mix[2])] {
        if threads > 0 {
            writeln!(
                text,
                "[[program]]\nname = '{name}'\ncpus = {}\ncompute_ns = {compute_ns}\nplace = 'scatter'\n\
                 uses = [{{ region = 'lines', share = 1 }}]\n[[program.region]]\nname = 'lines'\nper = 'program'\n\
                 lines = true",
                cpus(threads)
            )
            .expect("a String takes all");
        }
    }
    if mix[0] > 0 {
        writeln!(
            text,
            "[[program]]\nname = 'membench'\ncpus = {}\ncompute_ns = 1\noverlap = 10\nplace = 'fill'\n\
             uses = [{{ region = 'arrays', share = 1, write = 0.5 }}]\n[[program.region]]\nname = 'arrays'\nmb = 16",
            cpus(mix[0])
        )
        .expect("a String takes all");
    }
    if mix[3] > 0 {
        writeln!(text, "[[program]]\nname = 'hogs'\ncpus = {}\ncompute_ns = 100\nplace = 'fill'", cpus(mix[3]))
            .expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_are_read_and_have_names_of_their_own() {
        let all = builtins();
        let names: BTreeSet<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        let of = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!((of("single-"), of("sam-"), of("kmaf-")), (9, 26, 5));
    }

    #[test]
    fn every_mix_has_twenty_threads() {
        assert!(SAM.iter().all(|mix| mix.iter().sum::<u32>() == 20));
        assert_eq!(SAM.iter().collect::<BTreeSet<_>>().len(), 26);
    }

    #[test]
    fn every_workload_of_the_lab_is_there() {
        let lab = [
            "crossed",
            "pairs",
            "ring",
            "master-init",
            "phases",
            "all-shared",
            "bandwidth",
            "ping-pong",
            "mixed",
            "hubench",
            "lubench",
            "membench",
            "oltp",
            "queue",
            "interactive",
            "cg",
            "sp",
            "is",
            "migration",
        ];
        for name in lab {
            assert!(builtin(name).is_some(), "{name}");
        }
    }
}
