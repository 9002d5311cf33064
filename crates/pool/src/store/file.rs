//! The grant table in a file: all records, and the changes since. The process that has the directory's lock keeps it,
//! until it ends.
//!
//! ```text
//!  pool.records
//!    cenote-pool 4
//!    + grant/7 <tab> 1c3f0a2b {"tenant":"default","label":"db", ...}       a record is put, with its checksum
//!    - grant/5                                                             one is removed
//!    = 9a0b1c2d                                                            the end of a change: the checksum of its lines
//!    + ...
//! ```
//!
//! A change is appended, synced, and then ended by its last line, which is synced, too: so a change that was cut off has
//! no end, and was not acknowledged. A change whose end does not fit its lines is damage, and refused. When the changes
//! are several times what the records are, the file is replaced as a whole by the records.
//!
//! Former programs kept the table as one value in `pool.json`. Once it is taken over, a line there tells them so.

use super::{Change, GrantTableStore, Lead, Leadership, RecordSet, Stored, apply, seal, unseal};
use cenote_base::crc::crc32c;
use cenote_base::rt::{Mutex, Nanos, fs};
use cenote_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BOOK: &str = "pool.records";
const FORMER: &str = "pool.json";
const FORMAT: &str = "cenote-pool 4\n";
const LOCK: &str = "lock";
/// How long a former manager may take to end.
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(200);
/// The file is written anew when it is so many times what it was, and so much longer.
const GROWTH: u64 = 4;
const GROWTH_MIN: u64 = 1 << 20;

/// A directory for a grant table.
#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    /// It is made when it is needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }
}

impl GrantTableStore for FileStore {
    fn lead(&self, _name: &str) -> Result<Lead> {
        let directory = &self.directory;
        let failed = |error| Error::io(format!("the pool's directory {}", directory.display()), error);
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = fs::open(directory.join(LOCK), fs::OpenOptions::CREATE).map_err(failed)?;
        if !lock.lock_exclusive_within(LOCK_TIMEOUT).map_err(failed)? {
            let text = format!("{} is in use by another manager", directory.display());
            return Err(Error::Busy(text));
        }
        Ok(Lead::Here(Arc::new(FileLeadership {
            path: directory.join(BOOK),
            former: directory.join(FORMER),
            state: Mutex::default(),
            _lock: lock,
        })))
    }
}

struct FileLeadership {
    path: PathBuf,
    former: PathBuf,
    state: Mutex<State>,
    /// Held for its lock.
    _lock: fs::File,
}

/// What was acknowledged, and where it ends in the file.
#[derive(Default)]
struct State {
    book: RecordSet,
    file: Option<fs::File>,
    end: u64,
    /// How long it was when it was written as a whole; 0: it has to be.
    began: u64,
}

impl FileLeadership {
    fn failed(&self, doing: &str) -> impl Fn(std::io::Error) -> Error {
        let what = format!("{doing} {}", self.path.display());
        move |error| Error::io(what.clone(), error)
    }

    fn read_if_there(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let failed = |error| Error::io(format!("reading {}", path.display()), error);
        match fs::exists(path).map_err(failed)? {
            true => fs::read(path).map(Some).map_err(failed),
            false => Ok(None),
        }
    }

    /// Writes the file anew, with a change.
    fn replace(&self, state: &mut State, change: &Change) -> Result<()> {
        let mut book = state.book.clone();
        apply(&mut book, change);
        let all: Change = book.into_iter().map(|(name, record)| (name, Some(record))).collect();
        let lines = lines(&all);
        let text = format!("{FORMAT}{lines}{}", end_of(lines.as_bytes()));
        fs::replace(&self.path, text.as_bytes()).map_err(self.failed("writing"))?;
        (state.file, state.end, state.began) = (None, text.len() as u64, text.len() as u64);
        self.tell_former()
    }

    /// A former program that looks for the table where it was is told that it is not there any more.
    fn tell_former(&self) -> Result<()> {
        let there = self.read_if_there(&self.former)?;
        let text = format!("{} {BOOK}\n", FORMAT.trim_end());
        match there {
            Some(there) if there != text.as_bytes() => {
                fs::replace(&self.former, text.as_bytes()).map_err(self.failed("taking over what was before"))
            }
            _ => Ok(()),
        }
    }

