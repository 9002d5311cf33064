//! The names under which the engine knows the buffer.

pub(crate) use cenote_buffer::{Mtr, Need, PageH, Pool as BufferPool};
