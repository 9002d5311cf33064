//! What no moment that is kept needs is removed.
//!
//! Of each timeline that has a moment to be kept the newest base stays that ends no later than the first of them, with
//! the log from where it begins, and all that is newer. A timeline goes as a whole if its last moment is earlier, and a
//! newer base than its own brings the first moment to be kept. The order of removal leaves nothing that seems whole and
//! is not: first a base's object, then its pages, then the log before.

use cenote_base::{Error, Lsn, Result};

use super::archiver::{Archiver, Turn};
use super::base::Base;
use super::names::{self, BaseName};
use super::survey::last_moment;
use super::timeline::Timeline;

/// Seconds after which a base that was not finished is one no more.
const UNFINISHED: u64 = 7 * 24 * 3600;
/// Objects that are removed between two turns.
const TURN_EVERY: usize = 16;

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Bases.
    pub bases: u64,
    /// Objects.
    pub objects: u64,
}

/// What is to be removed, in order.
#[derive(Default)]
struct Doomed {
    names: Vec<String>,
    bases: u64,
}

impl Archiver {
    /// Removes what moments from `keep` on (microseconds since 1970) do not need, and in any case what is left of bases
    /// that were not finished. `turn` is called now and then, and says whether to go on.
    ///
    /// # Errors
    /// Those of the object store and of `turn`: what is left is removed by the next call.
    pub fn prune(&mut self, keep: Option<u64>, turn: &Turn<'_>) -> Result<Pruned> {
        let doomed = self.doomed(keep, turn)?;
        let objects = self.remove(&doomed.names, turn)?;
        Ok(Pruned {
            bases: doomed.bases,
            objects,
        })
    }

    /// Removes objects in order: how many it came to.
    pub(super) fn remove(&mut self, names: &[String], turn: &Turn<'_>) -> Result<u64> {
        for (n, name) in names.iter().enumerate() {
            if n % TURN_EVERY == 0 && !turn(self)? {
                return Ok(n as u64);
            }
            self.objects.remove(name)?;
        }
        Ok(names.len() as u64)
    }

    fn doomed(&mut self, keep: Option<u64>, turn: &Turn<'_>) -> Result<Doomed> {
        let (mut doomed, mut is_brought) = (Doomed::default(), false);
        for number in Timeline::numbers(&*self.objects, self.timeline.database)?
            .into_iter()
            .rev()
        {
            if !turn(self)? {
                break;
            }
            let bases = self.bases(number)?;
            let first = keep.and_then(|keep| Some(bases.iter().rfind(|(_, ended)| *ended <= keep)?.0));
            let is_over = || last_moment(&*self.objects, self.timeline.database, number).map(|last| keep > Some(last));
            if is_brought && number != self.timeline.number && keep.is_some() && is_over()? {
                self.doom_timeline(number, &bases, &mut doomed)?;
            } else {
                self.trim(number, &bases, first, &mut doomed)?;
            }
            is_brought |= first.is_some();
        }
        Ok(doomed)
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

    fn doom_timeline(&self, number: u32, bases: &[(BaseName, u64)], doomed: &mut Doomed) -> Result<()> {
        let database = self.timeline.database;
        doomed.bases += bases.len() as u64;
        doomed
            .names
            .extend(bases.iter().map(|(name, _)| name.object(database, number)));
        for folder in [names::all_pages(database, number), names::log(database, number)] {
            doomed
                .names
                .extend(self.objects.list(&folder)?.into_iter().map(|seen| seen.name));
        }
        doomed.names.push(names::timeline(database, number));
        Ok(())
    }

    /// What is before a base, if there is one, and what is left of others.
    fn trim(&self, number: u32, bases: &[(BaseName, u64)], first: Option<BaseName>, doomed: &mut Doomed) -> Result<()> {
        let (database, old) = (self.timeline.database, self.times.now() / 1_000_000);
        let is_before = |name: BaseName| first.is_some_and(|first| name < first);
        for (name, _) in bases.iter().filter(|(name, _)| is_before(*name)) {
            doomed.bases += 1;
            doomed.names.push(name.object(database, number));
        }
        let is_left = |name: BaseName| name.seconds + UNFINISHED < old && !bases.iter().any(|(base, _)| *base == name);
        let parts = self.objects.list(&names::all_pages(database, number))?;
        let gone = parts.into_iter().filter(|seen| {
            let base = names::base_of_part(&seen.name);
            base.is_some_and(|name| is_before(name) || is_left(name))
        });
        doomed.names.extend(gone.map(|seen| seen.name));
        first.map_or(Ok(()), |first| self.trim_log(number, first.from, doomed))
    }

    /// The pieces that end no later than `before`.
    fn trim_log(&self, number: u32, before: Lsn, doomed: &mut Doomed) -> Result<()> {
        let seen = self.objects.list(&names::log(self.timeline.database, number))?;
        let ends = seen
            .windows(2)
            .filter(|pair| names::start_of(&pair[1].name).is_some_and(|next| next <= before));
        doomed.names.extend(ends.map(|pair| pair[0].name.clone()));
        Ok(())
    }
}
