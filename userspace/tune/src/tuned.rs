// SPDX-License-Identifier: GPL-2.0-only
//! The result as a file: the best configuration with its evidence, for people to read and `tandem run --tuned` to apply.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tandem_ab::statistics::{Better, Comparison};
use tandem_machine::format_cpu_list;
use tandem_policies::model::Topology;

use crate::apart::{self, RegionResult, regions};
use crate::session::{Outcome, name};
use crate::space::Configuration;

/// Version of the file.
const VERSION: u32 = 2;

/// The machine and the program that a result is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The program's path when it was tuned.
    pub program: String,
    /// Hash of its file.
    pub program_sha256: String,
    /// Its arguments; `{threads}` stands for the number of threads.
    pub arguments: Vec<String>,
    /// Hash of the file that it read as its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_sha256: Option<String>,
    /// The machine's nodes with CPUs, memory sizes and distances, one a line.
    pub machine: Vec<String>,
}

impl Subject {
    /// What `command` is on the machine of `topology`, reading `input`.
    ///
    /// # Errors
    /// The program or the input cannot be found or read.
    pub fn of(command: &[String], input: Option<&Path>, topology: &Topology) -> Result<Self> {
        let (program, arguments) = command.split_first().context("there is no program to run")?;
        let path = find(program)?;
        Ok(Self {
            program_sha256: sha256(&path)?,
            program: path.display().to_string(),
            arguments: arguments.to_vec(),
            input_sha256: input.map(sha256).transpose()?,
            machine: machine(topology),
        })
    }

    /// In what `now` differs from this, one sentence each.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.machine != now.machine {
            differences.push(format!(
                "it was tuned on another machine ({}; here: {})",
                self.machine.join("; "),
                now.machine.join("; ")
            ));
        }
        if self.program_sha256 != now.program_sha256 {
            differences.push(format!("{} is not the program that was tuned ({})", now.program, self.program));
        }
        if self.arguments != now.arguments {
            let (then, now) = (self.arguments.join(" "), now.arguments.join(" "));
            differences.push(format!("it was tuned with the arguments `{then}`, not `{now}`"));
        }
        differences
    }
}

/// Runs of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Its name.
    pub configuration: String,
    /// Number of runs that ended.
    pub runs: usize,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_s: Option<f64>,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_s: Option<f64>,
    /// Of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greatest_s: Option<f64>,
    /// A run was stopped after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_s: Option<f64>,
    /// A run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// How much faster the best configuration is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Median as it is.
    pub as_it_is_s: f64,
    /// Median under the configuration.
    pub tuned_s: f64,
    /// The first over the second.
    pub speed_up: f64,
    /// 95 % interval of that.
    pub interval: [f64; 2],
    /// Runs as it is and under the configuration.
    pub runs: [usize; 2],
    /// Whether the search came to its end.
    pub complete: bool,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    version: u32,
    /// What was tuned, and where.
    pub subject: Subject,
    /// The best one; the program as it is when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// What it brings, when both were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Its parallel regions above 5 % of its time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionResult>,
    /// All configurations that ran, the fastest first.
    pub measured: Vec<Measured>,
}

impl Tuned {
    /// What `outcome` found about `subject`.
    pub fn new(subject: Subject, outcome: &Outcome) -> Self {
        let runs = &outcome.found.runs;
        let best = outcome.best();
        let evidence = best.and_then(|(_, best)| {
            let (as_it_is, tuned) = (runs[0].sample()?, runs[best].sample()?);
            let known = Comparison::of(&as_it_is, &tuned);
            Some(Evidence {
                as_it_is_s: as_it_is.median(),
                tuned_s: tuned.median(),
                speed_up: known.ratio,
                interval: known.interval.into(),
                runs: [0, best].map(|one| runs[one].seconds.len()),
                complete: matches!(outcome.found.end, crate::search::End::Decided | crate::search::End::Near),
            })
        });
        let ran = outcome.candidates.iter().zip(runs).filter(|(_, runs)| **runs != crate::search::Runs::default());
        let mut measured: Vec<Measured> = ran.map(|(one, runs)| measured(one.as_ref(), runs)).collect();
        let key = |one: &Measured| one.median_s.or(one.slower_than_s).unwrap_or(f64::INFINITY);
        measured.sort_by(|one, other| key(one).total_cmp(&key(other)));
        Self {
            version: VERSION,
            subject,
            configuration: best.map(|(configuration, _)| configuration),
            evidence,
            notes: outcome.notes.clone(),
            regions: regions(outcome),
            measured,
        }
    }

