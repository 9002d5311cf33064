//! The list of an area of the double-write file: the pages of its batch, and the batches that were settled before it.
//!
//! ```text
//! header of an area, 16 KiB: four lists of 4 KiB, the batches' by turns and each twice
//!      0 turn 0    4096 turn 1    8192 turn 0 again    12288 turn 1 again
//! list
//!      0 u64 magic  8 u128 database  24 u64 sequence  32 u32 pages
//!     36 u32 crc32c of the list to the end of its last entry (this field zero)
//!     40 AREAS x u64 settled: the newest batch in each area whose pages were synced in their places
//!     72 BATCH x { u32 space  u32 page  u64 lsn  u32 checksum  u32 sectors that the copy has, the first lowest }
//! ```
//!
//! Copies lie one behind the other, in the order of the list, each as long as its sectors.
//!
//! Lists take turns, so that the list of the batch before stays while an area is written over, until the new one is
//! whole. Each is there twice, since a list that is not seen hides the newest versions of its pages.
//!
//! Version 1 had one list of 16 KiB without `settled` and LSNs; copies of versions 1 and 2 were whole pages. They are
//! read; the next batch in their area is of this version.

use cenote_base::bytes::get_le;
use cenote_base::page_io::Sectors;
use cenote_base::{Lsn, PAGE_SIZE, PageId, crc};

/// Pages in a batch, at most.
pub const BATCH: usize = 64;
/// Batches that may be in flight, and be written before a sync of the spaces is needed.
pub(super) const AREAS: usize = 4;

const MAGIC: [u8; 8] = *b"CenDblW3";
const MAGIC_2: [u8; 8] = *b"CenDblW2";
const MAGIC_1: [u8; 8] = *b"CenDblW1";
const LIST: usize = 4096;
const SUM: usize = 36;
const SETTLED: usize = 40;
const ENTRIES: usize = SETTLED + 8 * AREAS;
const ENTRY: usize = 24;
const ENTRIES_1: usize = 64;
const ENTRY_1: usize = 16;

const _: () = assert!(ENTRIES + BATCH * ENTRY <= LIST && 4 * LIST == PAGE_SIZE);

/// The list of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct List {
    /// Batches count upwards.
    pub sequence: u64,
    /// Which of the two places in the header the list has.
    pub turn: usize,
    /// The newest batch in each area whose pages were synced in their places; zero: none.
    pub settled: [u64; AREAS],
    pub entries: Vec<Entry>,
}

/// A page of a batch, in the order of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub id: PageId,
    /// The page's LSN; zero in lists of version 1.
    pub lsn: Lsn,
    /// The page's checksum, all of it.
    pub sum: u32,
    /// What the copy has of it.
    pub sectors: Sectors,
}

/// The newest list in an area's header that is whole.
///
/// # Errors
/// The reason if the list is of another database, or of a format that this program does not know.
pub(super) fn newest(header: &[u8], database: u128) -> Result<Option<List>, String> {
    let of_later = |at: usize| header[at..at + 7] == MAGIC[..7] && header[at + 7] > MAGIC[7];
    // The first batch of an area has turn 1: nothing need be at the other's places.
    if (0..2).any(|turn| of_later(turn * LIST) && of_later((turn + 2) * LIST)) {
        return Err("has a format that this program does not know: use the program that wrote it".into());
    }
    let lists = (0..4).map(|n| parse(header, n, database));
    let lists = lists.chain([parse_1(header, database)]);
    let whole = lists.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
    Ok(whole.into_iter().max_by_key(|list| list.sequence))
}

