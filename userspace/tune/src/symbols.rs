// SPDX-License-Identifier: GPL-2.0-only
//! Functions of a running program by address, and addresses by name: the files that it has mapped, and their symbols. Files are
//! those that the program has there, which in a container are not those of this process.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use object::{
    Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, SectionIndex, SectionKind, SymbolKind,
};

use crate::mapped::Part;

/// The code that a process has mapped.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Of files.
    parts: Vec<Part>,
    /// First and past last address of other memory that can run: made by the program itself, or its text in huge pages.
    made: Vec<(u64, u64)>,
}

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    /// Where it is in the file.
    offset: u64,
    bytes: u64,
    name: String,
    /// Its first bytes, if the file has so many behind its begin.
    word: Option<i64>,
}

/// A function that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is in memory.
    pub address: u64,
    /// Its name.
    pub name: String,
    /// The file that has it.
    pub file: OsString,
    /// What it begins with there.
    pub word: i64,
}

/// A file by its name in what `process` has mapped: that is one below its root, but where this is another directory of the
/// same tree (chroot).
fn seen_by(process: Pid, name: &OsStr) -> PathBuf {
    let name = Path::new(name);
    let below = Path::new(&format!("/proc/{process}/root")).join(name.strip_prefix("/").unwrap_or(name));
    if below.exists() { below } else { name.to_owned() }
}

impl Code {
    /// What `process` has mapped now; nothing if it is gone.
    pub fn of(process: Pid) -> Self {
        let all = Part::all_of(process);
        let made = all.iter().filter(|part| part.can_run() && !part.is_of_a_file());
        Self { made: made.map(|part| (part.begin, part.end)).collect(), parts: code_of_files(all) }
    }

    /// That of the file alone that is mapped at `address`.
    pub fn at(process: Pid, address: u64) -> Self {
        let all = Part::all_of(process);
        let file = all.iter().find(|part| (part.begin..part.end).contains(&address)).map(|part| part.name.clone());
        let parts = code_of_files(all.into_iter().filter(|part| Some(&part.name) == file.as_ref()).collect());
        Self { parts, made: Vec::new() }
    }

    /// Whether there is none: it could not be read.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether there is code at `address`, of a file or not.
    pub fn has(&self, address: u64) -> bool {
        self.file(address).is_some() || self.made.iter().any(|&(begin, end)| (begin..end).contains(&address))
    }

    /// The file whose code is at `address`.
    pub fn file(&self, address: u64) -> Option<&OsStr> {
        self.parts.iter().find(|part| (part.begin..part.end).contains(&address)).map(|part| part.name.as_os_str())
    }

    /// What of it is not in `known`.
    pub fn beyond(&self, known: &Self) -> Self {
        let parts = self.parts.iter().filter(|part| !known.parts.contains(part)).cloned().collect();
        Self { parts, made: Vec::new() }
    }

    /// The functions of `process`, whose code it is, that `wanted` chooses, by address.
    pub fn find(&self, process: Pid, wanted: impl Fn(&str) -> bool) -> Vec<Found> {
        let mut found = Vec::new();
        for part in &self.parts {
            let all = functions(&seen_by(process, &part.name));
            for Function { offset, name, word, .. } in all.into_iter().filter(|function| wanted(&function.name)) {
                let inside = offset.checked_sub(part.offset).filter(|&inside| inside < part.end - part.begin);
                let at = |(inside, word)| Found { address: part.begin + inside, name, file: part.name.clone(), word };
                found.extend(inside.zip(word).map(at));
            }
        }
        found.sort_by_key(|function| function.address);
        found.dedup_by_key(|function| function.address);
        found
    }

    /// The name of the function at `address` of `process`, whose code it is: its symbol, else the file and the offset in it.
    pub fn name(&self, process: Pid, address: u64) -> String {
        let Some(part) = self.parts.iter().find(|part| (part.begin..part.end).contains(&address)) else {
            return format!("{address:#x}");
        };
        let offset = address - part.begin + part.offset;
        let of = |function: &Function| (function.offset..function.offset + function.bytes.max(1)).contains(&offset);
        let path = seen_by(process, &part.name);
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        functions(&path).into_iter().find(of).map_or_else(|| format!("{file}+{offset:#x}"), |function| function.name)
    }
}

