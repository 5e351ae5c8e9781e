// SPDX-License-Identifier: GPL-2.0-only
//! What a scenario's values must agree on.

use super::{Of, Per, Program, Region, Scenario, Use};

/// A length beyond this is a mistake: it takes the model days. As much as `tandem sim --seconds` takes.
const MOST_SECONDS: f64 = 1e5;
/// Memory of a region beyond this is one: no machine has it.
const MOST_MB: f64 = 1e8;

/// Where a value is wrong, and how.
type Wrong = Option<(String, String)>;

/// The first wrong value of a scenario.
pub(super) fn wrong(scenario: &Scenario) -> Wrong {
    if scenario.name.is_empty() {
        return at("name", "is empty");
    }
    length("seconds", scenario.seconds)
        .or_else(|| share("occupied", scenario.occupied))
        .or_else(|| if scenario.programs.is_empty() { at("program", "there is none") } else { None })
        .or_else(|| scenario.programs.iter().enumerate().find_map(|(index, one)| program(scenario, index, one)))
}

fn at(place: &str, message: &str) -> Wrong {
    Some((place.to_owned(), message.to_owned()))
}

fn positive(place: &str, value: f64) -> Wrong {
    if value.is_finite() && value > 0.0 { None } else { at(place, &format!("is {value}, must be above 0")) }
}

/// A time that the model goes through.
fn length(place: &str, seconds: f64) -> Wrong {
    positive(place, seconds).or_else(|| at_most(place, seconds, MOST_SECONDS))
}

fn at_most(place: &str, value: f64, most: f64) -> Wrong {
    if value <= most { None } else { at(place, &format!("is {value}, may be {most} at most")) }
}

fn not_negative(place: &str, value: f64) -> Wrong {
    if value.is_finite() && value >= 0.0 { None } else { at(place, &format!("is {value}, must be 0 or more")) }
}

fn share(place: &str, value: f64) -> Wrong {
    if (0.0..=1.0).contains(&value) { None } else { at(place, &format!("is {value}, must be 0 to 1")) }
}

fn program(scenario: &Scenario, index: usize, program: &Program) -> Wrong {
    let place = |key: &str| format!("program {}: {key}", program.name);
    if scenario.programs[..index].iter().any(|other| other.name == program.name) {
        return at(&place("name"), "is used twice");
    }
    let sizes = [program.threads > 0, program.cpus > 0.0, program.node_cpus > 0.0];
    if sizes.iter().filter(|&&given| given).count() != 1 {
        return at(&place("threads"), "give exactly one of threads, cpus and node_cpus, above 0");
    }
    if let Some((key, given, most)) = too_many(program) {
        return at_most(&place(key), given, most);
    }
    if program.copies == 0 && program.copies_per_node == 0 {
        return at(&place("copies"), "is 0, must be at least 1");
    }
    if program.node_step == 0 {
        return at(&place("node_step"), "is 0, must be at least 1");
    }
    if program.multiple == 0 {
        return at(&place("multiple"), "is 0, must be at least 1");
    }
    if let Some(before) = &program.after
        && !scenario.programs[..index].iter().any(|other| other.name == *before)
    {
        return at(&place("after"), &format!("there is no program '{before}' before this one"));
    }
    let (has_uses, has_phases) = (!program.uses.is_empty(), !program.phases.is_empty());
    let only_computes = !has_uses && !has_phases && program.compute_ns > 0.0;
    if has_uses == has_phases && !only_computes {
        return at(&place("uses"), "give either uses or phases, or compute_ns alone");
    }
    not_negative(&place("cpus"), program.cpus)
        .or_else(|| not_negative(&place("node_cpus"), program.node_cpus))
        .or_else(|| positive(&place("work"), program.work))
        .or_else(|| at_most(&place("work times seconds"), program.work * scenario.seconds, MOST_SECONDS))
        .or_else(|| not_negative(&place("compute_ns"), program.compute_ns))
        .or_else(|| if program.overlap >= 1.0 { None } else { at(&place("overlap"), "must be at least 1") })
        .or_else(|| not_negative(&place("start_s"), program.start_s))
        .or_else(|| at_most(&place("start_s"), program.start_s, MOST_SECONDS))
        .or_else(|| program.regions.iter().enumerate().find_map(|(index, one)| region(program, index, one)))
        .or_else(|| uses(program, &program.uses))
        .or_else(|| if has_uses { takes_time(program, "uses", &program.uses) } else { None })
        .or_else(|| {
            program.phases.iter().find_map(|phase| {
                length(&place("phase.seconds"), phase.seconds)
                    .or_else(|| uses(program, &phase.uses))
                    .or_else(|| takes_time(program, "phase.uses", &phase.uses))
            })
        })
}