fn parse(header: &[u8], number: usize, database: u128) -> Result<Option<List>, String> {
    let bytes = &header[number * LIST..(number + 1) * LIST];
    let Some(count) = count_of(bytes).filter(|_| bytes[..8] == MAGIC || bytes[..8] == MAGIC_2) else {
        return Ok(None);
    };
    let has_sectors = bytes[..8] == MAGIC;
    if get_le::<u32>(bytes, SUM) != Some(sum(&bytes[..ENTRIES + count * ENTRY])) {
        return Ok(None);
    }
    check_database(bytes, database)?;
    let entry = |bytes: &[u8]| Entry {
        id: id_at(bytes),
        lsn: Lsn::from_raw(get_le::<u64>(bytes, 8).unwrap_or(0)),
        sum: get_le::<u32>(bytes, 16).unwrap_or(0),
        sectors: match get_le::<u32>(bytes, 20) {
            Some(raw) if has_sectors => Sectors::from_raw(raw),
            _ => Sectors::WHOLE,
        },
    };
    Ok(Some(List {
        sequence: get_le::<u64>(bytes, 24).unwrap_or(0),
        turn: number % 2,
        settled: std::array::from_fn(|area| get_le::<u64>(bytes, SETTLED + 8 * area).unwrap_or(0)),
        entries: bytes[ENTRIES..].chunks_exact(ENTRY).take(count).map(entry).collect(),
    }))
}

fn parse_1(header: &[u8], database: u128) -> Result<Option<List>, String> {
    let Some(count) = count_of(header).filter(|_| header[..8] == MAGIC_1) else {
        return Ok(None);
    };
    if get_le::<u32>(header, SUM) != Some(sum(header)) {
        return Ok(None);
    }
    check_database(header, database)?;
    let entry = |bytes: &[u8]| Entry {
        id: id_at(bytes),
        lsn: Lsn::ZERO,
        sum: get_le::<u32>(bytes, 8).unwrap_or(0),
        sectors: Sectors::WHOLE,
    };
    Ok(Some(List {
        sequence: get_le::<u64>(header, 24).unwrap_or(0),
        // The next one takes the place of the magic.
        turn: 1,
        settled: [0; AREAS],
        entries: header[ENTRIES_1..]
            .chunks_exact(ENTRY_1)
            .take(count)
            .map(entry)
            .collect(),
    }))
}

fn count_of(list: &[u8]) -> Option<usize> {
    get_le::<u32>(list, 32).map(|n| n as usize).filter(|n| *n <= BATCH)
}

fn check_database(list: &[u8], database: u128) -> Result<(), String> {
    match list[8..24] == database.to_le_bytes() {
        true => Ok(()),
        false => Err("is of another database".into()),
    }
}

fn id_at(entry: &[u8]) -> PageId {
    PageId::from_bytes(*entry.first_chunk().expect("an entry is longer"))
}

fn sum(list: &[u8]) -> u32 {
    let sum = crc::append(crc::crc32c(&list[..SUM]), &[0; 4]);
    crc::append(sum, &list[SUM + 4..])
}

/// Where the two copies of a list lie in an area's header.
pub(super) fn places(turn: usize) -> [std::ops::Range<usize>; 2] {
    [turn, turn + 2].map(|place| place * LIST..(place + 1) * LIST)
}

