// SPDX-License-Identifier: GPL-2.0-only
//! What an earlier session submitted and did not see the end of: whatever killed it, its jobs run on, and their replies are beside
//! their requests. A request that is asked for again takes over the trial that is under way or done.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::{Slurm, Submission, forget, name_of};
use crate::launch::End;
use crate::mapping::Profiled;
use crate::remote::{Job, Reply, Request};

/// A limit that differs by less is the same: it is written as text.
const SAME_LIMIT: f64 = 1.001;

/// A submission of an earlier session.
#[derive(Debug)]
pub(super) struct Left {
    directory: PathBuf,
    /// By task.
    requests: BTreeMap<usize, Request>,
}

impl Left {
    /// That in `directory`; `None` if there is none.
    pub(super) fn of(directory: PathBuf) -> Option<Self> {
        name_of(&directory)?;
        let request = |path: PathBuf| {
            let task = path.file_name()?.to_str()?.strip_suffix(".request")?.parse().ok()?;
            Some((task, serde_json::from_slice(&fs::read(&path).ok()?).ok()?))
        };
        let files = fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.path());
        let requests = files.filter_map(request).collect();
        Some(Self { directory, requests })
    }

    /// The submission with those of its tasks that are wanted now, as indices of `requests`, of which `waiting` are not under way;
    /// `None` if there is none. Its other tasks are cancelled then.
    ///
    /// # Errors
    /// A reply cannot be read.
    pub(super) fn taken_over(
        &self,
        slurm: &Slurm,
        requests: &[Request],
        waiting: &mut Vec<usize>,
    ) -> Result<Option<Submission>> {
        let mut submission = Submission::new(
            self.directory.clone(),
            vec![None; self.requests.last_key_value().map_or(0, |(last, _)| last + 1)],
        );
        // Before replies are looked at: what ends in between has one.
        let running = slurm.known_tasks(&self.directory);
        for (&task, old) in &self.requests {
            // One that cannot be read answers nothing.
            let reply = submission.reply(task).unwrap_or_default();
            // If Slurm cannot be asked, it is waited for.
            let goes_on = running.as_ref().is_none_or(|running| running.contains_key(&task));
            let is_wanted = |&at: &usize| match &reply {
                Some(reply) => is_answered(old, reply, &requests[at]),
                None => goes_on && goes_as_far(old, &requests[at]),
            };
            if let Some(place) = waiting.iter().position(is_wanted) {
                submission.tasks[task] = Some(waiting.remove(place));
            }
        }
        if submission.is_done() {
            return Ok(None);
        }
        // Slurm may still know of tasks whose requests are gone: they have replied.
        let is_unwanted = |(task, _): &(&usize, &String)| submission.tasks.get(**task).is_some_and(Option::is_none);
        let unwanted = running.iter().flatten().filter(is_unwanted).map(|(_, id)| id.as_str());
        slurm.cancel_tasks(&unwanted.collect::<Vec<_>>());
        Ok(Some(submission))
    }

    /// Cancels what runs of it.
    pub(super) fn end(self, slurm: &Slurm) {
        match slurm.known_tasks(&self.directory) {
            Some(known) if known.is_empty() => forget(&self.directory),
            _ => slurm.cancel(&self.directory),
        }
    }

    /// Whether it is of the program that any of `requests` runs.
    pub(super) fn is_of(&self, requests: &[Request]) -> bool {
        self.requests.values().any(|old| requests.iter().any(|new| are_of_one_program(old, new)))
    }
}

/// Whether two requests are for runs of the same program, whatever it is under and whenever it is stopped.
fn are_of_one_program(old: &Request, new: &Request) -> bool {
    let (Some(old), Some(new)) = (old.job(), new.job()) else { return false };
    // Whatever it is under, and whenever it is ended.
    let Job { directory, command, input, files, subject, plan: _, page_map: _, main: _, limit_s: _, last_entry: _ } =
        new;
    // Of a subject more may be known now.
    old.subject.differences(subject).is_empty()
        && old.subject.functions == subject.functions
        && (&old.directory, &old.command, &old.input, &old.files) == (directory, command, input, files)
}

/// Whether two requests are for the same trial, whenever it is stopped. What the machine is, is asked anew: it may be another one.
fn are_alike(old: &Request, new: &Request) -> bool {
    let (Some(one), Some(other)) = (old.job(), new.job()) else { return false };
    std::mem::discriminant(old) == std::mem::discriminant(new)
        && (&one.plan, &one.page_map, &one.main, one.last_entry)
            == (&other.plan, &other.page_map, &other.main, other.last_entry)
        && are_of_one_program(old, new)
}

/// Whether `old` is a trial that `new` asks for, and is not stopped earlier.
fn goes_as_far(old: &Request, new: &Request) -> bool {
    are_alike(old, new) && limit_s(old) * SAME_LIMIT >= limit_s(new)
}

