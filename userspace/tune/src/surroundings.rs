// SPDX-License-Identifier: GPL-2.0-only
//! What a program depends on besides its own file: shared libraries, what the OpenMP runtimes find in the environment, the CPUs and the
//! kernel.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::{Object as _, ObjectSection as _};
use sha2::{Digest as _, Sha256};

/// Files of more bytes are known by blocks: who tunes or runs a program does not wait for all of its data to be read.
const WHOLE_BYTES: u64 = 64 << 20;

/// Bytes of such a block, and how many there are, at equal distances.
const BLOCK_BYTES: u64 = 1 << 20;
const BLOCKS: u64 = 32;

/// Opens a file to be read. A device or a pipe may never end, or not even begin.
///
/// # Errors
/// It cannot be read, or is no regular file.
pub fn open_regular(path: &Path) -> Result<fs::File> {
    let in_words = || format!("{}: cannot be read", path.display());
    if !fs::metadata(path).with_context(in_words)?.is_file() {
        bail!("{}: is no regular file", path.display());
    }
    fs::File::open(path).with_context(in_words)
}

/// Hash of a file; of a large one, of its length and of blocks of it.
///
/// # Errors
/// It cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    hash(open_regular(path)?, WHOLE_BYTES).with_context(|| format!("{}: cannot be read", path.display()))
}

fn hash(mut file: fs::File, whole_bytes: u64) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let bytes = file.metadata()?.len();
    let mut block = Vec::new();
    if bytes <= whole_bytes {
        file.read_to_end(&mut block)?;
        hash.update(&block);
    } else {
        hash.update(bytes.to_le_bytes());
        for number in 0..BLOCKS {
            file.seek(SeekFrom::Start((bytes - BLOCK_BYTES) * number / (BLOCKS - 1)))?;
            block.clear();
            (&mut file).take(BLOCK_BYTES).read_to_end(&mut block)?;
            hash.update(&block);
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Files that arguments name, as they are or behind `=`.
pub fn named(arguments: &[String]) -> BTreeSet<String> {
    let named = |argument: &String| {
        let behind = argument.split_once('=').map(|(_, value)| value.to_owned());
        [Some(argument.clone()), behind].into_iter().flatten().find(|name| Path::new(name).is_file())
    };
    arguments.iter().filter_map(named).collect()
}

/// [Those files](named), each with its hash; `None` if there are none.
///
/// # Errors
/// One of them cannot be read.
pub fn files(arguments: &[String]) -> Result<Option<Vec<String>>> {
    let hashed = |name: &String| Ok(format!("{name} {}", sha256(name.as_ref())?));
    let files: Vec<String> = named(arguments).iter().map(hashed).collect::<Result<_>>()?;
    Ok(Some(files).filter(|files| !files.is_empty()))
}

/// The name in a line with a name and a hash.
pub fn name_of(line: &str) -> &str {
    line.rsplit_once(' ').map_or(line, |(name, _)| name)
}

/// The shared libraries of a program as the dynamic loader finds them, without running it, each with its hash; `None` if it
/// has no loader that tells.
///
/// # Errors
/// One of them cannot be read.
pub fn libraries(program: &Path) -> Result<Option<Vec<String>>> {
    let Some(loader) = loader(program) else { return Ok(None) };
    // Without a slash it would look for a library of that name.
    let program = fs::canonicalize(program).with_context(|| format!("{}: cannot be found", program.display()))?;
    let Ok(told) = Command::new(loader).arg("--list").arg(program).output() else { return Ok(None) };
    if !told.status.success() {
        return Ok(None);
    }
    let told = String::from_utf8_lossy(&told.stdout);
    // name => path (address)
    let found = told.lines().filter_map(|line| line.split_once(" => ")?.1.rsplit_once(" (").map(|found| found.0));
    let hashed = |path: &str| Ok(format!("{path} {}", sha256(path.as_ref())?));
    found.filter(|path| path.starts_with('/')).map(hashed).collect::<Result<_>>().map(Some)
}

/// The dynamic loader that a program asks for.
fn loader(program: &Path) -> Option<String> {
    let content = fs::read(program).ok()?;
    let file = object::File::parse(&content[..]).ok()?;
    let name = file.section_by_name(".interp")?.data().ok()?;
    Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
}

/// Those that the OpenMP runtimes read, and what the dynamic loader loads before libraries, as NAME=VALUE.
pub fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let text = |(name, value): (OsString, OsString)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy());
    let is_read = |text: &String| ["OMP_", "GOMP_", "KMP_", "LD_PRELOAD="].iter().any(|start| text.starts_with(start));
    all.map(text).filter(is_read).collect::<BTreeSet<String>>().into_iter().collect()
}

