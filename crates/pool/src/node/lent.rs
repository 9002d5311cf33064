//! Memory that is lent: mirrors, and grants whose holders do not map them. It is registered with the fabric for a
//! holder on another machine, which reaches it by one-sided verbs, and such a grant for readers, too. No code of this
//! node runs for that, but its provider's.
//!
//! ```text
//!  DIR/grant-9      the mirror's memory, or the grant's
//!  DIR/journal-9    what has come and may not be in its place yet (`fabric::mirror`); there while it is lent
//! ```
//!
//! Invariants:
//! 1. keys are drawn anew whenever memory is lent, and the former ones end first: a former holder that wakes up writes
//!    to nothing. A grant's end with the order to fence it, too;
//! 2. *closing* ends the keys, waits until nothing under way can land, and only then puts the journal's records in their
//!    places. A mirror is closed before it is promoted, mapped, lent again or freed;
//! 3. a node that was started anew has no keys: what it lent is closed as soon as it is ordered to be;
//! 4. a grant's readers share one key, which only reads, and ends whenever the holder's do. However often they come
//!    again, a grant has one registration for them.

use super::directory::{numbered, remove_file, sync_directory};
use crate::grant_table::GrantId;
use crate::wire::{Lent, LentMemory, LentRange};
use cenote_base::rt::{HashMap, Mutex, fs};
use cenote_base::{Error, Result};
use cenote_fabric::mirror::{JOURNAL, apply, map_lent};
use cenote_fabric::rdma::{Key, Registrar, Remote};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PREFIX: &str = "journal-";

/// See the module.
pub(super) struct Lending {
    directory: PathBuf,
    registrar: Option<Arc<dyn Registrar>>,
    keys: Mutex<HashMap<GrantId, Keys>>,
}

/// Of a grant.
#[derive(Default)]
struct Keys {
    /// All of them. The last one ends first.
    made: Vec<Key>,
    /// What readers are given: under one of these keys, that no order has begun to end.
    to_read: Option<LentRange>,
}

impl Lending {
    pub(super) fn new(directory: &Path, registrar: Option<Arc<dyn Registrar>>) -> Self {
        Self {
            directory: directory.into(),
            registrar,
            keys: Mutex::default(),
        }
    }

    fn journal(&self, grant: GrantId) -> PathBuf {
        self.directory.join(format!("{PREFIX}{grant}"))
    }

    /// Whether this process maps the grant's memory for a holder elsewhere, or for readers.
    pub(super) fn has(&self, grant: GrantId) -> bool {
        self.keys.lock().contains_key(&grant)
    }

    /// Registers a mirror's memory: `file` of `len` bytes, and a journal.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this node is not reached over the fabric; [`Error::Full`]; those of files.
    pub(super) fn lend(&self, grant: GrantId, file: &Path, len: u64, anew: bool) -> Result<Lent> {
        let registrar = self.registrar()?;
        match anew {
            true => self.forget(grant)?,
            false => self.close(grant, file)?,
        }
        let journal = self.journal(grant);
        fs::open(&journal, fs::OpenOptions::TRUNCATE)
            .map_err(|error| Error::io(format!("making {}", journal.display()), error))?;
        sync_directory(&self.directory)?;
        let memory = self.register(grant, &**registrar, file, len, anew)?;
        let journal = self.register(grant, &**registrar, &journal, JOURNAL, true);
        if journal.is_err() {
            self.end_keys(grant)?;
        }
        Ok(Lent {
            address: registrar.address(),
            memory,
            journal: journal?,
        })
    }

    /// Registers a grant's memory: `file`, which is made `len` bytes long, and keeps what it has.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this node is not reached over the fabric; [`Error::Full`]; those of files.
    pub(super) fn lend_grant(&self, grant: GrantId, file: &Path, len: u64) -> Result<LentMemory> {
        let registrar = self.registrar()?;
        self.end_keys(grant)?;
        let anew = file_len(file)? != len;
        Ok(LentMemory {
            address: registrar.address(),
            memory: self.register(grant, &**registrar, file, len, anew)?,
        })
    }

