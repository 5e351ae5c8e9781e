// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel shows of its PMUs below /sys/bus/event_source/devices.
//!
//! Each PMU is a folder: `type` (a number for perf_event_open), `format/` (which bits of which word a term such as
//! `umask` has), `events/` (named events in terms), `caps/`, and `cpus` or `cpumask` where it covers only some CPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tandem_machine::parse_cpu_list;
use tandem_policies::model::CpuId;
use thiserror::Error;

/// The text of a file; `None` if there is none that can be read. Absence is what is asked for here, never an error.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// One PMU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Name of its folder.
    pub name: String,
    /// Number for perf_event_open.
    pub kind: u32,
    /// Terms and their bits.
    formats: BTreeMap<String, String>,
    /// Named events and their terms.
    events: BTreeMap<String, String>,
    /// What it can do.
    caps: BTreeMap<String, String>,
    /// CPUs that it covers, as the kernel lists them; `None`: all.
    pub cpus: Option<String>,
}

/// Why a term list cannot become an event.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// No such event.
    #[error("PMU {device} has no event {event}")]
    NoEvent {
        /// The PMU.
        device: String,
        /// The event.
        event: String,
    },
    /// The PMU has no such term.
    #[error("PMU {device} has no term {term}")]
    NoTerm {
        /// The PMU.
        device: String,
        /// The term.
        term: String,
    },
    /// A format or an event that does not parse.
    #[error("PMU {device}: `{text}` is not understood")]
    Text {
        /// The PMU.
        device: String,
        /// What it shows.
        text: String,
    },
    /// The value has more bits than the term.
    #[error("PMU {device}: {value:#x} does not fit into {term}")]
    TooLarge {
        /// The PMU.
        device: String,
        /// The term.
        term: String,
        /// The value.
        value: u64,
    },
}

/// An event as perf_event_open takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Number of the PMU.
    pub kind: u32,
    /// `config`, `config1` and so on.
    pub config: [u64; 5],
}

impl Device {
    /// The PMU in `folder`; `None` if it has no type.
    fn read(folder: &Path, name: String) -> Option<Self> {
        let kind = read_text(&folder.join("type"))?.trim().parse().ok()?;
        let cpus = read_text(&folder.join("cpus")).or_else(|| read_text(&folder.join("cpumask")));
        let cpus = cpus.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let files = |of: &str| files(&folder.join(of));
        Some(Self { name, kind, formats: files("format"), events: files("events"), caps: files("caps"), cpus })
    }

    /// Terms of a named event.
    pub fn event(&self, name: &str) -> Option<&str> {
        self.events.get(name).map(String::as_str)
    }

    /// A capability.
    pub fn cap(&self, name: &str) -> Option<&str> {
        self.caps.get(name).map(String::as_str)
    }

    /// Whether the PMU knows a term.
    pub fn has_term(&self, term: &str) -> bool {
        self.formats.contains_key(term)
    }

    /// The event `terms`, such as `event=0xcd,umask=0x1`, with those of `more` set on top.
    ///
    /// # Errors
    /// [`EncodeError`] with what is not understood.
    pub fn encode(&self, terms: &str, more: &[(&str, u64)]) -> Result<Encoding, EncodeError> {
        let mut encoding = Encoding { kind: self.kind, config: [0; 5] };
        for term in terms.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = number(value).ok_or_else(|| self.not_understood(terms))?;
            self.set(&mut encoding, name.trim(), value)?;
        }
        for &(term, value) in more {
            self.set(&mut encoding, term, value)?;
        }
        Ok(encoding)
    }

    /// The same for a named event.
    ///
    /// # Errors
    /// [`EncodeError`] with what is not understood or missing.
    pub fn encode_event(&self, name: &str, more: &[(&str, u64)]) -> Result<Encoding, EncodeError> {
        let missing = || EncodeError::NoEvent { device: self.name.clone(), event: name.to_owned() };
        self.encode(self.event(name).ok_or_else(missing)?, more)
    }

    /// CPUs that it covers; `None`: all. A list that does not parse covers all: the kernel then refuses those that it does not.
    pub fn covered_cpus(&self) -> Option<Vec<CpuId>> {
        Some(parse_cpu_list(self.cpus.as_deref()?).ok()?.into_iter().map(CpuId).collect())
    }

    /// Largest value of a term; `None` if the PMU has no such term.
    pub fn largest(&self, term: &str) -> Option<u64> {
        let (_, ranges) = bits(self.formats.get(term)?)?;
        let width: u32 = ranges.iter().map(|(low, high)| high - low + 1).sum();
        Some(u64::MAX >> (64 - width.clamp(1, 64)))
    }

    fn not_understood(&self, text: &str) -> EncodeError {
        EncodeError::Text { device: self.name.clone(), text: text.to_owned() }
    }

    fn set(&self, encoding: &mut Encoding, term: &str, value: u64) -> Result<(), EncodeError> {
        // Words as a whole may be named as well.
        if let Some(word) = word(term) {
            encoding.config[word] = value;
            return Ok(());
        }
        let missing = || EncodeError::NoTerm { device: self.name.clone(), term: term.to_owned() };
        let format = self.formats.get(term).ok_or_else(missing)?;
        let (word, ranges) = bits(format).ok_or_else(|| self.not_understood(format))?;
        let mut rest = value;
        for (low, high) in ranges {
            let mask = u64::MAX >> (63 - (high - low));
            let into = &mut encoding.config[word];
            *into = *into & !(mask << low) | (rest & mask) << low;
            rest = if high - low == 63 { 0 } else { rest >> (high - low + 1) };
        }
        if rest != 0 {
            return Err(EncodeError::TooLarge { device: self.name.clone(), term: term.to_owned(), value });
        }
        Ok(())
    }
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let file = |path: PathBuf| Some((path.file_name()?.to_str()?.to_owned(), read_text(&path)?.trim().to_owned()));
    entries.filter_map(|entry| file(entry.path())).collect()
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn word(name: &str) -> Option<usize> {
    ["config", "config1", "config2", "config3", "config4"].iter().position(|word| *word == name)
}

