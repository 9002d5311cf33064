//! Redo applied to a page: the one function that recovery, repair and storage nodes share.

use cenote_base::bytes::get_le;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result, crc};

use super::page_header as header;
use super::{Op, PageRecordRef};

/// Applies `record` to `page` and sets the page's LSN to the record's.
///
/// The caller has made sure that the page is at the state which the record expects: its LSN is
/// that of the record before, or the record is a base.
///
/// # Errors
/// [`Error::Corrupt`] if the record reaches outside the page, [`Error::Invalid`] if `page` is not
/// of [`PAGE_SIZE`] bytes. The page may be half changed then.
pub fn apply(page: &mut [u8], record: &PageRecordRef<'_>) -> Result<()> {
    if page.len() != PAGE_SIZE {
        return Err(Error::Invalid(format!(
            "redo applied to {} bytes, not a page",
            page.len()
        )));
    }
    for op in record.ops() {
        apply_op(page, record.page, op.map_err(|e| named(e, record))?);
    }
    set_page_lsn(page, record.lsn);
    Ok(())
}

fn named(error: Error, record: &PageRecordRef<'_>) -> Error {
    Error::corrupt(format!("record {} of page {}: {error}", record.address, record.page))
}

fn apply_op(page: &mut [u8], id: PageId, op: Op<'_>) {
    match op {
        Op::Write { offset, bytes } => page[offset..offset + bytes.len()].copy_from_slice(bytes),
        Op::Move {
            source,
            destination,
            length,
        } => {
            page.copy_within(source..source + length, destination);
        }
        Op::Init { kind, level } => init(page, id, kind, level),
        Op::Image { head, tail } => {
            page[..head.len()].copy_from_slice(head);
            page[head.len()..PAGE_SIZE - tail.len()].fill(0);
            page[PAGE_SIZE - tail.len()..].copy_from_slice(tail);
        }
    }
}

fn init(page: &mut [u8], id: PageId, kind: u8, level: u8) {
    page.fill(0);
    page[header::SPACE..header::SPACE + 8].copy_from_slice(&id.to_bytes());
    (page[header::KIND], page[header::LEVEL]) = (kind, level);
    page[header::VERSION..header::VERSION + 2].copy_from_slice(&header::FORMAT.to_le_bytes());
}

/// The LSN in a page's header.
pub fn page_lsn(page: &[u8]) -> Lsn {
    Lsn::from_raw(get_le::<u64>(page, header::LSN).unwrap_or(0))
}

/// Which page it is, by its header.
pub fn page_id(page: &[u8]) -> PageId {
    PageId::from_bytes(page[header::SPACE..header::SPACE + 8].try_into().expect("8 bytes"))
}

/// Sets the LSN in a page's header.
pub fn set_page_lsn(page: &mut [u8], lsn: Lsn) {
    page[header::LSN..header::LSN + 8].copy_from_slice(&lsn.raw().to_le_bytes());
}

/// Sets the checksum in a page's header; the last thing done before it goes to storage.
pub fn set_page_checksum(page: &mut [u8]) {
    let sum = crc::crc32c(&page[4..]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether `page` is page `id` as it was written to storage.
///
/// # Errors
/// [`Error::Corrupt`], which says what does not fit.
pub fn verify_page(page: &[u8], id: PageId) -> Result<()> {
    let (stored, computed) = (get_le::<u32>(page, 0).unwrap_or(0), crc::crc32c(&page[4..]));
    if stored != computed {
        return Err(Error::corrupt(format!(
            "page {id}: checksum {stored:08x} is stored, {computed:08x} computed"
        )));
    }
    let found = page_id(page);
    if found != id {
        return Err(Error::corrupt(format!(
            "page {id}: the bytes are those of page {found}"
        )));
    }
    Ok(())
}
