// SPDX-License-Identifier: GPL-2.0-only
//! Threads that somebody else keeps on their seats.

use std::sync::{Arc, Mutex};

use tandem_machine::process_text;

use super::tests::{build, launch, program, single_cpus};
use super::tests_by_region::{TEAMS, by_region, expected};
use super::*;
use crate::placer::{Assigner, Placer};
use crate::process::bind;
use crate::seat::CpuSet;

/// Whom it was told to assign, each with the state that the thread was in.
#[derive(Default)]
struct Noting {
    told: Mutex<Vec<(Pid, CpuSet, String)>>,
    binds: bool,
}

impl Assigner for Noting {
    fn assign(&self, seats: &[(Pid, CpuSet)]) -> Result<()> {
        for (thread, cpus) in seats {
            let status = process_text(format!("/proc/{thread}/status").as_ref())?;
            let state = status.lines().find_map(|line| line.strip_prefix("State:\t")).unwrap_or_default().to_owned();
            self.told.lock().unwrap().push((*thread, cpus.clone(), state));
            if self.binds {
                bind(*thread, cpus)?;
            }
        }
        Ok(())
    }
}

#[test]
fn who_assigns_is_told_of_each_thread_before_its_first_instruction_and_affinity_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static pthread_barrier_t both;
static void count(void)
{
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	printf("%d\n", CPU_COUNT(&set));
}
static void *thread(void *unused)
{
	count();
	/* So that neither has ended before the other one is born. */
	pthread_barrier_wait(&both);
	return unused;
}
int main(void)
{
	pthread_t threads[2];
	count();
	pthread_barrier_init(&both, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, thread, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}
"#;
    let output = directory.path().join("output");
    let noting = Arc::new(Noting::default());
    let seats = single_cpus();
    let all = format!("{}\n", seats.len());
    let program = program(build(directory.path(), source), &output);
    for seats in [&seats[..1], &seats[..]] {
        noting.told.lock().unwrap().clear();
        let places = Places { seats: seats.to_vec(), placer: Placer::Assigner(noting.clone()), ..Places::default() };
        assert_eq!(launch(&program, &places).end, End::Code(0));
        assert_eq!(std::fs::read_to_string(&output).unwrap(), all.repeat(3));
    }
    let mut told = noting.told.lock().unwrap();
    // The second one may come to its first stop before the first one does.
    told.sort_by_key(|one| one.0);
    let cpus: Vec<&CpuSet> = told.iter().map(|(_, cpus, _)| cpus).collect();
    assert_eq!(cpus, [0, 1, 2].map(|rank| &seats[rank % seats.len()]));
    assert!(told.iter().all(|(.., state)| state.starts_with('t')), "each is stopped meanwhile: {told:?}");
}

#[test]
fn each_region_has_its_seats_where_somebody_else_assigns_threads() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let noting = Arc::new(Noting { binds: true, ..Noting::default() });
    let places = Places { placer: Placer::Assigner(noting.clone()), ..by_region("._omp_fn.0") };
    let seen = launch(&program(build(directory.path(), TEAMS), &output), &places);
    assert_eq!((seen.end, std::fs::read_to_string(&output).unwrap()), (End::Code(0), expected()));
    assert!(noting.told.lock().unwrap().len() > 5, "not only births");
}

#[test]
fn a_program_whose_threads_cannot_be_assigned_is_ended_in_words() {
    struct Refusing;
    impl Assigner for Refusing {
        fn assign(&self, _: &[(Pid, CpuSet)]) -> Result<()> {
            anyhow::bail!("nobody is there")
        }
    }
    let places = Places { seats: single_cpus(), placer: Placer::Assigner(Arc::new(Refusing)), ..Places::default() };
    let forever = program(["sleep", "1000"].map(OsString::from).to_vec(), "/dev/null".as_ref());
    let refused = run(&forever, &places, Limit::default(), &Stop::default(), |_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "nobody is there");
}
