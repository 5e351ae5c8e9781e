// SPDX-License-Identifier: GPL-2.0-only
//! Comma-separated lists of names with options.
//!
//! Options may hold commas themselves (`--parameter a.b=1,c.d=2`). Which commas those are cannot be told from a name or a
//! misspelt one, so nothing is guessed: a comma that belongs to an option is written `\,`.

/// The elements of `lists` in their order, as written but for space around them.
pub fn split(lists: &[String]) -> Vec<String> {
    lists.iter().flat_map(|list| elements(list)).collect()
}

fn elements(list: &str) -> Vec<String> {
    let mut elements: Vec<String> = Vec::new();
    let mut goes_on = false;
    for piece in list.split(',') {
        match elements.last_mut() {
            Some(last) if goes_on => *last = format!("{last},{piece}"),
            _ => elements.push(piece.to_owned()),
        }
        goes_on = piece.ends_with('\\');
    }
    elements.iter().map(|element| element.trim().to_owned()).collect()
}

/// What `text`, an element or a part of one, says without its marks on commas.
pub fn plain(text: &str) -> String {
    text.replace("\\,", ",")
}

/// What to add to the refusal of an unknown name behind the element `previous`: it may have been a part of its options.
pub fn hint(previous: Option<&str>) -> String {
    let with_options = previous.filter(|text| text.contains(':'));
    with_options.map_or_else(String::new, |text| {
        format!("; if it belongs to the options of '{text}', write the comma between them as '\\,'")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_one(list: &str) -> Vec<String> {
        split(&[list.to_owned()])
    }

    #[test]
    fn a_marked_comma_stays_in_its_element() {
        assert_eq!(split_one(r"a:-n 0\,2\,3, b"), [r"a:-n 0\,2\,3", "b"]);
        assert_eq!(plain(r"-n 0\,2\,3"), "-n 0,2,3");
    }

    #[test]
    fn other_commas_end_elements_even_if_there_is_nothing_between_them() {
        assert_eq!(split(&["a,,b".to_owned(), "c,".to_owned()]), ["a", "", "b", "c", ""]);
        assert_eq!(split_one(""), [""]);
    }

    #[test]
    fn other_backslashes_are_left_alone() {
        assert_eq!(split_one(r"a:\n\"), [r"a:\n\"]);
        assert_eq!(plain(r"\n\"), r"\n\");
    }

    #[test]
    fn only_what_follows_options_may_belong_to_them() {
        assert_eq!((hint(None), hint(Some("worst"))), (String::new(), String::new()));
        assert!(hint(Some("scx_x:-n 0")).contains("'scx_x:-n 0'"));
    }
}