    /// Registers a grant's memory, `file` of `len` bytes, for all that read it.
    ///
    /// An order that comes late, when the grant has another holder or none, does no harm: what it registers changes no
    /// memory, nor its file; readers check what they read, as the holder may be in the middle of a write anyway; and
    /// before the memory is another grant's an order to free it comes, which ends the key.
    ///
    /// # Errors
    /// [`Error::Busy`] if the file is shorter: its holder has not reached it yet; [`Error::Invalid`] if this node is not
    /// reached over the fabric; those of files.
    pub(super) fn lend_grant_to_read(&self, grant: GrantId, file: &Path, len: u64) -> Result<LentMemory> {
        let registrar = self.registrar()?;
        let made = self.keys.lock().get(&grant).and_then(|keys| keys.to_read);
        let memory = match made {
            Some(memory) => memory,
            None => self.register_to_read(grant, &**registrar, file, len)?,
        };
        Ok(LentMemory {
            address: registrar.address(),
            memory,
        })
    }

    fn register_to_read(&self, grant: GrantId, registrar: &dyn Registrar, file: &Path, len: u64) -> Result<LentRange> {
        let has = file_len(file)?;
        if has < len {
            let text = format!("grant {grant} has {has} of {len} bytes: its holder has not reached it yet");
            return Err(Error::Busy(text));
        }
        let memory = Arc::new(map_lent(file, len, false)?);
        let memory = range(registrar.register_to_read(&memory, len)?);
        let mut keys = self.keys.lock();
        let keys = keys.entry(grant).or_default();
        // The holder's end first: they are what changes memory.
        keys.made.insert(0, Key(memory.key));
        keys.to_read = Some(memory);
        Ok(memory)
    }

    fn registrar(&self) -> Result<&Arc<dyn Registrar>> {
        let none = || Error::Invalid("this memory node is not reached over the fabric (--rdma)".into());
        self.registrar.as_ref().ok_or_else(none)
    }

    fn register(
        &self,
        grant: GrantId,
        registrar: &dyn Registrar,
        file: &Path,
        len: u64,
        anew: bool,
    ) -> Result<LentRange> {
        let memory = range(registrar.register(map_lent(file, len, anew)?)?);
        self.keys.lock().entry(grant).or_default().made.push(Key(memory.key));
        Ok(memory)
    }

    /// When this returns nothing under the grant's keys reads or changes memory. The journal's ends first, so that its
    /// holder finds out by the next record. A key that did not end is kept, to be ended when the order comes again; it
    /// may be over for its users all the same, so readers are given another.
    fn end_keys(&self, grant: GrantId) -> Result<()> {
        if let Some(keys) = self.keys.lock().get_mut(&grant) {
            keys.to_read = None;
        }
        let last = || self.keys.lock().get(&grant).and_then(|keys| keys.made.last().copied());
        while let Some((registrar, key)) = self.registrar.as_ref().zip(last()) {
            registrar.revoke(key)?;
            let mut all = self.keys.lock();
            if let Some(keys) = all.get_mut(&grant) {
                keys.made.retain(|kept| *kept != key);
                // One that is made meanwhile keeps the entry.
                if keys.made.is_empty() {
                    all.remove(&grant);
                }
            }
        }
        Ok(())
    }

    /// Ends what was lent: all that came is in the mirror's `file`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the journal is none; a key did not end; those of files.
    pub(super) fn close(&self, grant: GrantId, file: &Path) -> Result<()> {
        self.end_keys(grant)?;
        let journal = self.journal(grant);
        let is_there = fs::exists(&journal);
        if is_there.map_err(|error| Error::io(format!("looking for {}", journal.display()), error))? {
            apply(&journal, file)?;
            remove_file(&journal)?;
        }
        Ok(())
    }

