// SPDX-License-Identifier: GPL-2.0-only
//! Traces: what threads did, slice by slice. From the trace plugin's files (vm/trace/record.c has the layout), or from records
//! that samples were made of.
//!
//! One file a process, 64-bit words. Threads get one number for the whole run here: processes by their ids, threads in the
//! order of their creation. A file that ends within a record is read up to there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tandem_metrics::PageUse;

const MAGIC: u64 = u64::from_le_bytes(*b"TDTRACE1");
/// Length of a page's field of accesses, with the flag in its top bit.
const PAGE_FIELD: u32 = 29;
const FIRST: u64 = 1 << 28;
/// Bits of a meeting's count, below the other thread's number.
const COUNT_BITS: u32 = 56;
/// Kinds of records that begin with slice 0.
const EXEC: u64 = 1;
const END: u64 = 2;

/// What one thread did in one slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// From 1.
    pub slice: u64,
    /// Number within its process.
    pub thread: usize,
    /// Instructions it executed.
    pub instructions: u64,
    /// (other thread, meetings on a line).
    pub met: Vec<(usize, u64)>,
    /// (page, accesses, whether it was the first to touch it).
    pub pages: Vec<(u64, u64, bool)>,
}

/// One traced process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Its file.
    pub path: PathBuf,
    /// Process id on the host.
    pub pid: u64,
    /// Threads created.
    pub threads: usize,
    /// Instructions of the whole run when it ended.
    pub end: Option<u64>,
    /// It became another program, or tried to.
    pub became_another: bool,
    /// Number of its first thread within the run.
    pub first_thread: usize,
}

/// One thread of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotal {
    /// Index of its process.
    pub process: usize,
    /// Number within the process.
    pub number: usize,
    /// Instructions it executed.
    pub instructions: u64,
    /// Memory accesses it made.
    pub accesses: u64,
}

/// Everything but the pages by slice, which [`Trace::records`] reads again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Processes, by process id.
    pub processes: Vec<Process>,
    /// Threads of all processes.
    pub threads: Vec<ThreadTotal>,
    /// Meetings by slice, then by pair of threads (lower, higher).
    pub slices: Vec<BTreeMap<(usize, usize), u64>>,
    /// Use of each page over the run.
    pub pages: Vec<PageUse>,
    /// Length of a slice.
    pub slice_instructions: u64,
    records: Records,
}

/// Where records are.
#[derive(Clone, Debug, Default, PartialEq)]
enum Records {
    /// In the files of the processes.
    #[default]
    Files,
    /// Here, each with the index of its process.
    Here(Vec<(usize, Record)>),
}

impl Trace {
    /// A trace of `records`, each with the index of its process in `processes`, which are in order. `slices` slices passed.
    ///
    /// # Errors
    /// None; the type is that of reading files.
    pub fn of_records(
        mut processes: Vec<Process>,
        records: Vec<(usize, Record)>,
        slice_instructions: u64,
        slices: usize,
    ) -> Result<Self> {
        for (index, record) in &records {
            processes[*index].count_threads(record);
        }
        let mut trace = Self { processes, slice_instructions, records: Records::Here(records), ..Self::default() };
        trace.add_up()?;
        trace.slices.resize_with(slices.max(trace.slices.len()), BTreeMap::new);
        Ok(trace)
    }

