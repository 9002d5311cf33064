//! A page that only remote memory had whole, without remote memory: its image in storage, and its chain of redo.
//!
//! Nothing of that chain was given up: checkpoints stay below the oldest change that storage lacks. The chain is
//! bounded, as any page's (500 records or 64 KiB, then an image).

use cenote_base::page_io::{PageIo, PageRead};
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::{OwnedRecord, Storage, redo};

use crate::lower::{Fetched, Trace};

/// The page as it was when it left its frame with `trace`.
pub(crate) fn rebuild(storage: &Storage, page: PageId, trace: Trace) -> Result<Fetched> {
    let (mut bytes, base) = image(storage, page)?;
    let records = {
        let _segments = storage.log().hold();
        storage.log().collect_chain(page, trace.head, base)?
    };
    apply(&mut bytes, base, &records)?;
    let lsn = redo::page_lsn(&bytes);
    if lsn != trace.lsn {
        return Err(Error::corrupt(format!(
            "page {page} was changed last at {}; storage has it as of {base}, and {} redo records lead to {lsn}",
            trace.lsn,
            records.len()
        )));
    }
    Ok(Fetched {
        bytes,
        read: PageRead::Present,
        from_storage: true,
        trace,
    })
}

/// The page in storage and its LSN; zeros if it was never written, or cannot be read (then its redo must begin with an
/// image).
fn image(storage: &Storage, page: PageId) -> Result<(Box<[u8]>, Lsn)> {
    let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
    match storage.read_page(page, &mut bytes) {
        Ok(PageRead::Present | PageRead::Rebuilt) => {
            let lsn = redo::page_lsn(&bytes);
            Ok((bytes, lsn))
        }
        Ok(PageRead::NeverWritten) | Err(Error::Corrupt(_)) => Ok((vec![0; PAGE_SIZE].into(), Lsn::ZERO)),
        Err(other) => Err(other),
    }
}

fn apply(bytes: &mut [u8], base: Lsn, records: &[OwnedRecord]) -> Result<()> {
    let whole = base != Lsn::ZERO || records.first().is_some_and(|r| r.get().is_base);
    if !whole {
        return Err(Error::corrupt(
            "a page is missing from storage, and its redo does not begin it",
        ));
    }
    for record in records {
        let record = record.get();
        redo::apply(bytes, &record)?;
    }
    Ok(())
}
