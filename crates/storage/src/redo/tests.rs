//! Redo against a model: a page changed directly, and the same changes encoded, decoded, applied.

use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr};

use super::*;
use crate::testing::{blank, random_bytes};
use cenote_base::random::Random;

/// Gives a finished group a position and a checksum, as the log does.
fn place(group: &mut [u8], at: Lsn) {
    group[8..16].copy_from_slice(&at.raw().to_le_bytes());
    let sum = seal(
        cenote_base::crc::crc32c(&group[GROUP_HEADER..]),
        group.first_chunk().expect("header"),
    );
    group[16..20].copy_from_slice(&sum.to_le_bytes());
    group[20..24].copy_from_slice(&STATE_COMPLETE.to_le_bytes());
}

/// One random operation, on the model and in the builder.
fn change(rng: &mut Random, model: &mut [u8], builder: &mut GroupBuilder, record: usize, id: PageId) {
    let body = page_header::SIZE;
    match rng.index(20) {
        0 => {
            let (kind, level) = (rng.word() as u8, rng.word() as u8);
            model.fill(0);
            model[4..12].copy_from_slice(&id.to_bytes());
            (model[12], model[13], model[14]) = (kind, level, page_header::FORMAT as u8);
            builder.init(record, kind, level);
        }
        1 => builder.image(record, model),
        2..6 => {
            let length = rng.index(300);
            let source = body + rng.index(PAGE_SIZE - body - length);
            let destination = body + rng.index(PAGE_SIZE - body - length);
            model.copy_within(source..source + length, destination);
            builder.move_bytes(record, source, destination, length);
        }
        n => {
            // Many writes close together, so that they merge.
            let length = rng.index(40);
            let offset = body
                + if n < 16 {
                    rng.index(100)
                } else {
                    rng.index(PAGE_SIZE - body - length)
                };
            let bytes = random_bytes(rng, length);
            model[offset..offset + length].copy_from_slice(&bytes);
            builder.write(record, offset, &bytes);
        }
    }
}

#[test]
fn what_is_applied_is_what_was_done() {
    let mut builder = GroupBuilder::new();
    for seed in 0..400 {
        let mut rng = Random(seed);
        let ids: Vec<PageId> = (0..1 + rng.index(4) as u32).map(|n| PageId::new(7, n)).collect();
        let mut model: Vec<Vec<u8>> = ids.iter().map(|_| blank()).collect();
        let mut pages = model.clone();
        let mut at = Lsn::from_raw(4096);
        for _ in 0..5 {
            builder.clear();
            for _ in 0..rng.index(60) {
                let i = rng.index(ids.len());
                let record = builder.page(ids[i], RecordAddr::NONE);
                change(&mut rng, &mut model[i], &mut builder, record, ids[i]);
            }
            let group = builder.finish().expect("within bounds");
            place(group, at);
            let read = GroupRef::parse(group, at).expect("just written");
            for record in read.records() {
                let record = record.expect("whole");
                let i = record.page.page as usize;
                apply(&mut pages[i], &record).expect("inside the page");
                assert_eq!(page_lsn(&pages[i]), read.end());
                set_page_lsn(&mut model[i], read.end());
            }
            assert_eq!(pages, model, "seed {seed}");
            at = read.end();
        }
    }
}

#[test]
fn adjacent_and_overlapping_writes_become_one() {
    let mut builder = GroupBuilder::new();
    let record = builder.page(PageId::new(1, 2), RecordAddr::NONE);
    builder.write(record, 100, b"abcd");
    builder.write(record, 104, b"efgh");
    builder.write(record, 102, b"XY");
    builder.write(record, 106, b"QRSTU");
    let group = builder.finish().expect("short");
    place(group, Lsn::from_raw(8));
    let read = GroupRef::parse(group, Lsn::from_raw(8)).expect("whole");
    let record = read.records().next().expect("one").expect("whole");
    let ops: Vec<Op<'_>> = record.ops().map(|op| op.expect("whole")).collect();
    assert_eq!(
        ops,
        [Op::Write {
            offset: 100,
            bytes: b"abXYefQRSTU"
        }]
    );
}

