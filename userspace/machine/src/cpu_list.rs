// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's list format: `0-3,8,10-11`. Node lists have it too.

use thiserror::Error;

/// Largest id taken for real; keeps a damaged list from filling memory.
const MAX_ID: u32 = 65_535;

/// Why a text is no CPU list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no CPU list: `{part}` must be a number or an ascending range such as 0-3")]
pub struct CpuListError {
    /// The whole text.
    pub text: String,
    /// The part that is wrong.
    pub part: String,
}

/// The ids in a list such as `0-3,8`, ascending and each once. An empty list is empty.
///
/// # Errors
/// A part is neither a number nor an ascending range, or exceeds 65535.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, CpuListError> {
    let text = text.trim();
    let mut ids = Vec::new();
    if text.is_empty() {
        return Ok(ids);
    }
    for part in text.split(',') {
        let wrong = || CpuListError { text: text.to_owned(), part: part.to_owned() };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().map_err(|_| wrong())?;
        let last: u32 = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last > MAX_ID {
            return Err(wrong());
        }
        ids.extend(first..=last);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The list of ascending `ids`, as short as the kernel writes it.
pub fn format_cpu_list(ids: &[u32]) -> String {
    let mut parts = Vec::new();
    for run in ids.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [one] => parts.push(one.to_string()),
            _ => parts.push(format!("{}-{}", run[0], run[run.len() - 1])),
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_numbers_are_read_in_any_order() {
        assert_eq!(parse_cpu_list("8,0-3\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("\n").unwrap(), []);
        assert_eq!(parse_cpu_list("1,0-2").unwrap(), [0, 1, 2]);
    }

    #[test]
    fn damaged_lists_are_refused() {
        for text in ["a", "3-1", "1,,2", "0-", "0-99999999"] {
            assert!(parse_cpu_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn written_lists_are_read_back() {
        for text in ["", "0", "0-1", "0,2,5", "0-3,8,10-11"] {
            assert_eq!(format_cpu_list(&parse_cpu_list(text).unwrap()), text);
        }
    }
}
