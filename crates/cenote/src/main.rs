//! See the library of the same name.
fn main() {}
