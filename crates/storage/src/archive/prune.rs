//! What no moment that is kept needs is removed.
//!
//! Of each timeline that has a moment to be kept the newest base stays that ends no later than the first of them, with
//! the log from where it begins, and all that is newer. A timeline goes as a whole if its last moment is earlier, and a
//! newer base than its own brings the first moment to be kept. The order of removal leaves nothing that seems whole and
//! is not: first a base's object, then its pages, then the log before.

use cenote_base::{Error, Lsn, Result};

use super::archiver::Archiver;
use super::base::Base;
use super::names::{self, BaseName};
use super::survey::last_moment;
use super::timeline::Timeline;

/// Seconds after which a base that was not finished is one no more.
const UNFINISHED: u64 = 7 * 24 * 3600;

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Bases.
    pub bases: u64,
    /// Objects.
    pub objects: u64,
}

impl Archiver {
    /// Removes what moments from `keep` on (microseconds since 1970) do not need, and in any case what is left of bases
    /// that were not finished.
    ///
    /// # Errors
    /// Those of the object store: what is left is removed by the next call.
    pub fn prune(&self, keep: Option<u64>) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let mut is_brought = false;
        for number in Timeline::numbers(&*self.objects, self.timeline.database)?
            .into_iter()
            .rev()
        {
            let bases = self.bases(number)?;
            let first = keep.and_then(|keep| Some(bases.iter().rfind(|(_, ended)| *ended <= keep)?.0));
            let is_over = || last_moment(&*self.objects, self.timeline.database, number).map(|last| keep > Some(last));
            if is_brought && number != self.timeline.number && keep.is_some() && is_over()? {
                self.remove_timeline(number, &bases, &mut pruned)?;
            } else {
                self.trim(number, &bases, first, &mut pruned)?;
            }
            is_brought |= first.is_some();
        }
        Ok(pruned)
    }

    /// The bases of a timeline, and when each ended. One that cannot be read is one that never ended.
    fn bases(&self, number: u32) -> Result<Vec<(BaseName, u64)>> {
        let (objects, database) = (&*self.objects, self.timeline.database);
        let ended = |name: BaseName| match Base::read(objects, database, number, name) {
            Ok(base) => Ok((name, base.ended)),
            Err(Error::Corrupt(_) | Error::Mismatch(_)) => Ok((name, u64::MAX)),
            Err(error) => Err(error),
        };
        Base::names(objects, database, number)?.into_iter().map(ended).collect()
    }

    fn remove_timeline(&self, number: u32, bases: &[(BaseName, u64)], pruned: &mut Pruned) -> Result<()> {
        for (name, _) in bases {
            self.remove_base(number, *name, pruned)?;
        }
        for part in self.objects.list(&names::all_pages(self.timeline.database, number))? {
            self.remove(&part.name, pruned)?;
        }
        for piece in self.objects.list(&names::log(self.timeline.database, number))? {
            self.remove(&piece.name, pruned)?;
        }
        self.remove(&names::timeline(self.timeline.database, number), pruned)
    }

    /// Removes what is before a base, if there is one, and what is left of others.
    fn trim(&self, number: u32, bases: &[(BaseName, u64)], first: Option<BaseName>, pruned: &mut Pruned) -> Result<()> {
        let is_before = |name: BaseName| first.is_some_and(|first| name < first);
        for (name, _) in bases.iter().filter(|(name, _)| is_before(*name)) {
            self.remove_base(number, *name, pruned)?;
        }
        let old = self.times.now() / 1_000_000;
        for seen in self.objects.list(&names::all_pages(self.timeline.database, number))? {
            let Some(name) = names::base_of_part(&seen.name) else {
                continue;
            };
            let is_left = || name.seconds + UNFINISHED < old && !bases.iter().any(|(base, _)| *base == name);
            if is_before(name) || is_left() {
                self.remove(&seen.name, pruned)?;
            }
        }
        first.map_or(Ok(()), |first| self.remove_log(number, first.from, pruned))
    }

    /// The pieces that end no later than `before`.
    fn remove_log(&self, number: u32, before: Lsn, pruned: &mut Pruned) -> Result<()> {
        let seen = self.objects.list(&names::log(self.timeline.database, number))?;
        for pair in seen.windows(2) {
            if names::start_of(&pair[1].name).is_some_and(|next| next <= before) {
                self.remove(&pair[0].name, pruned)?;
            }
        }
        Ok(())
    }

    fn remove_base(&self, number: u32, name: BaseName, pruned: &mut Pruned) -> Result<()> {
        pruned.bases += 1;
        self.remove(&name.object(self.timeline.database, number), pruned)
    }

    fn remove(&self, name: &str, pruned: &mut Pruned) -> Result<()> {
        pruned.objects += 1;
        self.objects.remove(name)
    }
}
