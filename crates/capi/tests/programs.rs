//! The pool for C and for Python, as its users have it: programs in C99 and in C++ that are compiled, linked with the
//! shared library and run; the Python package with its own tests; the examples of both.

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::host::Machine;
use cenote_pool::manager::{Manager, ManagerOptions};
use cenote_pool::node::{MemoryNode, NodeOptions};
use cenote_pool::settings::Tenants;
use common::{C99, Place, done, is_here, repository};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

const CXX: [&str; 3] = ["c++", "-xc++", "-std=c++11"];

fn header() -> PathBuf {
    repository().join("crates/capi/include/cenote_pool.h")
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn run(place: &Place, program: &Path) {
    let space = place.file("space");
    done(place.command(program).arg(&space));
    fs::remove_file(&space).expect("the program made it");
}

/// Under valgrind, if it is here: memory that is used after it was freed, or never initialised, or lost.
fn run_watched(place: &Place, program: &Path) {
    let space = place.file("space");
    let mut watched = place.command("valgrind");
    watched
        .args([
            "-q",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--error-exitcode=7",
        ])
        .arg(program)
        .arg(&space);
    done(&mut watched);
    fs::remove_file(&space).expect("the program made it");
}

#[test]
fn programs_in_c_and_cxx_use_all_of_it() {
    let (place, has_cxx, has_valgrind) = (Place::new(), is_here("c++"), is_here("valgrind"));
    for source in ["heap.c", "store.c", "threads.c"].map(|name| repository().join("crates/capi/tests/c").join(name)) {
        let program = place.compile(C99, &source);
        run(&place, &program);
        if has_valgrind {
            run_watched(&place, &program);
        }
        if has_cxx {
            run(&place, &place.compile(CXX, &source));
        }
    }
}

#[test]
fn the_python_package_passes_its_tests() {
    if !is_here("python3") {
        return;
    }
    done(&mut Place::new().python(&["-W", "error", "-m", "unittest"]));
}

#[test]
fn the_python_package_is_typed() {
    let place = Place::new();
    let has_mypy = place.python(&["-m", "mypy", "--version"]).output();
    if !has_mypy.is_ok_and(|output| output.status.success()) {
        println!("passed over: mypy is not installed");
        return;
    }
    let cache = place.file("mypy");
    done(place.python(&["-m", "mypy", "--cache-dir"]).arg(cache));
}

/// Whether there is a space. One whose making was cut off says so, and is not taken for one.
fn is_made(place: &Place, list: &Path, space: &Path) -> bool {
    let Output { status, stderr, .. } = place.command(list).arg(space).output().expect("it runs");
    let complained = String::from_utf8_lossy(&stderr);
    let is_half = complained.contains("cut off") || complained.contains("no header");
    assert!(status.success() || is_half, "{status}: {complained}");
    status.success()
}

/// Of each round the first texts are there, as many as it came to put in, and none is missing in between.
fn assert_in_order<'a>(newest_first: impl Iterator<Item = &'a str>) {
    let mut found: Vec<_> = newest_first.collect();
    found.reverse();
    let mut before: Option<(u64, u64)> = None;
    for line in &found {
        let (round, n) = line.split_once('.').expect("a text of a round");
        let (round, n) = (round.parse().expect("a number"), n.parse().expect("a number"));
        let is_next = match before {
            Some((same, m)) if same == round => n == m + 1,
            _ => n == 0 && before.is_none_or(|(former, _)| former < round),
        };
        assert!(is_next, "{line} follows {before:?}");
        before = Some((round, n));
    }
    println!(
        "{} texts of {} rounds",
        found.len(),
        before.map_or(0, |(round, _)| round + 1)
    );
}

/// A list that a program in C, one in Python, and one that is killed again and again put texts into.
#[test]
fn a_list_outlives_its_processes() {
    let place = Place::new();
    let (list, space) = (
        place.compile(C99, &repository().join("examples/c/list.c")),
        place.file("list"),
    );
    let seed = rt::random();
    println!("seed {seed}");
    for round in 0..20u64 {
        let texts = (0..8000).map(|n| format!("{round}.{n}"));
        let mut killed = place.command(&list);
        killed
            .arg(&space)
            .args(texts)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut killed = killed.spawn().expect("a process");
        rt::sleep(Nanos((seed >> round) % 8_000_000));
        killed.kill().expect("a process of this test");
        killed.wait().expect("it ends");
        if !is_made(&place, &list, &space) {
            let _ = fs::remove_file(&space);
        }
    }
    let found = done(place.command(&list).arg(&space).args(["in C", "and more"]));
    let mut lines = found.lines();
    assert_eq!((lines.next(), lines.next()), (Some("and more"), Some("in C")));
    assert_in_order(lines);
    if is_here("python3") {
        let example = repository().join("examples/python/list.py");
        let said = done(place.command("python3").arg(example).arg(&space).arg("in Python"));
        assert_eq!(said, format!("in Python\n{found}"));
    }
}

/// A manager and two memory nodes, in this process.
struct Pool {
    manager: Manager,
    _nodes: Vec<MemoryNode>,
}

impl Pool {
    fn new(place: &Place) -> Self {
        let options = ManagerOptions {
            directory: place.file("manager"),
            listen: "127.0.0.1:0".into(),
            tenants: Tenants::default(),
            // Longer than a slow machine stands still.
            lease: Nanos::from_secs(60),
        };
        let manager = Manager::start(options, &Tcp).expect("a manager");
        let address = manager.address().to_string();
        let node = |name: &str| {
            let options = NodeOptions {
                pod: "rack1".into(),
                bytes: 64 << 20,
                directory: place.file(name),
                manager: address.clone(),
                secret: String::new(),
                listen: "127.0.0.1:0".into(),
                calls: None,
            };
            let node = MemoryNode::start(options, Arc::new(Tcp), Box::new(Machine)).expect("a memory node");
            assert!(node.wait_joined(Nanos::from_secs(120)), "it joins");
            node
        };
        let nodes = vec![node("a"), node("b")];
        Self { manager, _nodes: nodes }
    }

