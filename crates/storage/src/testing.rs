//! What the tests of this crate share: seeded choices, a region, groups of redo.

use std::path::Path;
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::{Lsn, PAGE_SIZE, PageId, RecordAddr};
use cenote_fabric::{Identity, Region, RegionOptions};

use crate::log::{FIRST_LSN, LogOptions, RING_HEADER, RING_MIN, RingPlace, Survive};
use crate::redo::GroupBuilder;

pub fn random_bytes(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.word() as u8).collect()
}

pub const RING_OFFSET: u64 = 8192;
pub const DATABASE: u128 = 0xDB;

pub fn region_of(ring_capacity: u64) -> Arc<Region> {
    let identity = Identity {
        database: DATABASE,
        ..Identity::default()
    };
    let length = RING_OFFSET + RING_HEADER + ring_capacity;
    Arc::new(Region::dram(length, identity, RegionOptions::default()).expect("memory"))
}

/// Another region with the same bytes: what a killed process leaves behind.
pub fn copy_of(region: &Region) -> Arc<Region> {
    let image = region.span(0, region.len()).to_vec();
    Arc::new(Region::from_image(&image).expect("an image of a region"))
}

pub fn region() -> Arc<Region> {
    region_of(RING_MIN)
}

pub fn place(region: &Arc<Region>) -> RingPlace {
    RingPlace {
        region: region.clone(),
        offset: RING_OFFSET,
        length: region.len() - RING_OFFSET,
    }
}

pub fn log_options(dir: &Path, region: &Arc<Region>) -> LogOptions {
    LogOptions {
        dir: dir.to_owned(),
        database: DATABASE,
        segment_bytes: 64 << 10,
        ring: place(region),
        believe_ring: false,
        survive: Survive::Process,
        checkpoint: FIRST_LSN,
        known_durable: Lsn::ZERO,
        origin: FIRST_LSN,
        background: false,
        nodes: None,
        owner: None,
    }
}

/// A group with one write of `bytes` to page `page`.
pub fn group(builder: &mut GroupBuilder, page: u32, prev: RecordAddr, bytes: &[u8]) -> Vec<u8> {
    builder.clear();
    let record = builder.page(PageId::new(1, page), prev);
    for chunk in bytes.chunks(4000) {
        builder.write(record, 64, chunk);
        builder.move_bytes(record, 64, 5000, chunk.len());
    }
    builder.finish().expect("short enough").to_vec()
}

pub fn blank() -> Vec<u8> {
    vec![0; PAGE_SIZE]
}
