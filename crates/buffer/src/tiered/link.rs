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
//!
//! The header has a bit for each slab before that is asked for, and until it is known to be given back: so no start
//! leaves one behind. Names of slabs that are not there are neither read nor written: their tags are of the past.

use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_fabric::rdma::{RemoteMemory, Work};
use cenote_storage::{Control, redo};

use super::copy::Copy;
use super::index::{Index, WordWrite};
use super::layout::{
    HEADER, Header, Layout, NAME, Name, Part, RemoteSlot, Slabs, WATERMARK, WATERMARK_AT, Watermark, sum_of,
};
use super::source::RemoteSource;
use super::ways::{Batch, Failure, Ways};
use crate::lower::Outgoing;

/// Bytes of the directory that are moved at once.
const STRETCH: usize = 1 << 20;

/// Remote memory that is this start's.
pub struct Link {
    /// The ways to its parts.
    pub ways: Ways,
    /// What lies where in it.
    pub layout: Layout,
    /// Of this start, as the header has it.
    pub incarnation: u128,
    /// The position that was written last for readers.
    watermark: AtomicU64,
    /// Names say the truth: readers may be told so.
    is_open: AtomicBool,
}

/// What the header says of a former start.
pub struct Former {
    /// Which start wrote it, and which one began to; 0: none that is known.
    pub incarnations: [u128; 2],
    /// Slabs that may be granted: bits.
    pub granted: u64,
    /// Whether they are of the size that slabs have now.
    pub same_slabs: bool,
    /// Why nothing of what it left is believed, if so.
    pub remark: Option<String>,
}

/// What a start found in remote memory.
#[derive(Default)]
pub struct Found {
    /// Slots with a name that may be believed.
    pub names: Vec<(RemoteSlot, Name)>,
    /// As of which position of the log names were told to readers.
    pub watermark: Lsn,
}

impl Link {
    /// Connects to the first part; nothing is read or written.
    ///
    /// # Errors
    /// The memory cannot be reached, or is too small for a directory and a page.
    pub fn connect(source: &RemoteSource, (database, patience): (u128, Nanos), incarnation: u128) -> Result<Self> {
        assert!(incarnation != 0, "a start has an incarnation");
        let memory = source.connect(database, patience)?;
        let layout = Layout::plan(memory.len(), Slabs::of(source.growth()))?;
        Ok(Self::of(memory, layout, incarnation))
    }

    /// To memory that is reached.
    pub fn of(memory: RemoteMemory, layout: Layout, incarnation: u128) -> Self {
        Self {
            ways: Ways::new(memory, layout.slabs.most),
            layout,
            incarnation,
            watermark: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
        }
    }

    /// The node with the first part, for messages.
    pub fn peer(&self) -> &str {
        self.ways.first().endpoint().peer()
    }

    /// Reaches a slab.
    ///
    /// # Errors
    /// Those of the source; [`Error::Mismatch`] if it is smaller than a slab.
    pub fn reach(&self, source: &RemoteSource, (database, patience): (u128, Nanos), slab: u32) -> Result<()> {
        self.set_way(slab, source.slab(database, slab, patience)?)
    }

    /// Reaches slabs, together; why those are not reached that are not.
    pub fn reach_all(&self, source: &RemoteSource, (database, patience): (u128, Nanos), slabs: &[u32]) -> Vec<Error> {
        let each = source.slabs(database, slabs, patience).into_iter();
        let set = each.map(|(slab, memory)| memory.and_then(|memory| self.set_way(slab, memory)));
        set.filter_map(Result::err).collect()
    }

    fn set_way(&self, slab: u32, memory: RemoteMemory) -> Result<()> {
        if memory.len() < self.layout.slab_len() {
            let (len, needed) = (memory.len(), self.layout.slab_len());
            return Err(Error::Mismatch(format!("slab {slab} has {len} bytes, not {needed}")));
        }
        self.ways.set(slab, Some(memory));
        Ok(())
    }

    fn tag(&self) -> u64 {
        self.incarnation as u64
    }

    // ---- pages ----

    /// The bytes of `page`, which are to be in `copy`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are not; those of the endpoint.
    pub fn read(&self, page: PageId, copy: Copy) -> Result<Box<[u8]>, Failure> {
        let read = self.read_many(&[(page, copy)]).pop();
        read.unwrap_or_else(|| Err(Failure::of_first(Error::Invalid("an endpoint lost a work".into()))))
    }