/// Uses whose accesses take some ideal time each: lengths are told in that, and lines are in a cache already.
fn takes_time(program: &Program, key: &str, uses: &[Use]) -> Wrong {
    let of_lines = |one: &Use| program.regions.iter().any(|region| region.name == one.region && region.lines);
    if program.compute_ns > 0.0 || uses.iter().any(|one| one.share > 0.0 && !of_lines(one)) {
        return None;
    }
    let place = format!("program {}: {key}", program.name);
    match uses {
        [] => at(&place, "is empty, with compute_ns 0"),
        _ => at(&place, "are of lines alone, which take no ideal time: give compute_ns, or a use of memory"),
    }
}

/// What would not fit any machine, with its bound.
fn too_many(program: &Program) -> Option<(&'static str, f64, f64)> {
    let bounds = [
        ("threads", program.threads as f64, 65_536.0),
        ("cpus", program.cpus, 64.0),
        ("node_cpus", program.node_cpus, 64.0),
        ("copies", program.copies as f64, 1024.0),
        ("copies_per_node", program.copies_per_node as f64, 1024.0),
    ];
    bounds.into_iter().find(|&(_, given, most)| given > most)
}

fn region(program: &Program, index: usize, region: &Region) -> Wrong {
    let place = format!("program {}: region {}", program.name, region.name);
    if program.regions[..index].iter().any(|other| other.name == region.name) {
        return at(&place, "its name is used twice");
    }
    if region.shift > 1 {
        return at(&place, "shift must be 0 or 1");
    }
    let mb = format!("{place}: mb");
    if region.lines { None } else { positive(&mb, region.mb).or_else(|| at_most(&mb, region.mb, MOST_MB)) }
}

fn uses(program: &Program, uses: &[Use]) -> Wrong {
    let all: f64 = uses.iter().map(|one| one.share).sum();
    let adds_up = all.is_finite() && all > 0.0;
    if !adds_up && !uses.is_empty() {
        return at(&format!("program {}: uses", program.name), "their shares must add up to more than 0");
    }
    uses.iter().find_map(|one| {
        let place = format!("program {}: use of {}", program.name, one.region);
        let Some(region) = program.regions.iter().find(|region| region.name == one.region) else {
            return at(&place, "there is no such region");
        };
        let of_halves = region.per == Per::Half && one.of == Of::Opposite;
        if one.of != Of::Own && region.per != Per::Thread && !of_halves {
            return at(&place, "regions of other threads are those that every thread has (per = \"thread\")");
        }
        not_negative(&format!("{place}: share"), one.share)
            .or_else(|| share(&format!("{place}: miss"), one.miss))
            .or_else(|| share(&format!("{place}: write"), one.write))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a program of two threads that has memory and lines.
    fn wrong_with(program: &str) -> Option<String> {
        let text = format!(
            "name = 'test'\nsummary = 'test'\nseconds = 1\n[[program]]\nname = 'p'\nthreads = 2\n\
             region = [{{ name = 'own', mb = 2 }}, {{ name = 'counters', per = 'program', lines = true }}]\n{program}"
        );
        Scenario::parse(&text, "test").err().map(|error| error.to_string())
    }

    #[test]
    fn work_that_takes_no_ideal_time_is_refused() {
        let (lines, memory) = ("{ region = 'counters', share = 1 }", "{ region = 'own', share = 1 }");
        let nothing = "{ region = 'own', share = 0 }";
        let phase = |uses: &str| format!("[[program.phase]]\nseconds = 1\nuses = [{uses}]\n");
        for refused in [
            format!("uses = [{lines}]"),
            format!("uses = [{nothing}, {lines}]"),
            phase(memory) + &phase(lines),
            phase(memory) + &phase(""),
        ] {
            let error = wrong_with(&refused).unwrap_or_else(|| panic!("{refused}"));
            assert!(error.contains("uses: ") || error.contains("uses "), "{error}");
            assert!(error.contains("compute_ns") && error.lines().count() == 1, "{error}");
        }
        for taken in [
            format!("uses = [{lines}]\ncompute_ns = 1"),
            format!("uses = [{memory}, {lines}]"),
            "compute_ns = 1\n".to_owned() + &phase(lines) + &phase(""),
            phase(memory),
        ] {
            assert_eq!(wrong_with(&taken), None, "{taken}");
        }
    }
}