    fn command(&self, mut command: Command, space: &str) -> Command {
        command.env("CENOTE_MANAGER", self.manager.address()).arg(space);
        command
    }
}

/// The story: an access to a space of a pool waited for the manager, and held Python's lock: all threads of the program
/// stood still.
#[test]
fn other_python_threads_run_while_an_access_waits() {
    if !is_here("python3") {
        return;
    }
    let place = Place::new();
    let pool = Pool::new(&place);
    let program = repository().join("crates/capi/tests/python/waits.py");
    done(place.command("python3").arg(program).arg(pool.manager.address()));
}

/// Processes in C and in Python use one space of a pool at the same time.
#[test]
fn processes_share_a_space_of_a_pool() {
    let place = Place::new();
    let pool = Pool::new(&place);
    let example = |name: &str| repository().join("examples").join(name);
    let counter = place.compile(C99, &example("c/counter.c"));
    let list = place.compile(C99, &example("c/list.c"));
    let python = |name: &str| {
        let mut command = place.command("python3");
        command.arg(example(name));
        command
    };
    // The first makes the space, and what its root leads to.
    for (program, space) in [(&counter, "counter"), (&list, "list")] {
        done(pool.command(place.command(program), space).args(["0"]));
    }
    let has_python = is_here("python3");
    let many = |space: &str, name: &str, n: usize| {
        let program = if space == "counter" { &counter } else { &list };
        let mut all: Vec<_> = (0..n).map(|_| pool.command(place.command(program), space)).collect();
        if has_python {
            all.extend((0..n).map(|_| pool.command(python(name), space)));
        }
        all
    };
    let mut counts = many("counter", "python/counter.py", 2);
    let counters = counts.len() as u64;
    counts.iter_mut().for_each(|command| _ = command.arg("1000"));
    at_once(counts);
    let counted = done(pool.command(place.command(&counter), "counter").arg("0"));
    assert_eq!(counted.trim().parse(), Ok(counters * 4 * 1000));

    let mut writers = many("list", "python/list.py", 2);
    for (n, command) in writers.iter_mut().enumerate() {
        command.args((0..300).map(|text| format!("{n}.{text}")));
    }
    let n = writers.len();
    at_once(writers);
    let found = done(&mut pool.command(place.command(&list), "list"));
    for writer in 0..n {
        let its = found.lines().filter(|line| line.starts_with(&format!("{writer}.")));
        let wanted = (0..300).rev().map(|text| format!("{writer}.{text}"));
        assert!(its.eq(wanted), "what writer {writer} put in: {found}");
    }
    assert_eq!(found.lines().count(), n * 300 + 1);
}

/// Runs them all at the same time, each to its good end.
fn at_once(commands: Vec<Command>) {
    let start = |mut command: Command| std::thread::spawn(move || drop(done(&mut command)));
    let running: Vec<_> = commands.into_iter().map(start).collect();
    running.into_iter().for_each(|one| one.join().expect("a good end"));
}

/// What a program hears of a pool that is not as it thinks; and of one that is, whose space it grows and drops.
#[test]
fn spaces_of_a_pool_are_found_grown_and_dropped() {
    let place = Place::new();
    let pool = Pool::new(&place);
    let program = place.compile(C99, &repository().join("crates/capi/tests/c/connect.c"));
    done(place.command(&program).arg(pool.manager.address()));
    if is_here("python3") {
        let program = repository().join("crates/capi/tests/python/grows.py");
        done(place.command("python3").arg(program).arg(pool.manager.address()));
    }
}

/// Words of a text that begin with `cenote_` and are followed by a parenthesis.
fn functions(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let called = text.match_indices('(').map(|(at, _)| &text[..at]);
    let name = |before: &str| before[before.trim_end_matches(is_part).len()..].to_string();
    called.map(name).filter(|name| name.starts_with("cenote_")).collect()
}

/// Without comments and what is defined in the header itself.
fn declared() -> BTreeSet<String> {
    let header = text(header());
    let code: String = header
        .split("/*")
        .map(|part| part.split_once("*/").map_or(part, |(_, code)| code))
        .collect();
    let mut declared = functions(&code);
    assert!(declared.remove("cenote_address_add"), "the function of the header");
    declared
}

#[test]
fn header_library_and_package_agree() {
    let declared = declared();
    let sources = fs::read_dir(repository().join("crates/capi/src")).expect("a directory");
    let defined = sources.flat_map(|file| {
        let code = text(file.expect("a file").path());
        let after = code
            .split("extern \"C\" fn ")
            .skip(1)
            .map(|rest| rest.lines().next().unwrap_or(""));
        after.flat_map(functions).collect::<Vec<_>>()
    });
    assert_eq!(declared, defined.collect());
    let python = text(repository().join("python/cenote_pool/_library.py"));
    for function in declared.iter().filter(|name| !name.starts_with("cenote_address")) {
        assert!(python.contains(function), "the Python package does not have {function}");
    }
    assert!(text(header()).contains("#define CENOTE_POOL_ABI 0\n"));
    assert!(python.contains("\nABI = 0\n"));
    assert!(text(repository().join("crates/capi/build.rs")).contains("ABI: u32 = 0;"));
    let errors = text(repository().join("python/cenote_pool/errors.py"));
    let statuses = |of: &str, pattern: &str| of.matches(pattern).count();
    assert_eq!(
        statuses(&errors, "\n    status = ") - 1,
        statuses(&text(header()), "\n    CENOTE_") - 5
    );
}
