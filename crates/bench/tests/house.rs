//! The house rules that are a test: arrows between crates point down, `unsafe` stays at its addresses, and what
//! lies from `base` to `engine` takes time, threads, waiting, randomness and files from `base::rt` alone. Which module
//! imports which, and what names and functions are like, `scripts/style.py check` says.

use std::path::{Path, PathBuf};

/// Floor of each crate; an arrow must lead to a lower floor.
const FLOORS: [(&str, u32); 19] = [
    ("base", 0),
    ("fabric", 1),
    ("libfabric", 2),
    ("testkit", 2),
    ("space", 3),
    ("pool", 4),
    ("kv", 4),
    ("fs", 4),
    ("store", 4),
    ("capi", 5),
    ("storage", 2),
    ("storage-node", 3),
    ("buffer", 3),
    ("engine", 4),
    ("sql", 5),
    ("cluster", 5),
    ("cenote", 6),
    ("sim", 7),
    ("bench", 8),
];

/// Where `unsafe` may stand.
const UNSAFE_ADDRESSES: [&str; 6] = [
    "crates/fabric/src/",
    "crates/libfabric/src/",
    "crates/buffer/src/frame",
    "crates/engine/src/column/",
    "crates/capi/src",
    "crates/sim/src/",
];

/// What goes through the seam, and the crates that must use it.
const SEAM_CRATES: [&str; 13] = [
    "base",
    "fabric",
    "libfabric",
    "testkit",
    "space",
    "pool",
    "kv",
    "fs",
    "store",
    "storage",
    "storage-node",
    "buffer",
    "engine",
];
const PAST_THE_SEAM: [&str; 15] = [
    "std::thread",
    "std::sync::Mutex",
    "std::sync::Condvar",
    "std::sync::RwLock",
    "parking_lot",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "thread_local!",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "rand::",
    "hint::spin_loop",
    "thread::yield_now",
    "std::time::Instant",
];

/// What the short path of a statement may not take time, threads and locks from: it runs in simulated worlds, too.
/// Analytics has a runtime of its own.
const PAST_THE_SHORT_PATH: [&str; 3] = ["std::thread", "Instant", "SystemTime"];
const LOCKS: [&str; 3] = ["Mutex", "Condvar", "RwLock"];

fn root() -> PathBuf {
    // Of this run's checkout: a build directory may be shared with others.
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here)
        .join("../..")
        .canonicalize()
        .expect("the crate lies two levels down")
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Code lines with their numbers: no comments, nothing from the file's test module on.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(path).expect("a source file is text");
    let lines = text
        .lines()
        .enumerate()
        .take_while(|(_, l)| !l.trim_start().starts_with("#[cfg(test)]"));
    lines
        .map(|(i, l)| (i + 1, l.split("//").next().unwrap_or("").to_string()))
        .filter(|(_, l)| !l.trim().is_empty())
        .collect()
}

fn floor(name: &str) -> Option<u32> {
    FLOORS.iter().find(|f| f.0 == name).map(|f| f.1)
}

/// Names of the workspace's crates in the section `[dependencies]` of a manifest.
fn arrows(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]" || line.trim() == "[build-dependencies]";
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        if inside && name.starts_with("cenote-") {
            found.push(name["cenote-".len()..].to_string());
        }
    }
    found
}

fn upward_arrows(name: &str, manifest: &str) -> Vec<String> {
    let from = floor(name).unwrap_or_else(|| panic!("crate {name} has no floor: add it to FLOORS"));
    let up = |to: &String| floor(to).is_none_or(|f| f >= from);
    arrows(manifest)
        .into_iter()
        .filter(up)
        .map(|to| format!("{name} -> {to}"))
        .collect()
}

#[test]
fn arrows_between_crates_point_down() {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))
        .expect("crates/ exists")
        .flatten()
    {
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).expect("a crate has a manifest");
        wrong.extend(upward_arrows(&entry.file_name().to_string_lossy(), &manifest));
    }
    assert!(wrong.is_empty(), "these arrows point up or sideways: {wrong:?}");
}

