//! What is open where; and orphans: files without a name that are open.
//!
//! A mount's record says in tables, a word for each inode, what it has open: written under the tree's lock before the
//! file is used. The record and its tables are objects of the mount's session, so the space takes them away when that
//! process dies. A mount that removes the last name of a file looks through the tables of all mounts, under the tree's
//! lock to write:
//!
//! ```text
//!            unlink: open nowhere
//!   named ────────────────────────────────────────────────► dropped: number 0, then freed
//!      │     unlink: open somewhere       close: the last one,   ▲
//!      └─────────────────────► orphan ───────────────────────────┘
//!                              (in a list from the superblock on)   a mount that begins, or finds a dead one: all that are open nowhere
//! ```

use super::inode::gone;
use super::layout::{
    LINKS, MOUNT, MOUNT_MAGIC, MOUNT_TABLES, MOUNTS_MAX, NEXT_ORPHAN, NUMBER, SUPER_MOUNTS, SUPER_ORPHANS, TABLE_WORDS,
    TABLES_MAX, at,
};
use super::opens::{Open, Record};
use super::step::Step;
use super::tree::Dropped;
use super::{Failure, FileSystem, Inode, Result};
use cenote_base::{Error, Result as MemoryResult};
use cenote_space::{GlobalAddress, Lifetime, Mode};

/// Orphans of a list: more are a loop.
const ORPHANS_MAX: u32 = 1 << 24;

impl FileSystem {
    /// Enters this mount in the superblock; clears up after those that are dead.
    pub(super) fn attend(&mut self) -> Result<()> {
        let guard = self.lock_tree(Mode::Write)?;
        let entered = self.enter_mount();
        guard.unlock()?;
        self.opens.0.lock().at = entered?;
        self.reap()
    }

    /// The record is made under the tree's lock: a check that frees what nothing refers to does not come between it and
    /// its word.
    fn enter_mount(&self) -> Result<GlobalAddress> {
        for n in 0..MOUNTS_MAX {
            let word = at(self.superblock, SUPER_MOUNTS + 8 * n);
            if self.mount_at(word)?.is_none() {
                let record = self.session.alloc_in(MOUNT, Lifetime::Session)?;
                self.session.store(record, MOUNT_MAGIC)?;
                self.session.store(word, record.raw())?;
                return Ok(record);
            }
        }
        Err(Error::Busy(format!("{MOUNTS_MAX} processes have it mounted")).into())
    }

