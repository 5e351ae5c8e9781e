// SPDX-License-Identifier: GPL-2.0-only
//! What makes runs comparable: the machine, the program, and what it is given.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tandem_machine::format_cpu_list;
use tandem_policies::model::{PAGE_BYTES, Topology};

use crate::placer::ThreadsBy;
use crate::surroundings::{cpu_model, files, libraries, name_of, sha256, variables, what_differs};

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
    /// Files that its arguments name, as far as it does not write them, each with its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    /// Hash of the file that it read as its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_sha256: Option<String>,
    /// Functions that count as parallel regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// What its threads are kept on their seats by.
    #[serde(default, skip_serializing_if = "ThreadsBy::is_default")]
    pub threads_by: ThreadsBy,
    /// Its shared libraries, each with the hash of its file; not known of programs that are no dynamic ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Vec<String>>,
    /// Files besides these that its processes had mapped as code (what a script starts, what is preloaded), each with its hash;
    /// not known before its first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Vec<String>>,
    /// What the OpenMP runtimes and the dynamic loader find in the environment; not known to files of version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<Vec<String>>,
    /// What the machine's CPUs are called; not known to results of before, nor everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The machine's nodes with CPUs, memory sizes and distances, one a line.
    pub machine: Vec<String>,
}

impl Subject {
    /// What `command` is on the machine of `topology` with CPUs like here, reading `input`.
    ///
    /// # Errors
    /// The program or the input cannot be found or read.
    pub fn of(command: &[String], input: Option<&Path>, topology: &Topology) -> Result<Self> {
        let (program, arguments) = command.split_first().context("there is no program to run")?;
        let path = find(program)?;
        Ok(Self {
            program_sha256: sha256(&path)?,
            functions: Vec::new(),
            threads_by: ThreadsBy::default(),
            libraries: libraries(&path)?,
            code: None,
            variables: Some(variables(std::env::vars_os())),
            program: path.display().to_string(),
            arguments: arguments.to_vec(),
            files: files(arguments)?,
            input_sha256: input.map(sha256).transpose()?,
            cpu: cpu_model(),
            machine: machine(topology),
        })
    }

    /// Whether it is of this program, whatever was built anew and however it is named.
    ///
    /// # Errors
    /// The program cannot be read.
    pub fn is_of(&self, program: &Path) -> Result<bool> {
        let (then, now) = (Path::new(&self.program).canonicalize().ok(), program.canonicalize().ok());
        Ok((then.is_some() && then == now) || self.program_sha256 == sha256(program)?)
    }

    /// The same without what is known of these files.
    pub fn without(self, names: &BTreeSet<String>) -> Self {
        let left = |files: Vec<String>| files.into_iter().filter(|one| !names.contains(name_of(one))).collect();
        Self { files: self.files.map(left).filter(|files: &Vec<String>| !files.is_empty()), ..self }
    }

