//! What an agent does as it is ordered. Each order may come twice, and may have been done before.

use crate::device::{GrantPlace, PoolDevice};
use crate::grant_table::GrantId;
use crate::host::{Process, RangeHost, users_in};
use crate::wire::{Order, OrderReply, RangeFound, RangeOrder, RangeWork};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::FileRange;

/// How long ending processes may take.
const END_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Bytes that are erased, or written back, at once, unless an extent is larger.
const STEP: u64 = 64 << 20;
/// How long that goes on within one order: the manager asks again for the rest.
const STEPS_TIMEOUT: Nanos = Nanos::from_secs(2);

/// How far a range is erased, or written back, that takes more than one order.
#[derive(Default)]
struct Steps(Mutex<Option<Progress>>);

struct Progress {
    of: (GrantId, u64, What),
    done: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Erasing,
    WritingBack,
}

impl Steps {
    /// Does it for the rest of the range, as far as the time goes.
    ///
    /// # Errors
    /// [`Error::Busy`] if there is more to do; those of `work`.
    fn go_on(&self, place: GrantPlace, step: u64, what: What, work: impl Fn(FileRange) -> Result<()>) -> Result<()> {
        let (mut progress, of) = (self.0.lock(), (place.grant, place.epoch, what));
        let mut done = progress
            .as_ref()
            .filter(|former| former.of == of)
            .map_or(0, |former| former.done);
        let (until, all) = (rt::now() + STEPS_TIMEOUT, place.range.bytes);
        while done < all {
            let bytes = step.min(all - done);
            let offset = place.range.offset + done;
            work(FileRange { offset, bytes })?;
            done += bytes;
            *progress = Some(Progress { of, done });
            if rt::now() > until && done < all {
                let grant = place.grant;
                return Err(Error::Busy(format!(
                    "{what:?} grant {grant}: {done} of {all} bytes are done"
                )));
            }
        }
        *progress = None;
        Ok(())
    }

    /// A process has, or may have, the range mapped: lines that were written back may be dirty again.
    fn begin_anew(&self, grant: GrantId) {
        let mut progress = self.0.lock();
        if progress.as_ref().is_some_and(|former| former.of.0 == grant) {
            *progress = None;
        }
    }
}

/// The device, and the processes of this host that use it.
pub(super) struct Ranges {
    /// The host's name.
    pub(super) name: String,
    pub(super) host: Box<dyn RangeHost>,
    pub(super) device: PoolDevice,
    steps: Steps,
}

impl Ranges {
    pub(super) fn new(name: String, host: Box<dyn RangeHost>, device: PoolDevice) -> Self {
        Self {
            name,
            host,
            device,
            steps: Steps::default(),
        }
    }

    /// Ends every process of this host that maps something of the device but its directory.
    pub(super) fn end_all(&self) -> Result<()> {
        self.host
            .end_users(self.device.path(), self.device.extents(), END_TIMEOUT)
    }

    pub(super) fn execute(&self, order: &Order) -> Result<OrderReply> {
        self.device.check_there()?;
        match order {
            Order::Ping => Ok(OrderReply::Done),
            Order::List => self.list(),
            Order::Range(order) => self.execute_on_range(order),
            _ => Err(Error::Invalid(
                "the agent of a host has ranges of a device, and no files".into(),
            )),
        }
    }

    fn execute_on_range(&self, order: &RangeOrder) -> Result<OrderReply> {
        let place = GrantPlace {
            grant: order.grant,
            epoch: order.epoch,
            range: FileRange {
                offset: order.offset,
                bytes: order.bytes,
            },
        };
        match order.work {
            RangeWork::Admit { new } => self.admit(place, new),
            RangeWork::Inspect { write_back } => self.inspect(place, write_back),
            RangeWork::Confirm(process) => self.confirm(place, process),
            RangeWork::Fence => self.fence(place),
            RangeWork::Free => self.free(place),
        }
    }

    /// Whole extents: a device maps no less.
    fn step(&self) -> u64 {
        STEP.next_multiple_of(self.device.granule())
    }

    fn users(&self, place: GrantPlace) -> Result<Vec<String>> {
        self.host.users(self.device.path(), place.range)
    }

    fn admit(&self, place: GrantPlace, new: bool) -> Result<OrderReply> {
        self.steps.begin_anew(place.grant);
        let users = self.users(place)?;
        if !users.is_empty() {
            let (users, host) = (users.join(", "), &self.name);
            return Err(Error::Busy(format!(
                "{users} of host \"{host}\" maps the range of grant {}",
                place.grant
            )));
        }
        self.device.admit(place, new)?;
        Ok(OrderReply::Admitted { fresh: new })
    }