    /// What was found, in one sentence.
    pub fn in_words(&self) -> String {
        let (Some(configuration), Some(evidence)) = (&self.configuration, &self.evidence) else {
            return "the program as it is is the fastest that was found".to_owned();
        };
        let [low, high] = evidence.interval;
        let sure = Comparison { ratio: evidence.speed_up, interval: (low, high) }.verdict(Better::Higher);
        let so = match sure {
            tandem_ab::statistics::Verdict::NoDifference => ": no difference that can be told from chance",
            _ => "",
        };
        format!(
            "{configuration}: {:.3} s, as it is {:.3} s: {:.2} times as fast (95 %: {low:.2} to {high:.2}, {} and {} runs){so}",
            evidence.tuned_s, evidence.as_it_is_s, evidence.speed_up, evidence.runs[1], evidence.runs[0]
        )
    }

    /// What is known of its regions, as text; empty if it has none.
    pub fn regions_in_words(&self) -> String {
        if self.regions.is_empty() {
            return String::new();
        }
        let whole = self.measured.iter().find(|one| one.configuration == name(self.configuration.as_ref()));
        let bound = whole.and_then(|one| one.median_s).map_or(String::new(), |tuned_s| {
            let at_best_s = apart::at_best_s(tuned_s, &self.regions);
            format!(
                "with a configuration for each region, alike for pages: {at_best_s:.3} s at best, not {tuned_s:.3} s\n"
            )
        });
        apart::table(&self.regions) + &bound
    }