    /// Reads all trace files in `folder`.
    ///
    /// # Errors
    /// A file cannot be read or is no trace, or there is none.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut trace = Self::default();
        let entries = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "trace") {
                trace.processes.push(Process { path, ..Process::default() });
            }
        }
        if trace.processes.is_empty() {
            bail!("the program was not traced: the emulator ended before it began");
        }
        trace.read_processes()?;
        trace.add_up()?;
        Ok(trace)
    }

    fn read_processes(&mut self) -> Result<()> {
        for process in &mut self.processes {
            let mut reader = Reader::open(&process.path)?;
            (process.pid, self.slice_instructions) = (reader.pid, reader.slice_instructions);
            while let Some(event) = reader.next()? {
                process.note(&event);
            }
        }
        self.processes.sort_by_key(|process| process.pid);
        Ok(())
    }

    fn add_up(&mut self) -> Result<()> {
        for (index, process) in self.processes.iter_mut().enumerate() {
            process.first_thread = self.threads.len();
            let thread = |number| ThreadTotal { process: index, number, ..ThreadTotal::default() };
            self.threads.extend((0..process.threads).map(thread));
        }
        let mut pages: BTreeMap<(usize, u64), PageUse> = BTreeMap::new();
        let (mut threads, mut slices) = (std::mem::take(&mut self.threads), vec![]);
        self.records(|index, process, record| {
            let own = process.first_thread + record.thread;
            threads[own].instructions += record.instructions;
            let slice = record.slice as usize - 1;
            if slices.len() <= slice {
                slices.resize_with(slice + 1, BTreeMap::new);
            }
            for &(other, count) in &record.met {
                let other = process.first_thread + other;
                *slices[slice].entry((own.min(other), own.max(other))).or_insert(0) += count;
            }
            for &(page, count, first) in &record.pages {
                threads[own].accesses += count;
                add_page(&mut pages, (index, page), own, count, first);
            }
        })?;
        (self.threads, self.slices, self.pages) = (threads, slices, pages.into_values().collect());
        Ok(())
    }

    /// Hands every record to `each`, with its process and that one's index; in the order of the files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn records(&self, mut each: impl FnMut(usize, &Process, &Record)) -> Result<()> {
        if let Records::Here(records) = &self.records {
            records.iter().for_each(|(index, record)| each(*index, &self.processes[*index], record));
            return Ok(());
        }
        for (index, process) in self.processes.iter().enumerate() {
            let mut reader = Reader::open(&process.path)?;
            while let Some(event) = reader.next()? {
                if let Event::Record(record) = &event {
                    each(index, process, record);
                }
            }
        }
        Ok(())
    }
}

fn add_page(pages: &mut BTreeMap<(usize, u64), PageUse>, key: (usize, u64), thread: usize, count: u64, first: bool) {
    let new = || PageUse { process: key.0, page: key.1, first: None, accesses: vec![] };
    let page = pages.entry(key).or_insert_with(new);
    if first {
        page.first = Some(thread);
    }
    match page.accesses.binary_search_by_key(&thread, |user| user.0) {
        Ok(at) => page.accesses[at].1 += count,
        Err(at) => page.accesses.insert(at, (thread, count)),
    }
}

impl Process {
    fn count_threads(&mut self, record: &Record) {
        let others = record.met.iter().map(|met| met.0 + 1).max().unwrap_or(0);
        self.threads = self.threads.max(record.thread + 1).max(others);
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Record(record) => self.count_threads(record),
            Event::Exec => self.became_another = true,
            Event::End(time) => self.end = Some(*time),
        }
    }
}

enum Event {
    Record(Record),
    Exec,
    End(u64),
}

struct Reader {
    file: BufReader<File>,
    path: PathBuf,
    pid: u64,
    slice_instructions: u64,
}