    /// The record that a word of the superblock refers to, if its mount is alive.
    fn mount_at(&self, word: GlobalAddress) -> Result<Option<GlobalAddress>> {
        let record = GlobalAddress::from_raw(self.session.load(word)?);
        if record.is_null() {
            return Ok(None);
        }
        match self.session.load(record) {
            Ok(MOUNT_MAGIC) => Ok(Some(record)),
            Ok(_) => Ok(None),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The mounts that are alive at this moment. The tree's lock is held to write.
    pub(super) fn mounts(&self) -> Result<Vec<GlobalAddress>> {
        let mut alive = Vec::new();
        for n in 0..MOUNTS_MAX {
            alive.extend(self.mount_at(at(self.superblock, SUPER_MOUNTS + 8 * n))?);
        }
        Ok(alive)
    }

    /// Opens a file or directory: it stays until it is closed, whatever becomes of its names.
    ///
    /// # Errors
    /// [`Failure::Gone`], [`Failure::TooManyOpen`].
    pub fn open(&self, inode: Inode) -> Result<()> {
        self.look(|| {
            self.attributes_of(inode)?;
            self.note_open(inode)
        })
    }

    /// The same, with the tree's lock held.
    pub(super) fn note_open(&self, inode: Inode) -> Result<()> {
        let mut record = self.opens.0.lock();
        if let Some(open) = record.by_number.get_mut(&inode.number) {
            open.count += 1;
            return Ok(());
        }
        let word = match record.free.pop() {
            Some(word) => word,
            None => self.new_word(&mut record)?,
        };
        self.session.store(word, inode.address.raw())?;
        record.by_number.insert(inode.number, Open { word, count: 1 });
        Ok(())
    }

    fn new_word(&self, record: &mut Record) -> Result<GlobalAddress> {
        let (table, word) = (record.used / TABLE_WORDS, record.used % TABLE_WORDS);
        if table == TABLES_MAX {
            return Err(Failure::TooManyOpen);
        }
        if table == record.tables.len() as u64 {
            let made = self.session.alloc_in(MOUNT, Lifetime::Session)?;
            self.session
                .store(at(record.at, MOUNT_TABLES + 8 * table), made.raw())?;
            record.tables.push(made);
        }
        record.used += 1;
        Ok(at(record.tables[table as usize], 8 * word))
    }

    /// The end of an [`open`](Self::open). A file without a name is freed with the last one.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if it is not open here.
    pub fn close(&self, inode: Inode) -> Result<()> {
        let is_left = self.look(|| {
            let mut record = self.opens.0.lock();
            let open = record.by_number.get_mut(&inode.number).ok_or(Failure::Invalid)?;
            open.count -= 1;
            if open.count > 0 {
                return Ok(false);
            }
            let word = open.word;
            record.by_number.remove(&inode.number);
            record.free.push(word);
            self.session.store(word, 0)?;
            // After the word: a mount that removes the last name later does not see it open, and one that did before
            // has been seen here.
            Ok(self.session.load(at(inode.address, LINKS)).map_err(gone)? == 0)
        })?;
        if is_left { self.reap() } else { Ok(()) }
    }

    /// Whether any mount has it open. The tree's lock is held to write.
    pub(super) fn is_open(&self, inode: GlobalAddress) -> Result<bool> {
        for record in self.mounts()? {
            for table in self.tables_of(record)? {
                if self.is_in_table(table, inode)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The tables of a mount; none if it has died: that may be at any moment, as no lock keeps a process alive.
    pub(super) fn tables_of(&self, record: GlobalAddress) -> Result<Vec<GlobalAddress>> {
        let mut tables = Vec::new();
        for n in 0..TABLES_MAX {
            match self.session.load(at(record, MOUNT_TABLES + 8 * n)) {
                Ok(0) => break,
                Ok(table) => tables.push(GlobalAddress::from_raw(table)),
                Err(error) if is_gone(&error) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(tables)
    }

    fn is_in_table(&self, table: GlobalAddress, inode: GlobalAddress) -> MemoryResult<bool> {
        let mut words = [[0; 8]; TABLE_WORDS as usize];
        match self.session.read(table, words.as_flattened_mut()) {
            Ok(()) => Ok(words.contains(&inode.raw().to_ne_bytes())),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A file has lost its last name.
    pub(super) fn drop_or_orphan(&self, step: &mut Step<'_>, inode: Inode) -> Result<Dropped> {
        if !self.is_open(inode.address)? {
            step.put(at(inode.address, NUMBER), 0)?;
            return Ok(Dropped(Some(inode)));
        }
        let list = at(self.superblock, SUPER_ORPHANS);
        step.put(at(inode.address, NEXT_ORPHAN), self.session.load(list)?)?;
        step.put(list, inode.address.raw())?;
        Ok(Dropped(None))
    }

    /// Frees all orphans that no mount has open any more.
    fn reap(&self) -> Result<()> {
        loop {
            let dropped = self.change(|step| self.take_orphan(step))?;
            if dropped.0.is_none() {
                return Ok(());
            }
            self.destroy(dropped)?;
        }
    }

    /// Takes the first one out of the list.
    fn take_orphan(&self, step: &mut Step<'_>) -> Result<Dropped> {
        let mut word = at(self.superblock, SUPER_ORPHANS);
        for _ in 0..ORPHANS_MAX {
            let address = GlobalAddress::from_raw(self.session.load(word)?);
            if address.is_null() {
                return Ok(Dropped(None));
            }
            let next = at(address, NEXT_ORPHAN);
            if !self.is_open(address)? {
                let number = self.session.load(at(address, NUMBER))?;
                step.put(word, self.session.load(next)?)?;
                step.put(at(address, NUMBER), 0)?;
                return Ok(Dropped(Some(Inode { address, number })));
            }
            word = next;
        }
        Err(Error::Corrupt("the list of orphans".into()).into())
    }

    /// Every orphan; for the check.
    pub(super) fn orphans(&self) -> Result<Vec<GlobalAddress>> {
        let (mut found, mut word) = (Vec::new(), at(self.superblock, SUPER_ORPHANS));
        while found.len() < ORPHANS_MAX as usize {
            let address = GlobalAddress::from_raw(self.session.load(word)?);
            if address.is_null() {
                return Ok(found);
            }
            found.push(address);
            word = at(address, NEXT_ORPHAN);
        }
        Err(Error::Corrupt("the list of orphans".into()).into())
    }

    /// Objects of all mounts that are alive: their records and tables.
    pub(super) fn mount_objects(&self) -> Result<Vec<GlobalAddress>> {
        let mut objects = self.mounts()?;
        for record in objects.clone() {
            objects.extend(self.tables_of(record)?);
        }
        Ok(objects)
    }
}

/// Whether an object of another mount is not there any more: that one has died.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Invalid(_) | Error::OutOfBounds(_))
}

impl Drop for FileSystem {
    /// The record goes with the session; the word that refers to it, by the mount that looks next.
    fn drop(&mut self) {
        let record = self.opens.0.lock().at;
        if !record.is_null() {
            // If it cannot be done now, the end of the session does it.
            let _ = self.session.store(record, 0);
        }
    }
}
