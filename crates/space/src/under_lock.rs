//! Reading and writing what a lock protects: near memory at once, far memory by the [cache](super::cache) of pages.

use super::access::{Read, Write};
use super::act::{Act, Outcome};
use super::cache::{PAGE, Under};
use super::pieces::cut;
use super::route::Near;
use super::stats::CacheStats;
use super::{GlobalAddress, Space};
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};

/// Longer reads are not kept.
const READ_MAX: usize = 64 << 10;

impl Space {
    /// Pages of other pods that this process keeps of what it [reads under locks](super::Session::read_locked) take so
    /// many bytes at most; 0: none are kept. 64 MiB unless it is said.
    pub fn limit_cache(&self, bytes: u64) {
        self.cache().set_limit(bytes);
    }

    /// What was read and written under locks of what lies in other pods.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache().stats()
    }

    /// A session that reads pages which this process keeps asks its lock again when its last look is older than this:
    /// otherwise a process that was stopped for longer than its lease would read, unasked, what others have changed
    /// since. Less than a lease, by as much as a sign of life may be old; zero, as long as it is not said: it does not
    /// ask.
    pub fn trust_locks_for(&self, time: Nanos) {
        self.0.trust.store(time.raw(), Ordering::Release);
    }

    pub(super) fn lock_trust(&self) -> Nanos {
        Nanos(self.0.trust.load(Ordering::Acquire))
    }

    /// What was read under locks is not believed any more.
    pub(super) fn forget_pages(&self) {
        self.cache().clear();
    }

    /// Reads what a lock protects that is held to read, in that version. `is_held` looks whether it is, after a page
    /// was found.
    pub(super) fn read_under(
        &self,
        under: Under,
        is_held: impl FnOnce() -> Result<()>,
        address: GlobalAddress,
        into: &mut [u8],
    ) -> Result<()> {
        if self.read_near(address, into)? {
            return Ok(());
        }
        if self.cache().find(under, address, into) {
            return is_held();
        }
        let is_kept =
            self.cache().limit() > 0 && (1..=READ_MAX).contains(&into.len()) && cut(address, into.len()).is_none();
        if !is_kept {
            return self.read(address, into);
        }
        let (len, mut pages) = (into.len(), Vec::new());
        let mut around = Act::Around {
            len: len as u64,
            page: PAGE,
            into: &mut pages,
        };
        let before = self.act(address, &mut around)?;
        let start = address.checked_sub(before);
        let wanted = pages.get(before as usize..).and_then(|bytes| bytes.get(..len));
        let (Some(start), Some(wanted)) = (start, wanted) else {
            return Err(Error::corrupt(format!("what lies around {len} bytes at {address}")));
        };
        into.copy_from_slice(wanted);
        self.cache().keep(under, start, &pages);
        Ok(())
    }

    /// Reads it if it lies in a part that this process maps.
    fn read_near(&self, address: GlobalAddress, into: &mut [u8]) -> Result<bool> {
        if self.read_at_once(Read { address, into }).is_some() {
            return Ok(true);
        }
        self.act_near(address, &mut Act::Read(into))
    }

    /// Writes it if it lies in a part that this process maps.
    pub(super) fn write_near(&self, address: GlobalAddress, from: &[u8]) -> Result<bool> {
        if self.write_at_once(Write { address, from }).is_some() {
            return Ok(true);
        }
        self.act_near(address, &mut Act::Write(from))
    }

    fn act_near(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<bool> {
        act.check(address)?;
        Ok(matches!(
            self.attempt_near(address, act)?,
            Near::Here(Outcome::Done(..))
        ))
    }
}
