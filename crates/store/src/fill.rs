//! An item that is being filled: its objects, noted as this member's, and the bytes in them.
//!
//! ```text
//! alloc ─► control: filling ─► intent ─► chunks, each noted in the item ─► bytes ─► checksums, live ─► write-back ─► link
//!                                │ killed                                              │
//!                                └──────────── another member frees it ◄───────────────┘ not linked
//! ```

use super::core::{Core, Key};
use super::heap::{Visibility, offset};
use super::item::{Control, Header, Life, VALUE_MAX, addresses, body, chunks, class_size, footprint};
use super::members::Slot;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result, crc};
use cenote_space::GlobalAddress;

/// Bytes that are copied, or checked, at a time: they stay in the processor's cache in between.
pub(super) const STEP: usize = 64 << 10;

/// See the module.
pub(super) struct Filling {
    pub item: GlobalAddress,
    pub header: Header,
    pub key: Vec<u8>,
    list: Vec<u8>,
    slot: Slot,
}

impl Core {
    /// Room for an item.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the value is too long; [`Error::Full`] if there is no room and nothing to evict.
    pub(super) fn begin(&self, key: &Key<'_>, value_len: u64, tenant: u32, expires: u64) -> Result<Filling> {
        self.begin_in(None, key, value_len, (tenant, expires))
    }

    /// As [`begin`](Self::begin), in a part or in any.
    pub(super) fn begin_in(
        &self,
        part: Option<u8>,
        key: &Key<'_>,
        value_len: u64,
        (tenant, expires): (u32, u64),
    ) -> Result<Filling> {
        if value_len > VALUE_MAX {
            return Err(Error::Invalid(format!(
                "a value of {value_len} bytes: {VALUE_MAX} are the most"
            )));
        }
        self.make_room(tenant, footprint(key.bytes.len(), value_len))?;
        let header = Header {
            control: Control::new(self.sequence()?, Life::Filling),
            hash: key.hash,
            key_len: key.bytes.len() as u32,
            tenant,
            value_len,
            version: 1,
            expires,
            chunks: chunks(value_len).len() as u32,
            flags: 0,
            value_crc: 0,
            crc: 0,
        };
        let item = self.alloc_for(header.object_len(), tenant, part)?;
        let mut filling = self.note_or_free(item, header, key)?;
        match self.alloc_chunks(&mut filling, tenant, part) {
            Ok(()) => Ok(filling),
            Err(error) => self.abandon(filling).and(Err(error)),
        }
    }

    /// Notes an item in an object that was allocated for it.
    pub(super) fn note_or_free(&self, item: GlobalAddress, header: Header, key: &Key<'_>) -> Result<Filling> {
        let filling = self.note(item, header, key);
        if filling.is_err() {
            self.heap.free(item)?;
        }
        filling
    }

    fn note(&self, item: GlobalAddress, header: Header, key: &Key<'_>) -> Result<Filling> {
        let list = vec![0; 8 * header.chunks as usize];
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(key.bytes);
        if header.chunks > 0 {
            bytes.resize(header.body() as usize, 0);
            bytes.extend_from_slice(&list);
        }
        self.heap.write(item, &bytes)?;
        let slot = self.member.intend(&self.heap, item, header.control.sequence())?;
        Ok(Filling {
            item,
            header,
            key: key.bytes.to_vec(),
            list,
            slot,
        })
    }

    fn alloc_chunks(&self, filling: &mut Filling, tenant: u32, part: Option<u8>) -> Result<()> {
        for (n, range) in chunks(filling.header.value_len).enumerate() {
            let chunk = self.alloc_for(range.end - range.start, tenant, part)?;
            filling.list[8 * n..][..8].copy_from_slice(&chunk.raw().to_le_bytes());
            self.heap
                .store(offset(filling.item, filling.header.body() + 8 * n as u64)?, chunk.raw())?;
        }
        Ok(())
    }

    /// Gives back what was being filled.
    pub(super) fn abandon(&self, filling: Filling) -> Result<()> {
        let chunks: Vec<_> = addresses(&filling.list).filter(|chunk| !chunk.is_null()).collect();
        if self.any_waits(&chunks) {
            self.keep_filled(&filling);
            return Ok(());
        }
        let killed = self.kill(filling.item, filling.header.control.sequence());
        if matches!(killed, Err(Error::Timeout(_))) {
            self.keep_filled(&filling);
            return Ok(());
        }
        let forgotten = self.member.forget_intent(&self.heap, filling.slot);
        if killed?.is_none() {
            return forgotten; // Another has taken this member for dead.
        }
        // Whichever host uses them next: no line of them comes to memory from here then.
        self.publish_chunks(&filling)?;
        forgotten.and(self.free_objects(chunks.into_iter().chain([filling.item]), false))
    }

    /// The chunks with all that their objects have beside: what is left of them in a cache would come to memory later,
    /// over what another host has written there by then.
    fn publish_chunks(&self, filling: &Filling) -> Result<()> {
        if self.heap.visibility == Visibility::Coherent {
            return Ok(());
        }
        for (chunk, range) in addresses(&filling.list).zip(chunks(filling.header.value_len)) {
            if !chunk.is_null() {
                self.heap.publish(chunk, class_size(range.end - range.start))?;
            }
        }
        Ok(())
    }