/// What the CPUs of this machine are called, as far as the kernel tells.
pub fn cpu_model() -> Option<String> {
    cpu_model_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The same of a /proc/cpuinfo. Kinds are joined in the order of their names; where there is no name the numbers that tell CPUs apart
/// count.
fn cpu_model_in(cpuinfo: &str) -> Option<String> {
    let fields =
        cpuinfo.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim()));
    let of = |wanted: &str| -> Vec<&str> {
        fields.clone().filter(|&(name, value)| name == wanted && !value.is_empty()).map(|(_, value)| value).collect()
    };
    // x86, LoongArch, MIPS; POWER; RISC-V.
    let names = ["model name", "Model Name", "cpu model", "cpu", "uarch"].map(of);
    let mut kinds: BTreeSet<String> =
        names.into_iter().find(|all| !all.is_empty()).unwrap_or_default().into_iter().map(str::to_owned).collect();
    if kinds.is_empty() {
        // ARM.
        let (makers, parts) = (of("CPU implementer"), of("CPU part"));
        kinds = makers.iter().zip(&parts).map(|(maker, part)| format!("implementer {maker}, part {part}")).collect();
    }
    (!kinds.is_empty()).then(|| kinds.into_iter().collect::<Vec<_>>().join("; "))
}

/// The release of the kernel here, as `uname -r` says it.
pub fn kernel_release() -> Option<String> {
    of_kernel("osrelease")
}

/// The name of this machine, as `uname -n` says it.
pub fn host_name() -> Option<String> {
    of_kernel("hostname")
}

fn of_kernel(name: &str) -> Option<String> {
    let said = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

/// In one sentence what was there then and is not now, and the reverse; `None` if nothing, or if one is not known.
pub fn what_differs(what: &str, then: &Option<Vec<String>>, now: &Option<Vec<String>>) -> Option<String> {
    let (then, now) = (then.as_ref()?, now.as_ref()?);
    // Of a library the name says enough.
    let short = |text: &String| text.split(' ').next().unwrap_or_default().to_owned();
    let missing = |of: &[String], from: &[String]| -> Vec<String> {
        of.iter().filter(|one| !from.contains(one)).map(short).collect()
    };
    let words = |list: Vec<String>| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let (gone, new) = (missing(then, now), missing(now, then));
    (!gone.is_empty() || !new.is_empty())
        .then(|| format!("it was tuned with other {what} ({}; here: {})", words(gone), words(new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_of_dynamic_programs_only() {
        let of = |path: &str| libraries(path.as_ref()).unwrap();
        let this = of(std::env::current_exe().unwrap().to_str().unwrap()).unwrap();
        let (path, hash) = this.iter().find(|one| one.contains("libc.so")).unwrap().split_once(' ').unwrap();
        assert_eq!(hash, sha256(path.as_ref()).unwrap());
        assert_eq!(of("/etc/passwd"), None);
    }

    #[test]
    fn a_large_file_is_known_by_its_length_its_ends_and_what_is_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let mut content = vec![7; 64 << 20];
        let mut hash_of = |changed: usize| {
            content[changed] += 1;
            fs::write(&path, &content).unwrap();
            hash(open_regular(&path).unwrap(), 1000).unwrap()
        };
        let last = (64 << 20) - 1;
        // Within the 16th block.
        let between = 31 << 20;
        let hashes: BTreeSet<String> = [0, last, between].into_iter().map(&mut hash_of).collect();
        assert_eq!(hashes.len(), 3);
        content.pop();
        fs::write(&path, &content).unwrap();
        assert!(!hashes.contains(&hash(open_regular(&path).unwrap(), 1000).unwrap()));
    }

    #[test]
    fn cpus_are_named_by_what_the_architecture_tells_of_them() {
        let x86 = "processor\t: 0\ncpu family\t: 6\nmodel name\t: Fast 1\nprocessor\t: 1\nmodel name\t: Fast 1\n";
        let power = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2300.0MHz\n";
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nprocessor\t: 1\nCPU implementer\t: 0x41\n\
            CPU part\t: 0xd05\n";
        let said = [x86, power, arm, "processor\t: 0\nmodel name\t:\n"].map(cpu_model_in);
        let arm = "implementer 0x41, part 0xd05; implementer 0x41, part 0xd0c";
        let expected = [Some("Fast 1"), Some("POWER9, altivec supported"), Some(arm), None];
        assert_eq!(said, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn variables_are_those_of_the_openmp_runtimes_and_what_is_preloaded() {
        let all = ["KMP_BLOCKTIME", "HOME", "OMP_SCHEDULE", "COMP_X", "LD_PRELOAD", "LD_PRELOADED"]
            .map(|name| (name.into(), "1".into()));
        assert_eq!(variables(all.into_iter()), ["KMP_BLOCKTIME=1", "LD_PRELOAD=1", "OMP_SCHEDULE=1"]);
    }

    #[test]
    fn what_differs_is_named_and_what_is_not_known_differs_in_nothing() {
        let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>());
        let then = list(&["/lib/a 12", "/lib/b 34"]);
        let said = what_differs("shared libraries", &then, &list(&["/lib/a 12", "/lib/b 56"])).unwrap();
        assert_eq!(said, "it was tuned with other shared libraries (/lib/b; here: /lib/b)");
        let said = what_differs("variables for OpenMP", &list(&[]), &list(&["OMP_SCHEDULE=static"])).unwrap();
        assert_eq!(said, "it was tuned with other variables for OpenMP (none; here: OMP_SCHEDULE=static)");
        assert_eq!((what_differs("x", &then, &then), what_differs("x", &None, &then)), (None, None));
    }
}