/// Begins and sizes of the arrays of `least` bytes or more that the program of `process` has from its start; all of such
/// memory as one if the program has no symbols, and nothing if the process is gone.
pub fn static_arrays(process: Pid, least: u64) -> Vec<(u64, u64)> {
    let arrays = || {
        let path = fs::read_link(format!("/proc/{process}/exe")).ok()?;
        let start = Part::all_of(process).into_iter().find(|part| part.name == path.as_os_str())?.begin;
        let content = fs::read(&path).ok()?;
        let file = object::File::parse(&content[..]).ok()?;
        let lowest = file.segments().map(|segment| segment.address()).min()? & !0xfff;
        let in_file = match file.symbols().next() {
            Some(_) => file
                .symbols()
                .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.is_definition())
                .filter(|symbol| symbol.section_index().is_some_and(|section| is_written(&file, section)))
                .map(|symbol| (symbol.address(), symbol.size()))
                .collect(),
            None => file
                .sections()
                .filter(|section| is_written(&file, section.index()))
                .map(|section| (section.address(), section.size()))
                .collect::<BTreeMap<u64, u64>>(),
        };
        Some(
            in_file
                .into_iter()
                .filter(|array| array.1 >= least)
                .map(|(at, bytes)| (at - lowest + start, bytes))
                .collect(),
        )
    };
    arrays().unwrap_or_default()
}

/// Whether a section is memory of the program's own: constants are pages of its file.
fn is_written(file: &object::File, section: SectionIndex) -> bool {
    let kind = file.section_by_index(section).map(|section| section.kind());
    matches!(kind, Ok(SectionKind::Data | SectionKind::UninitializedData))
}

fn code_of_files(parts: Vec<Part>) -> Vec<Part> {
    parts.into_iter().filter(|part| part.can_run() && part.is_of_a_file()).collect()
}

/// Whether a program or library has a function of this name.
pub fn has_function(file: &Path, name: &str) -> bool {
    functions(file).iter().any(|function| function.name == name)
}

/// All functions of a file; none if it is no program or library.
fn functions(path: &Path) -> Vec<Function> {
    let Ok(content) = fs::read(path) else { return Vec::new() };
    let Ok(file) = object::File::parse(&content[..]) else { return Vec::new() };
    let segments: Vec<(u64, u64, u64)> =
        file.segments().map(|segment| (segment.address(), segment.size(), segment.file_range().0)).collect();
    let offset = |address: u64| {
        let inside = segments.iter().find(|(start, bytes, _)| (*start..start + bytes).contains(&address));
        inside.map(|(start, _, offset)| address - start + offset)
    };
    let mut functions: BTreeMap<(u64, String), u64> = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text
            && symbol.is_definition()
            && let (Ok(name), Some(offset)) = (symbol.name(), offset(symbol.address()))
        {
            functions.insert((offset, name.to_owned()), symbol.size());
        }
    }
    let word = |offset: u64| {
        let bytes = content.get(usize::try_from(offset).ok()?..)?.first_chunk()?;
        Some(i64::from_ne_bytes(*bytes))
    };
    functions.into_iter().map(|((offset, name), bytes)| Function { offset, bytes, word: word(offset), name }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::parsed;

    #[test]
    fn only_code_of_files_has_functions() {
        let maps = b"\
55d0-55d8 r--p 00000000 fe:00 12 /usr/bin/with space
55d8-55e0 r-xp 00001000 fe:00 12 /usr/bin/with space
7f00-7f01 r-xp 00000000 00:00 0 [vdso]
7f02-7f03 r-xp 00000000 00:00 0 
";
        let all = parsed(maps);
        assert_eq!(code_of_files(all.clone()), all[1..2]);
    }

    #[test]
    fn a_function_of_this_program_is_found_by_name_and_by_address() {
        let own = Pid::this();
        let code = Code::of(own);
        let address = functions as *const () as u64;
        let name = code.name(own, address + 1);
        assert!(name.contains("symbols") && name.contains("functions"), "{name}");
        assert!(code.find(own, |other| other == name).iter().any(|found| found.address == address));
        assert_eq!(code.name(own, 0x10), "0x10");
    }
}
