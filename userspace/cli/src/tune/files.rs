// SPDX-License-Identifier: GPL-2.0-only
//! Where the result and the runs of a program go, and what they must not take the place of.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tandem_ab::store::check_replaceable;
use tandem_tune::shell;
use tandem_tune::subject;
use tandem_tune::surroundings::named;
use tandem_tune::tuned::{Reached, Tuned};

/// What a session writes.
pub struct Files<'a> {
    /// The result.
    pub output: PathBuf,
    /// Its runs.
    pub store: PathBuf,
    /// The report.
    pub page: Option<&'a Path>,
}

impl Files<'_> {
    /// Whether all of it can be written, and nothing is lost by that but an earlier result of the same command.
    ///
    /// # Errors
    /// One sentence: which cannot, or what would be lost.
    pub fn check(&self, command: &[String], input: Option<&Path>) -> Result<()> {
        let (program, arguments) = command.split_first().context("there is no program to run")?;
        check_replaceable(&self.output)?;
        check_replaceable(&self.store)?;
        let program = subject::find(program)?;
        self.check_apart(&program, arguments, input)?;
        let lost = || format!("-o {}: what is there would be lost, name another file", self.output.display());
        let Some(earlier) = Tuned::earlier(&self.output).with_context(lost)? else { return Ok(()) };
        if !earlier.subject.is_of(&program)? || earlier.subject.arguments != arguments {
            let words = [&[earlier.subject.program], &earlier.subject.arguments[..]].concat();
            let words = shell::in_words(words.iter().map(String::as_str));
            bail!(
                "{}: that is the result of another command (`{words}`): name another file with -o",
                self.output.display()
            );
        }
        Ok(())
    }

    /// Whether there is a result of a session whose search came to its end, and that came further than the one that was `reached` now,
    /// if any.
    ///
    /// # Errors
    /// What is there is no result.
    pub fn have_more_than(&self, reached: Option<Reached>) -> Result<bool> {
        let earlier = Tuned::earlier(&self.output)?.map(|earlier| earlier.reached());
        Ok(earlier.is_some_and(|earlier| earlier > reached.unwrap_or(Reached::Search)))
    }

    /// Whether each is a file of its own, and none that the program needs.
    fn check_apart(&self, program: &Path, arguments: &[String], input: Option<&Path>) -> Result<()> {
        let mut taken = vec![(program.to_owned(), "the program")];
        taken.extend(input.map(|input| (input.to_owned(), "what the program reads")));
        taken.extend(named(arguments).into_iter().map(|name| (name.into(), "a file of the program's")));
        let (store, output) = (Some(self.store.as_path()), Some(self.output.as_path()));
        let written =
            [(store, "--store", "the store of runs"), (output, "-o", "the result"), (self.page, "--html", "")];
        for (file, option, what) in written {
            let Some(file) = file else { continue };
            if let Some((_, other)) = taken.iter().find(|(other, _)| is_same(file, other)) {
                bail!("{option} {}: that is {other}: name another file", file.display());
            }
            taken.push((file.to_owned(), what));
        }
        Ok(())
    }
}

/// Whether two names are, or would be, of one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let of_one = |file: &Path| file.metadata().ok().map(|there| (there.dev(), there.ino()));
    match (of_one(one), of_one(other)) {
        (None, None) => place(one) == place(other),
        (one, other) => one == other,
    }
}

/// Where a file that is not there would be; `None` if that is nowhere.
fn place(file: &Path) -> Option<(PathBuf, &std::ffi::OsStr)> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((directory.canonicalize().ok()?, file.file_name()?))
}
