//! Names the shared library: programs in C are linked to `libcenote_pool.so.N`, where N is the number of its binary
//! interface.

/// `CENOTE_POOL_ABI` of `include/cenote_pool.h`.
const ABI: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcenote_pool.so.{ABI}");
}