    /// Ends what was lent; nothing of it counts.
    ///
    /// # Errors
    /// A key did not end; those of files.
    pub(super) fn forget(&self, grant: GrantId) -> Result<()> {
        self.end_keys(grant)?;
        remove_file(&self.journal(grant))
    }

    /// All keys end: the node does. What was lent is closed by the next start, when it is ordered to be.
    pub(super) fn end(&self) {
        let lent: Vec<GrantId> = self.keys.lock().keys().copied().collect();
        lent.into_iter().for_each(|grant| _ = self.end_keys(grant));
    }

    /// Grants of which there is a journal.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn journals(&self) -> Result<Vec<GrantId>> {
        numbered(&self.directory, PREFIX)
    }
}

fn file_len(file: &Path) -> Result<u64> {
    let len = fs::open(file, fs::OpenOptions::READ).and_then(|file| file.len());
    len.map_err(|error| Error::io(format!("looking at {}", file.display()), error))
}

fn range(registered: Remote) -> LentRange {
    let Remote { key, base, len } = registered;
    let key = key.0;
    LentRange { key, base, len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt::Nanos;
    use cenote_fabric::mirror::{RemoteMirror, RemoteOptions};
    use cenote_fabric::rdma::RemoteMemory;
    use cenote_fabric::{Identity, LINE, Region, RegionOptions, coherence};
    use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Provider, available};
    use std::os::unix::fs::FileExt;

    const GRANT: GrantId = GrantId(9);
    const LEN: u64 = 4 << 20;
    const AT: u64 = 65536;

    struct Setting {
        directory: tempfile::TempDir,
        fabric: MemoryNode,
        net: Net,
        lending: Lending,
    }

    /// `None`, with a line that says why, where there is no libfabric.
    fn setting() -> Option<Setting> {
        if let Err(error) = available() {
            println!("skipped: {error}");
            return None;
        }
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::write(directory.path().join("grant-9"), b"").expect("made");
        let fabric = MemoryNode::start(&NodeOptions::new(Provider::tcp())).expect("a node");
        Some(Setting {
            lending: Lending::new(directory.path(), Some(fabric.registrar())),
            net: Net::new(NetOptions::default()).expect("libfabric"),
            directory,
            fabric,
        })
    }

    impl Setting {
        fn file(&self) -> PathBuf {
            self.directory.path().join("grant-9")
        }

        fn lend(&self, anew: bool) -> Lent {
            self.lending.lend(GRANT, &self.file(), LEN, anew).expect("lent")
        }

        fn remote(&self, range: LentRange) -> RemoteMemory {
            let (key, endpoint) = (
                Key(range.key),
                self.net.connect_to(self.fabric.address()).expect("there"),
            );
            let LentRange { base, len, .. } = range;
            RemoteMemory::new(endpoint, Remote { key, base, len })
        }

        fn attached(&self, lent: &Lent) -> Region {
            let region = Region::dram(LEN, Identity::default(), RegionOptions::default()).expect("memory");
            let options = RemoteOptions {
                believed: false,
                patience: Nanos::from_millis(1),
                on_lost: Box::new(|_| ()),
            };
            let mirror = RemoteMirror::begin(self.remote(lent.memory), self.remote(lent.journal), options);
            region.attach_mirror(Arc::new(mirror.expect("begun"))).expect("room");
            region
        }

        fn word(&self) -> u64 {
            let mut word = [0; 8];
            let file = std::fs::File::open(self.file()).expect("there");
            file.read_exact_at(&mut word, AT).expect("read");
            u64::from_le_bytes(word)
        }
    }

    fn write(region: &Region, value: u64) {
        region.span(AT, 8).set_u64(0, value);
        coherence::flush(region, AT, LINE);
    }

    /// A holder's fence puts nothing in its place: the node does, when it closes the mirror. From then on nothing comes
    /// under the former keys, by whatever way.
    #[test]
    fn a_closed_mirror_has_all_and_gets_nothing_more() {
        let Some(setting) = setting() else { return };
        let lent = setting.lend(true);
        let region = setting.attached(&lent);
        write(&region, 7);
        assert_eq!(setting.word(), 0, "it is in the journal alone");
        assert!(setting.lending.has(GRANT));
        setting.lending.close(GRANT, &setting.file()).expect("closed");
        assert_eq!(setting.word(), 7);
        assert!(!setting.lending.has(GRANT) && setting.lending.journals().expect("listed").is_empty());
        write(&region, 8);
        for range in [lent.memory, lent.journal] {
            let late = setting.remote(range).write(0, &[1; 64]);
            assert!(matches!(late, Err(Error::Revoked(_))), "{late:?}");
        }
        setting.lending.close(GRANT, &setting.file()).expect("closed again");
        assert_eq!(setting.word(), 7);
    }

    /// Lent again, the mirror has what came under the former keys, and those are over; lent anew, it has nothing.
    #[test]
    fn keys_are_of_one_holder() {
        let Some(setting) = setting() else { return };
        let first = setting.lend(true);
        write(&setting.attached(&first), 7);
        let second = setting.lend(false);
        assert_eq!(setting.word(), 7);
        let late = setting.remote(first.memory).write(AT, &[1; 64]);
        assert!(matches!(late, Err(Error::Revoked(_))), "{late:?}");
        setting
            .remote(second.memory)
            .write(AT, &[1; 8])
            .expect("the present key");
        assert_eq!(setting.word(), 0x0101_0101_0101_0101);
        setting.lend(true);
        assert_eq!(setting.word(), 0);
        let error = setting.lending.lend(GRANT, &setting.file(), LEN + 4096, false);
        assert!(matches!(error, Err(Error::Mismatch(_))), "{error:?}");
        setting.lending.forget(GRANT).expect("forgotten");
    }

    fn has(memory: &RemoteMemory, byte: u8) {
        let mut bytes = [!byte; 64];
        memory.read(AT, &mut bytes).expect("read");
        assert_eq!(bytes, [byte; 64]);
    }

    /// Readers reach what the holder writes, and change nothing. Their key is over whenever the holder's are: then they
    /// come again.
    #[test]
    fn readers_share_a_key_that_ends_with_the_holders() {
        let Some(setting) = setting() else { return };
        let file = setting.file();
        let to_read = || setting.lending.lend_grant_to_read(GRANT, &file, LEN);
        let lend = || setting.lending.lend_grant(GRANT, &file, LEN).expect("lent").memory;
        let early = to_read();
        assert!(matches!(early, Err(Error::Busy(_))), "{early:?}");
        assert!(!setting.lending.has(GRANT));
        let holder = setting.remote(lend());
        let first = to_read().expect("the holder has reached it").memory;
        for byte in [7, 8] {
            holder.write(AT, &[byte; 64]).expect("written");
            assert_eq!(to_read().expect("lent").memory, first, "one key for all");
            has(&setting.remote(first), byte);
        }
        setting.remote(first).write(AT, &[1; 64]).expect_err("it only reads");
        has(&setting.remote(first), 8);
        let ends: [&dyn Fn(); 3] = [
            &|| _ = lend(),
            &|| setting.lending.close(GRANT, &file).expect("fenced"),
            &|| setting.lending.forget(GRANT).expect("forgotten"),
        ];
        for end in ends {
            let former = to_read().expect("lent").memory;
            has(&setting.remote(former), 8);
            end();
            let late = setting.remote(former).read(AT, &mut [0; 64]);
            assert!(matches!(late, Err(Error::Revoked(_))), "{late:?}");
            has(&setting.remote(to_read().expect("lent anew").memory), 8);
        }
        setting.lending.end();
        assert!(!setting.lending.has(GRANT));
    }

    /// An order to end it has begun, so it may be over: a reader that was given it again would come again for ever.
    #[test]
    fn a_reading_key_that_did_not_end_is_given_to_no_reader() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let file = directory.path().join("grant-9");
        std::fs::write(&file, b"").expect("made");
        let registrar = Arc::new(Busy::default());
        let lending = Lending::new(directory.path(), Some(Arc::clone(&registrar) as _));
        let to_read = || Key(lending.lend_grant_to_read(GRANT, &file, LEN).expect("lent").memory.key);
        let lent = lending.lend_grant(GRANT, &file, LEN).expect("lent");
        let first = to_read();
        *registrar.busy.lock() = 1;
        let refused = lending.close(GRANT, &file);
        assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
        let second = to_read();
        assert!(second != first && to_read() == second);
        lending.close(GRANT, &file).expect("fenced");
        assert_eq!(*registrar.ended.lock(), [Key(lent.memory.key), first, second]);
        assert!(!lending.has(GRANT));
    }

    /// A provider that is busy for some tries.
    #[derive(Debug, Default)]
    struct Busy {
        busy: Mutex<u32>,
        ended: Mutex<Vec<Key>>,
        registered: Mutex<u64>,
    }

    impl Registrar for Busy {
        fn address(&self) -> String {
            "busy".into()
        }

        fn register(&self, memory: cenote_fabric::Mapping) -> Result<Remote> {
            self.register_to_read(&Arc::new(memory), LEN)
        }

        fn register_to_read(&self, memory: &Arc<cenote_fabric::Mapping>, _len: u64) -> Result<Remote> {
            let mut registered = self.registered.lock();
            *registered += 1;
            let (key, len) = (Key(*registered), memory.len() as u64);
            Ok(Remote { key, base: 0, len })
        }

        fn revoke(&self, key: Key) -> Result<bool> {
            let mut busy = self.busy.lock();
            if *busy > 0 {
                *busy -= 1;
                let busy = std::io::ErrorKind::ResourceBusy.into();
                return Err(Error::io("ending a registration", busy));
            }
            self.ended.lock().push(key);
            Ok(true)
        }
    }

    /// A key that did not end has not: the mirror is not closed, and the next order ends it, the journal's first.
    #[test]
    fn a_key_that_does_not_end_is_ended_again() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let file = directory.path().join("grant-9");
        std::fs::write(&file, b"").expect("made");
        let registrar = Arc::new(Busy::default());
        let lending = Lending::new(directory.path(), Some(Arc::clone(&registrar) as _));
        let lent = lending.lend(GRANT, &file, LEN, true).expect("lent");
        let keys = [Key(lent.journal.key), Key(lent.memory.key)];
        for order in 0..3 {
            *registrar.busy.lock() = 1;
            let refused = match order {
                0 => lending.close(GRANT, &file),
                1 => lending.forget(GRANT),
                _ => lending.lend(GRANT, &file, LEN, false).map(drop),
            };
            assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
            assert!(lending.has(GRANT) && registrar.ended.lock().is_empty());
            assert_eq!(lending.journals().expect("listed"), [GRANT]);
        }
        lending.close(GRANT, &file).expect("closed");
        assert_eq!(*registrar.ended.lock(), keys);
        assert!(!lending.has(GRANT) && lending.journals().expect("listed").is_empty());
    }

    /// The node's process ended, and its memory is there: what had come is not lost.
    #[test]
    fn a_node_that_starts_anew_closes_what_it_lent() {
        let Some(setting) = setting() else { return };
        write(&setting.attached(&setting.lend(true)), 7);
        let again = Lending::new(setting.directory.path(), None);
        assert_eq!(again.journals().expect("listed"), [GRANT]);
        again.close(GRANT, &setting.file()).expect("closed");
        assert_eq!(setting.word(), 7);
        let refused = again.lend(GRANT, &setting.file(), LEN, false);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
}
