// SPDX-License-Identifier: GPL-2.0-only
//! Machine files by name: `2node` is `2node.toml` in the folder of those that are shipped.

use std::path::{Path, PathBuf};

use tandem_policies::foreign::quoted;

use super::{MachineFile, MachineFileError};

const ENDING: &str = "toml";
/// Where a package has them, below its prefix, and where the repository has them.
const INSTALLED: &str = "share/tandem/machines";
const OF_THE_REPOSITORY: &str = "vm/machines";

impl MachineFile {
    /// The file of the machine `asked`: a path, or the name of one in `folder`. What has a slash or ends with `.toml` is a path,
    /// and so is what is there.
    ///
    /// # Errors
    /// It is neither; the sentence lists the names there are.
    pub fn find(asked: &Path, folder: &Path) -> Result<PathBuf, MachineFileError> {
        let text = asked.to_string_lossy();
        if text.contains('/') || asked.extension().is_some_and(|ending| ending == ENDING) || asked.is_file() {
            return Ok(asked.to_owned());
        }
        let shipped = folder.join(format!("{text}.{ENDING}"));
        if shipped.is_file() {
            return Ok(shipped);
        }
        let asked = quoted(&text);
        Err(match names(folder) {
            Ok(names) => MachineFileError::Unknown { asked, names: names.join(", ") },
            Err(cause) => MachineFileError::NoNames { asked, folder: folder.to_owned(), cause },
        })
    }

    /// The folder of machine files that belongs to `program`, the path of one of ours: below the prefix where it is installed, or
    /// the repository's where it was built.
    pub fn folder_of(program: &Path) -> PathBuf {
        let prefix = program.ancestors().nth(2).unwrap_or(Path::new("/"));
        let repository =
            program.ancestors().map(|folder| folder.join(OF_THE_REPOSITORY)).find(|folder| folder.is_dir());
        let installed = prefix.join(INSTALLED);
        if installed.is_dir() { installed } else { repository.unwrap_or(installed) }
    }
}

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let files = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == ENDING))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files in it.
    fn with(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn a_plain_word_is_a_name_and_anything_else_a_path() {
        let folder = with(&["ring4.toml", "2x2llc-2smt.toml", "README"]);
        let found = |asked: &str| MachineFile::find(Path::new(asked), folder.path()).map_err(|error| error.to_string());
        assert_eq!(found("ring4"), Ok(folder.path().join("ring4.toml")));
        for path in ["ring4.toml", "./ring4", "/no/such", "/dev/stdin"] {
            assert_eq!(found(path), Ok(path.into()));
        }
        let said = "the machine \"ring5\" is neither a file nor one of those that have a name: 2x2llc-2smt, ring4";
        assert_eq!(found("ring5").unwrap_err(), said);
        std::fs::remove_dir_all(folder.path()).unwrap();
        let said = found("ring4").unwrap_err();
        assert!(said.starts_with("the machine \"ring4\" is no file, and there are none with names here: /"), "{said}");
    }

    #[test]
    fn a_program_finds_the_machines_of_its_prefix_or_of_the_repository_it_was_built_in() {
        let tree = with(&["usr/share/tandem/machines/a.toml", "work/vm/machines/a.toml", "usr/local/bin/tandem"]);
        let folder = |program: &str| MachineFile::folder_of(&tree.path().join(program));
        assert_eq!(folder("usr/bin/tandem"), tree.path().join("usr/share/tandem/machines"));
        for built in ["work/build/bin/tandem", "work/build/cargo/debug/deps/tandem-1"] {
            assert_eq!(folder(built), tree.path().join("work/vm/machines"));
        }
        assert_eq!(
            folder("usr/local/bin/tandem"),
            tree.path().join("usr/local/share/tandem/machines"),
            "none: told so"
        );
    }
}
