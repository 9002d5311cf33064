//! Extents whose moves did not end in time: the part on the other side of the move is away. Who waits for such an
//! extent again waits briefly, or each access to what lies in it would take half a minute. One in a minute waits as
//! long as the first, in case that the part is about to be back.

use super::GlobalAddress;
use cenote_base::rt::{self, Mutex, Nanos};
use std::collections::BTreeMap;

/// How long an extent may be frozen, or not to be found, before that is an error.
pub(super) const PATIENCE: Nanos = Nanos::from_secs(30);
/// How long, where it was so before.
const BRIEF: Nanos = Nanos::from_secs(1);
/// For how long that is remembered, and of how many.
const REMEMBERED: Nanos = Nanos::from_secs(60);
const EXTENTS_MOST: usize = 1024;

const _: () = assert!(BRIEF.0 < PATIENCE.0 && PATIENCE.0 < REMEMBERED.0);

/// Since when waiting for each of them is in vain.
#[derive(Default)]
pub(super) struct Stalled(Mutex<BTreeMap<GlobalAddress, Nanos>>);

impl Stalled {
    /// How long to wait for what lies at an address.
    pub(super) fn patience(&self, address: GlobalAddress) -> Nanos {
        let known = self.0.lock().get(&address.extent()).copied();
        match known.is_some_and(|since| rt::now().since(since) < REMEMBERED) {
            true => BRIEF,
            false => PATIENCE,
        }
    }

    /// It was waited for in vain. Not renewed as long as it is remembered.
    pub(super) fn note(&self, address: GlobalAddress) {
        let (mut known, now) = (self.0.lock(), rt::now());
        known.retain(|_, since| now.since(*since) < REMEMBERED);
        if known.len() < EXTENTS_MOST {
            known.entry(address.extent()).or_insert(now);
        }
    }

    /// It has come.
    pub(super) fn forget(&self, address: GlobalAddress) {
        self.0.lock().remove(&address.extent());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of a hundred reads in one extent waited half a minute.
    #[test]
    fn what_was_waited_for_in_vain_is_waited_for_briefly() {
        let stalled = Stalled::default();
        let at = |slot, offset| GlobalAddress::new(1, slot, offset, 1).expect("fits");
        assert_eq!(stalled.patience(at(3, 64)), PATIENCE);
        stalled.note(at(3, 64));
        assert_eq!(stalled.patience(at(3, 128)), BRIEF, "it is of the same extent");
        assert_eq!(stalled.patience(at(4, 64)), PATIENCE);
        stalled.forget(at(3, 0));
        assert_eq!(stalled.patience(at(3, 64)), PATIENCE, "it has come");
    }
}
