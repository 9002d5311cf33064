//! The way to remote memory: what is read and written there, and how a start takes it over.
//!
//! Taking over, so that a start that dies in between is followed by one that believes what is there or nothing:
//!
//! 1. the header names the start to come as *next*;
//! 2. the directory is written anew, with the names that are believed under the tag of the start to come;
//! 3. the control file names it (the caller's part);
//! 4. the header names it as its own.
//!
//! A header whose incarnation or next one is the control file's is believed, and of the directory the names with that
//! tag. Readers believe names with the tag of the watermark, which a start writes behind step 4.

use std::fmt;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::rdma::{RemoteMemory, Work};
use cenote_storage::{Control, redo};

use super::copy::Copy;
use super::index::{Index, WordWrite};
use super::layout::{
    HEADER, Header, Layout, NAME, NAMES_AT, Name, RemoteSlot, WATERMARK, WATERMARK_AT, Watermark, sum_of,
};
use crate::lower::Outgoing;

/// Bytes of the directory that are moved at once.
const STRETCH: usize = 1 << 20;

/// How a pool comes by its remote memory, at its start and again after it was lost.
#[derive(Clone)]
pub struct RemoteSource {
    connect: Arc<Connect>,
    /// Whether a thread is at it.
    is_busy: Arc<AtomicBool>,
}

type Connect = dyn Fn(u128) -> Result<RemoteMemory> + Send + Sync;

impl RemoteSource {
    /// `connect` gives the memory of this database over an endpoint that works, or says why there is none.
    pub fn new(connect: impl Fn(u128) -> Result<RemoteMemory> + Send + Sync + 'static) -> Self {
        Self {
            connect: Arc::new(connect),
            is_busy: Arc::default(),
        }
    }

    /// Memory over an endpoint that is there for good.
    pub fn fixed(memory: RemoteMemory) -> Self {
        Self::new(move |_| Ok(memory.clone()))
    }

    /// Connects. What takes longer than `patience` goes on by itself, for nothing; until it is over no other begins.
    ///
    /// # Errors
    /// [`Error::Timeout`]; those of the endpoint.
    pub fn connect(&self, database: u128, patience: Nanos) -> Result<RemoteMemory> {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            return Err(Error::Timeout("the way there is being looked for still".into()));
        }
        let (source, done) = (self.clone(), Arc::new((Mutex::new(None), Event::new())));
        let answer = Arc::clone(&done);
        rt::spawn("remote-connect", move || {
            let connected = (source.connect)(database);
            source.is_busy.store(false, Ordering::SeqCst);
            *answer.0.lock() = Some(connected);
            answer.1.set();
        });
        done.1.wait_timeout(patience);
        let connected = done.0.lock().take();
        connected.unwrap_or_else(|| Err(Error::Timeout(format!("there was no way there within {patience}"))))
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteSource")
    }
}

/// Remote memory that is this start's.
pub struct Link {
    memory: RemoteMemory,
    /// What lies where in it.
    pub layout: Layout,
    /// Of this start, as the header has it.
    pub incarnation: u128,
    /// The position that was written last for readers.
    watermark: AtomicU64,
}

/// What a start found in remote memory.
pub struct Found {
    /// Slots with a name that may be believed.
    pub names: Vec<(RemoteSlot, Name)>,
    /// As of which position of the log names were told to readers.
    pub watermark: Lsn,
    /// Why nothing in it is believed, if so.
    pub remark: Option<String>,
}

impl Link {
    /// Connects; nothing is read or written.
    ///
    /// # Errors
    /// The memory cannot be reached, or is too small for a directory and a page.
    pub fn connect(source: &RemoteSource, (database, patience): (u128, Nanos), incarnation: u128) -> Result<Self> {
        assert!(incarnation != 0, "a start has an incarnation");
        let memory = source.connect(database, patience)?;
        let layout = Layout::plan(memory.len())?;
        Ok(Self {
            memory,
            layout,
            incarnation,
            watermark: AtomicU64::new(0),
        })
    }

    /// The node, for messages.
    pub fn peer(&self) -> &str {
        self.memory.endpoint().peer()
    }

    /// Bytes of remote memory.
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    fn tag(&self) -> u64 {
        self.incarnation as u64
    }

    // ---- pages ----