    fn append(&self, state: &mut State, lines: &str) -> Result<()> {
        let failed = self.failed("writing");
        let file = match state.file.take() {
            Some(file) => file,
            None => {
                let file = fs::open(&self.path, fs::OpenOptions::CREATE).map_err(&failed)?;
                // What was cut off.
                file.set_len(state.end).map_err(&failed)?;
                file
            }
        };
        let end = end_of(lines.as_bytes());
        let write = |text: &str, at: u64| file.write_at(text.as_bytes(), at).and_then(|()| file.sync_data());
        write(lines, state.end).map_err(&failed)?;
        write(&end, state.end + lines.len() as u64).map_err(&failed)?;
        state.end += (lines.len() + end.len()) as u64;
        state.file = Some(file);
        Ok(())
    }
}

impl Leadership for FileLeadership {
    fn leads(&self) -> bool {
        true
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }

    fn read(&self) -> Result<Option<Stored>> {
        let mut state = self.state.lock();
        *state = State::default();
        if let Some(bytes) = self.read_if_there(&self.path)? {
            let (book, end) = parse(&bytes)?;
            *state = State {
                book: book.clone(),
                file: None,
                end,
                began: end,
            };
            return Ok(Some(Stored::Records(book)));
        }
        Ok(self.read_if_there(&self.former)?.map(Stored::Former))
    }

    fn write(&self, change: &Change) -> Result<()> {
        let mut state = self.state.lock();
        let lines = lines(change);
        let is_long = state.end > state.began * GROWTH + GROWTH_MIN;
        let written = match state.began == 0 || is_long {
            true => self.replace(&mut state, change),
            false => self.append(&mut state, &lines),
        };
        match &written {
            Ok(()) => apply(&mut state.book, change),
            // What a failed sync has left is not known: the next change writes all anew.
            Err(_) => state.began = 0,
        }
        written
    }

    /// With its process: there is no other to whom it could be left.
    fn resign(&self) {}
}

fn lines(change: &Change) -> String {
    let line = |(name, record): (&String, &Option<String>)| match record {
        Some(record) => format!("+ {name}\t{}\n", seal(name, record)),
        None => format!("- {name}\n"),
    };
    change.iter().map(line).collect()
}

fn end_of(lines: &[u8]) -> String {
    format!("= {:08x}\n", crc32c(lines))
}

/// All records, and where the last change ends.
fn parse(bytes: &[u8]) -> Result<(RecordSet, u64)> {
    let Some(mut rest) = bytes.strip_prefix(FORMAT.as_bytes()) else {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        return Err(Error::Mismatch(format!(
            "the pool's grant table begins with \"{}\"; this program knows \"{}\"",
            head.escape_debug(),
            FORMAT.trim_end()
        )));
    };
    let (mut book, mut end) = (RecordSet::new(), FORMAT.len());
    while let Some((change, length)) = parse_change(rest)? {
        apply(&mut book, &change);
        end += length;
        rest = &rest[length..];
    }
    Ok((book, end as u64))
}

/// A change, and how long it is; `None`: what is left has no end, and was not acknowledged.
fn parse_change(bytes: &[u8]) -> Result<Option<(Change, usize)>> {
    let (mut change, mut at) = (Change::new(), 0);
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = &bytes[at..at + length];
        if line.starts_with(b"= ") {
            return match &bytes[at..=at + length] == end_of(&bytes[..at]).as_bytes() {
                true => Ok(Some((change, at + length + 1))),
                false => Err(Error::corrupt("the checksum of a change of the pool's grant table")),
            };
        }
        match parse_line(line) {
            Ok((name, record)) => _ = change.insert(name, record),
            // Cut off, unless it has an end.
            Err(error) if has_end(&bytes[at..]) => return Err(error),
            Err(_) => return Ok(None),
        }
        at += length + 1;
    }
    Ok(None)
}

fn has_end(bytes: &[u8]) -> bool {
    bytes
        .split(|byte| *byte == b'\n')
        .any(|line| line.starts_with(b"= ") && line.len() == 10)
}

fn parse_line(line: &[u8]) -> Result<(String, Option<String>)> {
    let broken = || Error::corrupt("a line of the pool's grant table: its checksum cannot be read");
    let line = std::str::from_utf8(line).map_err(|_| broken())?;
    if let Some(name) = line.strip_prefix("- ") {
        return Ok((name.to_owned(), None));
    }
    let (name, sealed) = line
        .strip_prefix("+ ")
        .and_then(|put| put.split_once('\t'))
        .ok_or_else(broken)?;
    Ok((name.to_owned(), Some(unseal(name, sealed)?)))
}

#[cfg(test)]
mod tests;
