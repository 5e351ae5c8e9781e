// SPDX-License-Identifier: GPL-2.0-only
//! Names of options in the environment.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use tandem_policies::foreign::quoted;

use crate::layers::{CONFIG, names, options};

const PREFIX: &str = "TANDEM_";
/// What the toolbox and its helpers read, which scx_tandem may be given as well.
const OF_OTHERS: [&str; 3] = ["TANDEM_BUILD", "TANDEM_HOST", "TANDEM_SLURM_LOST_AFTER"];

/// The variable of the environment that sets the option `name`.
pub fn environment_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase())
}

/// A sentence for each variable of the environment that is called as if it set an option, and sets none.
pub fn unknown_variables() -> Vec<String> {
    unknown_among(std::env::vars_os().map(|(name, _)| name))
}

fn unknown_among(variables: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let known: Vec<String> = names().iter().map(String::as_str).chain([CONFIG]).map(environment_of).collect();
    let is_known = |name: &str| OF_OTHERS.contains(&name) || known.iter().any(|known| known == name);
    let names = variables.into_iter().map(|name| name.to_string_lossy().into_owned());
    let mut unknown: Vec<String> = names.filter(|name| name.starts_with(PREFIX) && !is_known(name)).collect();
    unknown.sort_unstable();
    let sentence = |name: &String| {
        let meant = nearest(name).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        format!("{} in the environment has no effect: there is no such option{meant}", quoted(name))
    };
    unknown.iter().map(sentence).collect()
}

/// The variable of an option that is called nearly so.
fn nearest(variable: &str) -> Option<String> {
    let flag = variable.strip_prefix(PREFIX)?.to_lowercase().replace('_', "-");
    let command = options();
    let of_flag = |flag: &str| command.get_arguments().find(|arg| arg.get_long() == Some(flag));
    let suggested = options().try_get_matches_from([format!("--{flag}")]).err().and_then(|error| {
        match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(suggested)) => suggested.strip_prefix("--").map(str::to_owned),
            _ => None,
        }
    });
    let arg = of_flag(&flag).or_else(|| of_flag(&suggested?))?;
    Some(environment_of(arg.get_id().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_no_options_is_named_with_what_may_be_meant() {
        let told = |name: &str| unknown_among([name.into()]).pop();
        let no_effect = |name: &str, meant: &str| {
            Some(format!("\"{name}\" in the environment has no effect: there is no such option{meant}"))
        };
        for (name, meant) in [
            ("TANDEM_DRYRUN", "TANDEM_DRY_RUN"),
            ("TANDEM_PAGE_RAET", "TANDEM_PAGE_RATE"),
            ("TANDEM_PARAMETER", "TANDEM_PARAMETERS"),
            ("TANDEM_dry_run", "TANDEM_DRY_RUN"),
        ] {
            assert_eq!(told(name), no_effect(name, &format!("; did you mean {meant}?")));
        }
        assert_eq!(told("TANDEM_ZZZZ"), no_effect("TANDEM_ZZZZ", ""));
        assert_eq!(told("TANDEM_"), no_effect("TANDEM_", ""));
        for known in ["TANDEM_CONFIG", "TANDEM_HOST", "TANDEMONIUM", "PATH"] {
            assert_eq!(told(known), None, "{known}");
        }
        assert!(unknown_among(names().iter().map(|name| environment_of(name).into())).is_empty());
    }
}
