// SPDX-License-Identifier: GPL-2.0-only
//! From what events counted to counters.
//!
//! ```text
//! counter = sum over its events of weight * count * enabled / running
//! ```
//!
//! `enabled` is how long the thread ran, `running` for how much of that the event was on the hardware. An event that never
//! was tells nothing, and neither does its counter then.

use tandem_bpf::{EventCount, ThreadCharges};
use tandem_policies::model::{MemoryLines, ProcessId, Transfers};

use super::CountedOn;
use crate::access::Counts;
use crate::pmu::table::Counter;

/// What was counted of a thread; `None` if neither instructions nor cycles were.
pub(super) fn counts(charges: &ThreadCharges, events: &[CountedOn]) -> Option<Counts> {
    let value = |counter| value(charges, events, counter);
    let whole = |value: f64| value.round() as u64;
    let transfers = value(Counter::TransfersWithinNode).zip(value(Counter::TransfersAcrossNodes));
    Some(Counts {
        process: ProcessId(charges.tgid),
        tid: charges.tid,
        instructions: whole(value(Counter::Instructions)?),
        flops: value(Counter::Operations).map_or(0, whole),
        cycles: whole(value(Counter::Cycles)?),
        transfers: transfers.map(|(within_node, across_nodes)| Transfers { within_node, across_nodes }),
        memory: MemoryLines { all: value(Counter::L3Miss), remote: value(Counter::RemoteMemory) },
    })
}

/// The counter of a thread. A thread that ran on several types of core has some of each one's events: those of cores on which
/// it did not run are left out.
fn value(charges: &ThreadCharges, events: &[CountedOn], counter: Counter) -> Option<f64> {
    let of = events.iter().zip(&charges.events).filter(|(event, _)| event.counter == counter);
    let mut ran = of.filter(|(_, counted)| counted.enabled_ns > 0).peekable();
    ran.peek()?;
    ran.map(|(event, counted)| Some(f64::from(event.weight) * scaled(*counted)?)).sum()
}

/// What would have been counted in all the time; `None` if the event was never on the hardware.
fn scaled(counted: EventCount) -> Option<f64> {
    let share = counted.enabled_ns as f64 / counted.running_ns as f64;
    (counted.running_ns > 0).then_some(counted.count as f64 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::sysfs::Encoding;

    fn event(counter: Counter, weight: u32) -> CountedOn {
        CountedOn { counter, weight, encoding: Encoding::default(), cpus: None }
    }

    fn events() -> Vec<CountedOn> {
        vec![
            event(Counter::Instructions, 1),
            event(Counter::Cycles, 1),
            event(Counter::Operations, 1),
            event(Counter::Operations, 4),
            event(Counter::TransfersWithinNode, 1),
            event(Counter::TransfersAcrossNodes, 1),
            event(Counter::L3Miss, 1),
            event(Counter::RemoteMemory, 1),
        ]
    }

    fn always(count: u64) -> EventCount {
        EventCount { count, enabled_ns: 100, running_ns: 100 }
    }

    fn charged(events_counted: [EventCount; 8]) -> Option<Counts> {
        counts(&ThreadCharges { tgid: 7, tid: 8, events: events_counted.to_vec() }, &events())
    }

    #[test]
    fn a_counter_is_the_weighted_sum_of_its_events() {
        let found = [always(1000), always(500), always(10), always(5), always(3), always(2), always(90), always(30)];
        let found = charged(found).unwrap();
        assert_eq!((found.process, found.tid), (ProcessId(7), 8));
        assert_eq!((found.instructions, found.cycles, found.flops), (1000, 500, 30));
        assert_eq!(found.transfers, Some(Transfers { within_node: 3.0, across_nodes: 2.0 }));
        assert_eq!(found.memory, MemoryLines { all: Some(90.0), remote: Some(30.0) });
    }

    #[test]
    fn events_that_take_turns_are_scaled_by_their_share_of_the_time() {
        let half = EventCount { count: 40, enabled_ns: 100, running_ns: 50 };
        let found = charged([always(1000), always(500), half, always(5), half, always(2), always(90), half]).unwrap();
        assert_eq!(found.flops, 80 + 20);
        assert_eq!((found.transfers.unwrap().within_node, found.memory.remote), (80.0, Some(80.0)));
    }

    #[test]
    fn an_event_that_was_never_on_the_hardware_says_nothing() {
        let never = EventCount { count: 0, enabled_ns: 100, running_ns: 0 };
        let found =
            charged([always(1000), always(500), always(10), never, never, always(2), always(90), never]).unwrap();
        assert_eq!((found.flops, found.transfers), (0, None));
        assert_eq!(found.memory, MemoryLines { all: Some(90.0), remote: None });
        assert_eq!(charged([never; 8]), None);
    }

    #[test]
    fn events_of_cores_on_which_it_did_not_run_are_left_out() {
        let events = [event(Counter::Instructions, 1), event(Counter::Instructions, 1), event(Counter::Cycles, 1)];
        let counted = vec![always(70), EventCount::default(), always(100)];
        let found = counts(&ThreadCharges { tgid: 7, tid: 8, events: counted }, &events).unwrap();
        assert_eq!((found.instructions, found.cycles), (70, 100));
    }
}