    /// The bytes of `page`, which are to be in `copy`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are not; those of the endpoint.
    pub fn read(&self, page: PageId, copy: Copy) -> Result<Box<[u8]>> {
        let bytes = vec![0; PAGE_SIZE].into_boxed_slice();
        let bytes = self.memory.read_boxed(self.layout.page_at(copy.slot), bytes)?;
        believed(bytes, page, copy)
    }

    /// As [`Link::read`], of several, with one doorbell; in their order.
    ///
    /// # Errors
    /// Those of the endpoint; of each page [`Error::Corrupt`].
    pub fn read_many(&self, pages: &[(PageId, Copy)]) -> Result<Vec<Result<Box<[u8]>>>> {
        let at: Vec<u64> = pages.iter().map(|(_, copy)| self.layout.page_at(copy.slot)).collect();
        let read = self.memory.read_many(&at, PAGE_SIZE)?;
        let each = read.into_iter().zip(pages);
        Ok(each
            .map(|(bytes, (page, copy))| believed(bytes, *page, *copy))
            .collect())
    }

    /// Writes pages and their names, and what the index lacks, all with one doorbell. A name and its page may arrive in
    /// any order: one without the other is not believed.
    ///
    /// # Errors
    /// Those of the endpoint; any part may have been written then.
    pub fn write(&self, pages: Vec<(RemoteSlot, Outgoing)>, index: Vec<WordWrite>) -> Result<Vec<(PageId, Copy)>> {
        let mut works = self.words(index);
        works.reserve(2 * pages.len());
        let mut copies = Vec::with_capacity(pages.len());
        for (slot, mut outgoing) in pages {
            redo::set_page_checksum(&mut outgoing.bytes);
            let Outgoing { page, lsn, bytes } = outgoing;
            assert!(bytes.len() == PAGE_SIZE, "a copy of page {page} is the whole of it");
            let copy = Copy {
                slot,
                lsn,
                sum: sum_of(&bytes),
            };
            let name = self.name(page, copy).encode();
            works.push(self.work(self.layout.page_at(slot), bytes));
            works.push(self.work(self.layout.name_at(slot), name.into()));
            copies.push((page, copy));
        }
        self.post(works)?;
        Ok(copies)
    }

    /// Empties the names of slots.
    ///
    /// # Errors
    /// As of [`Link::write`].
    pub fn clear(&self, slots: &[RemoteSlot], index: Vec<WordWrite>) -> Result<()> {
        let empty = |slot: &RemoteSlot| self.work(self.layout.name_at(*slot), [0; NAME].into());
        let mut works = self.words(index);
        works.extend(slots.iter().map(empty));
        self.post(works)
    }

    fn words(&self, index: Vec<WordWrite>) -> Vec<Work> {
        let words = index.into_iter();
        words
            .map(|(at, word)| self.work(at, word.to_le_bytes().into()))
            .collect()
    }

    /// From here on readers believe names as of this position, if it is beyond the one that they have. One thread at a
    /// time does so.
    ///
    /// # Errors
    /// As of [`Link::write`].
    pub fn raise_watermark(&self, lsn: Lsn) -> Result<()> {
        if self.watermark.load(Ordering::Relaxed) >= lsn.raw() {
            return Ok(());
        }
        let watermark = Watermark { lsn, tag: self.tag() };
        self.memory.write(WATERMARK_AT, &watermark.encode())?;
        self.watermark.store(lsn.raw(), Ordering::Relaxed);
        Ok(())
    }

    fn name(&self, page: PageId, copy: Copy) -> Name {
        Name {
            page,
            lsn: copy.lsn,
            tag: self.tag(),
            sum: copy.sum,
        }
    }

    fn work(&self, at: u64, bytes: Box<[u8]>) -> Work {
        Work::write(self.memory.memory(), at, bytes)
    }

    fn post(&self, works: Vec<Work>) -> Result<()> {
        let works = self.memory.endpoint().post(works).wait();
        works.into_iter().try_for_each(|work| work.result.map(drop))
    }

    // ---- taking over ----

