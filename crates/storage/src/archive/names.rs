//! The names of objects. Numbers have as many digits as the largest has, so that names are in the order of numbers.

use cenote_base::Lsn;

/// The folder of a database.
pub(super) fn database(id: u128) -> String {
    format!("{id:032x}")
}

/// The database whose folder it is.
pub(super) fn database_of(folder: &str) -> Option<u128> {
    Some(folder).filter(|folder| folder.len() == 32)?;
    u128::from_str_radix(folder, 16).ok()
}

pub(super) fn timelines(id: u128) -> String {
    format!("{}/timelines", database(id))
}

pub(super) fn timeline(id: u128, number: u32) -> String {
    format!("{}/{number:08}", timelines(id))
}

pub(super) fn log(id: u128, timeline: u32) -> String {
    format!("{}/log/{timeline:08}", database(id))
}

pub(super) fn piece(id: u128, timeline: u32, start: Lsn) -> String {
    format!("{}/{:016x}", log(id, timeline), start.raw())
}

/// Where the piece of the log that has this name begins.
pub(super) fn start_of(name: &str) -> Option<Lsn> {
    let last = last(name);
    Some(last).filter(|last| last.len() == 16)?;
    u64::from_str_radix(last, 16).ok().map(Lsn::from_raw)
}

/// The number of the timeline that has this name.
pub(super) fn number_of(name: &str) -> Option<u32> {
    last(name).parse().ok()
}

pub(super) fn bases(id: u128, timeline: u32) -> String {
    format!("{}/bases/{timeline:08}", database(id))
}

/// A base of a timeline: where its log begins, when it was begun, in seconds since 1970, and a number by chance, so
/// that no other has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BaseName {
    pub from: Lsn,
    pub seconds: u64,
    pub nonce: u32,
}

impl BaseName {
    fn text(self) -> String {
        format!("{:016x}-{:010x}-{:08x}", self.from.raw(), self.seconds, self.nonce)
    }

    /// The base whose object, or whose folder of pages, has this name.
    pub fn of(name: &str) -> Option<BaseName> {
        let mut words = last(name).split('-');
        let mut word = |digits| words.next().filter(|word| word.len() == digits);
        Some(BaseName {
            from: Lsn::from_raw(u64::from_str_radix(word(16)?, 16).ok()?),
            seconds: u64::from_str_radix(word(10)?, 16).ok()?,
            nonce: u32::from_str_radix(word(8)?, 16).ok()?,
        })
    }

    pub fn object(self, id: u128, timeline: u32) -> String {
        format!("{}/{}", bases(id, timeline), self.text())
    }

    /// The folder of its pages.
    pub fn pages(self, id: u128, timeline: u32) -> String {
        format!("{}/pages/{timeline:08}/{}", database(id), self.text())
    }

    /// Pages of space `space` from page `first` on.
    pub fn part(self, id: u128, timeline: u32, space: u32, first: u32) -> String {
        format!("{}/{space:08x}-{first:08x}", self.pages(id, timeline))
    }
}

/// The folder of the pages of all bases of a timeline.
pub(super) fn all_pages(id: u128, timeline: u32) -> String {
    format!("{}/pages/{timeline:08}", database(id))
}

/// The base whose part has this name.
pub(super) fn base_of_part(name: &str) -> Option<BaseName> {
    BaseName::of(name.rsplit_once('/')?.0)
}

fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are_of() {
        let base = BaseName {
            from: Lsn::from_raw(0xABC0),
            seconds: 1_800_000_000,
            nonce: 0xA0,
        };
        assert_eq!(BaseName::of(&base.object(7, 3)), Some(base));
        assert_eq!(BaseName::of(&base.pages(7, 3)), Some(base));
        assert_eq!(start_of(&piece(7, 3, base.from)), Some(base.from));
        assert_eq!(number_of(&timeline(7, 3)), Some(3));
        assert_eq!(database_of(&database(7)), Some(7));
        for other in ["", "x", "lost+found", "00000000000000zz"] {
            assert_eq!(
                (BaseName::of(other), start_of(other), database_of(other)),
                (None, None, None)
            );
        }
    }
}