impl Reader {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let mut reader = Self { file: BufReader::new(file), path: path.to_owned(), pid: 0, slice_instructions: 0 };
        match reader.words(4)?.as_deref() {
            Some(&[MAGIC, pid, _parent, slice_instructions]) if slice_instructions > 0 => {
                (reader.pid, reader.slice_instructions) = (pid, slice_instructions);
                Ok(reader)
            }
            _ => bail!("{} is no trace of this version", path.display()),
        }
    }

    /// So many words; `None` if the file ends before.
    fn words(&mut self, count: u64) -> Result<Option<Vec<u64>>> {
        let mut words = Vec::new();
        for _ in 0..count {
            let mut bytes = [0; 8];
            match self.file.read_exact(&mut bytes) {
                Ok(()) => words.push(u64::from_le_bytes(bytes)),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error).with_context(|| format!("{} cannot be read", self.path.display())),
            }
        }
        Ok(Some(words))
    }

    fn next(&mut self) -> Result<Option<Event>> {
        let Some(head) = self.words(2)? else { return Ok(None) };
        match head[..] {
            [0, EXEC] => Ok(Some(Event::Exec)),
            [0, END] => Ok(self.words(2)?.map(|words| Event::End(words[1]))),
            [slice, thread] if slice > 0 && thread < 1 << 8 => self.record(slice, thread),
            _ => bail!(
                "{} is damaged: there is no record of slice {} and thread {}",
                self.path.display(),
                head[0],
                head[1]
            ),
        }
    }

    fn record(&mut self, slice: u64, thread: u64) -> Result<Option<Event>> {
        let Some(counts) = self.words(3)? else { return Ok(None) };
        let (Some(met), Some(pages)) = (self.words(counts[1])?, self.words(counts[2])?) else { return Ok(None) };
        let pair = |word: u64| ((word >> COUNT_BITS) as usize, word & ((1 << COUNT_BITS) - 1));
        let page = |word: u64| (word >> PAGE_FIELD, word & (FIRST - 1), word & FIRST != 0);
        Ok(Some(Event::Record(Record {
            slice,
            thread: thread as usize,
            instructions: counts[0],
            met: met.into_iter().map(pair).collect(),
            pages: pages.into_iter().map(page).collect(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, pid: u64, words: &[u64]) {
        let head = [MAGIC, pid, 1, 1000];
        let bytes: Vec<u8> = head.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(folder.join(format!("{pid}.trace")), bytes).unwrap();
    }

    /// Slice 1: thread 0 touches page 7 first, thread 1 too and meets it 3 times; slice 3: thread 0 again.
    const TWO: [u64; 21] = [
        1,
        0,
        500,
        0,
        1,
        7 << 29 | FIRST | 4, //
        1,
        1,
        400,
        1,
        1,
        3,
        7 << 29 | 2, //
        3,
        0,
        100,
        1,
        1,
        1 << 56 | 5,
        7 << 29 | 1,
        0, // The first word of a record that is cut off.
    ];

    #[test]
    fn meetings_pages_and_instructions_add_up() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 40, &TWO);
        let trace = Trace::read(folder.path()).unwrap();
        assert_eq!(
            trace.slices.iter().map(|slice| slice.get(&(0, 1)).copied()).collect::<Vec<_>>(),
            [Some(3), None, Some(5)]
        );
        assert_eq!(trace.pages, [PageUse { process: 0, page: 7, first: Some(0), accesses: vec![(0, 5), (1, 2)] }]);
        let totals: Vec<_> = trace.threads.iter().map(|thread| (thread.instructions, thread.accesses)).collect();
        assert_eq!((totals, trace.slice_instructions), (vec![(600, 5), (400, 2)], 1000));
        assert_eq!((trace.processes[0].end, trace.processes[0].became_another), (None, false));
    }

    #[test]
    fn threads_of_several_processes_have_numbers_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 41, &TWO[..20]);
        write(folder.path(), 40, &[1, 0, 9, 0, 0, 0, EXEC, 0, END, 1, 9]);
        let trace = Trace::read(folder.path()).unwrap();
        assert_eq!(
            trace.threads.iter().map(|thread| (thread.process, thread.number)).collect::<Vec<_>>(),
            [(0, 0), (1, 0), (1, 1)]
        );
        assert_eq!(trace.slices[0].keys().collect::<Vec<_>>(), [&(1, 2)]);
        assert_eq!((trace.pages[0].process, trace.pages[0].first), (1, Some(1)));
        assert!(trace.processes[0].became_another && trace.processes[0].end == Some(9));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Trace::read(folder.path()).unwrap_err().to_string().contains("ended before it began"));
        std::fs::write(folder.path().join("1.trace"), b"TDTRACE0").unwrap();
        assert!(Trace::read(folder.path()).unwrap_err().to_string().contains("no trace of this version"));
        write(folder.path(), 1, &[0, 77]);
        assert!(Trace::read(folder.path()).unwrap_err().to_string().contains("damaged"));
    }
}
