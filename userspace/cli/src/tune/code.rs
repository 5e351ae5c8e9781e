// SPDX-License-Identifier: GPL-2.0-only
//! Files of code besides the program's own and its libraries: what a script starts, what is preloaded. They
//! are part of what is tuned, as they may be built anew while the program that is named stays what it is.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::Result;
use serde::Serialize;
use tandem_tune::store::Store;
use tandem_tune::subject::Subject;
use tandem_tune::surroundings::name_of;

/// `subject` with the code that it is known to have, as that is now, and whether it is what it was; its runs are those of `store`
/// from now on.
///
/// # Errors
/// A file cannot be read, or the store not be used.
pub fn known(store: &Store, subject: Subject, say: &dyn Fn(&str)) -> Result<(Subject, bool)> {
    let then = store.code(&way(&subject))?;
    let subject = subject.with_code(then.keys().map(String::as_str))?;
    store.turn_to(&subject)?;
    let now = hashes(&subject);
    let is_other = |(name, hash): &(&String, &String)| now.get(name.as_str()) != Some(&hash.as_str());
    let changed: Vec<&str> = then.iter().filter(is_other).map(|(name, _)| name.as_str()).collect();
    if !changed.is_empty() {
        let (names, is) = (changed.join(", "), if changed.len() == 1 { "is" } else { "are" });
        say(&format!(
            "{names}, which the program runs, {is} not what was tuned here last: runs of before do not count"
        ));
    }
    let is_known = !then.is_empty() && changed.is_empty();
    Ok((subject, is_known))
}

/// `subject` with the code that a run had `mapped` that was `started` then; the runs of `store` so far are its runs.
///
/// # Errors
/// A file cannot be read, or the store not be written.
pub fn learn(store: &Store, subject: Subject, mapped: &[String], started: SystemTime) -> Result<Subject> {
    let names = subject.other_code(mapped, started);
    let subject = subject.with_code(names)?;
    store.keep_code(&way(&subject), &hashes(&subject), &subject)?;
    Ok(subject)
}

/// Names of the files of code that a subject is known to have besides the program's own: its libraries, and others.
pub fn names(subject: &Subject) -> impl Iterator<Item = &str> {
    subject.libraries.iter().flatten().map(|one| name_of(one)).chain(hashes(subject).into_keys())
}

fn hashes(subject: &Subject) -> BTreeMap<&str, &str> {
    subject.code.iter().flatten().filter_map(|one| one.rsplit_once(' ')).collect()
}

/// What has the same code as long as nothing is built anew: where a script is, its arguments and its environment may say what it
/// starts.
fn way(subject: &Subject) -> impl Serialize + '_ {
    (&subject.program, &subject.program_sha256, &subject.arguments, &subject.variables)
}
