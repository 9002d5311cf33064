//! What accesses to region memory cost on this machine, beside the same on slices.
//!
//! `cargo run --release -p cenote-fabric --example figures`

use cenote_base::rt::{self, Mutex, atomic::Ordering};
use cenote_fabric::{Identity, MirrorFile, Region, RegionOptions, Span, coherence};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// Runs `f` many times and prints the time of one.
fn figure(name: &str, f: impl FnMut(usize)) {
    figure_of(200_000, name, f);
}

fn figure_of(rounds: usize, name: &str, mut f: impl FnMut(usize)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = rt::now();
        for i in 0..rounds {
            f(i);
        }
        best = best.min(rt::now().since(start).raw() as f64 / rounds as f64);
    }
    println!("{name:32} {best:8.2} ns");
}

fn main() {
    let region = Region::dram(64 << 20, Identity::default(), RegionOptions::default()).expect("made");
    region.reserve_to(region.len()).expect("populated");
    let span = region.span(1 << 20, 16384);
    let mut slice = vec![1u8; 16384];
    let mut out = vec![0u8; 16384];
    figure("span u16", |i| _ = black_box(span.u16(black_box(i & 8191))));
    figure("span u64 unaligned", |i| {
        _ = black_box(span.u64(black_box(i & 8191 | 1)))
    });
    figure("slice u64 unaligned", |i| {
        let at = black_box(i & 8191 | 1);
        black_box(u64::from_le_bytes(*slice[at..].first_chunk().expect("inside")));
    });
    for len in [4, 12, 24, 40, 100, 200, 256, 400, 512, 800, 1024, 2048, 4096, 16384] {
        let off = 16384 - len;
        figure(&format!("span copy_out {len}"), |_| {
            black_box(span.copy_out(black_box(off), &mut out[..black_box(len)]));
        });
        figure(&format!("slice copy {len}"), |_| {
            let n = black_box(len);
            out[..n].copy_from_slice(&slice[black_box(off)..black_box(off) + n]);
            black_box(&out);
        });
    }
    for len in [8, 20, 100] {
        let key = vec![0u8; len];
        figure(&format!("span cmp {len}"), |i| {
            _ = black_box(span.cmp(black_box(i & 4095), len, &key));
        });
        figure(&format!("slice cmp {len}"), |i| {
            let at = black_box(i & 4095);
            _ = black_box(slice[at..at + len].cmp(&key));
        });
    }
    figure("span move 4000 up by 40", |_| span.move_within(0, 40, 4000));
    figure("slice move 4000 up by 40", |_| {
        slice.copy_within(0..4000, 40);
        black_box(&slice);
    });
    figure("span zero 16384", |_| span.zero(0, 16384));
    figure("span crc32c 16384", |_| _ = black_box(span.crc32c(0, 16384)));
    figure("flush one line", |_| {
        span.set_u8(0, 1);
        coherence::flush(&region, 1 << 20, 1);
    });
    figure_of(2000, "flush 16384", |_| {
        span.set_u8(0, 1);
        coherence::flush(&region, 1 << 20, 16384);
    });
    mirrored(&region, span);
    figure("host atomic fetch_add", |_| {
        span.atomic_u64(64).fetch_add(1, Ordering::AcqRel);
    });
    let mutex = Mutex::new(0u64);
    figure("mutex lock and release", |_| *black_box(&mutex).lock() += 1);
    figure("preempt", |_| rt::preempt());
    figure("thread_slot", |_| _ = black_box(rt::thread_slot()));
    figure("now", |_| _ = black_box(rt::now()));
    figure("random", |_| _ = black_box(rt::random()));
}

/// What a mirror in shared memory adds to flushes.
fn mirrored(region: &Region, span: Span<'_>) {
    let path = format!("/dev/shm/cenote-figures-{:x}", rt::random_u128());
    let mirror = MirrorFile::create(Path::new(&path), region.len()).expect("shared memory");
    std::fs::remove_file(&path).expect("it was made");
    region.attach_mirror(Arc::new(mirror)).expect("room");
    figure("flush one line, mirrored", |_| {
        span.set_u8(0, 1);
        coherence::flush(region, 1 << 20, 1);
    });
    figure_of(2000, "flush 16384, mirrored", |_| {
        span.set_u8(0, 1);
        coherence::flush(region, 1 << 20, 16384);
    });
    figure_of(50, "fill 1 MiB of a mirror", |_| _ = region.fill_mirror_step(0));
    region.detach_mirror();
}