/// What tests alone use is compiled into tests, the simulator and benchmarks alone.
#[test]
fn programs_do_not_use_the_test_kit() {
    for (name, _) in FLOORS.iter().filter(|(name, _)| !["sim", "bench"].contains(name)) {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap_or_default();
        assert!(
            !arrows(&manifest).iter().any(|to| to == "testkit"),
            "{name} uses the test kit"
        );
    }
}

#[test]
fn an_upward_arrow_is_found() {
    let manifest = "[dependencies]\ncenote-engine.workspace = true\n[dev-dependencies]\ncenote-sim.workspace = true\n";
    assert_eq!(upward_arrows("storage", manifest), ["storage -> engine"]);
    assert!(upward_arrows("sql", manifest).is_empty());
}

#[test]
fn unsafe_stays_at_its_addresses() {
    let (root, mut files, mut wrong) = (root(), Vec::new(), Vec::new());
    sources(&root.join("crates"), &mut files);
    for file in files {
        let name = file
            .strip_prefix(&root)
            .expect("found under the root")
            .to_string_lossy()
            .into_owned();
        if name.ends_with("tests/house.rs") || UNSAFE_ADDRESSES.iter().any(|a| name.starts_with(a)) {
            continue;
        }
        let found = code(&file).into_iter().filter(|(_, l)| has_word(l, "unsafe"));
        wrong.extend(found.map(|(i, l)| format!("{name}:{i}: {}", l.trim())));
    }
    assert!(wrong.is_empty(), "unsafe outside its addresses:\n{}", wrong.join("\n"));
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|w| w == word)
}

#[test]
fn the_data_path_goes_through_the_seam() {
    let (root, mut wrong) = (root(), Vec::new());
    for name in SEAM_CRATES {
        let mut files = Vec::new();
        sources(&root.join("crates").join(name).join("src"), &mut files);
        for file in files {
            let relative = file
                .strip_prefix(&root)
                .expect("found under the root")
                .to_string_lossy()
                .into_owned();
            // Hosts made of namespaces are the operating system's; the simulator has hosts of its own.
            let is_of_the_system = relative == "crates/testkit/src/hosts.rs";
            if is_of_the_system || relative.starts_with("crates/base/src/rt") || relative.ends_with("/tests.rs") {
                continue;
            }
            let past = |l: &str| PAST_THE_SEAM.iter().find(|p| l.contains(**p)).copied();
            wrong.extend(
                code(&file)
                    .iter()
                    .filter_map(|(i, l)| past(l).map(|p| format!("{relative}:{i}: {p}"))),
            );
        }
    }
    assert!(wrong.is_empty(), "these bypass base::rt:\n{}", wrong.join("\n"));
}

fn is_past_the_short_path(line: &str) -> bool {
    let locks = line.contains("std::sync") && LOCKS.iter().any(|lock| has_word(line, lock));
    locks || PAST_THE_SHORT_PATH.iter().any(|past| line.contains(past))
}

#[test]
fn the_short_path_of_a_statement_goes_through_the_seam() {
    let (root, mut files, mut wrong) = (root(), Vec::new(), Vec::new());
    sources(&root.join("crates/sql/src"), &mut files);
    let analytics = root.join("crates/sql/src/analytics");
    for file in files.iter().filter(|file| !file.starts_with(&analytics)) {
        let found = code(file).into_iter().filter(|(_, l)| is_past_the_short_path(l));
        wrong.extend(found.map(|(i, l)| format!("{}:{i}: {}", file.display(), l.trim())));
    }
    assert!(wrong.is_empty(), "these bypass base::rt:\n{}", wrong.join("\n"));
    assert!(is_past_the_short_path("use std::sync::{Arc, Condvar};") && !is_past_the_short_path("use std::sync::Arc;"));
}

/// Modules, circles of files, lengths of functions and names, as `scripts/style.py` and `scripts/modules.txt` say.
#[test]
fn modules_import_from_below_and_names_are_the_field_s() {
    let checked = std::process::Command::new("python3")
        .arg(root().join("scripts/style.py"))
        .arg("check")
        .output()
        .expect("python3 runs");
    let wrong = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "scripts/style.py check:\n{wrong}");
}
