// SPDX-License-Identifier: GPL-2.0-only
//! Words as a shell takes them.

/// `word` such that a shell takes it for this one word; as it is where that does.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_@%+=:,./-".contains(letter);
    // Where the number of threads belongs no shell sees anything of its own.
    if !word.is_empty() && word.replace("{threads}", "").chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command for a shell.
pub fn in_words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_each_word_for_what_it_is() {
        let words = ["a b", "", "it's", "$HOME", "*", "~", "-n={threads}", "plain/x.c", "new\nline", "{a,b}"];
        let script = format!("printf '%s\\0' {}", in_words(words));
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(told.split_terminator('\0').collect::<Vec<_>>(), words, "{script}");
        assert_eq!(in_words(["./prog", "-j", "{threads}"]), "./prog -j {threads}");
    }
}