    fn inspect(&self, place: GrantPlace, write_back: bool) -> Result<OrderReply> {
        self.device.check_standing(place)?;
        let users = self.users(place)?;
        match users.is_empty() {
            true if write_back => self.write_back(place)?,
            true => {}
            false => self.steps.begin_anew(place.grant),
        }
        Ok(OrderReply::Holders(users))
    }

    fn confirm(&self, place: GrantPlace, process: Process) -> Result<OrderReply> {
        self.device.check_standing(place)?;
        self.steps.begin_anew(place.grant);
        match planted(Fault::RangeSeen) || self.host.is_user(self.device.path(), place.range, process)? {
            true => Ok(OrderReply::Done),
            false => Err(Error::Mismatch(format!(
                "process {} is not seen to map grant {} on host \"{}\": name the host that it runs on (--host)",
                process.pid, place.grant, self.name
            ))),
        }
    }

    fn fence(&self, place: GrantPlace) -> Result<OrderReply> {
        self.device.check_standing(place)?;
        if !planted(Fault::RangeFence) {
            self.host.end_users(self.device.path(), place.range, END_TIMEOUT)?;
        }
        self.write_back(place)?;
        Ok(OrderReply::Done)
    }

    /// What an ended process has stored may lie in this host's caches, and would come over what the next holder stores
    /// from another host.
    fn write_back(&self, place: GrantPlace) -> Result<()> {
        if planted(Fault::RangeWriteBack) {
            return Ok(());
        }
        let work = |range| self.device.write_back(range);
        self.steps.go_on(place, self.step(), What::WritingBack, work)
    }

    fn free(&self, place: GrantPlace) -> Result<OrderReply> {
        if self.device.check_standing(place).is_err() {
            // It is another's by the directory, or damaged: nothing of this grant is there, and nothing is touched.
            self.device.ranges()?;
            return Ok(OrderReply::Done);
        }
        self.host.end_users(self.device.path(), place.range, END_TIMEOUT)?;
        let work = |range| match planted(Fault::RangeZero) {
            true => Ok(()),
            false => self.device.erase(range),
        };
        self.device
            .free(place, || self.steps.go_on(place, self.step(), What::Erasing, work))?;
        Ok(OrderReply::Done)
    }

    /// All extents: the ranges that are granted by the directory, and what is between them.
    fn list(&self) -> Result<OrderReply> {
        let mut granted = self.device.ranges()?;
        granted.retain(|range| range.is_granted());
        let mappings = self.host.mappings(self.device.path())?;
        let found = |grant: Option<GrantId>, offset: u64, bytes: u64| RangeFound {
            grant,
            offset,
            bytes,
            users: users_in(&mappings, FileRange { offset, bytes }),
        };
        let (extents, mut all) = (self.device.extents(), Vec::new());
        let mut at = extents.offset;
        for record in granted {
            let FileRange { offset, bytes } = record.place.range;
            if offset > at {
                all.push(found(None, at, offset - at));
            }
            all.push(found(Some(record.place.grant), offset, bytes));
            at = offset + bytes;
        }
        let end = extents.offset + extents.bytes;
        if end > at {
            all.push(found(None, at, end - at));
        }
        Ok(OrderReply::Ranges(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A range that was written back in part, and mapped again, is written back from its beginning.
    #[test]
    fn what_a_holder_has_mapped_meanwhile_is_written_back_again() {
        let steps = Steps::default();
        let place = GrantPlace {
            grant: GrantId(7),
            epoch: 3,
            range: FileRange { offset: 100, bytes: 30 },
        };
        let written = RefCell::new(Vec::new());
        let until = |end: u64| {
            written.borrow_mut().clear();
            steps.go_on(place, 10, What::WritingBack, |range| {
                written.borrow_mut().push(range.offset);
                match range.offset < end {
                    true => Ok(()),
                    false => Err(Error::Busy("cut off".into())),
                }
            })
        };
        until(120).expect_err("cut off");
        steps.begin_anew(GrantId(8));
        until(120).expect_err("cut off");
        assert_eq!(*written.borrow(), [120], "it goes on where it was");
        steps.begin_anew(GrantId(7));
        until(200).expect("all of it");
        assert_eq!(*written.borrow(), [100, 110, 120]);
    }
}
