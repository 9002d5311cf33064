//! Sessions of a former keeper that go on under this one.

use super::keeper::SessionId;
use super::local::LocalKeeper;
use cenote_base::{Error, Result};

impl LocalKeeper {
    /// A session that began under a former keeper lives on, also if it owned nothing when that one ended. Whether its
    /// process is there, and whether it had ended before, is the caller's to know.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no session of this number has begun.
    pub fn readmit(&self, session: SessionId) -> Result<()> {
        let mut extent_table = self.extent_table.lock();
        if session.0 == 0 || session.0 >= extent_table.next_session {
            return Err(Error::Invalid(format!("no session {} has begun", session.0)));
        }
        extent_table.sessions.insert(session);
        Ok(())
    }
}
