//! `libcenote_pool.so`: the functions of `pool::capi`, which `crates/pool/include/cenote_pool.h` declares.
//!
//! Cargo calls the file `libcenote_capi.so`; `make capi` gives it its name. Why it is a crate of its own:
//! `docs/decisions/c-library.md`.

use cenote_pool as _;
