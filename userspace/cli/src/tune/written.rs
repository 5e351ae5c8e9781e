// SPDX-License-Identifier: GPL-2.0-only
//! Files that arguments name: input is part of what is tuned, what the program writes is not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tandem_tune::lock::Lock;
use tandem_tune::store::Store;
use tandem_tune::subject::Subject;

/// Takes the store at `path` for this session alone: two would measure the same, and overwrite each other's runs.
///
/// # Errors
/// Another one has it.
pub fn hold(path: &Path) -> Result<Lock> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    match Lock::try_hold(beside.as_ref())? {
        Some(lock) => Ok(lock),
        None => bail!("{}: another `tandem tune` keeps its runs there: name another file with --store", path.display()),
    }
}

/// The store of `subject`'s runs, and what it is without the files that it is known to write.
///
/// # Errors
/// The store cannot be used.
pub fn open(path: &Path, subject: Subject) -> Result<(Store, Subject)> {
    let store = Store::open(path, &subject)?;
    let written = store.written(&way(&subject)?)?;
    let subject = subject.without(&written);
    store.turn_to(&subject)?;
    Ok((store, subject))
}

/// What `subject` is without the files that changed while it was tuned; its runs so far count as before.
///
/// # Errors
/// A file cannot be read, or the store not be written.
pub fn leave_out(store: &Store, subject: Subject, say: &dyn Fn(&str)) -> Result<Subject> {
    let way = way(&subject)?;
    let known = store.written(&way)?;
    let written: BTreeSet<String> = subject.written()?.difference(&known).cloned().collect();
    if written.is_empty() {
        return Ok(subject);
    }
    let names: Vec<&str> = written.iter().map(String::as_str).collect();
    say(&format!("{} changed meanwhile, so it is no input but what the program writes", names.join(", ")));
    let subject = subject.without(&written);
    store.keep_written(&way, &written, &subject)?;
    Ok(subject)
}

/// What writes the same files, also once it is built anew: another program may read them.
///
/// # Errors
/// The present directory is not known.
fn way(subject: &Subject) -> Result<(String, Vec<String>, PathBuf)> {
    let directory = std::env::current_dir().context("the present directory is not known")?;
    Ok((subject.program.clone(), subject.arguments.clone(), directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_the_program_writes_is_no_input_from_the_second_session_on() {
        let directory = tempfile::tempdir().unwrap();
        let [input, output, store] = ["in", "out", "store"].map(|name| directory.path().join(name));
        fs::write(&input, "1").unwrap();
        let words = ["sh".to_owned(), input.display().to_string(), format!("-o={}", output.display())];
        let topology = super::super::trial::describe().unwrap().topology;
        let subject = || Subject::of(&words, None, &topology).unwrap();
        let said = std::cell::RefCell::new(Vec::new());
        let say = |sentence: &str| said.borrow_mut().push(sentence.to_owned());
        let (runs, first) = open(&store, subject()).unwrap();
        fs::write(&output, "2").unwrap();
        let first = leave_out(&runs, first, &say).unwrap();
        fs::write(&output, "3").unwrap();
        let (runs, second) = open(&store, subject()).unwrap();
        fs::write(&output, "4").unwrap();
        assert_eq!(leave_out(&runs, second.clone(), &say).unwrap(), first);
        assert_eq!((&second, said.borrow().len()), (&first, 1), "{said:?}");
        assert!(first.differences(&subject()).is_empty());
        let reader = ["sh".to_owned(), output.display().to_string()];
        let (_, reader) = open(&store, Subject::of(&reader, None, &topology).unwrap()).unwrap();
        assert_eq!(reader.files.map_or(0, |files| files.len()), 1, "what one writes another one may read");
        fs::write(&input, "9").unwrap();
        assert_eq!(first.differences(&subject()).len(), 1);
    }
}
