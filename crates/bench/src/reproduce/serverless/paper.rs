//! What the paper measured, as data: nothing here is an input of the model.
//!
//! "PolarDB Serverless: A Cloud Native Database for Disaggregated Data Centers", SIGMOD 2021, section 6. Numbers are
//! those of its text; its plots' axes are not read off.

/// Gigabytes of the data of figures 10 and 11, of which local memory has a part.
pub const DATA_GB: f64 = 24.0;
/// Those of TPC-H, at its scale factor of 100.
pub const QUERIES_GB: f64 = 200.0;

/// Figure 8: gigabytes of remote memory, one after the other, and the seconds at which the others were set.
pub const REMOTE_GB: [f64; 4] = [8.0, 80.0, 48.0, 128.0];
/// See [`REMOTE_GB`].
pub const SET_AT: [u64; 3] = [200, 350, 500];

/// Figure 9, seconds: a planned switch, its pause and then back to throughput.
pub const SWITCH: [f64; 2] = [2.0, 4.0];
/// Figure 9, seconds, a crash with remote memory: until it serves, and then to 90% of the throughput before.
pub const CRASH: [f64; 2] = [16.0, 7.0];
/// Figure 9, seconds more to warm up without remote memory.
pub const WITHOUT_REMOTE: f64 = 12.0;
/// Figure 9, seconds without materialization: until it serves, and to 90% of the throughput before.
pub const WITHOUT_PAGES: [f64; 2] = [85.0, 105.0];

/// Figure 11: throughput lost with 0.5 GB of local memory, uniform and skewed.
pub const LOSS: [f64; 2] = [0.185, 0.107];
/// The same, by TPC-C.
pub const TRANSACTIONS_LOSS: f64 = 0.134;

/// Figure 12: latency of TPC-H's queries that 256 GB of local memory save, in the place of 10 GB.
pub const LOCAL_MEMORY: f64 = 0.409;
/// Figure 13: queries that are faster with 128 GB of remote memory than with 32, and by how much on average.
pub const SENSITIVE: f64 = 2.0 / 3.0;
/// See [`SENSITIVE`].
pub const SPEEDUP: f64 = 3.06;

/// Figure 14: reads lost from 32 to 128 threads with optimistic latches, at most (with pessimistic ones almost half).
pub const OPTIMISTIC_LOSS: f64 = 0.10;

/// Figure 15: latency that prefetching saves, of remote memory and of storage.
pub const PREFETCH: [f64; 2] = [0.254, 0.523];
