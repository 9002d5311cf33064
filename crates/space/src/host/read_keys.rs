//! Keys by which users' cards read a part's memory: see [`super::window`].

use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use cenote_fabric::rdma::{Key, Registrar};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A part's memory, as it is registered for readers.
pub(super) struct Offer {
    registrar: Arc<dyn Registrar>,
    pub(super) memory: Arc<Mapping>,
    /// Held while one is made or ended: one that has ended is revoked, and not about to be.
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    held: BTreeSet<u64>,
    is_over: bool,
}

/// A key. Dropping it ends it; if the provider does not end it then, it is ended with its offer.
pub(super) struct ReadKey {
    offer: Arc<Offer>,
    pub(super) key: u64,
}

impl ReadKey {
    /// # Errors
    /// [`Error::Io`] if the provider did not end it: to be done again.
    pub(super) fn end(&self) -> Result<()> {
        let keys = &mut *self.offer.keys.lock();
        self.offer.revoke(keys, self.key)
    }
}

impl Drop for ReadKey {
    fn drop(&mut self) {
        self.end().ok();
    }
}

impl Offer {
    pub(super) fn new(registrar: Arc<dyn Registrar>, memory: Mapping) -> Self {
        Self {
            registrar,
            memory: Arc::new(memory),
            keys: Mutex::default(),
        }
    }

    /// A key to the first `len` bytes, and where they begin under it.
    pub(super) fn new_key(self: &Arc<Self>, len: u64) -> Result<(ReadKey, u64)> {
        let mut keys = self.keys.lock();
        if keys.is_over {
            return Err(not_offered());
        }
        let remote = self.registrar.register_to_read(&self.memory, len)?;
        keys.held.insert(remote.key.0);
        let offer = Arc::clone(self);
        let key = remote.key.0;
        Ok((ReadKey { offer, key }, remote.base))
    }

    fn revoke(&self, keys: &mut Keys, key: u64) -> Result<()> {
        if keys.held.contains(&key) {
            self.registrar.revoke(Key(key))?;
            keys.held.remove(&key);
        }
        Ok(())
    }

    /// There is no key to it any more, nor will be.
    pub(super) fn end(&self) -> Result<()> {
        let mut keys = self.keys.lock();
        keys.is_over = true;
        while let Some(key) = keys.held.first().copied() {
            self.revoke(&mut keys, key)?;
        }
        Ok(())
    }
}

pub(super) fn not_offered() -> Error {
    Error::Invalid("the part's memory is read by calls only".into())
}