    /// Whether what was filled is linked, where its link's answer was lost. If not, the sweep frees it: another may
    /// have pinned it and taken it out.
    pub(super) fn was_linked(&self, filling: &Filling) -> Result<bool> {
        let is_linked = self.is_linked(filling.item, &filling.header)?;
        if !is_linked {
            self.keep_filled(filling);
        }
        Ok(is_linked)
    }

    /// What was filled, and is not linked, is freed by a sweep. Where few intents are left it is this process's alone,
    /// as in [`keep_retired`](Self::keep_retired).
    fn keep_filled(&self, filling: &Filling) {
        let is_forgotten = self.member.has_few_intents() && self.member.forget_intent(&self.heap, filling.slot).is_ok();
        let slot = (!is_forgotten).then_some(filling.slot);
        self.retired.lock().push((filling.item, filling.header, slot));
    }

    /// Copies bytes to their place in the value.
    pub(super) fn fill_at(&self, filling: &Filling, at: u64, bytes: &[u8]) -> Result<()> {
        let end = at
            .checked_add(bytes.len() as u64)
            .filter(|end| *end <= filling.header.value_len);
        if end.is_none() {
            let (len, whole) = (bytes.len(), filling.header.value_len);
            return Err(Error::OutOfBounds(format!("{len} bytes at {at} of a value of {whole}")));
        }
        let mut rest = bytes;
        for (piece, len) in pieces(filling.item, &filling.header, &filling.list, at, bytes.len() as u64) {
            let (first, behind) = rest.split_at(len as usize);
            self.heap.write_value(piece?, first, !filling.list.is_empty())?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies the whole value, and its checksum where one is wanted.
    pub(super) fn fill(&self, filling: &mut Filling, value: &[u8]) -> Result<()> {
        if !self.wants_checksum(value.len() as u64) {
            return self.fill_at(filling, 0, value);
        }
        let mut checksum = crc::crc32c(&[]);
        for (n, step) in value.chunks(STEP).enumerate() {
            self.fill_at(filling, (n * STEP) as u64, step)?;
            checksum = crc::append(checksum, step);
        }
        filling.header.set_value_checksum(Some(checksum));
        Ok(())
    }

    /// Values in chunks have a checksum where memory is incoherent, or where it is asked for; others always.
    pub(super) fn wants_checksum(&self, value_len: u64) -> bool {
        let is_inline = chunks(value_len).len() == 0;
        is_inline || self.heap.visibility == Visibility::Flush || self.options.checksums
    }

    /// Makes the item's bytes whole, and seen by whoever comes by the entry that will name it.
    pub(super) fn finish(&self, filling: &mut Filling) -> Result<()> {
        self.finish_as(filling, 1)
    }

    /// As [`finish`](Self::finish), as this version.
    pub(super) fn finish_as(&self, filling: &mut Filling, version: u64) -> Result<()> {
        self.publish_chunks(filling)?;
        if self.heap.visibility == Visibility::Flush && filling.list.is_empty() && filling.header.value_len > 0 {
            let at = offset(filling.item, filling.header.body())?;
            self.heap.publish(at, filling.header.value_len)?;
        }
        self.set_version(filling, version)
    }

    /// The header with this version. The item must not be linked.
    pub(super) fn set_version(&self, filling: &mut Filling, version: u64) -> Result<()> {
        let header = &mut filling.header;
        header.version = version;
        header.control = Control::new(header.control.sequence(), Life::Live).with_hits(header.control.hits());
        header.crc = header.checksum(&filling.key, &filling.list);
        let bytes = header.encode();
        // What is behind the control word first.
        self.heap.write(offset(filling.item, 8)?, &bytes[8..])?;
        self.heap.store(filling.item, header.control.0)?;
        self.heap
            .publish(filling.item, filling.header.body() + filling.list.len() as u64)
    }

    /// Counts an item that was linked: how many there were.
    pub(super) fn count_in(&self, header: &Header) -> Result<u64> {
        self.counters.bytes_in.fetch_add(header.value_len, Ordering::Relaxed);
        let bytes = footprint(header.key_len as usize, header.value_len);
        self.account(header.tenant, 1, bytes as i64)
    }

    /// It is linked: no more this member's.
    pub(super) fn has_linked(&self, filling: &Filling) -> Result<()> {
        self.member.forget_intent(&self.heap, filling.slot)
    }
}

impl Filling {
    /// Whether its value lies in objects of its own.
    pub(super) fn is_chunked(&self) -> bool {
        !self.list.is_empty()
    }

    /// Where its value lies.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (Result<GlobalAddress>, u64)> {
        pieces(self.item, &self.header, &self.list, 0, self.header.value_len)
    }
}

/// Where some bytes of a value lie: addresses, and how many bytes there.
pub(super) fn pieces(
    item: GlobalAddress,
    header: &Header,
    list: &[u8],
    at: u64,
    len: u64,
) -> impl Iterator<Item = (Result<GlobalAddress>, u64)> {
    let end = at + len;
    let inline = (list.is_empty() && len > 0).then(|| (offset(item, body(header.key_len as usize) + at), len));
    let of = move |(chunk, range): (GlobalAddress, core::ops::Range<u64>)| {
        let (from, to) = (at.max(range.start), end.min(range.end));
        (from < to).then(|| (offset(chunk, from - range.start), to - from))
    };
    let chunked = addresses(list)
        .collect::<Vec<_>>()
        .into_iter()
        .zip(chunks(header.value_len))
        .filter_map(of);
    inline.into_iter().chain(chunked)
}
