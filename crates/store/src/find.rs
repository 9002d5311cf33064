//! Looking up: the former table first while there is one, then the current one. An entry is written to the current
//! table before it leaves the former, so that order misses none.

use super::chains::{Placed, Table, is_leaving, placed};
use super::core::{Core, Key, View};
use super::entry::State;
use super::item::{HEADER, Header, KEY_MAX, Life};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// How often a look-up begins anew because the tables changed.
const TURNS: u32 = 1000;
/// Keys up to here are compared without memory of their own.
const SHORT: usize = 192;

/// An item that is linked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub place: Placed,
    pub header: Header,
}

/// What a look into one table says.
enum Look {
    Found(Found),
    Nothing,
    /// An entry changed while it was read.
    Again,
    /// Entries have gone to another table.
    Stale,
}

impl Core {
    /// The key's committed entry, also of one that has expired.
    ///
    /// # Errors
    /// [`Error::Lost`] if the table, or an item that may be the key's, lies in a part that is not there.
    pub(super) fn find(&self, key: &Key<'_>) -> Result<Option<Found>> {
        let mut view = self.view();
        for _ in 0..TURNS {
            match self.look(&view, key)? {
                Look::Found(found) => return Ok(Some(found)),
                Look::Nothing => return Ok(None),
                Look::Again => {}
                Look::Stale => view = self.refresh_from(&view)?,
            }
        }
        Err(Error::Busy("the store's table changes faster than it is read".into()))
    }

    fn look(&self, view: &View, key: &Key<'_>) -> Result<Look> {
        let mut lost = None;
        if let Some((former, bucket)) = view.former(key.hash) {
            match self.look_in(former, bucket, key) {
                Ok(Look::Nothing | Look::Stale) => {}
                Err(Error::Lost(why)) => lost = Some(why),
                look => return look,
            }
        }
        match (self.look_in(&view.table, view.table.bucket_of(key.hash), key)?, lost) {
            (Look::Nothing, Some(why)) => Err(Error::Lost(why)),
            (look, _) => Ok(look),
        }
    }

    fn look_in(&self, table: &Table, bucket: u64, key: &Key<'_>) -> Result<Look> {
        let (mut look, mut lost) = (Look::Nothing, None);
        table.each_line(&self.heap, bucket, |line| {
            if is_leaving(line) {
                look = Look::Stale;
            }
            for placed in placed(line) {
                let placed = placed?;
                if !matches!(placed.entry.state(), State::Committed | State::Frozen) {
                    continue;
                }
                match self.see(placed, key) {
                    Ok(Seen::It(header)) => look = Look::Found(Found { place: placed, header }),
                    Ok(Seen::Changed) => look = Look::Again,
                    Ok(Seen::Other) => continue,
                    // It may be another key's: the key's own may stand behind it.
                    Err(Error::Lost(why)) => {
                        lost = Some(why);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                return Ok(false);
            }
            Ok(true)
        })?;
        match (look, lost) {
            (Look::Nothing | Look::Stale, Some(why)) => Err(Error::Lost(why)),
            (look, _) => Ok(look),
        }
    }

    /// Whether an entry is the key's.
    pub(super) fn see(&self, placed: Placed, key: &Key<'_>) -> Result<Seen> {
        if !placed.entry.may_be(key.hash) {
            return Ok(Seen::Other);
        }
        let header = self.header_of(placed.entry.item(), key)?;
        // The word is the same after the item was read: the item was there all the time, and these bytes are its own.
        match self.heap.load(placed.at)? == placed.entry.raw() {
            true => Ok(header.map_or(Seen::Other, Seen::It)),
            false => Ok(Seen::Changed),
        }
    }

    /// The header of an item, if it is a live one with this key. It may have been freed meanwhile: then what is there
    /// is another one's, or none's.
    fn header_of(&self, item: GlobalAddress, key: &Key<'_>) -> Result<Option<Header>> {
        let (mut short, mut long) = ([0; HEADER + SHORT], [0; 0].to_vec());
        let len = HEADER + key.bytes.len();
        let bytes = match short.get_mut(..len) {
            Some(bytes) => bytes,
            None => {
                long.resize(len.min(HEADER + KEY_MAX), 0);
                &mut long[..]
            }
        };
        match self.heap.read(item, bytes) {
            Ok(()) => Ok(matching(bytes, key)),
            Err(error) => match self.heap.failure_at(item, error) {
                Error::Invalid(_) | Error::OutOfBounds(_) => Ok(None),
                error => Err(error),
            },
        }
    }

    /// The header of an item, whatever its key is; `None` if no object is there.
    pub(super) fn header_at(&self, item: GlobalAddress) -> Result<Option<Header>> {
        let mut bytes = [0; HEADER];
        match self.heap.read(item, &mut bytes) {
            Ok(()) => Ok(Some(Header::decode(&bytes))),
            Err(error) => match self.heap.failure_at(item, error) {
                Error::Invalid(_) | Error::OutOfBounds(_) => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// What an entry is to a key.
pub(super) enum Seen {
    It(Header),
    Other,
    /// The entry is another one by now.
    Changed,
}

/// The header of the item whose first bytes these are, if it is a live one with this key.
pub(super) fn matching(bytes: &[u8], key: &Key<'_>) -> Option<Header> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let header = Header::decode(header);
    let is_it = header.control.life() == Life::Live && header.hash == key.hash;
    (is_it && header.key_len as usize == key.bytes.len() && rest == key.bytes).then_some(header)
}
