// SPDX-License-Identifier: GPL-2.0-only
//! Why the scheduler left.
//!
//! What the kernel says of it has names of threads in it. Those are any bytes, and the kernel cuts them within a letter.

use std::io::Write;

use anyhow::{Result, bail};
use scx_utils::{SCX_ECODE_ACT_RESTART, ScxExitKind};
use tandem_bpf::skeleton::types::user_exit_info;

const LINE: &str = "================================================================================";

/// What the kernel says when it lets a scheduler go.
#[derive(Debug)]
pub struct Exit {
    kind: i32,
    code: i64,
    cpu: i32,
    reason: String,
    message: String,
    dump: String,
}

impl Exit {
    /// What a scheduler that has left wrote down, and the kernel's `dump` with it.
    pub fn read(record: &user_exit_info, dump: &[u8]) -> Self {
        let bytes = |text: &[i8]| text.iter().map(|&byte| byte as u8).collect::<Vec<u8>>();
        Self {
            kind: record.kind,
            code: record.exit_code,
            cpu: record.exit_cpu,
            reason: text(&bytes(&record.reason)),
            message: text(&bytes(&record.msg)),
            dump: text(dump),
        }
    }

    /// Whether it asked to be loaded anew.
    pub fn should_restart(&self) -> bool {
        let in_good_order =
            [ScxExitKind::UnregBPF, ScxExitKind::UnregKern].into_iter().any(|kind| kind as i32 == self.kind);
        in_good_order && self.code & *SCX_ECODE_ACT_RESTART as i64 != 0
    }

    /// Shows the kernel's dump, and the reason if it left in good order.
    ///
    /// # Errors
    /// The reason, if it was thrown out.
    pub fn report(&self, mut shown: impl Write) -> Result<()> {
        let dump = if self.dump.is_empty() {
            String::new()
        } else {
            format!("\nDEBUG DUMP\n{LINE}\n\n{}\n{LINE}\n\n", self.dump)
        };
        let in_good_order = self.kind <= ScxExitKind::UnregKern as i32;
        let why = if in_good_order { format!("{}\n", self.why()) } else { String::new() };
        // Where nobody reads this there is still a report to write, and the error to return.
        let _ = shown.write_all((dump + &why).as_bytes());
        if in_good_order { Ok(()) } else { bail!("{}", self.why()) }
    }

    /// In a line.
    fn why(&self) -> String {
        let cpu = if self.cpu >= 0 { format!(" on CPU {}", self.cpu) } else { String::new() };
        match (self.reason.as_str(), self.message.as_str()) {
            ("", _) => format!("<UNKNOWN>{cpu}"),
            (reason, "") => format!("EXIT: {reason}{cpu}"),
            (reason, message) => format!("EXIT: {reason} ({message}){cpu}"),
        }
    }
}

/// A text of the kernel's, up to its end; a mark stands for what is no letter.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::Unread;

    /// As the kernel throws a scheduler out, with these texts.
    fn thrown_out(reason: &[u8], message: &[u8], dump: &[u8]) -> Exit {
        let mut record = user_exit_info { kind: ScxExitKind::ErrorStall as i32, exit_cpu: 3, ..Default::default() };
        record.reason.iter_mut().zip(reason).for_each(|(to, &from)| *to = from as i8);
        record.msg.iter_mut().zip(message).for_each(|(to, &from)| *to = from as i8);
        Exit::read(&record, dump)
    }

    #[test]
    fn names_of_threads_that_are_no_text_do_not_hide_the_reason() {
        let exit = thrown_out(b"runnable task stall", b"caf\xc3[12] failed to run", b"R caf\xc3\0left of before");
        let mut shown = Vec::new();
        let why = exit.report(&mut shown).unwrap_err().to_string();
        assert_eq!(why, "EXIT: runnable task stall (caf\u{fffd}[12] failed to run) on CPU 3");
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("\nR caf\u{fffd}\n") && !shown.contains("before"), "{shown}");
    }

    #[test]
    fn a_text_without_an_end_is_cut_where_its_room_ends() {
        let exit = thrown_out(&[b'x'; 200], &[0xc3; 1024], b"\xc3");
        assert_eq!((exit.reason.len(), exit.message.chars().count(), exit.dump.as_str()), (128, 1024, "\u{fffd}"));
    }

    #[test]
    fn who_leaves_in_good_order_says_so_and_may_ask_for_a_restart() {
        let of = |kind: ScxExitKind, exit_code| {
            Exit::read(&user_exit_info { kind: kind as i32, exit_cpu: -1, exit_code, ..Default::default() }, &[])
        };
        let mut shown = Vec::new();
        of(ScxExitKind::Unreg, 0).report(&mut shown).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), "<UNKNOWN>\n");
        let restart = *SCX_ECODE_ACT_RESTART as i64;
        // A kernel without sched_ext does not say which bit asks for it.
        assert_eq!(of(ScxExitKind::UnregKern, restart).should_restart(), restart != 0);
        assert!(
            !of(ScxExitKind::ErrorBPF, restart).should_restart() && !of(ScxExitKind::Unreg, restart).should_restart()
        );
    }

    #[test]
    fn the_reason_is_returned_though_nobody_sees_the_dump() {
        let why = thrown_out(b"runnable task stall", b"", b"dump").report(Unread).unwrap_err().to_string();
        assert_eq!(why, "EXIT: runnable task stall on CPU 3");
    }
}
