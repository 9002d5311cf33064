//! Slabs that the holder of a grant asks for together, as a server does that takes a database.
//!
//! ```text
//!   one change of the grant table: all of them are its own
//!        │  a thread for each memory node with some
//!        ├──▶ node a: admit, lend; admit, lend; …  ─┐
//!        └──▶ node b: admit, lend; …               ─┴──▶ the answer: when all have ended, or those left are silent
//! ```
//!
//! A node that does not answer costs its own slabs: they are answered as not reached. They are the holder's all the
//! same, whose lease it does not renew, and it may ask for them again. So do slabs whose node gets no thread.

use super::leader::Leader;
use crate::grant_table::{GrantId, NodeId, Opening};
use crate::wire::{Failure, OpenedSlab, SlabsRequest};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long the next slab is waited for, where some lie on other nodes.
pub(super) const SILENCE: Nanos = Nanos::from_secs(1);

type Answer = std::result::Result<OpenedSlab, Failure>;

/// What each slab of a request came to, in its order; `None`: its node is at it.
struct Answers {
    each: Mutex<Vec<Option<Answer>>>,
    more: Condvar,
}

/// A slab that is the holder's, by its place in the request.
#[derive(Clone, Copy)]
struct Taken {
    place: usize,
    id: GrantId,
    epoch: u64,
}

impl Answers {
    fn new(count: usize) -> Self {
        Self {
            each: Mutex::new(vec![None; count]),
            more: Condvar::default(),
        }
    }

    fn put(&self, place: usize, answer: Result<OpenedSlab>) {
        // A slab that was taken back meanwhile. Whether that is the first grant's loss, which ends its holder, is for
        // the next request to say: the store is asked before that is said.
        let answer = answer.map_err(|error| match error {
            Error::Revoked(why) => Error::Busy(why),
            error => error,
        });
        self.each.lock()[place] = Some(answer.map_err(Failure::from));
        self.more.notify_all();
    }

    fn put_all(&self, slabs: &[Taken], error: &Error) {
        slabs.iter().for_each(|slab| self.put(slab.place, Err(error.clone())));
    }

    /// All of them, once they have ended; those that have when it is `until`, or none did for `silence`.
    fn take(&self, until: Nanos, silence: Nanos) -> Vec<Answer> {
        let mut each = self.each.lock();
        let count = |each: &[Option<Answer>]| each.iter().filter(|answer| answer.is_none()).count();
        let (mut left, mut silent_at) = (count(&each), rt::now() + silence);
        while left > 0 && rt::now() < until.min(silent_at) {
            each = self.more.wait_timeout(each, until.min(silent_at).since(rt::now())).0;
            let now_left = count(&each);
            if now_left < left {
                (left, silent_at) = (now_left, rt::now() + silence);
            }
        }
        let not_reached = || Err(Error::Timeout("its memory node has not answered yet".into()).into());
        let taken = each.iter_mut().map(|answer| answer.take().unwrap_or_else(not_reached));
        taken.collect()
    }
}

impl Leader {
    /// What each of the slabs came to: one that cannot be had now is `Busy`, to be asked for again.
    ///
    /// # Errors
    /// [`Error::Revoked`] if the first grant is another holder's; [`Error::Busy`] if as many threads as there may be
    /// are at it for others: nothing is changed. Those of the request, and of the store.
    pub(super) fn open_slabs(self: &Arc<Self>, tenant: &str, requested: &SlabsRequest) -> Result<Vec<Answer>> {
        self.reaching.check_room()?;
        // No lease lapses before its holder hears that it has one.
        let within = Nanos(requested.within.min(self.lease().raw() / 2));
        let until = rt::now() + within;
        let openings = self
            .grant_table
            .change(|grant_table| grant_table.open_slabs(tenant, requested, rt::now(), self.lease()))?;
        let answers = Arc::new(Answers::new(openings.len()));
        let by_node = self.by_node(openings, &answers);
        // A node that is alone is waited for: there are no others' slabs to be had without it.
        let silence = if by_node.len() > 1 { SILENCE } else { within };
        for slabs in by_node.into_values() {
            self.begin_to_reach(tenant, slabs.into(), &answers);
        }
        Ok(answers.take(until, silence))
    }

    /// In a thread. If there is none, these slabs alone are not reached: the change of the grant table stands.
    fn begin_to_reach(self: &Arc<Self>, tenant: &str, slabs: Arc<[Taken]>, answers: &Arc<Answers>) {
        let (leader, tenant) = (Arc::clone(self), tenant.to_owned());
        let (theirs, into) = (Arc::clone(&slabs), Arc::clone(answers));
        let begun = self.reaching.spawn(move || leader.reach_slabs(&tenant, &theirs, &into));
        if let Err(error) = begun {
            answers.put_all(&slabs, &error);
        }
    }

    /// The slabs that were taken, by where they lie; the others are answered.
    fn by_node(&self, openings: Vec<Result<Opening>>, answers: &Answers) -> BTreeMap<NodeId, Vec<Taken>> {
        let mut by_node = BTreeMap::<NodeId, Vec<Taken>>::new();
        let grant_table = self.grant_table.look();
        for (place, opening) in openings.into_iter().enumerate() {
            let found = match opening {
                Ok(Opening::Admit(id, epoch)) => grant_table.grant(id).map(|grant| (grant.node, id, epoch)),
                Ok(Opening::Ask(..) | Opening::Wait) => {
                    Err(Error::Busy("its memory is being taken back: ask for it again".into()))
                }
                Err(error) => Err(error),
            };
            match found {
                Ok((node, id, epoch)) => by_node.entry(node).or_default().push(Taken { place, id, epoch }),
                Err(error) => answers.put(place, Err(error)),
            }
        }
        by_node
    }

    /// Has the slabs of one node registered for their holder, one after the other.
    fn reach_slabs(&self, tenant: &str, slabs: &[Taken], answers: &Answers) {
        for Taken { place, id, epoch } in slabs.iter().copied() {
            answers.put(place, self.reach_slab(tenant, id, epoch));
        }
    }

    fn reach_slab(&self, tenant: &str, id: GrantId, epoch: u64) -> Result<OpenedSlab> {
        let lost = || Error::Revoked(format!("grant {id} was taken back"));
        let opened = self.admit(id, epoch, false)?.ok_or_else(lost)?;
        let lent = self.lend(tenant, id, epoch)?;
        Ok(OpenedSlab { opened, lent })
    }
}
