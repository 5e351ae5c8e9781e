// SPDX-License-Identifier: GPL-2.0-only
//! Texts that somebody else wrote (names of threads, words of files), on their way to a terminal: without what it would take for
//! an order, on one line, and no longer than a sentence bears.

/// Most characters of a word that a sentence repeats.
const WORD: usize = 60;
/// Most characters of what a parser said: it may repeat what it read.
const MESSAGE: usize = 300;

/// A name or line without control characters: any user may call his threads and files as he likes.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The same of a text of several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A wrong word in quotes, for the sentence that refuses it: only its beginning if it is long.
pub fn quoted(text: &str) -> String {
    let (begin, rest) = cut(text, WORD);
    if rest.is_empty() { format!("{begin:?}") } else { format!("{begin:?} and {} bytes more", rest.len()) }
}

/// What a parser said of a text, in one line: only the beginning if it repeats much of it.
pub fn message(text: &str) -> String {
    let (begin, rest) = cut(text.trim(), MESSAGE);
    printable(begin) + if rest.is_empty() { "" } else { "..." }
}

/// The first characters, at most so many, and the rest.
fn cut(text: &str, characters: usize) -> (&str, &str) {
    text.split_at(text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lines_hold_no_orders_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[31m\r\nb\u{9b}"), "a?[31m??b?");
        assert_eq!(printable_lines("a\u{1b}\nb\r\n"), "a?\nb?\n");
    }

    #[test]
    fn a_wrong_word_is_repeated_in_quotes_and_not_at_length() {
        assert_eq!(quoted("x"), "\"x\"");
        assert_eq!(quoted("x\u{1b}[31m\n"), "\"x\\u{1b}[31m\\n\"");
        assert_eq!(quoted(&"ä".repeat(60)), format!("\"{}\"", "ä".repeat(60)));
        assert_eq!(quoted(&"ä".repeat(100)), format!("\"{}\" and 80 bytes more", "ä".repeat(60)));
    }

    #[test]
    fn what_a_parser_says_is_one_line_that_ends() {
        assert_eq!(message(" no\u{1b} number\nhere\n"), "no? number?here");
        assert_eq!(message(&"x".repeat(1000)), format!("{}...", "x".repeat(300)));
    }
}
