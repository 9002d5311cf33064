//! Memory that a channel's calls lend, and what it has counted of reads.

use super::Channel;
use super::modes::{FarMode, FarStats};
use super::wire::DirectFrom;
use cenote_base::rt::atomic::Ordering;
use cenote_fabric::rdma::call::Memory;

impl Channel {
    /// What is known of reads by this way, to a part.
    pub(in super::super) fn stats(&self, part: u8) -> FarStats {
        let line = self.line.lock().clone();
        FarStats {
            part,
            direct_from: line.as_ref().and_then(|line| line.known()),
            modes: line.as_ref().map_or(Vec::new(), |line| line.modes()),
            probed: line.map_or(Vec::new(), |line| line.probed()),
            plain: self.counted.plain.load(Ordering::Relaxed),
            direct: self.counted.direct.load(Ordering::Relaxed),
            one_sided: self.counted.one_sided.load(Ordering::Relaxed),
            fetched: self.counted.fetched.load(Ordering::Relaxed),
        }
    }

    /// Memory for a call that brings so many bytes of what does not change; none if they come as fast in its answer, or
    /// there is no connection yet.
    pub(in super::super) fn lend(&self, len: usize) -> Memory {
        let direct = self
            .known()
            .map_or(DirectFrom::NEVER, |line| line.direct_from([len as u64].into_iter()));
        match direct {
            DirectFrom::NEVER => Memory::default(),
            _ => self.memory(len, 0),
        }
    }

    /// Reads that a card did.
    pub(in super::super) fn count_fetched(&self, reads: usize) {
        self.counted.count(reads, FarMode::Fetched);
    }

    /// Memory for a call that lends so much, for so many reads.
    pub(super) fn memory(&self, len: usize, reads: usize) -> Memory {
        if len == 0 {
            return Memory::default();
        }
        let line = self.line.lock().clone();
        let (mode, memory) = match line.and_then(|line| line.lend(len)) {
            Some(lent) => (FarMode::OneSided, lent),
            None => (FarMode::Direct, self.buffers.take(len).into()),
        };
        self.counted.count(reads, mode);
        memory
    }
}
