//! What no moment that is kept needs is removed.
//!
//! A base is kept, and the log from where it begins, if it is the newest that ends no later than the first moment that
//! is kept, or a later one. The order of removal leaves nothing that seems whole and is not: first a base's object, then
//! its pages, then the log before.

use cenote_base::{Lsn, Result};

use super::archiver::Archiver;
use super::base::Base;
use super::names::{self, BaseName};
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
    /// Removes what moments from `micros` on (microseconds since 1970) do not need.
    ///
    /// # Errors
    /// Those of the object store: what is left is removed by the next call.
    pub fn prune(&self, micros: u64) -> Result<Pruned> {
        let (objects, database) = (&*self.objects, self.timeline.database);
        let mut pruned = Pruned::default();
        let Some((timeline, first)) = self.first_kept(micros)? else {
            return Ok(pruned);
        };
        for number in Timeline::numbers(objects, database)?
            .into_iter()
            .filter(|n| *n <= timeline)
        {
            let before = (number == timeline).then_some(first);
            for name in Base::names(objects, database, number)? {
                if before.is_none_or(|before| name < before) {
                    self.remove(&name.object(database, number), &mut pruned)?;
                    pruned.bases += 1;
                }
            }
            self.remove_pages(number, before, micros, &mut pruned)?;
            self.remove_log(number, before.map(|before| before.from), &mut pruned)?;
            if before.is_none() {
                self.remove(&names::timeline(database, number), &mut pruned)?;
            }
        }
        Ok(pruned)
    }

    /// The newest base that ends no later.
    fn first_kept(&self, micros: u64) -> Result<Option<(u32, BaseName)>> {
        let (objects, database) = (&*self.objects, self.timeline.database);
        for number in Timeline::numbers(objects, database)?.into_iter().rev() {
            for name in Base::names(objects, database, number)?.into_iter().rev() {
                if Base::read(objects, database, number, name)?.ended <= micros {
                    return Ok(Some((number, name)));
                }
            }
        }
        Ok(None)
    }

    /// The pages of bases that are not there: those of one that may be under way are left.
    fn remove_pages(&self, number: u32, before: Option<BaseName>, micros: u64, pruned: &mut Pruned) -> Result<()> {
        let (objects, database) = (&*self.objects, self.timeline.database);
        let finished = Base::names(objects, database, number)?;
        for seen in objects.list(&names::all_pages(database, number))? {
            let Some(name) = names::base_of_part(&seen.name) else {
                continue;
            };
            let is_old = before.is_none_or(|before| name < before) || name.seconds + UNFINISHED < micros / 1_000_000;
            if is_old && !finished.contains(&name) {
                self.remove(&seen.name, pruned)?;
            }
        }
        Ok(())
    }

    /// The pieces that end no later than `before`, or all.
    fn remove_log(&self, number: u32, before: Option<Lsn>, pruned: &mut Pruned) -> Result<()> {
        let (objects, database) = (&*self.objects, self.timeline.database);
        let starts: Vec<Lsn> = objects
            .list(&names::log(database, number))?
            .iter()
            .filter_map(|seen| names::start_of(&seen.name))
            .collect();
        for (n, start) in starts.iter().enumerate() {
            let next = starts.get(n + 1);
            let is_needed = before.is_some_and(|before| next.is_none_or(|next| *next > before));
            if !is_needed {
                self.remove(&names::piece(database, number, *start), pruned)?;
            }
        }
        Ok(())
    }

    fn remove(&self, name: &str, pruned: &mut Pruned) -> Result<()> {
        pruned.objects += 1;
        self.objects.remove(name)
    }
}