    /// The same with what these files of code are now, as far as they are there.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn with_code<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let there = names.into_iter().filter(|name| Path::new(name).is_file());
        let hashed = |name: &str| Ok(format!("{name} {}", sha256(name.as_ref())?));
        let code: Vec<String> = there.map(hashed).collect::<Result<_>>()?;
        Ok(Self { code: Some(code).filter(|code| !code.is_empty()), ..self })
    }

    /// The same with what the code of `other` is here, if that is known.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn with_code_of(self, other: &Self) -> Result<Self> {
        match &other.code {
            Some(code) => self.with_code(code.iter().map(|one| name_of(one))),
            None => Ok(self),
        }
    }

    /// Those of the files `mapped` that are code of it besides the program and its libraries. What was written since it was
    /// started is not: it made that itself.
    pub fn other_code<'a>(&self, mapped: &'a [String], started: SystemTime) -> Vec<&'a str> {
        let libraries = self.libraries.iter().flatten().map(|one| name_of(one));
        let own: BTreeSet<PathBuf> =
            libraries.chain([self.program.as_str()]).filter_map(|name| Path::new(name).canonicalize().ok()).collect();
        // By when it came there: what is copied may keep the time at which it was written.
        let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_older = |name: &Path| {
            name.metadata().is_ok_and(|file| {
                (file.ctime(), file.ctime_nsec()) < (started.as_secs() as i64, i64::from(started.subsec_nanos()))
            })
        };
        let is_other = |name: &Path| name.is_file() && is_older(name) && !own.contains(name);
        mapped.iter().map(String::as_str).filter(|name| is_other(Path::new(name))).collect()
    }

    /// Files that its arguments name and that are not what they were: the program writes them, if it alone ran meanwhile.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn written(&self) -> Result<BTreeSet<String>> {
        let (then, now) = (self.files.clone().unwrap_or_default(), files(&self.arguments)?.unwrap_or_default());
        let (then, now): (BTreeSet<String>, BTreeSet<String>) = (then.into_iter().collect(), now.into_iter().collect());
        Ok(then.symmetric_difference(&now).map(|one| name_of(one).to_owned()).collect())
    }

    /// In what `now` differs from this, one sentence each.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.machine != now.machine {
            let only = |of: &[String], other: &[String]| {
                let lines: Vec<&str> = of.iter().filter(|line| !other.contains(line)).map(String::as_str).collect();
                if lines.is_empty() { "no other nodes".to_owned() } else { lines.join("; ") }
            };
            let (had, has) = (only(&self.machine, &now.machine), only(&now.machine, &self.machine));
            differences.push(format!("it was tuned on another machine: it had {had}; this one has {has}"));
        }
        if let (Some(then), Some(now)) = (&self.cpu, &now.cpu)
            && then != now
        {
            differences.push(format!("it was tuned on a machine with other CPUs: {then}; here: {now}"));
        }
        if self.program_sha256 != now.program_sha256 && self.program == now.program {
            let [then, now] = [self, now].map(|one| one.program_sha256.chars().take(12).collect::<String>());
            let program = &self.program;
            differences
                .push(format!("{program} is not the program that was tuned: its SHA-256 was {then}..., here {now}..."));
        } else if self.program_sha256 != now.program_sha256 {
            differences.push(format!("{} is not the program that was tuned ({})", now.program, self.program));
        }
        if self.arguments != now.arguments {
            let (then, now) = (self.arguments.join(" "), now.arguments.join(" "));
            differences.push(format!("it was tuned with the arguments `{then}`, not `{now}`"));
        }
        if self.arguments == now.arguments {
            let now = now.files.as_deref().unwrap_or_default();
            differences.extend(other_files("the file", self.files.as_deref().unwrap_or_default(), now));
        }
        match (&self.input_sha256, &now.input_sha256) {
            (then, now) if then == now => {}
            (Some(_), None) => {
                differences.push("it was tuned with a file to read, which is not what it reads now".into())
            }
            (None, Some(_)) => differences.push("it was tuned with nothing to read, and reads a file now".into()),
            _ => differences.push("it was tuned with another input".into()),
        }
        if self.program_sha256 == now.program_sha256 {
            differences.extend(what_differs("shared libraries", &self.libraries, &now.libraries));
        }
        if let (Some(then), Some(now)) = (&self.code, &now.code) {
            differences.extend(other_files("its code", then, now));
        }
        differences.extend(what_differs(
            "variables for OpenMP and the dynamic loader",
            &self.variables,
            &now.variables,
        ));
        differences
    }
}

/// Which of these files are not the same now, one sentence each. One that is new may be what the program wrote.
fn other_files(what: &str, then: &[String], now: &[String]) -> Vec<String> {
    let said = |one: &String| match now.iter().any(|known| name_of(known) == name_of(one)) {
        true => format!("{what} {} is not what it was", name_of(one)),
        false => format!("{what} {} is not there", name_of(one)),
    };
    then.iter().filter(|one| !now.contains(one)).map(said).collect()
}

/// A machine in lines, equal for machines that are equal to a program.
fn machine(topology: &Topology) -> Vec<String> {
    let line = |node: &tandem_policies::model::Node| {
        let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.0).collect();
        let distances: Vec<String> = node.distance.values().map(u32::to_string).collect();
        // The kernel keeps some memory for itself, not always the same.
        let gib = (node.memory_pages as f64 * PAGE_BYTES as f64 / (1 << 30) as f64).round();
        format!("node {}: CPUs {}, {gib} GiB, distances {}", node.id, format_cpu_list(&cpus), distances.join(" "))
    };
    topology.nodes.values().map(line).collect()
}

