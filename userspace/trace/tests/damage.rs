// SPDX-License-Identifier: GPL-2.0-only
//! What is left of a recording that was cut off or changed, and what is refused.

use tandem_trace::testing::{Shape, choices, recording};
use tandem_trace::{Damage, Entry, Interval, NotReadable, TraceReader, TraceWriter};

/// A small recording with plans in it, and its intervals.
fn small() -> (Vec<u8>, Vec<Interval>) {
    let (bytes, intervals) = recording(Shape::SMALL, &choices("sma", "tmma"), 1, 3);
    assert!(intervals.iter().any(|interval| interval.decision.as_ref().unwrap().plan().is_some()), "a plan");
    (bytes, intervals)
}

/// The intervals of a readable file, and why there are no more.
fn read(bytes: &[u8]) -> Result<(Vec<Interval>, Option<Damage>), NotReadable> {
    let mut intervals = Vec::new();
    for entry in TraceReader::new(bytes)? {
        match entry {
            Ok(Entry::Settings(_)) => {}
            Ok(Entry::Interval(interval)) => intervals.push(*interval),
            Err(damage) => return Ok((intervals, Some(damage))),
        }
    }
    Ok((intervals, None))
}

/// Ends of the settings' frame and of each interval's.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 12;
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap());
        at += 9 + length as usize;
        ends.push(at);
    }
    ends
}

#[test]
fn a_whole_recording_is_read_without_a_warning() {
    let (bytes, intervals) = small();
    let (read, damage) = read(&bytes).unwrap();
    assert_eq!(read, intervals);
    assert!(damage.is_none(), "{damage:?}");
}

#[test]
fn cut_off_at_any_byte_it_is_read_up_to_the_last_whole_frame() {
    let (bytes, intervals) = small();
    let ends = ends(&bytes);
    for length in 0..bytes.len() {
        let result = read(&bytes[..length]);
        if length < 12 {
            assert!(matches!(result, Err(NotReadable::NoHeader(found)) if found == length), "{length}");
            continue;
        }
        let (read, damage) = result.unwrap();
        // The settings' frame comes first.
        let whole = ends.iter().filter(|&&end| end <= length).count().saturating_sub(1);
        assert_eq!(read, intervals[..whole.min(intervals.len())], "{length}");
        match damage {
            Some(Damage::NoEnd { at }) => assert!(at as usize == length && (length == 12 || ends.contains(&length))),
            Some(Damage::CutOff { at, frame_at }) => {
                assert_eq!(at as usize, length);
                let start = ends.iter().rev().find(|&&end| end < length).copied().unwrap_or(12);
                assert_eq!(frame_at as usize, start, "{length}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[test]
fn a_changed_byte_anywhere_is_found_and_what_is_before_its_frame_is_read() {
    let (bytes, intervals) = small();
    let ends = ends(&bytes);
    for at in 0..bytes.len() {
        let bits = [0x01, 0x80, 0xff][at % 3];
        let mut changed = bytes.clone();
        changed[at] ^= bits;
        let result = read(&changed);
        if at < 12 {
            assert!(matches!(result, Err(NotReadable::NotARecording | NotReadable::Version { .. })), "{at}");
            continue;
        }
        let (read, damage) = result.unwrap();
        let frame = ends.iter().position(|&end| at < end).unwrap();
        assert_eq!(read, intervals[..frame.saturating_sub(1)], "byte {at} changed by {bits:#x}");
        assert!(matches!(damage, Some(Damage::Broken { .. } | Damage::CutOff { .. })), "{at}: {damage:?}");
    }
}

#[test]
fn frames_that_were_lost_repeated_or_swapped_are_found() {
    let (bytes, intervals) = small();
    let ends = ends(&bytes);
    let (first, second, third) = (&bytes[ends[0]..ends[1]], &bytes[ends[1]..ends[2]], &bytes[ends[2]..]);
    let start = &bytes[..ends[0]];
    for (whole, parts) in [
        (1, [start, first, third].concat()),
        (1, [start, first, first, second, third].concat()),
        (0, [start, second, first, third].concat()),
        (3, [&bytes[..], b"more"].concat()),
    ] {
        let (read, damage) = read(&parts).unwrap();
        assert_eq!(read, intervals[..whole]);
        assert!(matches!(damage, Some(Damage::Broken { .. })), "{damage:?}");
    }
}

#[test]
fn other_files_and_other_versions_are_refused_in_words() {
    let said = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert_eq!(said(b"[settings]\n"), "this is not a recording of scx_tandem (it starts with other bytes)");
    let (mut bytes, _) = small();
    bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
    assert_eq!(
        said(&bytes),
        "the recording has version 9 of the format, and this program reads version 1: use a newer one"
    );
    assert!(said(b"").starts_with("the recording ends within its header, after 0 bytes"));
}

#[test]
fn warnings_say_what_and_where() {
    let (mut bytes, _) = small();
    let ends = ends(&bytes);
    let said = |bytes: &[u8]| read(bytes).unwrap().1.unwrap().to_string();
    let cut = said(&bytes[..ends[1] + 7]);
    let expected = format!("cut off at byte {}, within the frame that starts at byte {}", ends[1] + 7, ends[1]);
    assert!(cut.contains(&expected), "{cut}");
    bytes[ends[1] + 7] ^= 1;
    let changed = said(&bytes);
    assert!(changed.contains(&format!("the frame at byte {} does not have the checksum", ends[1])), "{changed}");
}

#[test]
fn a_recording_that_ended_early_says_why() {
    let (_, intervals) = small();
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes).unwrap();
    writer.settings(&tandem_trace::testing::settings(&[], 1, 1)).unwrap();
    writer.interval(intervals[0].clone()).unwrap();
    writer.end(Some("the moon was full")).unwrap();
    let (read, damage) = read(&bytes).unwrap();
    assert_eq!(read, intervals[..1]);
    assert_eq!(damage.unwrap().to_string(), "the recording ended early: the moon was full");
}