/// Whether `reply` to `old` says what `new` asks. Of what has failed, what was missing may be there now.
fn is_answered(old: &Request, reply: &Reply, new: &Request) -> bool {
    match reply {
        Reply::Trial(trial) => match trial.seen.end {
            // A limit that it did not come to says nothing of it.
            End::Code(0) | End::Measured => are_alike(old, new),
            End::TooLong => goes_as_far(old, new),
            _ => false,
        },
        Reply::Profiled(profiled) => matches!(profiled.as_ref(), Profiled::Use(_)) && are_alike(old, new),
        Reply::Machine(_) | Reply::NotSetUp(_) | Reply::Refused(_) => false,
    }
}

fn limit_s(request: &Request) -> f64 {
    request.job().and_then(|job| job.limit_s).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Seen;
    use crate::page_map::PageMap;
    use crate::page_use::PageUse;
    use crate::remote::tests::job;
    use crate::seat::CpuSet;
    use crate::subject::Subject;
    use crate::subject::tests::subject;
    use crate::testing::trial;

    fn run(limit_s: Option<f64>, subject: Subject) -> Request {
        Request::Run(Box::new(Job { limit_s, subject, ..job() }))
    }

    #[test]
    fn a_trial_is_taken_over_that_is_of_the_same_program_and_is_not_stopped_earlier() {
        let of = |limit_s| run(limit_s, subject());
        let cases = [(None, None), (None, Some(1.0)), (Some(2.0), Some(1.0)), (Some(1.0), Some(1.0005))];
        assert!(cases.iter().all(|&(old, new)| goes_as_far(&of(old), &of(new))));
        assert!(!goes_as_far(&of(Some(1.0)), &of(Some(2.0))) && !goes_as_far(&of(Some(1.0)), &of(None)));
        let by_function = Subject { functions: vec!["work".into()], ..subject() };
        assert!(!goes_as_far(&of(None), &run(None, by_function)));
        let built_anew = Subject { program_sha256: "12".into(), ..subject() };
        assert!(!goes_as_far(&of(None), &run(None, built_anew)));
        let code = |hash: &str| Subject { code: Some(vec![format!("/bin/worker {hash}")]), ..subject() };
        assert!(goes_as_far(&of(None), &run(None, code("12"))), "it was not known then");
        assert!(!goes_as_far(&run(None, code("12")), &run(None, code("34"))));
        let Request::Run(job) = of(None) else { panic!("a run") };
        let part = Request::Run(Box::new(Job { last_entry: Some(9), ..job.as_ref().clone() }));
        assert!(!goes_as_far(&of(None), &part) && are_of_one_program(&of(None), &part));
        let mapped = Request::Run(Box::new(Job { page_map: Some(PageMap::default()), ..job.as_ref().clone() }));
        assert!(!goes_as_far(&of(None), &mapped) && are_of_one_program(&of(None), &mapped));
        assert!(goes_as_far(&mapped, &mapped));
        let bound = Request::Run(Box::new(Job { main: Some(CpuSet::of(&[])), ..job.as_ref().clone() }));
        assert!(!goes_as_far(&of(None), &bound) && are_of_one_program(&of(None), &bound));
        let profile = Request::Profile(job.clone());
        assert!(!goes_as_far(&of(None), &profile) && !goes_as_far(&profile, &of(None)));
        assert!(are_of_one_program(&of(None), &profile) && goes_as_far(&profile, &profile));
        let other_file = Request::Run(Box::new(Job { files: Some(vec!["data.in 12".into()]), ..job.as_ref().clone() }));
        assert!(!are_of_one_program(&of(None), &other_file));
        let elsewhere = Request::Run(Box::new(Job { directory: "/other".into(), ..*job }));
        assert!(!are_of_one_program(&of(None), &elsewhere));
        assert!(!goes_as_far(&of(None), &elsewhere) && !goes_as_far(&Request::Describe, &of(None)));
        assert!(!goes_as_far(&Request::Describe, &Request::Describe), "it may be another machine now");
    }

    #[test]
    fn a_reply_is_taken_over_whatever_its_limit_was_unless_it_came_to_that() {
        let of = |limit_s| run(limit_s, subject());
        let ended = |end| Reply::Trial(Box::new(trial(Seen::of(end, 0.5))));
        assert!(is_answered(&of(Some(1.0)), &ended(End::Code(0)), &of(Some(2.0))));
        assert!(!is_answered(&of(Some(1.0)), &ended(End::TooLong), &of(Some(2.0))));
        assert!(is_answered(&of(Some(2.0)), &ended(End::TooLong), &of(Some(1.0))));
        assert!(!is_answered(&of(None), &ended(End::Code(1)), &of(None)), "it may not fail now");
        let Request::Run(job) = of(None) else { panic!("a run") };
        let profile = Request::Profile(job);
        let page_use = PageUse { sampler: "made up".into(), allocations: vec![] };
        let profiled = |found| Reply::Profiled(Box::new(found));
        assert!(is_answered(&profile, &profiled(Profiled::Use(page_use)), &profile));
        assert!(!is_answered(&profile, &profiled(Profiled::Impossible("no sampler".into())), &profile));
        assert!(!is_answered(&of(None), &Reply::NotSetUp("no seat".into()), &of(None)));
        assert!(!is_answered(&of(None), &Reply::Refused("another machine".into()), &of(None)));
    }
}