/// Lays a list down in an area's header, twice; the one of the other turn stays.
pub(super) fn put(header: &mut [u8], list: &List, database: u128) {
    assert!(
        list.turn < 2 && list.entries.len() <= BATCH,
        "a list of {} pages does not fit the header of an area",
        list.entries.len()
    );
    let mut bytes = vec![0; LIST];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&database.to_le_bytes());
    bytes[24..32].copy_from_slice(&list.sequence.to_le_bytes());
    bytes[32..36].copy_from_slice(&(list.entries.len() as u32).to_le_bytes());
    for (field, settled) in bytes[SETTLED..].chunks_exact_mut(8).zip(list.settled) {
        field.copy_from_slice(&settled.to_le_bytes());
    }
    for (field, entry) in bytes[ENTRIES..].chunks_exact_mut(ENTRY).zip(&list.entries) {
        field[..8].copy_from_slice(&entry.id.to_bytes());
        field[8..16].copy_from_slice(&entry.lsn.raw().to_le_bytes());
        field[16..20].copy_from_slice(&entry.sum.to_le_bytes());
        field[20..24].copy_from_slice(&entry.sectors.raw().to_le_bytes());
    }
    let sum = sum(&bytes[..ENTRIES + list.entries.len() * ENTRY]);
    bytes[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
    for copy in [list.turn, list.turn + 2] {
        header[copy * LIST..(copy + 1) * LIST].copy_from_slice(&bytes);
        assert!(
            parse(header, copy, database).is_ok_and(|read| read.as_ref() == Some(list)),
            "a list reads back as it is written"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASE: u128 = 77;

    fn list(sequence: u64, pages: u32) -> List {
        let entry = |n| Entry {
            id: PageId::new(3, n),
            lsn: Lsn::from_raw(800 + u64::from(n)),
            sum: 5 + n,
            sectors: Sectors::from_raw(0x8000_0001 | n << 4),
        };
        List {
            sequence,
            turn: sequence as usize % 2,
            settled: [1, 2, 0, sequence - 1],
            entries: (0..pages).map(entry).collect(),
        }
    }

    /// What a cut-off write leaves of the new list is one of two copies, or none: then the one before counts. No single
    /// bit hides a list.
    #[test]
    fn the_list_before_stays_until_the_new_one_is_whole_and_no_bit_hides_one() {
        let mut header = vec![0; PAGE_SIZE];
        assert_eq!(newest(&header, DATABASE), Ok(None));
        put(&mut header, &list(8, BATCH as u32), DATABASE);
        let before = header.clone();
        put(&mut header, &list(9, 7), DATABASE);
        assert_eq!(newest(&header, DATABASE), Ok(Some(list(9, 7))));
        for at in 0..PAGE_SIZE {
            let mut spoilt = header.clone();
            spoilt[at] ^= 1 << (at % 8);
            assert_eq!(newest(&spoilt, DATABASE), Ok(Some(list(9, 7))), "byte {at}");
        }
        for cut in (0..PAGE_SIZE).step_by(512) {
            let torn = [&header[..cut], &before[cut..]].concat();
            let found = newest(&torn, DATABASE).expect("of this database").expect("one of them");
            assert!(found == list(8, BATCH as u32) || found == list(9, 7), "cut at {cut}");
        }
        assert!(newest(&header, 78).expect_err("refused").contains("another database"));
        for turn in 0..2 {
            let mut header = vec![0; PAGE_SIZE];
            for copy in [turn, turn + 2] {
                header[copy * LIST..copy * LIST + 8].copy_from_slice(b"CenDblW4");
            }
            let refused = newest(&header, DATABASE).expect_err("refused");
            assert!(refused.contains("does not know"), "turn {turn}");
        }
    }

    /// Copies of version 2 were whole; what stands where sectors are now was 0.
    #[test]
    fn a_list_of_version_2_is_read_as_of_whole_copies() {
        let (mut header, whole) = (vec![0; PAGE_SIZE], Sectors::WHOLE);
        let mut list = list(8, 3);
        list.entries.iter_mut().for_each(|entry| entry.sectors = Sectors::NONE);
        put(&mut header, &list, DATABASE);
        for place in places(list.turn) {
            let bytes = &mut header[place];
            bytes[..8].copy_from_slice(&MAGIC_2);
            let sum = sum(&bytes[..ENTRIES + 3 * ENTRY]);
            bytes[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let found = newest(&header, DATABASE).expect("known").expect("whole");
        assert!(found.sequence == 8 && found.entries.iter().all(|entry| entry.sectors == whole));
    }

    #[test]
    fn a_list_of_version_1_is_read_and_then_written_over() {
        let mut header = vec![0; PAGE_SIZE];
        header[..8].copy_from_slice(&MAGIC_1);
        header[8..24].copy_from_slice(&DATABASE.to_le_bytes());
        (header[24], header[32]) = (5, 2);
        for n in 0..2 {
            let at = ENTRIES_1 + n * ENTRY_1;
            header[at..at + 8].copy_from_slice(&PageId::new(3, n as u32).to_bytes());
            header[at + 8] = 9;
        }
        let sum = sum(&header);
        header[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
        let found = newest(&header, DATABASE).expect("known").expect("whole");
        assert_eq!((found.sequence, found.entries.len()), (5, 2));
        assert_eq!((found.entries[1].id, found.entries[1].sum), (PageId::new(3, 1), 9));
        let next = List {
            turn: 1 - found.turn,
            ..list(6, 1)
        };
        put(&mut header, &next, DATABASE);
        assert_eq!(newest(&header, DATABASE), Ok(Some(next)));
    }
}