/// The word of a format such as `config:0-7,21`, and its ranges of bits from the lowest on.
fn bits(format: &str) -> Option<(usize, Vec<(u32, u32)>)> {
    let (name, ranges) = format.trim().split_once(':')?;
    let range = |text: &str| {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let (low, high) = (low.trim().parse::<u32>().ok()?, high.trim().parse::<u32>().ok()?);
        (low <= high && high < 64).then_some((low, high))
    };
    Some((word(name)?, ranges.split(',').map(range).collect::<Option<_>>()?))
}

/// All PMUs of the system whose root is `root`, by name; `None` if the kernel shows none at all.
pub fn devices(root: &Path) -> Option<BTreeMap<String, Device>> {
    let folder = root.join("sys/bus/event_source/devices");
    let entries = std::fs::read_dir(&folder).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Some(names.filter_map(|name| Some((name.clone(), Device::read(&folder.join(&name), name)?))).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(formats: &[(&str, &str)]) -> Device {
        let formats = formats.iter().map(|(name, bits)| ((*name).to_owned(), (*bits).to_owned())).collect();
        let events = [("mem-loads".to_owned(), "event=0xcd,umask=0x1,ldlat=3".to_owned())].into();
        Device { name: "cpu".to_owned(), kind: 4, formats, events, ..Device::default() }
    }

    #[test]
    fn terms_go_to_the_bits_that_the_kernel_names() {
        let formats =
            [("event", "config:0-7,32-35"), ("umask", "config:8-15"), ("edge", "config:18"), ("ldlat", "config1:0-15")];
        let cpu = device(&formats);
        let encoding = cpu.encode_event("mem-loads", &[("ldlat", 150)]).unwrap();
        assert_eq!(encoding, Encoding { kind: 4, config: [0x1cd, 150, 0, 0, 0] });
        assert_eq!(cpu.encode("event=0x1c2,edge", &[]).unwrap().config[0], 0x1_0004_00c2);
        assert_eq!(cpu.encode("config=0x5,config2=7", &[]).unwrap().config, [5, 0, 7, 0, 0]);
        assert_eq!((cpu.largest("ldlat"), cpu.largest("event"), cpu.largest("x")), (Some(0xffff), Some(0xfff), None));
    }

    #[test]
    fn what_does_not_fit_or_is_not_known_is_refused() {
        let cpu = device(&[("event", "config:0-7"), ("odd", "config:9-8"), ("all", "config1:0-63")]);
        let said = |terms: &str| cpu.encode(terms, &[]).unwrap_err().to_string();
        assert_eq!(said("event=0x100"), "PMU cpu: 0x100 does not fit into event");
        assert_eq!(said("event=1,umask=1"), "PMU cpu has no term umask");
        assert_eq!(said("event=zz"), "PMU cpu: `event=zz` is not understood");
        assert_eq!(said("odd=1"), "PMU cpu: `config:9-8` is not understood");
        assert_eq!(cpu.encode("all=0xffffffffffffffff", &[]).unwrap().config[1], u64::MAX);
        assert_eq!(cpu.encode_event("mem-stores", &[]).unwrap_err().to_string(), "PMU cpu has no event mem-stores");
    }

    /// Formats that are nearly right, and any text.
    fn format() -> impl Strategy<Value = String> {
        prop_oneof!["config[1-4]?:[0-9]{1,2}(-[0-9]{1,2}){0,2}(,[0-9]{1,2}(-[0-9]{1,2})?)?", "[a-z0-9:,-]{0,24}"]
    }

    proptest! {
        #[test]
        fn any_text_encodes_or_is_refused(format in format(), terms in "[a-z0-9=x,]{0,24}", value in any::<u64>()) {
            let cpu = device(&[("event", &format), ("e", "config:0-63")]);
            let _ = cpu.encode(&terms, &[("event", value)]);
            let _ = cpu.largest("event");
        }
    }
}
