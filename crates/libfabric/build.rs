//! Builds the shim over libfabric. Its headers are found by the compiler, or where `pkg-config` or
//! `CENOTE_LIBFABRIC_INCLUDE` says; without them the shim answers that RDMA was not built. Nothing is linked: libfabric
//! is loaded when it is used.

use std::env;
use std::process::Command;

const SHIM: &str = "src/shim.c";
const PLACE: &str = "CENOTE_LIBFABRIC_INCLUDE";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SHIM}");
    println!("cargo::rerun-if-env-changed={PLACE}");
    let mut build = cc::Build::new();
    build
        .file(SHIM)
        .opt_level(2)
        .includes(env::var_os(PLACE))
        .warnings(true);
    for place in pkg_config() {
        build.include(place);
    }
    build.compile("cenote_libfabric_shim");
}

/// Places of headers, where libfabric is not among the system's own.
fn pkg_config() -> Vec<String> {
    let answer = Command::new("pkg-config")
        .args(["--cflags-only-I", "libfabric"])
        .output();
    let text = answer
        .ok()
        .filter(|a| a.status.success())
        .map(|a| a.stdout)
        .unwrap_or_default();
    let flags = String::from_utf8_lossy(&text);
    flags
        .split_whitespace()
        .filter_map(|f| f.strip_prefix("-I").map(str::to_owned))
        .collect()
}
