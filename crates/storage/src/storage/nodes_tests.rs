//! A log and pages on nodes that answer late, twice or not at all.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cenote_base::PAGE_SIZE;
use cenote_base::RecordAddr;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fs::with;
use cenote_fabric::Region;
use cenote_testkit::faulty::MemFs;

use super::*;
use crate::RingUse;
use crate::nodes::{LogEnd, OwnerRecord, PageAnswer, SpaceExtent};
use crate::redo::{GroupBuilder, GroupRef, apply, page_lsn, set_page_checksum};
use crate::testing::{copy_of, group, place, region};

const SPACE: u32 = 1;

/// What the nodes have.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) epoch: u64,
    record: Vec<u8>,
    control: Option<Vec<u8>>,
    spaces: BTreeSet<u32>,
    origin: Lsn,
    bytes: Vec<u8>,
    /// What lies below is kept no more.
    gone: Lsn,
    end: Option<LogEnd>,
    /// Calls that are carried out, and not answered; and after them, as many that are not even carried out.
    pub(super) unanswered: u32,
    pub(super) deaf: u32,
    /// Changes that are heard, before none is.
    pub(super) heard: Option<u32>,
    /// Looks that find their disks full.
    pub(super) full: u32,
    /// The positions at which pages were asked for.
    asked: Vec<(PageId, Lsn)>,
    /// Snapshot 1, if it is kept: as of where, and which spaces it has.
    pub(super) snapshot: Option<(Lsn, BTreeSet<u32>)>,
    /// This happens before pages are read, after so many times.
    pub(super) meanwhile: Meanwhile,
}

#[derive(Default)]
pub(super) struct Meanwhile(pub(super) u32, pub(super) Option<Box<dyn FnOnce() + Send>>);

