//! Spans against slices: every access does what the same on a slice does, at any alignment and
//! length, and nothing leaves the span.

use cenote_base::random::Random;
use cenote_base::rt;
use cenote_fabric::{Identity, Region, RegionOptions};
use std::cmp::Ordering;

fn region() -> Region {
    Region::dram(1 << 20, Identity::default(), RegionOptions::default()).expect("made")
}

#[test]
fn accesses_match_a_slice() {
    let seed = rt::random();
    println!("seed {seed}");
    let mut rng = Random(seed);
    let region = region();
    let span = region.span(8192, 5000);
    let mut model = vec![0u8; 5000];
    for _ in 0..20_000 {
        let off = rng.index(5000);
        let len = [rng.index(40), rng.index(600), rng.index(5000)][rng.index(3)].min(5000 - off);
        let word = rng.0;
        match rng.index(8) {
            0 => {
                let bytes: Vec<u8> = (0..len).map(|i| (word >> (i % 8)) as u8).collect();
                span.copy_in(off, &bytes);
                model[off..off + len].copy_from_slice(&bytes);
            }
            1 => {
                let to = rng.index(5000 - len + 1);
                span.move_within(off, to, len);
                model.copy_within(off..off + len, to);
            }
            2 => {
                span.zero(off, len);
                model[off..off + len].fill(0);
            }
            3 if off + 8 <= 5000 => {
                span.set_u64(off, word);
                model[off..off + 8].copy_from_slice(&word.to_le_bytes());
            }
            4 if off + 4 <= 5000 => {
                span.set_u32(off, word as u32);
                span.set_u16(off + 1, 0xABCD);
                model[off..off + 4].copy_from_slice(&(word as u32).to_le_bytes());
                model[off + 1..off + 3].copy_from_slice(&0xABCDu16.to_le_bytes());
            }
            5 if off + 8 <= 5000 => {
                let at = |n: usize| &model[off..off + n];
                assert_eq!(span.u64(off).to_le_bytes(), at(8));
                assert_eq!(span.u32(off).to_le_bytes(), at(4));
                assert_eq!(span.u16(off).to_le_bytes(), at(2));
                assert_eq!(span.u8(off), at(1)[0]);
            }
            6 => {
                let mut other = model[off..off + len].to_vec();
                if !other.is_empty() && rng.index(2) == 0 {
                    let at = rng.index(len);
                    other[at] = other[at].wrapping_add(1 + rng.index(255) as u8);
                }
                other.truncate(len - rng.index(2).min(len));
                assert_eq!(span.cmp(off, len, &other), model[off..off + len].cmp(&other[..]));
            }
            _ => {
                let mut out = vec![1; len];
                assert!(span.copy_out(off, &mut out));
                assert_eq!(out, model[off..off + len]);
                let mut appended = vec![9];
                assert!(span.append_to(off, len, &mut appended));
                assert_eq!(appended[1..], out);
            }
        }
    }
    assert_eq!(span.to_vec(), model);
    assert_eq!(span.crc32c(0, 5000), cenote_base::crc::crc32c(&model));
    let before = region.span(8192 - 64, 64).to_vec();
    assert!(before.iter().all(|b| *b == 0), "nothing was written before the span");
}

#[test]
fn reads_outside_are_zeros() {
    let region = region();
    region.span(4096, 8192).copy_in(0, &[0xFF; 8192]);
    let span = region.span(4096, 100);
    for off in [93, 99, 100, 101, usize::MAX - 3, usize::MAX] {
        assert_eq!(span.u64(off), 0);
        let mut out = [7; 8];
        assert!(!span.copy_out(off, &mut out));
        assert_eq!(out, [0; 8]);
        assert!(!span.append_to(off, 8, &mut Vec::new()));
        assert_eq!(span.cmp(off, 8, &[0xFF; 8]), Ordering::Less);
        assert!(!span.eq(off, &[0xFF; 8]));
    }
    assert_eq!(span.u32(96), u32::MAX);
    assert_eq!(span.u32(97), 0);
}

#[test]
fn writes_outside_panic() {
    let region = region();
    let span = region.span(4096, 100);
    type Write = fn(cenote_fabric::Span<'_>);
    let writes: [Write; 6] = [
        |s| s.set_u16(99, 1),
        |s| s.copy_in(50, &[0; 51]),
        |s| s.move_within(0, 51, 50),
        |s| s.zero(usize::MAX, 2),
        |s| _ = s.atomic_u64(1),
        |s| _ = s.part(90, 11),
    ];
    for write in writes {
        let attempt = std::panic::AssertUnwindSafe(|| write(span));
        assert!(std::panic::catch_unwind(attempt).is_err());
    }
}

/// Racing readers see each word whole where it is aligned, and never fault.
#[test]
fn racing_readers_see_whole_words() {
    let region = std::sync::Arc::new(region());
    let writer = {
        let region = region.clone();
        rt::spawn("writer", move || {
            let span = region.span(4096, 4096);
            for i in 0..20_000u64 {
                let word = i | i << 32;
                span.set_u64((i as usize % 512) * 8, word);
            }
        })
    };
    let span = region.span(4096, 4096);
    let mut out = [0; 4096];
    while !writer.is_finished() {
        for i in 0..512 {
            let word = span.u64(i * 8);
            assert_eq!(word >> 32, word & 0xFFFF_FFFF);
        }
        span.copy_out(0, &mut out);
    }
    writer.join().expect("no panic");
}
