//! What the paper measured, as data: nothing here is an input.
//!
//! "Rcmp: Reconstructing RDMA-Based Memory Disaggregation via CXL" (ACM TACO 2024). Numbers are those of its text; its
//! plots' axes are not read off.

/// Section 6.3: 64 bytes in two racks, at most: microseconds of a write, of a read.
pub const LATENCY: (f64, f64) = (3.5, 3.0);
/// Section 6.3, microseconds: Fastswap (more than), FaRM (about), GAM (about, under 512 bytes), CXL over Ethernet (6 to
/// 8).
pub const OTHERS: [f64; 4] = [12.0, 8.0, 5.0, 7.0];
/// Section 6.3: how many times lower writes and reads are, from the fastest other system to the slowest.
pub const TIMES_LOWER: [(f64, f64); 2] = [(2.3, 8.9), (2.7, 8.1)];
/// Abstract: the most that latency is lower than that of systems with RDMA alone.
pub const MOST_TIMES_LOWER: f64 = 5.2;
/// Section 6.3: "scales linearly with client count up to a point", where one daemon of a rack becomes the bottleneck and
/// several go on; abstract: "scales with node count without losing performance". So a client, or a rack, does as much
/// as before: 1. The text has no other number.
pub const LINEAR: f64 = 1.0;
/// Section 6.5: p50, p99, p999 lower by up to so much with two layers of rings, in percent.
pub const RINGS: [f64; 3] = [21.7, 30.9, 51.5];
/// Section 6.4, times Fastswap's throughput: B, C, D; A, F; the most under Zipf.
pub const YCSB: (f64, f64, f64) = (3.0, 1.5, 3.8);
/// Section 6.5: more throughput by swapping hot pages with a threshold of 3: uniform, Zipf.
pub const HOT: (f64, f64) = (0.05, 0.35);
/// Sections 3.1 and 5.5: bytes from which on pure RPC is the worse.
pub const CROSSING: f64 = 512.0;
/// Section 6.5: throughput of the adaptive modes, times that of RPC + one-sided, and of pure RPC for large transfers:
/// least and most.
pub const MODES: [(f64, f64); 2] = [(1.33, 1.89), (1.5, 2.0)];
/// Section 6.5: throughput with the write buffer under a write lock, times that without, for less than 256 bytes: at
/// most.
pub const WRITE_BUFFER: f64 = 1.6;
