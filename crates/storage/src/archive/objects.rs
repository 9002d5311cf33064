//! What an archive is kept in.

use cenote_base::Result;

/// An object that a listing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSeen {
    /// Its whole name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An object store, or a directory that stands for one. Names are parts that are separated by `/`.
pub trait Objects: Send + Sync {
    /// Where the objects are, for people.
    fn place(&self) -> String;

    /// Keeps `bytes` as `name`, durably, unless there is such an object: whether it did.
    ///
    /// # Errors
    /// [`Error::Io`](cenote_base::Error::Io), [`Error::Timeout`](cenote_base::Error::Timeout): whether it was kept is
    /// not known then.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// An object; `None` if there is no such one.
    ///
    /// # Errors
    /// As of [`Objects::put_new`].
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// The objects of the folder `folder`, by name.
    ///
    /// # Errors
    /// As of [`Objects::put_new`].
    fn list(&self, folder: &str) -> Result<Vec<ObjectSeen>>;

    /// Those of them whose names are behind `after`.
    ///
    /// # Errors
    /// As of [`Objects::put_new`].
    fn list_behind(&self, folder: &str, after: &str) -> Result<Vec<ObjectSeen>> {
        let mut seen = self.list(folder)?;
        seen.retain(|seen| seen.name.as_str() > after);
        Ok(seen)
    }

    /// The names of the folders that lie at the top.
    ///
    /// # Errors
    /// As of [`Objects::put_new`].
    fn folders(&self) -> Result<Vec<String>>;

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// As of [`Objects::put_new`].
    fn remove(&self, name: &str) -> Result<()>;
}