    /// As [`Link::read`], of several, with one doorbell a part; in their order.
    pub fn read_many(&self, pages: &[(PageId, Copy)]) -> Vec<Result<Box<[u8]>, Failure>> {
        let mut batch = self.ways.batch();
        for (_, copy) in pages {
            let (part, at) = self.layout.page_at(copy.slot);
            batch.add(part, |memory| Work::read(memory, at, vec![0; PAGE_SIZE].into()));
        }
        let each = batch.carry_out().into_iter().zip(pages);
        each.map(|(work, (page, copy))| {
            let part = self.layout.part_of(copy.slot);
            let bytes = work?.into_bytes().and_then(|bytes| believed(bytes, *page, *copy));
            bytes.map_err(|error| Failure { part, way: None, error })
        })
        .collect()
    }

    /// Writes pages and their names, and what the index lacks, all with one doorbell a part. A name and its page may
    /// arrive in any order: one without the other is not believed. Of a part that fails any page may have been written.
    pub fn write(
        &self,
        pages: Vec<(RemoteSlot, Outgoing)>,
        index: Vec<WordWrite>,
    ) -> (Vec<(PageId, Copy)>, Vec<Failure>) {
        let mut batch = self.words(index);
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
            let (part, at) = self.layout.page_at(slot);
            batch.add(part, |memory| Work::write(memory, at, bytes));
            let at = self.layout.name_at(slot);
            batch.add(Part::First, |memory| Work::write(memory, at, name.into()));
            copies.push((page, copy));
        }
        let mut failures: Vec<Failure> = Vec::new();
        for failure in batch.carry_out().into_iter().filter_map(Result::err) {
            if failures.iter().all(|known| known.part != failure.part) {
                failures.push(failure);
            }
        }
        (copies, failures)
    }

    /// Empties the names of slots.
    ///
    /// # Errors
    /// Of the first part; any of them may have been emptied then.
    pub fn clear(&self, slots: &[RemoteSlot], index: Vec<WordWrite>) -> Result<(), Failure> {
        let mut batch = self.words(index);
        for slot in slots {
            let at = self.layout.name_at(*slot);
            batch.add(Part::First, |memory| Work::write(memory, at, [0; NAME].into()));
        }
        batch.carry_out().into_iter().try_for_each(|work| work.map(drop))
    }

    fn words(&self, index: Vec<WordWrite>) -> Batch<'_> {
        let mut batch = self.ways.batch();
        for (at, word) in index {
            batch.add(Part::First, |memory| Work::write(memory, at, word.to_le_bytes().into()));
        }
        batch
    }

    /// From here on readers believe names as of this position, if it is beyond the one that they have. One thread at a
    /// time does so.
    ///
    /// # Errors
    /// As of [`Link::clear`].
    pub fn raise_watermark(&self, lsn: Lsn) -> Result<(), Failure> {
        let is_open = self.is_open.load(Ordering::Acquire);
        if !is_open || self.watermark.load(Ordering::Relaxed) >= lsn.raw() {
            return Ok(());
        }
        let watermark = Watermark { lsn, tag: self.tag() };
        let written = self.ways.first().write(WATERMARK_AT, &watermark.encode());
        written.map_err(Failure::of_first)?;
        self.watermark.store(lsn.raw(), Ordering::Relaxed);
        Ok(())
    }

    /// All names that were written are of copies which lack no change, or are empty: watermarks may say so from now on.
    pub fn open_to_readers(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    fn name(&self, page: PageId, copy: Copy) -> Name {
        Name {
            page,
            lsn: copy.lsn,
            tag: self.tag(),
            sum: copy.sum,
        }
    }

    // ---- taking over ----

    /// Whose it is. Steps are the module's.
    ///
    /// # Errors
    /// Those of reading remote memory.
    pub fn former(&self, control: &Control) -> Result<Former> {
        let mut bytes = [0; HEADER];
        self.ways.first().read(0, &mut bytes)?;
        let header = Header::decode(&bytes).ok_or("no pool has used it, or its header is damaged");
        let of_database = header.and_then(|header| match header.database == control.database {
            true => Ok(header),
            false => Err("it was another database's"),
        });
        let why = match &of_database {
            Ok(header) => self.strange(header, control),
            Err(why) => Some(*why),
        };
        Ok(Former {
            incarnations: of_database
                .as_ref()
                .map_or([0; 2], |header| [header.incarnation, header.next]),
            // Without a header there may be any.
            granted: of_database.map_or(self.layout.slabs.all(), |header| header.granted),
            same_slabs: of_database.is_ok_and(|header| header.slabs == self.layout.slabs),
            remark: why.map(|why| format!("remote memory of {} begins empty: {why}", self.peer())),
        })
    }

    fn strange(&self, header: &Header, control: &Control) -> Option<&'static str> {
        let ours = [header.incarnation, header.next].contains(&control.incarnation);
        if !ours || control.incarnation == 0 {
            return Some("it is not of the database's last start");
        }
        let same = header.slots == self.layout.slots && header.slabs == self.layout.slabs;
        (!same).then_some("it was of another size")
    }

    /// What a former start left in the parts that are reached, as far as names say.
    ///
    /// # Errors
    /// Those of reading remote memory.
    pub fn find(&self, control: &Control) -> Result<Found> {
        let tag = control.incarnation as u64;
        let mut bytes = [0; WATERMARK];
        // Read before the names: those that it lets stand have been ended, if need be, before it was written.
        self.ways.first().read(WATERMARK_AT, &mut bytes)?;
        let watermark = Watermark::decode(&bytes).filter(|watermark| watermark.tag == tag);
        let mut names = Vec::new();
        for part in self.parts() {
            self.names_of(part, tag, &mut names)?;
        }
        Ok(Found {
            names,
            watermark: watermark.map_or(Lsn::ZERO, |watermark| watermark.lsn),
        })
    }

    /// The parts that are reached.
    pub fn parts(&self) -> Vec<Part> {
        let slabs = self.ways.reached().into_iter().map(Part::Slab);
        std::iter::once(Part::First).chain(slabs).collect()
    }

    /// The directory's entries of a part with this tag.
    fn names_of(&self, part: Part, tag: u64, names: &mut Vec<(RemoteSlot, Name)>) -> Result<()> {
        let slots = self.layout.slots_of(part);
        for (from, len) in self.stretches(slots.len() * NAME) {
            let first = slots.start + (from / NAME) as u32;
            let at = self.layout.names_at(first);
            let bytes = self.ways.first().read_boxed(at, vec![0; len].into())?;
            let found = RemoteSlot::all(first, slots.end).zip(bytes.chunks_exact(NAME));
            names.extend(
                found
                    .filter_map(|(slot, bytes)| Some((slot, Name::decode(bytes)?)))
                    .filter(|(_, name)| name.tag == tag),
            );
        }
        Ok(())
    }

    fn stretches(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let transfer = self.ways.first().endpoint().limits().transfer;
        let most = (transfer.min(STRETCH as u64) as usize / NAME * NAME).max(NAME);
        (0..len).step_by(most).map(move |from| (from, most.min(len - from)))
    }

    /// Steps 1 and 2. `former`: whom the header is to name until step 4, if what it had is kept. `index`: of the kept,
    /// where readers are to find them.
    ///
    /// # Errors
    /// Those of writing remote memory.
    pub fn begin(
        &self,
        (database, granted): (u128, u64),
        former: u128,
        kept: &[(PageId, Copy)],
        index: Option<&Index>,
    ) -> Result<()> {
        self.write_header((database, granted), former)?;
        let mut directory = vec![0; self.layout.slots as usize * NAME];
        for (page, copy) in kept {
            assert!(self.layout.has(copy.slot), "slot {} is one of the directory", copy.slot);
            let at = copy.slot.place() * NAME;
            directory[at..at + NAME].copy_from_slice(&self.name(*page, *copy).encode());
        }
        for part in self.parts() {
            let slots = self.layout.slots_of(part);
            let of_part = &directory[slots.start as usize * NAME..slots.end as usize * NAME];
            self.write_stretches(self.layout.names_at(slots.start), of_part)?;
        }
        match index {
            Some(index) => self.write_stretches(self.layout.index_at(), &index.bytes()),
            None => Ok(()),
        }
    }

    fn write_stretches(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let first = self.ways.first();
        self.stretches(bytes.len())
            .try_for_each(|(from, len)| first.write(at + from as u64, &bytes[from..from + len]))
    }

    /// Step 4; and whenever other slabs may be granted.
    ///
    /// # Errors
    /// Those of writing remote memory.
    pub fn complete(&self, database: u128, granted: u64) -> Result<()> {
        self.write_header((database, granted), self.incarnation)
    }

    fn write_header(&self, (database, granted): (u128, u64), incarnation: u128) -> Result<()> {
        let header = Header {
            slots: self.layout.slots,
            slabs: self.layout.slabs,
            granted,
            database,
            incarnation,
            next: self.incarnation,
        };
        self.ways.first().write(0, &header.encode())
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
