// SPDX-License-Identifier: GPL-2.0-only
//! Memory of threads that place theirs by policies of their own.

use super::tests::{SECOND, Scripted, account_of, batch_on, process};
use super::*;
use crate::affinity::GROUP_BYTES;
use crate::fresh_pages::FreshPages;
use crate::testing::topology;
use crate::thread_policies::tests::beside_a_thread;

#[test]
fn memory_that_a_thread_uses_which_binds_its_own_stays() {
    beside_a_thread(|thread, set| {
        let memory = FreshPages::small(1024).unwrap();
        memory.touch();
        let start = memory.start().next_multiple_of(GROUP_BYTES);
        let mut batch = batch_on(start + 4096, None);
        batch.accesses.iter_mut().for_each(|access| access.tid = thread.tid);
        let machine = topology(2);
        let why = || {
            let mut sensor = Sensor::over(Box::new(Scripted(batch.clone())), SensorConfig::default(), &machine);
            sensor.set_managed([process()].into());
            sensor.sample(SECOND).unwrap();
            let accounts = vec![account_of(thread.tid)];
            let cooling = |_, _| Some(Unmovable::Cooldown);
            let snapshot = sensor.snapshot(&machine, accounts, SECOND, 2 * SECOND, cooling);
            snapshot.groups.iter().find(|group| group.id.start == start).expect("it was accessed").unmovable
        };
        assert_eq!(why(), Some(Unmovable::Cooldown));
        set(libc::MPOL_BIND);
        assert_eq!(why(), Some(Unmovable::Bound));
    });
}
