// SPDX-License-Identifier: GPL-2.0-only
//! The ways of placing that are compared.

use std::fmt;

use tandem_policies::registry::{self, Kind, Policy};
use thiserror::Error;

/// One way of placing threads and pages.
#[derive(Clone, Copy, Debug)]
pub enum Arm {
    /// The scheduler alone; nothing moves pages.
    Eevdf,
    /// The scheduler with NUMA balancing: hint faults, preferred nodes, pages that follow.
    AutoNuma,
    /// As `Eevdf` on a kernel with cache-aware scheduling: programs that fit a last-level cache are gathered there.
    GatheringEevdf,
    /// The same with NUMA balancing.
    GatheringAutoNuma,
    /// Every program bound to one node, with its memory; nodes in turn.
    Direct,
    /// The same with its memory on the node farthest from there.
    DirectFar,
    /// Memory on all nodes in turn.
    Interleave,
    /// The best placement known, at any time, free of charge.
    Oracle,
    /// The worst placement known that fills no node more than it must.
    Worst,
    /// A thread and a page policy; or a joint one and none.
    Policies(&'static Policy, &'static Policy),
}

/// No arm has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "there is no arm '{name}'; give all, baselines, {baselines}, or THREAD+PAGE with policies of `tandem policies`{why}"
)]
pub struct UnknownArm {
    name: String,
    baselines: String,
    why: String,
}

/// Arms that are no policies, with their names.
const BASELINES: [(&str, Arm); 8] = [
    ("eevdf", Arm::Eevdf),
    ("autonuma", Arm::AutoNuma),
    ("eevdf-llc", Arm::GatheringEevdf),
    ("autonuma-llc", Arm::GatheringAutoNuma),
    ("direct", Arm::Direct),
    ("interleave", Arm::Interleave),
    ("oracle", Arm::Oracle),
    ("worst", Arm::Worst),
];

/// A bound like those that the lab builds for programs which come and go: only where it is asked for by name.
const DIRECT_FAR: &str = "direct-far";

/// The page policy with which each thread policy is combined in `all`.
const USUAL_PAGES: &str = "tmma";

impl Arm {
    /// The arms of a list, separated by commas. `baselines` are those that are no policies, `all` are they, every
    /// joint policy, every thread policy alone and with `tmma`, and every page policy alone.
    ///
    /// # Errors
    /// [`UnknownArm`] for the first name that is none.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, UnknownArm> {
        let mut arms: Vec<Self> = Vec::new();
        for name in list.split(',').map(str::trim) {
            match name {
                "baselines" => arms.extend(Self::baselines()),
                "all" => arms.extend(Self::all()),
                name => arms.push(Self::parse(name)?),
            }
        }
        let mut names = std::collections::BTreeSet::new();
        arms.retain(|arm| names.insert(arm.to_string()));
        Ok(arms)
    }

    /// The arm of this name: a baseline, `THREAD+PAGE`, or one policy alone.
    ///
    /// # Errors
    /// [`UnknownArm`] if there is none.
    pub fn parse(name: &str) -> Result<Self, UnknownArm> {
        if name == DIRECT_FAR {
            return Ok(Self::DirectFar);
        }
        if let Some((_, arm)) = BASELINES.iter().find(|(baseline, _)| *baseline == name) {
            return Ok(*arm);
        }
        let unknown = |why: String| UnknownArm {
            name: name.to_owned(),
            baselines: BASELINES.map(|(name, _)| name).join(", "),
            why,
        };
        let found = match name.split_once('+') {
            Some((threads, pages)) => {
                let of = |kind, name| registry::find(kind, name).map_err(|error| unknown(format!(" ({error})")));
                (of(Kind::Thread, threads)?, of(Kind::Page, pages)?)
            }
            None => {
                let [joint, threads, pages] =
                    [Kind::Joint, Kind::Thread, Kind::Page].map(|kind| registry::find(kind, name));
                match (joint.or(threads), pages) {
                    (Ok(threads), _) => (threads, &registry::NO_PAGES),
                    (_, Ok(pages)) => (&registry::NO_THREADS, pages),
                    _ => return Err(unknown(String::new())),
                }
            }
        };
        Ok(Self::Policies(found.0, found.1))
    }

    /// Its policies; none if it is a baseline.
    pub fn policies(&self) -> Vec<&'static Policy> {
        match self {
            Self::Policies(threads, pages) => vec![*threads, *pages],
            _ => Vec::new(),
        }
    }

    /// The arms that are no policies.
    pub fn baselines() -> Vec<Self> {
        BASELINES.iter().map(|(_, arm)| *arm).collect()
    }

    fn all() -> Vec<Self> {
        let of = |kind| {
            registry::policies().iter().copied().filter(move |policy| policy.kind == kind && policy.name != "none")
        };
        let usual = registry::find(Kind::Page, USUAL_PAGES).unwrap_or(&registry::NO_PAGES);
        let alone = of(Kind::Thread).map(|threads| Self::Policies(threads, &registry::NO_PAGES));
        let pages = of(Kind::Page).map(|pages| Self::Policies(&registry::NO_THREADS, pages));
        let both = of(Kind::Thread).map(|threads| Self::Policies(threads, usual));
        let joint = of(Kind::Joint).map(|joint| Self::Policies(joint, &registry::NO_PAGES));
        Self::baselines().into_iter().chain(joint).chain(alone).chain(pages).chain(both).collect()
    }

    /// Whether programs are gathered in last-level caches.
    pub fn gathers(&self) -> bool {
        matches!(self, Self::GatheringEevdf | Self::GatheringAutoNuma)
    }

    /// Whether it places threads itself, so that the scheduler must not.
    pub fn pins(&self) -> bool {
        matches!(self, Self::Direct | Self::DirectFar | Self::Oracle | Self::Worst)
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eevdf => f.write_str("eevdf"),
            Self::AutoNuma => f.write_str("autonuma"),
            Self::GatheringEevdf => f.write_str("eevdf-llc"),
            Self::GatheringAutoNuma => f.write_str("autonuma-llc"),
            Self::Direct => f.write_str("direct"),
            Self::DirectFar => f.write_str(DIRECT_FAR),
            Self::Interleave => f.write_str("interleave"),
            Self::Oracle => f.write_str("oracle"),
            Self::Worst => f.write_str("worst"),
            Self::Policies(joint, _) if joint.kind == Kind::Joint => f.write_str(joint.name),
            Self::Policies(threads, pages) => write!(f, "{}+{}", threads.name, pages.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<String> {
        Arm::parse_list(list).unwrap().iter().map(Arm::to_string).collect()
    }

    #[test]
    fn names_are_baselines_pairs_or_one_policy() {
        assert_eq!(names("eevdf, sma+tmma,sma,tmma"), ["eevdf", "sma+tmma", "sma+none", "none+tmma"]);
        assert_eq!(names("direct,direct+none,direct-far"), ["direct", "direct+none", "direct-far"]);
    }

    #[test]
    fn every_policy_is_in_all_and_nothing_twice() {
        let all = names("all,oracle");
        for policy in registry::policies() {
            assert!(all.iter().any(|name| name.split('+').any(|part| part == policy.name)), "{}", policy.name);
        }
        assert_eq!(all.iter().filter(|name| *name == "oracle").count(), 1);
    }

    #[test]
    fn unknown_names_are_refused_with_what_there_is() {
        let error = Arm::parse_list("eevdf,smb+tmma").unwrap_err().to_string();
        assert!(error.contains("smb+tmma") && error.contains("autonuma") && error.contains("sma"), "{error}");
    }
}