/// The file of a program, as the shell would find it.
///
/// # Errors
/// There is none.
pub fn find(program: &str) -> Result<PathBuf> {
    let is_program = |path: &Path| path.is_file();
    if program.contains('/') {
        let path = PathBuf::from(program);
        return if is_program(&path) { Ok(path) } else { bail!("{program}: there is no such program") };
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join(program)).find(|path| is_program(path));
    found.with_context(|| format!("{program}: there is no such program in the path"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::machine;

    /// A shell on two nodes.
    pub(crate) fn subject() -> Subject {
        Subject::of(&["sh".into(), "-c".into(), "true".into()], None, &machine(2, 2)).unwrap()
    }

    #[test]
    fn what_differs_is_said() {
        let tuned = subject();
        assert!(tuned.differences(&tuned).is_empty());
        let other = Subject::of(&["ls".into()], None, &machine(1, 4)).unwrap();
        let said = tuned.differences(&other);
        assert_eq!(said.len(), 3, "{said:?}");
        let machine_differs = "it was tuned on another machine: it had node 0: CPUs 0-1, 1 GiB, distances 10 20; node 1: CPUs \
            2-3, 1 GiB, distances 20 10; this one has node 0: CPUs 0-3, 1 GiB, distances 10";
        assert_eq!(said[0], machine_differs);
        let mut one_node_less = tuned.clone();
        let gone = one_node_less.machine.pop().unwrap();
        let expected = format!("it was tuned on another machine: it had {gone}; this one has no other nodes");
        assert_eq!(tuned.differences(&one_node_less), [expected], "what is the same is not said");
        let built_anew = Subject { program_sha256: "abcdef0123456789".into(), ..tuned.clone() };
        let [said_of_file] = &tuned.differences(&built_anew)[..] else { panic!("one difference") };
        assert!(
            said_of_file.starts_with(&format!("{} is not the program that was tuned: its SHA-256 was ", tuned.program))
        );
        assert!(said_of_file.ends_with("..., here abcdef012345..."), "{said_of_file}");
        let other = Subject {
            input_sha256: Some("12".into()),
            libraries: Some(vec!["/lib/other.so 12".into()]),
            variables: Some(vec!["OMP_SCHEDULE=static".into()]),
            ..tuned.clone()
        };
        let more = tuned.differences(&other);
        assert_eq!(more[0], "it was tuned with nothing to read, and reads a file now");
        assert!(more[1].contains("shared libraries") && more[1].ends_with("here: /lib/other.so)"), "{more:?}");
        assert!(more[2].ends_with("here: OMP_SCHEDULE=static)") && more.len() == 3, "{more:?}");
        assert_eq!(other.differences(&tuned)[0], "it was tuned with a file to read, which is not what it reads now");
        let third = Subject { input_sha256: Some("34".into()), ..other.clone() };
        assert_eq!(other.differences(&third), ["it was tuned with another input"]);
        assert!(said[1].contains("/ls is not the program that was tuned") && said[2].contains("`-c true`"), "{said:?}");
    }

    #[test]
    fn other_cpus_are_another_machine_and_cpus_that_are_not_known_are_none() {
        let of = |cpu: Option<&str>| Subject { cpu: cpu.map(str::to_owned), ..subject() };
        let said = of(Some("fast")).differences(&of(Some("slow")));
        assert_eq!(said, ["it was tuned on a machine with other CPUs: fast; here: slow"]);
        let unknown = [(Some("fast"), None), (None, Some("slow")), (Some("fast"), Some("fast"))];
        assert!(unknown.iter().all(|&(then, now)| of(then).differences(&of(now)).is_empty()));
        let text = |cpu| serde_json::to_string(&of(cpu)).unwrap();
        assert_ne!(text(Some("fast")), text(Some("slow")), "another experiment");
        assert!(!text(None).contains("cpu"), "what the store called it before");
    }

    #[test]
    fn a_file_that_an_argument_names_is_part_of_it_however_it_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("points");
        let name = path.to_str().unwrap().to_owned();
        for argument in [name.clone(), format!("--input={name}")] {
            let of = |content: &[u8]| {
                std::fs::write(&path, content).unwrap();
                Subject::of(&["sh".into(), argument.clone()], None, &machine(2, 2)).unwrap()
            };
            let (one, other) = (of(b"1 2"), of(b"1 3"));
            assert_ne!(one, other);
            assert_eq!((&one, one.differences(&one)), (&of(b"1 2"), vec![]));
            let said = one.differences(&other);
            assert_eq!(said, [format!("the file {name} is not what it was")]);
            std::fs::remove_file(&path).unwrap();
            let gone = Subject::of(&["sh".into(), argument.clone()], None, &machine(2, 2)).unwrap();
            assert_eq!(one.differences(&gone), [format!("the file {name} is not there")]);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        for program in ["no-such-program-anywhere", "./no/such"] {
            let said = Subject::of(&[program.to_owned()], None, &machine(1, 1)).unwrap_err().to_string();
            assert!(said.contains(program), "{said}");
        }
    }
}
