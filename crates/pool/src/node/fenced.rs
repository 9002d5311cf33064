//! Members that were fenced and were not ended, as they run elsewhere or map nothing: what they had is taken back, and
//! they may come back to claim it.

use crate::member::MemberId;
use cenote_base::rt::fs;
use cenote_base::{Error, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

const FILE: &str = "fenced.json";
/// The last that are remembered.
const MAX: usize = 16384;

/// See the module. In a file, oldest first.
pub(super) struct Fenced {
    path: PathBuf,
    members: VecDeque<MemberId>,
}

impl Fenced {
    /// What a former process wrote.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; those of files.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let failed = |error| Error::io(format!("reading {}", path.display()), error);
        let members = match fs::exists(&path).map_err(failed)? {
            true => {
                let bytes = fs::read(&path).map_err(failed)?;
                let parsed = serde_json::from_slice(&bytes);
                parsed.map_err(|error| {
                    Error::corrupt(format!(
                        "{}: {error}. If no process of before uses a space, remove it",
                        path.display()
                    ))
                })?
            }
            false => VecDeque::new(),
        };
        Ok(Self { path, members })
    }

    pub(super) fn contains(&self, member: MemberId) -> bool {
        self.members.contains(&member)
    }

    /// Remembers members, before another may take what they had.
    pub(super) fn add(&mut self, ids: &[MemberId]) -> Result<()> {
        let new: Vec<MemberId> = ids.iter().copied().filter(|id| !self.contains(*id)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut members = self.members.clone();
        members.extend(new);
        members.drain(..members.len().saturating_sub(MAX));
        let text = serde_json::to_vec(&members).map_err(|error| Error::Invalid(error.to_string()))?;
        fs::replace(&self.path, &text).map_err(|error| Error::io(format!("writing {}", self.path.display()), error))?;
        self.members = members;
        Ok(())
    }
}
