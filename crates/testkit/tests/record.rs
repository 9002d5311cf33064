//! The recorder: what was flushed and fenced is there after every crash; what was not may be lost,
//! and over many seeds is.

use cenote_base::rt;
use cenote_fabric::{Identity, Region, RegionOptions, coherence};
use cenote_testkit::record::Recorder;

fn region() -> Region {
    Region::dram(256 << 10, Identity::default(), RegionOptions::default()).expect("made")
}

const A: u64 = 8192;
const B: u64 = 16384;

#[test]
fn flushed_lines_survive_and_others_may_not() {
    let region = region();
    let recorder = Recorder::of(&region, 1);
    region.span(A, 256).copy_in(0, &[1; 256]);
    coherence::flush(&region, A, 256);
    region.span(B, 64).copy_in(0, &[2; 64]);
    assert_eq!(recorder.unflushed(&region, B, 64), [B / 64]);
    assert!(recorder.unflushed(&region, A, 256).is_empty());

    let (mut lost, mut kept) = (0, 0);
    for seed in 0..200 {
        let (image, ()) = recorder.crash(&region, seed, || ());
        assert!(
            image[A as usize..A as usize + 256].iter().all(|b| *b == 1),
            "seed {seed}"
        );
        match image[B as usize..B as usize + 64] {
            [2, ..] => kept += 1,
            _ => lost += 1,
        }
        let after = Region::from_image(&image).expect("the header was flushed");
        assert_eq!(after.identity(), region.identity());
    }
    assert!(lost > 20 && kept > 20, "lost {lost}, kept {kept}");
}

#[test]
fn a_write_back_without_its_fence_promises_nothing() {
    let region = region();
    let recorder = Recorder::of(&region, 2);
    region.span(A, 64).copy_in(0, &[1; 64]);
    coherence::write_back(&region, A, 64);
    let lost = (0..100)
        .filter(|s| recorder.crash(&region, *s, || ()).0[A as usize] == 0)
        .count();
    assert!(lost > 5, "lost {lost}");
    coherence::fence(&region);
    assert!((0..100).all(|s| recorder.crash(&region, s, || ()).0[A as usize] == 1));
    let counts = recorder.counts();
    assert_eq!((counts.write_backs, counts.lines, counts.fences), (1, 1, 1));
}

/// A two-step protocol with the flush between its steps forgotten: some crash shows the second
/// step without the first.
#[test]
fn a_forgotten_flush_is_found() {
    let broken = |forget: bool| {
        let region = region();
        let recorder = Recorder::of(&region, 3);
        region.span(A, 64).copy_in(0, &[1; 64]);
        if !forget {
            coherence::flush(&region, A, 64);
        }
        region.span(B, 64).copy_in(0, &[1; 64]);
        coherence::flush(&region, B, 64);
        (0..100).any(|seed| {
            let (image, ()) = recorder.crash(&region, seed, || ());
            image[B as usize] == 1 && image[A as usize] == 0
        })
    };
    assert!(broken(true));
    assert!(!broken(false));
}

#[test]
fn crashes_while_threads_run_keep_the_order_of_flushes() {
    let region = std::sync::Arc::new(region());
    let recorder = Recorder::of(&region, rt::random());
    let writer = {
        let region = region.clone();
        rt::spawn("writer", move || {
            for i in 1..2000u64 {
                region.span(A, 8).set_u64(0, i);
                coherence::flush(&region, A, 8);
                region.span(B, 8).set_u64(0, i);
                coherence::flush(&region, B, 8);
            }
        })
    };
    let word = |image: &[u8], at: u64| u64::from_le_bytes(*image[at as usize..].first_chunk().expect("inside"));
    let mut seed = 0;
    while !writer.is_finished() {
        let (image, ()) = recorder.crash(&region, seed, || ());
        let (first, second) = (word(&image, A), word(&image, B));
        assert!(first >= second, "seed {seed}: {first} {second}");
        seed += 1;
    }
    writer.join().expect("no panic");
}
