//! The meta page: what a database knows of itself before its catalog can be read.

use crate::api::Origins;
use crate::circle::Circle;
use crate::error::{Error, Result};
use crate::numbers::Numbered;
use crate::pool::BufferPool;
use crate::system::{CATALOG_SPACE, COUNTERS_SPACE, FIRST_OBJECT, FIRST_SPACE, META_SPACE};
use crate::tree::BTree;
use crate::tx::cts;
use crate::undo::{self, Segment};
use cenote_base::{Cts, Lsn, PageId, TxId, rt};
use cenote_storage::Storage;
use std::ops::Range;
use std::sync::Arc;

const KIND_META: u8 = 0x23;
const META_MAGIC: u64 = u64::from_le_bytes(*b"CenoteMt");
const AT_MAGIC: usize = 32;
const AT_NEXT_OBJECT: usize = 40;
const AT_NEXT_SPACE: usize = 44;
pub(crate) const AT_SEGMENTS: usize = 48;
const AT_SPACE_ROUND: usize = 52;
const AT_SPACE_END: usize = 56;
const AT_UNDO_PAGES: usize = 60;
const AT_UNDO_LAP: usize = 64;
const AT_OBJECT_ROUND: usize = 68;
/// Zero: all 32 bits.
const AT_OBJECT_END: usize = 72;
/// Of a database on storage nodes: see [`Purged`].
const AT_FLOOR: usize = 80;
const AT_LOW_WATER: usize = 88;
const _: () = {
    assert!(
        AT_MAGIC + 8 <= AT_NEXT_OBJECT && AT_NEXT_OBJECT + 4 <= AT_NEXT_SPACE,
        "the numbers to give next do not overlap"
    );
    assert!(
        AT_NEXT_SPACE + 4 <= AT_SEGMENTS && AT_SEGMENTS + 4 <= AT_SPACE_ROUND,
        "the count of segments has a word of its own"
    );
    assert!(
        AT_SPACE_ROUND + 4 <= AT_SPACE_END && AT_SPACE_END + 4 <= AT_UNDO_PAGES,
        "a round of space numbers has words of its own"
    );
    assert!(
        AT_UNDO_PAGES + 4 <= AT_UNDO_LAP && AT_UNDO_LAP + 4 <= AT_OBJECT_ROUND,
        "the origins of undo have words of their own"
    );
    assert!(
        AT_OBJECT_ROUND + 4 <= AT_OBJECT_END,
        "a round of object numbers has words of its own"
    );
    assert!(
        AT_OBJECT_END + 4 <= AT_FLOOR && AT_FLOOR + 8 <= AT_LOW_WATER,
        "what readers are told has words of its own"
    );
};
/// Engine word of the control file: 1 once the system spaces are complete.
pub(crate) const WORD_COMPLETE: usize = 0;

/// Makes the system spaces; the control file says when they are durable. Begun anew after a crash in between.
pub(crate) fn create(pool: &BufferPool, storage: &Storage, origins: &Origins) -> Result<()> {
    for space in [META_SPACE, CATALOG_SPACE, COUNTERS_SPACE, cts::SPACE] {
        if !storage.pages().has_space(space) {
            storage.pages().create_space(space)?;
        }
    }
    BTree::create(pool, CATALOG_SPACE)?;
    BTree::create(pool, COUNTERS_SPACE)?;
    cts::create(
        pool,
        TxId::from_raw(storage.control().get().tx_ceiling),
        origins.cts_pages,
    )?;
    let mut m = pool.mtr();
    let h = m.create(PageId::new(META_SPACE, 0), KIND_META, 0)?;
    m.write_u64(h, AT_MAGIC, META_MAGIC);
    m.write_u32(h, AT_NEXT_OBJECT, origins.object);
    m.write_u32(h, AT_OBJECT_END, origins.object_end);
    m.write_u32(h, AT_NEXT_SPACE, origins.space);
    m.write_u32(h, AT_SPACE_END, origins.space_end);
    m.write_u32(h, AT_UNDO_PAGES, origins.undo_pages);
    m.write_u32(h, AT_UNDO_LAP, origins.undo_lap);
    m.write_u32(h, AT_SEGMENTS, 0);
    let end = m.commit();
    storage.log().wait_durable(end)?;
    Ok(storage.control().update(|c| c.engine[WORD_COMPLETE] = 1)?)
}

/// What the server has purged, for readers ([`crate::follow`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Purged {
    /// Snapshots before it miss rows.
    pub floor: Cts,
    /// To all others, transactions below have ended before them.
    pub low_water: TxId,
}

/// What it has purged by now.
pub(crate) fn purged(pool: &BufferPool) -> Result<Purged> {
    loop {
        let guard = pool.optimistic(PageId::new(META_SPACE, 0))?;
        let view = guard.view();
        let purged = Purged {
            floor: Cts::from_raw(view.u64(AT_FLOOR)),
            low_water: TxId::from_raw(view.u64(AT_LOW_WATER)),
        };
        if guard.valid() {
            return Ok(purged);
        }
        rt::relax();
    }
}

/// Says what it is about to purge; the position behind that.
pub(crate) fn note_purged(pool: &BufferPool, purged: Purged) -> Result<Lsn> {
    let mut m = pool.mtr();
    let h = m.exclusive(PageId::new(META_SPACE, 0))?;
    m.write_u64(h, AT_FLOOR, purged.floor.raw());
    m.write_u64(h, AT_LOW_WATER, purged.low_water.raw());
    Ok(m.commit())
}

/// Where the meta page holds the next number and the round.
pub(crate) fn cursor_at(of: Numbered) -> (usize, usize) {
    match of {
        Numbered::Space => (AT_NEXT_SPACE, AT_SPACE_ROUND),
        Numbered::Object => (AT_NEXT_OBJECT, AT_OBJECT_ROUND),
    }
}

/// What the meta page says: the undo segments, what a new one is given, the ranges of spaces' and objects' numbers.
pub(crate) type Meta = (Vec<Arc<Segment>>, (Circle, u32), (Range<u32>, Range<u32>));

pub(crate) fn open(pool: &BufferPool) -> Result<Meta> {
    let corrupt = || Error::Corrupt("the meta page".into());
    let guard = pool.shared(PageId::new(META_SPACE, 0))?;
    let view = guard.view();
    let (count, spaces) = (view.u32(AT_SEGMENTS), FIRST_SPACE..view.u32(AT_SPACE_END));
    let objects = FIRST_OBJECT..match view.u32(AT_OBJECT_END) {
        0 => u32::MAX,
        end => end,
    };
    let sound =
        view.u64(AT_MAGIC) == META_MAGIC && !spaces.is_empty() && spaces.end <= undo::SPACE_BASE && !objects.is_empty();
    let circle = Circle::new(view.u32(AT_UNDO_PAGES)).filter(|_| sound && count <= undo::MAX_SEGMENTS);
    let undo_from = (circle.ok_or_else(corrupt)?, view.u32(AT_UNDO_LAP));
    drop(guard);
    let open = |number: u16| Ok(Arc::new(Segment::new(number, &undo::header(pool, number)?)));
    let segments = (0..count).map(|number| open(number as u16)).collect::<Result<_>>()?;
    Ok((segments, undo_from, (spaces, objects)))
}
