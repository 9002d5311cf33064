//! Members with sessions here, written down: so that a node that begins anew can tell other nodes which of them did not
//! come back, before others have what they had.
//!
//! ```text
//!  DIR/member-HEX   a member's number; in it the space's.   There before its first session begins, gone after the last has ended
//! ```

use super::directory::remove_file;
use crate::grant_table::SpaceId;
use crate::member::MemberId;
use cenote_base::rt::{Mutex, fs};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PREFIX: &str = "member-";

/// See the module.
pub(super) struct Known {
    directory: PathBuf,
    /// Of the process before, as far as they have not come back.
    former: Mutex<BTreeMap<MemberId, SpaceId>>,
}

impl Known {
    /// What a former process wrote. A note that was cut off is of a member that had no session yet.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let failed = |error| Error::io(format!("listing {}", directory.display()), error);
        let names = fs::list(directory).map_err(failed)?;
        let noted = names.iter().filter_map(|name| Some((name, name.strip_prefix(PREFIX)?)));
        let mut former = BTreeMap::new();
        for (name, number) in noted {
            let path = directory.join(name);
            let bytes = fs::read(&path).map_err(|error| Error::io(format!("reading {}", path.display()), error))?;
            let space = str::from_utf8(&bytes).ok().and_then(hex);
            match hex(number).zip(space) {
                Some((member, space)) => _ = former.insert(MemberId(member), SpaceId(space)),
                None => remove_file(&path)?,
            }
        }
        let (directory, former) = (directory.to_owned(), Mutex::new(former));
        Ok(Self { directory, former })
    }

    fn path(&self, id: MemberId) -> PathBuf {
        self.directory.join(format!("{PREFIX}{:032x}", id.0))
    }

    /// A member is about to begin its first session.
    ///
    /// # Errors
    /// Those of files.
    pub(super) fn note(&self, id: MemberId, space: SpaceId) -> Result<()> {
        let (path, text) = (self.path(id), format!("{:032x}", space.0));
        fs::replace(&path, text.as_bytes()).map_err(|error| Error::io(format!("writing {}", path.display()), error))
    }

    /// A member of before is one again.
    pub(super) fn come_back(&self, id: MemberId) {
        self.former.lock().remove(&id);
    }

    /// A member has no sessions any more. One that stays noted is told of to others once more than needed.
    pub(super) fn forget(&self, id: MemberId) {
        self.former.lock().remove(&id);
        remove_file(&self.path(id)).ok();
    }

    /// Those of a space that were members of the process before, and did not come back.
    pub(super) fn former_of(&self, space: SpaceId) -> Vec<MemberId> {
        let former = self.former.lock();
        former
            .iter()
            .filter(|(_, of)| **of == space)
            .map(|(id, _)| *id)
            .collect()
    }
}

/// A number as it is written here.
fn hex(text: &str) -> Option<u128> {
    let is_number = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_before_are_known_until_they_come_back_or_are_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let known = Known::read(directory.path()).expect("empty");
        for n in 1..=3 {
            known.note(MemberId(n), SpaceId(7)).expect("written");
        }
        known.note(MemberId(4), SpaceId(8)).expect("written");
        assert!(known.former_of(SpaceId(7)).is_empty(), "they are of this process");
        std::fs::write(directory.path().join("member-cut"), "off").expect("written");
        let known = Known::read(directory.path()).expect("read");
        known.come_back(MemberId(1));
        assert_eq!(known.former_of(SpaceId(7)), [MemberId(2), MemberId(3)]);
        known.forget(MemberId(2));
        let known = Known::read(directory.path()).expect("read");
        assert_eq!(known.former_of(SpaceId(7)), [MemberId(1), MemberId(3)]);
        assert!(!directory.path().join("member-cut").exists());
    }
}