    /// What a former start left, as far as names say. Steps are the module's.
    ///
    /// # Errors
    /// Those of reading remote memory.
    pub fn find(&self, control: &Control) -> Result<Found> {
        let nothing = |why: &str| {
            Ok(Found {
                names: Vec::new(),
                watermark: Lsn::ZERO,
                remark: Some(format!("remote memory of {} begins empty: {why}", self.peer())),
            })
        };
        let mut bytes = [0; HEADER];
        self.memory.read(0, &mut bytes)?;
        let Some(header) = Header::decode(&bytes) else {
            return nothing("no pool has used it, or its header is damaged");
        };
        if header.database != control.database {
            return nothing("it was another database's");
        }
        let ours = [header.incarnation, header.next].contains(&control.incarnation);
        if !ours || control.incarnation == 0 {
            return nothing("it is not of the database's last start");
        }
        if header.slots != self.layout.slots {
            return nothing("it was of another size");
        }
        let tag = control.incarnation as u64;
        let mut bytes = [0; WATERMARK];
        // Read before the names: those that it lets stand have been ended, if need be, before it was written.
        self.memory.read(WATERMARK_AT, &mut bytes)?;
        let watermark = Watermark::decode(&bytes).filter(|watermark| watermark.tag == tag);
        Ok(Found {
            names: self.names_of(tag)?,
            watermark: watermark.map_or(Lsn::ZERO, |watermark| watermark.lsn),
            remark: None,
        })
    }

    /// The directory's entries with this tag.
    fn names_of(&self, tag: u64) -> Result<Vec<(RemoteSlot, Name)>> {
        let mut names = Vec::new();
        for (from, len) in self.stretches(self.layout.names_len()) {
            let bytes = vec![0; len].into_boxed_slice();
            let bytes = self.memory.read_boxed(NAMES_AT + from as u64, bytes)?;
            let slots = RemoteSlot::all((from / NAME) as u32, self.layout.slots);
            let found = slots.zip(bytes.chunks_exact(NAME));
            names.extend(
                found
                    .filter_map(|(slot, bytes)| Some((slot, Name::decode(bytes)?)))
                    .filter(|(_, name)| name.tag == tag),
            );
        }
        Ok(names)
    }

    fn stretches(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let most = (self.memory.endpoint().limits().transfer.min(STRETCH as u64) as usize / NAME * NAME).max(NAME);
        (0..len).step_by(most).map(move |from| (from, most.min(len - from)))
    }

    /// Steps 1 and 2. `former`: whom the header is to name until step 4, if what it had is kept. `index`: of the kept,
    /// where readers are to find them.
    ///
    /// # Errors
    /// Those of writing remote memory.
    pub fn begin(&self, database: u128, former: u128, kept: &[(PageId, Copy)], index: Option<&Index>) -> Result<()> {
        self.write_header(database, former)?;
        let mut directory = vec![0; self.layout.names_len()];
        for (page, copy) in kept {
            assert!(self.layout.has(copy.slot), "slot {} is one of the directory", copy.slot);
            let at = copy.slot.place() * NAME;
            directory[at..at + NAME].copy_from_slice(&self.name(*page, *copy).encode());
        }
        self.write_stretches(NAMES_AT, &directory)?;
        match index {
            Some(index) => self.write_stretches(self.layout.index_at(), &index.bytes()),
            None => Ok(()),
        }
    }

    fn write_stretches(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.stretches(bytes.len())
            .try_for_each(|(from, len)| self.memory.write(at + from as u64, &bytes[from..from + len]))
    }

    /// Step 4.
    ///
    /// # Errors
    /// Those of writing remote memory.
    pub fn complete(&self, database: u128) -> Result<()> {
        self.write_header(database, self.incarnation)
    }

    fn write_header(&self, database: u128, incarnation: u128) -> Result<()> {
        let header = Header {
            slots: self.layout.slots,
            database,
            incarnation,
            next: self.incarnation,
        };
        self.memory.write(0, &header.encode())
    }
}

/// The bytes, if they are those of the page in that copy.
pub fn believed(bytes: Box<[u8]>, page: PageId, copy: Copy) -> Result<Box<[u8]>> {
    redo::verify_page(&bytes, page)?;
    let (lsn, sum) = (redo::page_lsn(&bytes), sum_of(&bytes));
    if (lsn, sum) != (copy.lsn, copy.sum) {
        let expected = copy.lsn;
        let text = format!("page {page}: remote memory has it as of {lsn}, not {expected}");
        return Err(Error::corrupt(text));
    }
    Ok(bytes)
}