    /// The file's text.
    ///
    /// # Errors
    /// None that is known; the type is that of writing.
    pub fn text(&self) -> Result<String> {
        let mut text = String::new();
        writeln!(text, "# Found by `tandem tune`; `tandem run --tuned THIS-FILE -- CMD` applies it.")?;
        writeln!(text, "# {}", self.in_words())?;
        Ok(text + &toml::to_string_pretty(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no result of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let tuned: Self =
            toml::from_str(&text).with_context(|| format!("{}: is no result of tandem tune", path.display()))?;
        if tuned.version != VERSION {
            bail!("{}: is of version {}, this is version {VERSION}: tune again", path.display(), tuned.version);
        }
        Ok(tuned)
    }
}

fn measured(one: Option<&Configuration>, runs: &crate::search::Runs) -> Measured {
    let ended = tandem_ab::statistics::Sample::new(&runs.seconds);
    let range = ended.as_ref().map(tandem_ab::statistics::Sample::range);
    Measured {
        configuration: name(one),
        runs: runs.seconds.len(),
        median_s: ended.as_ref().map(tandem_ab::statistics::Sample::median),
        least_s: range.map(|range| range.0),
        greatest_s: range.map(|range| range.1),
        slower_than_s: runs.slower_than,
        failure: runs.failure.clone(),
    }
}

/// A machine in lines, equal for machines that are equal to a program.
fn machine(topology: &Topology) -> Vec<String> {
    let line = |node: &tandem_policies::model::Node| {
        let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.0).collect();
        let distances: Vec<String> = node.distance.values().map(u32::to_string).collect();
        // The kernel keeps some memory for itself, not always the same.
        let gib = (node.memory_pages as f64 * tandem_policies::model::PAGE_BYTES as f64 / (1 << 30) as f64).round();
        format!("node {}: CPUs {}, {gib} GiB, distances {}", node.id, format_cpu_list(&cpus), distances.join(" "))
    };
    topology.nodes.values().map(line).collect()
}

/// The file of a program, as the shell would find it.
fn find(program: &str) -> Result<PathBuf> {
    let is_program = |path: &Path| path.is_file();
    if program.contains('/') {
        let path = PathBuf::from(program);
        return if is_program(&path) { Ok(path) } else { bail!("{program}: there is no such program") };
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join(program)).find(|path| is_program(path));
    found.with_context(|| format!("{program}: there is no such program in the path"))
}

fn sha256(path: &Path) -> Result<String> {
    let content = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    Ok(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{End, Found, Runs};
    use crate::space::{PagePlacement, ThreadPlacement};
    use crate::testing::machine;

    fn subject() -> Subject {
        Subject::of(&["sh".into(), "-c".into(), "true".into()], None, &machine(2, 2)).unwrap()
    }

    fn outcome() -> Outcome {
        let configuration = Configuration {
            threads: 4,
            thread_nodes: 2,
            thread_placement: ThreadPlacement::Scatter,
            page_nodes: 2,
            page_placement: PagePlacement::Interleave,
        };
        let runs = |seconds: &[f64]| Runs { seconds: seconds.to_vec(), ..Runs::default() };
        Outcome {
            candidates: vec![None, Some(configuration), Some(Configuration { threads: 2, ..configuration })],
            found: Found {
                best: Some(1),
                runs: vec![runs(&[4.0, 4.2, 4.1]), runs(&[2.0, 2.1, 2.05]), runs(&[])],
                end: End::Decided,
            },
            regions: vec![],
            notes: vec!["careful".into()],
        }
    }

    #[test]
    fn a_result_is_read_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.tandem.toml");
        let tuned = Tuned::new(subject(), &outcome());
        fs::write(&path, tuned.text().unwrap()).unwrap();
        assert_eq!(Tuned::read(&path).unwrap(), tuned);
        assert_eq!(tuned.measured.len(), 2, "what did not run is not there");
        assert!(tuned.text().unwrap().contains("2.00 times as fast (95 %: 1.90 to 2.10, 3 and 3 runs)\n"), "{tuned:?}");
        for page_placement in crate::space::ALL {
            let configuration = tuned.configuration.map(|one| Configuration { page_placement, ..one });
            let tuned = Tuned { configuration, ..tuned.clone() };
            fs::write(&path, tuned.text().unwrap()).unwrap();
            assert_eq!(Tuned::read(&path).unwrap(), tuned);
        }
    }

    #[test]
    fn without_a_better_configuration_the_program_as_it_is_is_the_result() {
        let mut outcome = outcome();
        outcome.found.best = Some(0);
        let tuned = Tuned::new(subject(), &outcome);
        assert_eq!((tuned.configuration, &tuned.evidence), (None, &None));
        assert!(tuned.in_words().contains("as it is is the fastest"));
    }

    #[test]
    fn what_differs_is_said() {
        let tuned = subject();
        assert!(tuned.differences(&tuned).is_empty());
        let other = Subject::of(&["ls".into()], None, &machine(1, 4)).unwrap();
        let said = tuned.differences(&other);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].contains("another machine") && said[0].contains("node 1: CPUs 2-3, 1 GiB, distances 20 10"),
            "{said:?}"
        );
        assert!(said[1].contains("/ls is not the program that was tuned") && said[2].contains("`-c true`"), "{said:?}");
    }

    #[test]
    fn what_is_no_result_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.toml");
        fs::write(&path, "interval_ms = 5\n").unwrap();
        let said = format!("{:#}", Tuned::read(&path).unwrap_err());
        assert!(said.contains("x.toml: is no result of tandem tune"), "{said}");
        let newer = Tuned::new(subject(), &outcome()).text().unwrap().replace("version = 2", "version = 9");
        fs::write(&path, newer).unwrap();
        assert!(Tuned::read(&path).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        for program in ["no-such-program-anywhere", "./no/such"] {
            let said = Subject::of(&[program.to_owned()], None, &machine(1, 1)).unwrap_err().to_string();
            assert!(said.contains(program), "{said}");
        }
    }
}
