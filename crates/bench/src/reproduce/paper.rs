//! What the paper measured, as data: nothing here is an input of the model but what [`QUERY_NS`] says.
//!
//! "Unlocking the Potential of CXL for Disaggregated Memory in Cloud-Native Databases", SIGMOD-Companion 2025. Numbers
//! are those of its text and tables; its plots' axes are not read off.

/// Table 1: profile, nanoseconds a load.
pub const TABLE_1: [(&str, f64); 6] = [
    ("dram", 146.0),
    ("dram-remote", 231.0),
    ("cxl-direct", 265.2),
    ("cxl-direct-remote", 345.9),
    ("cxl-switch", 549.0),
    ("cxl-switch-remote", 651.0),
];

/// Table 2: bytes, then microseconds: write RDMA, write CXL, read RDMA, read CXL.
pub const TABLE_2: [(u64, f64, f64, f64, f64); 5] = [
    (64, 4.48, 0.78, 4.55, 0.75),
    (512, 4.69, 0.84, 4.79, 0.85),
    (1024, 4.77, 0.88, 4.91, 1.07),
    (4096, 5.06, 1.02, 5.58, 1.86),
    (16384, 6.12, 1.68, 7.13, 2.46),
];

/// A query's processor time in the paper's system: 192 vCPUs did 3.6 million point-selects a second, all busy.
pub const QUERY_NS: f64 = 192.0 / 3.6e6 * 1e9;

/// Figure 1: local share, then GB/s in point-select and read-write.
pub const FIG_1: [(f64, f64, f64); 2] = [(0.1, 6.9, 3.9), (0.5, 3.8, 2.2)];

/// Figure 3: how far CXL is below DRAM at most: point-select, range-select (to 8 instances), read-write (to 11).
pub const FIG_3: [f64; 3] = [0.07, 0.10, 0.07];

/// Figure 7: million queries a second of CXL and of RDMA at 12 instances.
pub const FIG_7_MQPS: (f64, f64) = (3.6, 1.1);
/// Figures 7 to 9: instances at which RDMA is saturated.
pub const SATURATED_AT: [u32; 3] = [3, 4, 8];
/// Figures 7 and 8: GB/s of a saturated NIC.
pub const SATURATED_GBPS: f64 = 11.0;
/// Figure 7: GB/s over RDMA of one instance.
pub const FIG_7_ONE_GBPS: f64 = 4.7;
/// Figures 7 and 9: RDMA's bytes over CXL's, one instance.
pub const BYTES_RATIO: (f64, f64) = (4.0, 1.4);

/// Figure 10, seconds: warm-up in read-only, recovery in read-write and write-only; instant, RDMA, vanilla.
pub const FIG_10: [[f64; 3]; 3] = [[2.0, 10.0, 30.0], [8.0, 33.0, 110.0], [15.0, 73.0, 173.0]];
