// SPDX-License-Identifier: GPL-2.0-only
//! Words that choose processes.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Chooses processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All processes.
    All,
    /// Processes with a thread of this command name.
    Command(String),
    /// A process and its descendants.
    Tree(u32),
    /// Processes of this control group and of those below it, by its path from the root of the hierarchy.
    ControlGroup(String),
    /// Processes of this user (the real user id).
    User(u32),
    /// Processes of this pid namespace, by its number, as `lsns` shows it.
    PidNamespace(u64),
    /// Processes of a container.
    Container(Named),
    /// Virtual machines. Their vhost workers are threads of theirs.
    VirtualMachine(Named),
}

/// All of a kind, or the one that is called so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// All of them.
    All,
    /// This one.
    Name(String),
}

impl Named {
    /// What `name` stands for. Names hold no slash, since they are compared with single parts of paths.
    fn read(name: &str) -> Option<Self> {
        match name {
            "all" => Some(Self::All),
            _ if name.is_empty() || name.contains('/') => None,
            _ => Some(Self::Name(name.to_owned())),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Bytes that the kernel keeps of a command name, which is compared as a whole.
const COMMAND_BYTES: usize = 15;

/// A text that chooses nothing, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SelectorError {
    /// It is none of the words.
    #[error(
        "expected all, comm=NAME, pid=PID, uid=UID, cgroup=/PATH, pidns=NUMBER, container=NAME, container=all, vm=NAME or vm=all"
    )]
    Unknown,
    /// No thread is called so.
    #[error(
        "the kernel keeps {COMMAND_BYTES} bytes of a command name, so no thread has this one: give its first {COMMAND_BYTES}"
    )]
    LongCommand,
    /// Neither processes nor namespaces have the number 0.
    #[error("processes and pid namespaces have numbers from 1")]
    Zero,
}

/// A number of a process or namespace.
fn number<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, SelectorError> {
    let number = text.parse().map_err(|_| SelectorError::Unknown)?;
    if number == T::default() { Err(SelectorError::Zero) } else { Ok(number) }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let bad = || SelectorError::Unknown;
        match text.split_once('=') {
            None if text == "all" => Ok(Self::All),
            Some(("comm", name)) if name.len() > COMMAND_BYTES => Err(SelectorError::LongCommand),
            Some(("comm", name)) if !name.is_empty() => Ok(Self::Command(name.to_owned())),
            Some(("pid", pid)) => number(pid).map(Self::Tree),
            Some(("uid", uid)) => uid.parse().map(Self::User).map_err(|_| bad()),
            Some(("cgroup", path)) if path.starts_with('/') => {
                Ok(Self::ControlGroup(path.trim_end_matches('/').to_owned()))
            }
            Some(("pidns", number)) => self::number(number).map(Self::PidNamespace),
            Some(("container", name)) => Named::read(name).map(Self::Container).ok_or_else(bad),
            Some(("vm", name)) => Named::read(name).map(Self::VirtualMachine).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Command(name) => write!(f, "comm={name}"),
            Self::Tree(pid) => write!(f, "pid={pid}"),
            Self::ControlGroup(path) if path.is_empty() => f.write_str("cgroup=/"),
            Self::ControlGroup(path) => write!(f, "cgroup={path}"),
            Self::User(uid) => write!(f, "uid={uid}"),
            Self::PidNamespace(number) => write!(f, "pidns={number}"),
            Self::Container(name) => write!(f, "container={name}"),
            Self::VirtualMachine(name) => write!(f, "vm={name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_from_text_and_written_back() {
        for (text, selector) in [
            ("all", Selector::All),
            ("comm=a b", Selector::Command("a b".to_owned())),
            ("pid=12", Selector::Tree(12)),
            ("uid=1000", Selector::User(1000)),
            ("cgroup=/system.slice/db.service", Selector::ControlGroup("/system.slice/db.service".to_owned())),
            ("cgroup=/", Selector::ControlGroup(String::new())),
            ("pidns=4026531836", Selector::PidNamespace(4_026_531_836)),
            ("container=all", Selector::Container(Named::All)),
            ("container=web-1", Selector::Container(Named::Name("web-1".to_owned()))),
            ("vm=all", Selector::VirtualMachine(Named::All)),
            ("vm=db", Selector::VirtualMachine(Named::Name("db".to_owned()))),
        ] {
            assert_eq!(text.parse(), Ok(selector.clone()));
            assert_eq!(selector.to_string(), text);
        }
        assert_eq!("cgroup=/a/".parse(), Ok(Selector::ControlGroup("/a".to_owned())));
    }

    #[test]
    fn what_chooses_nothing_is_refused_with_what_could_be_said() {
        for bad in [
            "",
            "comm",
            "comm=",
            "pid=x",
            "uid=-1",
            "uid=root",
            "cgroup=system.slice",
            "pidns=pid:[4026531836]",
            "container=",
            "container=/docker/a",
            "vm",
            "vm=",
            "everything",
        ] {
            let error = bad.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains("expected all, comm=NAME"), "{error}");
        }
    }

    #[test]
    fn what_can_never_match_is_refused() {
        assert!("comm=123456789012345".parse::<Selector>().is_ok());
        assert_eq!("comm=1234567890123456".parse::<Selector>(), Err(SelectorError::LongCommand));
        // Seven letters of two bytes fit, eight do not.
        assert!("comm=äääääää".parse::<Selector>().is_ok());
        assert_eq!("comm=ääääääää".parse::<Selector>(), Err(SelectorError::LongCommand));
        for none in ["pid=0", "pidns=0", "pid=00"] {
            assert_eq!(none.parse::<Selector>(), Err(SelectorError::Zero), "{none}");
        }
        assert_eq!("uid=0".parse(), Ok(Selector::User(0)), "root has it");
    }
}