#[test]
fn an_image_leaves_its_hole_out() {
    let mut builder = GroupBuilder::new();
    let mut page = blank();
    page[..200].fill(3);
    page[PAGE_SIZE - 100..].fill(4);
    let record = builder.page(PageId::new(1, 2), RecordAddr::NONE);
    builder.image(record, &page);
    assert!(builder.len() < 600);
    let all_zero = blank();
    builder.image(record, &all_zero);
    assert!(builder.len() < 200);
}

/// Whatever bit is flipped, nothing is applied, and nothing panics; and if the checksum is made
/// to fit again, nothing panics either.
#[test]
fn flipped_bits_are_noticed_and_never_panic() {
    let mut rng = Random(5);
    let mut builder = GroupBuilder::new();
    let mut model = blank();
    let record = builder.page(PageId::new(1, 2), RecordAddr::NONE);
    for _ in 0..30 {
        change(&mut rng, &mut model, &mut builder, record, PageId::new(1, 2));
    }
    let at = Lsn::from_raw(64);
    let group = builder.finish().expect("short");
    place(group, at);
    let mut page = blank();
    for bit in 0..group.len() * 8 {
        let mut damaged = group.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let in_state = (20..24).contains(&(bit / 8));
        assert_eq!(GroupRef::parse(&damaged, at).is_err(), !in_state, "bit {bit}");
        if bit / 8 >= GROUP_HEADER {
            place(&mut damaged, at);
            let read = GroupRef::parse(&damaged, at).expect("made to fit");
            for record in read.records().flatten() {
                let _ = apply(&mut page, &record);
            }
        }
    }
}

#[test]
fn a_group_too_long_for_the_log_is_an_error() {
    let mut builder = GroupBuilder::new();
    let bytes = vec![1; PAGE_SIZE];
    for n in 0..70 {
        let record = builder.page(PageId::new(1, n), RecordAddr::NONE);
        builder.image(record, &bytes);
    }
    assert!(builder.finish().is_err());
}

/// A record's header has 16 bits for the number of its operations, which once went round at 65,536 writes of a byte
/// each: redo would have left out all but the rest.
#[test]
fn more_operations_than_a_record_counts_are_an_error() {
    let mut builder = GroupBuilder::new();
    let record = builder.page(PageId::new(1, 0), RecordAddr::NONE);
    for n in 0..=usize::from(u16::MAX) {
        builder.write(record, 100 + n % 2 * 100, &[1]);
    }
    assert!(builder.len() < MAX_RECORD, "its length is none too large");
    assert!(builder.finish().is_err());
}

#[test]
fn bytes_of_a_group_are_located_for_patching() {
    let mut rng = Random(11);
    let mut builder = GroupBuilder::new();
    for seed in 0..300 {
        let (id, mut model) = (PageId::new(3, seed), random_bytes(&mut rng, PAGE_SIZE));
        builder.clear();
        let record = builder.page(id, RecordAddr::NONE);
        for _ in 0..rng.index(12) {
            change(&mut rng, &mut model, &mut builder, record, id);
        }
        let (offset, length) = (page_header::SIZE + rng.index(200), 1 + rng.index(8));
        if rng.index(2) == 0 {
            builder.write(record, offset, &random_bytes(&mut rng, length));
        }
        let patch = random_bytes(&mut rng, length);
        builder.finish().expect("short");
        let Some(place_in_group) = builder.locate(record, offset, length) else {
            continue;
        };
        let group = builder.finish().expect("short");
        group[place_in_group..place_in_group + length].copy_from_slice(&patch);
        place(group, Lsn::from_raw(8));
        let read = GroupRef::parse(group, Lsn::from_raw(8)).expect("whole");
        let mut page = blank();
        apply(&mut page, &read.records().next().expect("one").expect("whole")).expect("inside");
        assert_eq!(page[offset..offset + length], patch, "seed {seed}");
    }
}
