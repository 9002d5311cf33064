//! A space beside the pages', without redo: it is made, written, dropped and made again under its number, as tables are
//! that a crash takes back.
//!
//! What is in a page tells of which making of the space it is. No page of a former one comes back, and a thread that
//! makes the space takes nothing from the batches that others write meanwhile.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::page_io::{PageIo, PageRead};
use cenote_base::rt::{self, Nanos};
use cenote_base::{PAGE_SIZE, PageId, Result};
use cenote_buffer::BufferPool;
use cenote_storage::redo::page_header;
use cenote_storage::{Pages, Storage};

use crate::worlds::shared::Shared;

/// The space.
const SPACE: u32 = 1001;
/// Its pages.
const PAGES: u32 = 8;
/// Where a page names the making of the space that it is of.
const MAKING: usize = 64;
/// Longest rest between two makings, in nanoseconds.
const REST: u64 = 400_000;
/// How often it rests while no transaction ends: on a slow disk these take long, and a making takes next to nothing.
const RESTS: u64 = 100;

/// Works until told to stop.
pub(super) fn start(shared: &Arc<Shared>, pool: &Arc<BufferPool>) -> rt::JoinHandle<()> {
    let (shared, pool) = (shared.clone(), pool.clone());
    rt::spawn("spare", move || {
        let mut draw = Random(rt::random());
        while !shared.is_stopping() {
            let done = make(&shared, pool.storage(), &mut draw);
            if let Err(error) = done.and_then(|()| look_at(&shared, pool.storage().pages())) {
                shared.fail(format!("the space that is made again: {error}"));
            }
            rest(&shared, &mut draw);
        }
    })
}

fn rest(shared: &Shared, draw: &mut Random) {
    let ended = shared.ended();
    for _ in 0..RESTS {
        rt::sleep(Nanos(draw.below(REST)));
        if shared.ended() != ended || shared.is_stopping() {
            return;
        }
    }
}

fn make(shared: &Shared, storage: &Storage, draw: &mut Random) -> Result<()> {
    let pages = storage.pages();
    if pages.has_space(SPACE) {
        pages.drop_space(SPACE)?;
    }
    let making = shared.pages().make_spare();
    pages.create_space(SPACE)?;
    look_at(shared, pages)?;
    shared.count("spaces made again");
    let numbers = (0..PAGES).filter(|_| draw.one_in(2));
    let written: Vec<_> = numbers.map(|page| page_of(page, making)).collect();
    let batch: Vec<(PageId, &[u8])> = written.iter().map(|(id, page)| (*id, &page[..])).collect();
    storage.write_pages(&batch)
}

fn page_of(number: u32, making: u64) -> (PageId, Vec<u8>) {
    let mut page = vec![0; PAGE_SIZE];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(page_header::SPACE, &SPACE.to_le_bytes());
    put(page_header::PAGE, &number.to_le_bytes());
    put(MAKING, &making.to_le_bytes());
    (PageId::new(SPACE, number), page)
}

/// Whether all that is in the space is of its last making.
///
/// # Errors
/// Those of reading.
pub(super) fn look_at(shared: &Shared, pages: &Pages) -> Result<()> {
    let making = shared.pages().spare();
    let mut page = vec![0; PAGE_SIZE];
    for number in (0..PAGES).filter(|_| pages.has_space(SPACE)) {
        let read = pages.read_page(PageId::new(SPACE, number), &mut page)?;
        let word = page[MAKING..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        if read != PageRead::NeverWritten && word != making {
            shared.fail(format!(
                "page {number} of the space that was made for the {making}th time is of the {word}th"
            ));
        }
    }
    Ok(())
}