impl Meanwhile {
    fn take(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        self.1.take_if(|_| left.is_none())
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Kept {
    pub(super) fn at_origin(&self) -> LogEnd {
        self.end.unwrap_or(LogEnd::at_origin(self.origin))
    }

    /// Keeps all there is as snapshot 1.
    pub(super) fn keep(&mut self) -> (Lsn, Vec<u8>, Vec<SpaceExtent>) {
        let (end, spaces) = (self.at_origin().end, self.spaces.clone());
        self.snapshot = Some((end, spaces.clone()));
        let extent = |space: &u32| SpaceExtent {
            space: *space,
            pages: 40,
        };
        let control = self.control.clone().expect("a database");
        (end, control, spaces.iter().map(extent).collect())
    }

    /// Whether this call is heard at all, and then whether it is answered.
    fn hears(&mut self) -> Result<bool> {
        if self
            .heard
            .as_mut()
            .is_some_and(|left| left.checked_sub(1).map(|n| *left = n).is_none())
        {
            return Err(Error::Timeout("nobody answers any more".into()));
        }
        if self.unanswered > 0 {
            self.unanswered -= 1;
            return Ok(false);
        }
        if self.deaf > 0 {
            self.deaf -= 1;
            return Err(Error::Timeout("nobody answers".into()));
        }
        Ok(true)
    }
}

/// The nodes as one start of the database reaches them.
#[derive(Debug)]
pub(super) struct FakeNodes {
    kept: Arc<Mutex<Kept>>,
    epoch: AtomicU64,
}

impl FakeNodes {
    pub(super) fn new(kept: &Arc<Mutex<Kept>>) -> Arc<FakeNodes> {
        Arc::new(FakeNodes {
            kept: Arc::clone(kept),
            epoch: AtomicU64::new(0),
        })
    }

    fn change(&self, change: impl FnOnce(&mut Kept)) -> Result<()> {
        let mut kept = self.kept.lock();
        let is_answered = kept.hears()?;
        if kept.epoch != self.epoch.load(Ordering::SeqCst) {
            return Err(Error::Revoked("another has it".into()));
        }
        change(&mut kept);
        match is_answered {
            true => Ok(()),
            false => Err(Error::Timeout("no answer came".into())),
        }
    }
}

impl StorageNodes for FakeNodes {
    fn name(&self) -> String {
        "the nodes".into()
    }

    fn owner(&self) -> Result<OwnerRecord> {
        let kept = self.kept.lock();
        Ok(OwnerRecord {
            epoch: kept.epoch,
            record: kept.record.clone(),
            control: kept.control.clone(),
        })
    }

    fn take(&self, former: u64, record: &[u8]) -> Result<Taken> {
        let mut kept = self.kept.lock();
        if kept.epoch != former {
            return Err(Error::Busy("another was faster".into()));
        }
        (kept.epoch, kept.record) = (former + 1, record.to_vec());
        self.epoch.store(kept.epoch, Ordering::SeqCst);
        let extent = |space: &u32| SpaceExtent {
            space: *space,
            pages: 64,
        };
        Ok(Taken {
            control: kept.control.clone(),
            log: kept.at_origin(),
            spaces: kept.spaces.iter().map(extent).collect(),
        })
    }

    fn check(&self) -> Result<()> {
        self.change(|_| {})
    }

    fn begin(&self, control: &[u8], origin: Lsn) -> Result<()> {
        self.change(|kept| (kept.control, kept.origin) = (Some(control.to_vec()), origin))
    }

    fn set_control(&self, control: &[u8]) -> Result<()> {
        self.change(|kept| kept.control = Some(control.to_vec()))
    }

    fn append(&self, at: Lsn, groups: &[u8], end: LogEnd) -> Result<()> {
        self.change(|kept| {
            let known = kept.at_origin().end.since(at) as usize;
            assert!(
                known <= groups.len() || end.end <= kept.at_origin().end,
                "no gap, and nothing is taken back"
            );
            if end.end > kept.at_origin().end {
                kept.bytes.extend_from_slice(&groups[known..]);
                kept.end = Some(end);
            }
        })
    }

    fn read_log(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let kept = self.kept.lock();
        if at < kept.gone {
            return Err(Error::Past(format!("the log at {at} is not kept any more")));
        }
        let rest = kept.bytes.get(at.since(kept.origin) as usize..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn read_pages(&self, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        let meanwhile = self.kept.lock().meanwhile.take();
        if let Some(happens) = meanwhile {
            happens();
        }
        let mut kept = self.kept.lock();
        kept.asked.extend_from_slice(pages);
        pages.iter().map(|(id, lsn)| page_of(&kept, *id, *lsn)).collect()
    }

    fn snapshot_spaces(&self, _: u64) -> Result<Vec<SpaceExtent>> {
        let kept = self.kept.lock();
        let none = || Error::Past("snapshot 1 is not kept".into());
        kept.snapshot.as_ref().map(|_| Vec::new()).ok_or_else(none)
    }

    fn read_snapshot(&self, number: u64, pages: &[PageId]) -> Vec<PageAnswer> {
        let kept = self.kept.lock();
        let read = |id: &PageId| match &kept.snapshot {
            Some((end, spaces)) if number == 1 && spaces.contains(&id.space) => page_up_to(&kept, *id, *end),
            Some(_) => Err(Error::Invalid(format!(
                "there is no space {} in the snapshot",
                id.space
            ))),
            None => Err(Error::Past("snapshot 1 is not kept".into())),
        };
        pages.iter().map(read).collect()
    }

    fn make_space(&self, space: u32) -> Result<()> {
        self.change(|kept| {
            kept.spaces.insert(space);
        })
    }

    fn drop_space(&self, space: u32) -> Result<()> {
        self.change(|kept| {
            kept.spaces.remove(&space);
        })
    }

    fn is_full(&self) -> bool {
        let mut kept = self.kept.lock();
        let left = kept.full.checked_sub(1);
        kept.full = left.unwrap_or(0);
        left.is_some()
    }
}

/// A page as all of the log makes it.
fn page_of(kept: &Kept, id: PageId, lsn: Lsn) -> PageAnswer {
    assert!(
        lsn <= kept.at_origin().end,
        "page {id} is asked for as of {lsn}, which is not durable"
    );
    if !kept.spaces.contains(&id.space) {
        return Err(Error::Invalid(format!("there is no space {}", id.space)));
    }
    page_up_to(kept, id, kept.at_origin().end)
}

fn page_up_to(kept: &Kept, id: PageId, end: Lsn) -> PageAnswer {
    let (mut page, mut at) = (vec![0; PAGE_SIZE].into_boxed_slice(), kept.origin);
    while at < end {
        let group = GroupRef::parse(&kept.bytes[at.since(kept.origin) as usize..], at)?;
        for record in group.records() {
            let record = record?;
            if record.page == id {
                apply(&mut page, &record)?;
            }
        }
        at = group.end();
    }
    if page_lsn(&page) == Lsn::ZERO {
        return Ok((page, PageRead::NeverWritten));
    }
    page[4..12].copy_from_slice(&id.to_bytes());
    set_page_checksum(&mut page);
    Ok((page, PageRead::Present))
}

pub(super) fn start(
    kept: &Arc<Mutex<Kept>>,
    region: &Arc<Region>,
    believe: bool,
) -> Result<(Arc<Storage>, StorageReport)> {
    let scratch = format!("/scratch-{}", kept.lock().epoch);
    let dir = DataDir::on_nodes(
        FakeNodes::new(kept),
        Path::new(&scratch),
        Origins::default(),
        &Claim::machine(),
    )?;
    let mut options = StorageOptions::new(place(region));
    (options.segment_bytes, options.background, options.believe_ring) = (64 << 10, false, believe);
    dir.storage(options)
}

/// A database with a space, on a region that holds a ring of database 0xDB.
fn begun() -> (Arc<Mutex<Kept>>, Arc<Region>, Arc<Storage>) {
    let (kept, region) = (Arc::default(), region());
    let (storage, report) = start(&kept, &region, false).expect("made");
    assert_eq!(report.log.ring, RingUse::Created);
    storage.pages().create_space(SPACE).expect("made");
    (kept, region, storage)
}

fn append(storage: &Storage, page: u32, bytes: &[u8]) -> Lsn {
    let mut group = group(&mut GroupBuilder::new(), page, RecordAddr::NONE, bytes);
    storage.log().append(&mut group, None).expect("appended").end
}

#[test]
fn what_was_not_answered_is_sent_again_and_carried_out_once() {
    with(Arc::new(MemFs::new()), || {
        let (kept, _region, storage) = begun();
        let first = append(&storage, 1, b"one");
        kept.lock().unanswered = 1;
        let error = storage.log().wait_durable(first).expect_err("no answer");
        assert!(matches!(error, Error::Timeout(_)), "{error}");
        assert!(storage.log().durable() < first, "nothing is acknowledged");
        let second = append(&storage, 2, b"two");
        kept.lock().deaf = 2;
        (0..2).for_each(|_| drop(storage.log().wait_durable(second).expect_err("no answer")));
        storage.log().wait_durable(second).expect("answered");
        assert_eq!(storage.log().durable(), second);
        assert_eq!(kept.lock().at_origin().end, second, "each group once");
        let mut scan = storage.log().scan(storage.control().get().origin);
        let mut groups = 0;
        while scan.next().expect("whole").is_some() {
            groups += 1;
        }
        assert_eq!(groups, 2);
    });
}

/// Nodes free their log as they need it no more, whatever the server's checkpoint is: that was damage to a check.
#[test]
fn a_log_that_nodes_do_not_keep_is_no_damage() {
    with(Arc::new(MemFs::new()), || {
        let (kept, _region, storage) = begun();
        // More than the ring has.
        let groups: u64 = 6000;
        let ends: Vec<Lsn> = (0..groups)
            .map(|_| {
                let end = append(&storage, 1, &[7; 1000]);
                storage.ensure_durable(end).expect("durable");
                end
            })
            .collect();
        let check = || storage.check(&|_| false).expect("read");
        assert_eq!((check().groups, check().damage), (groups, Vec::new()));
        kept.lock().gone = ends[0];
        assert_eq!((check().groups, check().damage), (0, Vec::new()));
        kept.lock().gone = Lsn::ZERO;
        kept.lock().bytes[100] ^= 1;
        assert_eq!(check().damage.len(), 1, "and this is some");
    });
}

#[test]
fn a_page_is_dropped_and_asked_for_as_it_was_then() {
    with(Arc::new(MemFs::new()), || {
        let (kept, _region, storage) = begun();
        let end = append(&storage, 3, b"three");
        let id = PageId::new(SPACE, 3);
        storage.ensure_durable(end).expect("durable");
        let mut page = page_of(&kept.lock(), id, end).expect("built").0;
        crate::redo::set_page_lsn(&mut page, end);
        storage.write_pages(&[(id, &page)]).expect("dropped");
        let mut read = vec![0; PAGE_SIZE];
        assert_eq!(storage.read_page(id, &mut read).expect("read"), PageRead::Present);
        assert_eq!(page_lsn(&read), end);
        assert_eq!(kept.lock().asked.last(), Some(&(id, end)));
        let other = PageId::new(SPACE, 4);
        assert_eq!(
            storage.read_page(other, &mut read).expect("read"),
            PageRead::NeverWritten
        );
    });
}

#[test]
fn a_directory_whose_database_is_on_nodes_gets_none_of_its_own() {
    with(Arc::new(MemFs::new()), || {
        let (kept, _region, storage) = begun();
        let scratch = storage.dir.path().to_owned();
        drop(storage);
        let refused = DataDir::open(&scratch).map(drop).expect_err("it is elsewhere");
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("is on the nodes: name them with --storage")),
            "{refused}"
        );
        kept.lock().epoch = 0;
        start(&kept, &region(), false).expect("with its nodes it is opened");
        fs::remove(scratch.join(NODES_FILE)).expect("removed");
        DataDir::open(&scratch).expect("a new one");
    });
}

#[test]
fn an_earlier_start_is_refused_and_told_to_end() {
    with(Arc::new(MemFs::new()), || {
        let (kept, region) = (Arc::default(), region());
        let lost = Arc::new(AtomicU64::new(0));
        let mut claim = Claim::machine();
        let count = Arc::clone(&lost);
        claim.on_lost = Some(Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let dir = DataDir::on_nodes(FakeNodes::new(&kept), Path::new("/a"), Origins::default(), &claim).expect("taken");
        let mut options = StorageOptions::new(place(&region));
        options.background = false;
        let (former, _) = dir.storage(options).expect("made");
        former.pages().create_space(SPACE).expect("made");
        let late = append(&former, 1, b"late");
        let (next, report) = start(&kept, &crate::testing::region(), false).expect("taken over");
        assert_eq!(
            report.log.end,
            Origins::default().log,
            "what was not durable is not there"
        );
        let refused = former.log().wait_durable(late).expect_err("refused");
        assert!(matches!(refused, Error::LogFailed(_)), "{refused}");
        assert_eq!(lost.load(Ordering::SeqCst), 1, "it is told to end, once");
        assert!(former.control().update(|c| c.tx_ceiling += 1).is_err());
        let end = append(&next, 1, b"its own");
        next.log().wait_durable(end).expect("durable");
        assert_eq!(kept.lock().at_origin().end, end);
    });
}

/// A process is killed with groups in its ring that the nodes lack, or that they have and it did not hear of.
#[test]
fn a_ring_is_believed_beside_nodes_if_it_is_of_their_log() {
    with(Arc::new(MemFs::new()), || {
        for heard in [true, false] {
            let (kept, region, storage) = begun();
            let first = append(&storage, 1, b"one");
            storage.log().wait_durable(first).expect("durable");
            let before = copy_of(&region);
            let second = append(&storage, 2, b"two");
            kept.lock().unanswered = 1;
            storage.log().wait_durable(second).expect_err("no answer");
            if !heard {
                // The nodes did not hear of it either.
                let mut kept = kept.lock();
                let length = first.since(kept.origin) as usize;
                kept.bytes.truncate(length);
                let last = GroupRef::parse(&kept.bytes, kept.origin).expect("a group");
                kept.end = Some(LogEnd {
                    end: first,
                    last_start: last.start(),
                    last_checksum: last.checksum(),
                });
            }
            let third = append(&storage, 3, b"three");
            drop(storage);
            let (again, report) = start(&kept, &copy_of(&region), true).expect("opened");
            assert_eq!((&report.log.ring, report.log.end), (&RingUse::Used, third));
            assert_eq!(kept.lock().at_origin().end, third, "all of the ring is durable");
            drop(again);
            // A ring of before, and one of another history.
            let (_, report) = start(&kept, &before, true).expect("opened");
            assert!(
                matches!(report.log.ring, RingUse::Discarded(_)),
                "{:?}",
                report.log.ring
            );
            assert_eq!(report.log.end, third);
        }
    });
}
