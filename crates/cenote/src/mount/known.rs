//! Which files the kernel knows by number: it says them back by it until it has forgotten them.

use cenote_fs::Inode;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// See the module.
pub(super) struct Known(Mutex<HashMap<u64, Told>>);

/// A file that the kernel was told of.
struct Told {
    inode: Inode,
    /// How often: it forgets as many times.
    times: u64,
}

impl Known {
    /// The root is known from the start, and never forgotten.
    pub(super) fn new(root: Inode) -> Self {
        let told = Told { inode: root, times: 1 };
        Self(Mutex::new(HashMap::from([(root.number, told)])))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Told>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn find(&self, number: u64) -> Option<Inode> {
        self.table().get(&number).map(|told| told.inode)
    }

    pub(super) fn tell(&self, inode: Inode) {
        let mut table = self.table();
        let told = table.entry(inode.number).or_insert(Told { inode, times: 0 });
        told.times += 1;
    }

    pub(super) fn forget(&self, number: u64, times: u64) {
        let mut table = self.table();
        if let Some(told) = table.get_mut(&number) {
            told.times = told.times.saturating_sub(times);
            if told.times == 0 && number != fuser::INodeNo::ROOT.0 {
                table.remove(&number);
            }
        }
    }
}
