//! Traces of page accesses: what is in them, what they refuse, and that they end.

use crate::program::{Data, Process, cenote, output};
use cenote_engine::trace::{PageAccess, TraceDecoder, TraceEvent, Traced};
use std::collections::HashSet;
use std::path::Path;

fn server(data: &Data) -> Process {
    let memory = ["--memory", "dram", "--memory-size", "64MiB"];
    let mut command = cenote(&["run", "--listen", "127.0.0.1:0", "--data", data.text()]);
    command.args(memory);
    Process::spawn(command)
}

fn events(path: &Path) -> Vec<TraceEvent> {
    let bytes = std::fs::read(path).expect("the trace is there");
    let events: Result<_, _> = TraceDecoder::new(&bytes).expect("a trace").collect();
    events.expect("a whole trace")
}

/// Names of parts, each with the pages that it asks for.
fn parts(events: &[TraceEvent]) -> Vec<(String, Vec<(cenote_base::PageId, PageAccess)>)> {
    let (mut parts, mut pages) = (Vec::new(), Vec::new());
    for event in events {
        match &event.what {
            Traced::Page(page, access) => pages.push((*page, *access)),
            Traced::Mark { name, .. } => parts.push((name.clone(), std::mem::take(&mut pages))),
            Traced::Pages { .. } | Traced::End => {}
        }
    }
    parts
}

#[test]
fn a_trace_has_what_statements_ask_for() {
    let (data, files) = (Data::new(), tempfile::tempdir().unwrap());
    let server = server(&data);
    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, pad text)")
        .unwrap();
    let rows = "INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) AS s(n)";
    client.batch_execute(rows).unwrap();
    let path = files.path().join("it's a trace");
    let quoted = path.to_str().unwrap().replace('\'', "''");
    client.batch_execute(&format!("CENOTE TRACE '{quoted}'")).unwrap();
    client.batch_execute("SELECT pad FROM t WHERE id = 1000").unwrap();
    client.batch_execute("CENOTE TRACE MARK 'one row'").unwrap();
    client.batch_execute("SELECT sum(length(pad)) FROM t").unwrap();
    client.batch_execute("CENOTE TRACE MARK 'all rows'").unwrap();
    client.batch_execute("UPDATE t SET pad = 'y' WHERE id = 7").unwrap();
    client.batch_execute("CENOTE TRACE MARK 'a change'").unwrap();
    client.batch_execute("CENOTE TRACE END").unwrap();
    client.batch_execute("SELECT sum(length(pad)) FROM t").unwrap();

    let events = events(&path);
    let parts = parts(&events);
    let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["one row", "all rows", "a change", "end"]);
    let distinct = |part: usize| parts[part].1.iter().map(|(page, _)| *page).collect::<HashSet<_>>();
    assert!(distinct(0).len() < 20, "a row: {:?}", distinct(0));
    assert!(
        distinct(1).len() >= 2000 / 16,
        "2000 rows of a kilobyte: {}",
        distinct(1).len()
    );
    assert!(
        distinct(0).intersection(&distinct(1)).count() >= 2,
        "the same leaf and those above it"
    );
    let writes = |part: usize| {
        parts[part]
            .1
            .iter()
            .filter(|(_, access)| *access == PageAccess::Write)
            .count()
    };
    assert_eq!((writes(0), writes(2) > 0), (0, true), "only the update changes pages");
    let told: u64 = events.iter().map(|event| event.processor.raw()).sum();
    let process: u64 = events
        .iter()
        .map(|event| match &event.what {
            Traced::Mark { processor, .. } => processor.raw(),
            _ => 0,
        })
        .sum();
    assert!(
        told > 0 && told < process,
        "threads {told} ns, the process {process} ns"
    );
}

#[test]
fn a_trace_refuses_by_name() {
    let (data, files) = (Data::new(), tempfile::tempdir().unwrap());
    let server = server(&data);
    let mut client = server.client();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let mut refused = |statement: &str| {
        let error = client.batch_execute(statement).expect_err(statement);
        error.as_db_error().expect("the server's").code().code().to_owned()
    };
    assert_eq!(refused("CENOTE TRACE END"), "55000");
    assert_eq!(refused("CENOTE TRACE MARK 'x'"), "55000");
    assert_eq!(refused("CENOTE TRACE 'relative'"), "42601");
    assert_eq!(refused("CENOTE TRACE"), "42601");
    assert_eq!(refused("CENOTE TRACE '/no/such/directory/trace'"), "58030");
    std::fs::write(path("there"), "something").unwrap();
    assert_eq!(refused(&format!("CENOTE TRACE '{}'", path("there"))), "58030");
    assert_eq!(std::fs::read(path("there")).unwrap(), b"something");
    client.batch_execute(&format!("CENOTE TRACE '{}'", path("a"))).unwrap();
    let mut refused = |statement: &str| {
        let error = client.batch_execute(statement).expect_err(statement);
        error.as_db_error().expect("the server's").to_string()
    };
    let second = refused(&format!("CENOTE TRACE '{}'", path("b")));
    assert!(second.contains("under way") && second.contains(&path("a")), "{second}");
    assert!(!Path::new(&path("b")).exists());
    assert!(refused(&format!("CENOTE TRACE MARK '{}'", "x".repeat(129))).contains("128 bytes"));
    client.batch_execute("CENOTE TRACE END").unwrap();
    events(Path::new(&path("a")));
}

#[test]
fn the_command_traces_for_a_time_and_ends_what_was_left() {
    let (data, files) = (Data::new(), tempfile::tempdir().unwrap());
    let path = files.path().join("trace");
    let trace = |arguments: &[&str]| {
        let mut command = cenote(&["trace", "--data", data.text()]);
        command.args(arguments);
        output(&mut command)
    };
    let (ok, text) = trace(&[path.to_str().unwrap(), "--for", "1"]);
    assert!(!ok && text.contains("no server runs"), "{text}");
    let server = server(&data);
    let mut client = server.client();
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").unwrap();
    let (ok, text) = std::thread::scope(|scope| {
        let traced = scope.spawn(|| trace(&[path.to_str().unwrap(), "--for", "1"]));
        while !traced.is_finished() {
            client.batch_execute("SELECT * FROM t WHERE id = 1").unwrap();
        }
        traced.join().unwrap()
    });
    assert!(
        ok && text.contains("accesses to pages by") && text.contains("cenote replay"),
        "{text}"
    );
    assert!(!parts(&events(&path))[0].1.is_empty());
    let other = files.path().join("left");
    client
        .batch_execute(&format!("CENOTE TRACE '{}'", other.display()))
        .unwrap();
    let (ok, text) = trace(&["--end"]);
    assert!(ok && text.contains("left"), "{text}");
    let (ok, text) = trace(&["--end"]);
    assert!(!ok && text.contains("no trace is under way"), "{text}");
}
