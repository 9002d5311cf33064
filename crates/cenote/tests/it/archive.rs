//! Databases that are archived as people do it: a mistake is undone, a lost database comes back, from a directory and
//! from a bucket.

use crate::fake_s3::FakeS3;
use crate::moved::Writer;
use crate::program::{Data, Process, cenote, output};
use crate::storage_nodes::Nodes;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

fn run(data: &Data, archive: &str) -> Command {
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0"]);
    command.args(["--archive", archive, "--archive-every", "1", "--data", data.text()]);
    command
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A field of the view, as text.
fn seen(server: &Process, field: &str) -> Option<String> {
    let query = format!("SELECT {field}::text FROM cenote_archive");
    server.client().query_one(&query, &[]).unwrap().get(0)
}

/// There is a base, and all that is durable now is archived.
fn is_archived(server: &Process) {
    until("a base is taken", || seen(server, "base_at").is_some());
    until("all is archived", || {
        seen(server, "waiting_bytes").as_deref() == Some("0")
    });
}

fn restored(archive: &str, data: &Data, more: &[&str]) -> Process {
    let (ok, text) = output(cenote(&["restore", archive, "--data", data.text()]).args(more));
    assert!(ok && text.contains("restored"), "{text}");
    started(data)
}

fn started(data: &Data) -> Process {
    let server = Process::start(data.path());
    let (ok, text) = output(&mut cenote(&["check", "--data", data.text()]));
    assert!(ok && text.contains("all is well"), "{text}");
    server
}

fn refused(command: &mut Command, why: &str) {
    let (ok, text) = output(command);
    assert!(!ok && text.contains(why), "{text}");
}

fn one(server: &Process, query: &str) -> String {
    server
        .client()
        .query_one(&format!("SELECT ({query})::text"), &[])
        .unwrap()
        .get(0)
}

fn count(server: &Process) -> i64 {
    one(server, "SELECT count(*) FROM t").parse().unwrap()
}

/// Rows of a table that was made behind the base, a dropped table, a transaction that was open at the moment.
#[test]
fn a_mistake_is_undone_as_of_the_moment_before_it() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    let archive = directory.path().join("an archive");
    let archive = archive.to_str().unwrap();
    let mut server = Process::spawn(run(&data, archive));
    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (-1)")
        .unwrap();
    is_archived(&server);
    let fill = "CREATE TABLE late (id int PRIMARY KEY, word text); CREATE INDEX by_word ON late (word);
                INSERT INTO late SELECT n, repeat('w', 500) || n FROM generate_series(1, 3000) n";
    client.batch_execute(fill).unwrap();
    let load = Writer::start(&server, 0);
    load.reaches(200);
    let mut open = server.client();
    open.batch_execute("BEGIN; INSERT INTO late VALUES (100000, 'not yet')")
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let rows_at_least: i64 = one(&server, "SELECT count(*) FROM t").parse().unwrap();
    let (position, time) = (
        seen(&server, "position").unwrap(),
        one(&server, "SELECT clock_timestamp()"),
    );
    load.reaches(i32::try_from(rows_at_least).unwrap() + 100);
    let acknowledged = load.end();
    open.batch_execute("COMMIT").unwrap();
    client
        .batch_execute("DROP TABLE late; DELETE FROM t; INSERT INTO t VALUES (-7)")
        .unwrap();
    is_archived(&server);
    let (ok, text) = output(&mut cenote(&["archive", "status", archive]));
    assert!(
        ok && text.contains("timeline 1") && text.contains("can be restored"),
        "{text}"
    );

    for moment in [["--to-lsn", &position], ["--to-time", &time]] {
        let again = Data::new();
        let then = restored(archive, &again, &moment);
        let (late, found) = (one(&then, "SELECT count(*) FROM late"), count(&then));
        assert_eq!(late, "3000", "{moment:?}");
        let by_index = format!("SELECT id FROM late WHERE word = '{}2999'", "w".repeat(500));
        assert_eq!(one(&then, &by_index), "2999");
        let known = i64::from(acknowledged) + 1;
        assert!(found < known, "{found} of {known} rows, {moment:?}");
        // A time is known to within a tenth of a second.
        assert!(
            moment[0] == "--to-time" || found >= rows_at_least,
            "{found} of {rows_at_least} rows"
        );
    }
    // All that is archived is the database as it is, and it goes on by itself, archived beside the other.
    let again = Data::new();
    drop(restored(archive, &again, &[]));
    let mut then = Process::spawn(run(&again, archive));
    assert_eq!((count(&then), one(&then, "SELECT min(n) FROM t")), (1, "-7".into()));
    is_archived(&then);
    then.stop();
    let third = Data::new();
    refused(
        &mut cenote(&["restore", archive, "--data", third.text()]),
        "several databases",
    );
    server.stop();
}

#[test]
fn moments_that_are_not_there_are_refused() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    let archive = directory.path().to_str().unwrap();
    let to = Data::new();
    let restore = |more: &[&str]| {
        let mut command = cenote(&["restore", archive, "--data", to.text()]);
        command.args(more);
        command
    };
    refused(&mut restore(&[]), "has no archive");
    let server = Process::spawn(run(&data, archive));
    let early = one(&server, "SELECT clock_timestamp() - interval '1 hour'");
    is_archived(&server);
    refused(&mut restore(&["--to-time", &early]), "no base from before that moment");
    refused(&mut restore(&["--to-time", "2999-01-01 00:00:00Z"]), "has not come yet");
    refused(&mut restore(&["--to-time", "yesterday"]), "is no time");
    refused(&mut restore(&["--to-lsn", "FFFF/0"]), "is not there");
    refused(&mut restore(&["--to-lsn", "5"]), "no position");
    refused(
        &mut restore(&["--database", "00000000000000000000000000000001"]),
        "no archive of database",
    );
    refused(&mut restore(&["--timeline", "2"]), "no finished base");
    refused(
        &mut cenote(&["run", "--archive", "ftp://x/y", "--data", to.text()]),
        "is neither a directory",
    );
    refused(
        &mut cenote(&["run", "--archive-every", "5", "--data", to.text()]),
        "are for --archive",
    );
    let (ok, text) = output(&mut cenote(&["archive", "base", "--data", data.text()]));
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    assert!(ok && text.contains("position") && pages > 0, "{text}");
    drop(server);
    // A directory with something in it is left alone.
    std::fs::write(to.path().join("something"), "kept").unwrap();
    refused(&mut restore(&[]), "is not empty");
}

/// The server is killed again and again, and the last time its directory is lost, too: what is archived comes back.
#[test]
fn a_killed_server_goes_on_with_its_archive() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    let archive = directory.path().to_str().unwrap();
    let mut server = Process::spawn(run(&data, archive));
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    let mut from = 0;
    for round in 0..3 {
        let load = Writer::start(&server, from);
        load.reaches(from + 300);
        if round == 0 {
            // The first base is of a database in use.
            until("a base is taken", || seen(&server, "base_at").is_some());
        }
        server.kill();
        load.end();
        server = Process::spawn(run(&data, archive));
        from = i32::try_from(count(&server)).unwrap();
    }
    is_archived(&server);
    assert_eq!(seen(&server, "timeline").as_deref(), Some("1"));
    server.kill();
    std::fs::remove_dir_all(data.path()).unwrap();
    let again = Data::new();
    assert_eq!(count(&restored(archive, &again, &[])), i64::from(from));
}

/// The writer of a cluster is lost, and the next one goes on with the archive; what is restored goes to other nodes.
#[test]
fn a_database_on_nodes_is_archived_whichever_server_has_it() {
    let (nodes, directory) = (Nodes::start(), tempfile::tempdir().unwrap());
    let archive = directory.path().to_str().unwrap();
    let on_nodes = |data: &Data| {
        let mut command = nodes.run(data, "dram");
        command.args(["--archive", archive, "--archive-every", "1"]);
        Process::spawn(command)
    };
    let (first, second, again) = (Data::new(), Data::new(), Data::new());
    let mut server = on_nodes(&first);
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    is_archived(&server);
    let load = Writer::start(&server, 0);
    load.reaches(300);
    server.kill();
    let acknowledged = load.end();
    let server = on_nodes(&second);
    let rows = count(&server);
    assert!(
        (0..=1).contains(&(rows - i64::from(acknowledged))),
        "{rows} of {acknowledged}"
    );
    server
        .client()
        .batch_execute("CREATE TABLE more (n int); INSERT INTO more VALUES (5)")
        .unwrap();
    is_archived(&server);
    assert_eq!(seen(&server, "timeline").as_deref(), Some("1"));
    let then = restored(archive, &again, &[]);
    assert_eq!((count(&then), one(&then, "SELECT n FROM more")), (rows, "5".into()));
}

/// The bucket fails, and does what it does not answer.
#[test]
fn an_archive_in_a_bucket_is_as_good() {
    let (data, bucket) = (Data::new(), FakeS3::start());
    let archive = "s3://bucket/some/prefix";
    let mut command = run(&data, archive);
    command.envs(bucket.variables());
    bucket.state.refuses.store(1, Ordering::SeqCst);
    let mut server = Process::spawn(command);
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    is_archived(&server);
    for n in 0..4 {
        bucket.state.keeps_silent.store(n % 2, Ordering::SeqCst);
        let insert = format!(
            "INSERT INTO t SELECT g FROM generate_series({}, {}) g",
            n * 100,
            n * 100 + 99
        );
        server.client().batch_execute(&insert).unwrap();
        is_archived(&server);
    }
    server.stop();
    let again = Data::new();
    let mut restore = cenote(&["restore", archive, "--data", again.text()]);
    let (ok, text) = output(restore.envs(bucket.variables()));
    assert!(ok && text.contains("restored"), "{text}");
    assert_eq!(count(&started(&again)), 400);
    let mut status = cenote(&["archive", "status", archive]);
    let (ok, text) = output(status.envs(bucket.variables()));
    assert!(ok && text.contains("timeline 1"), "{text}");
    assert!(
        bucket
            .state
            .objects
            .lock()
            .unwrap()
            .keys()
            .all(|key| key.starts_with("some/prefix/"))
    );
    assert_eq!(bucket.state.unsigned.load(Ordering::SeqCst), 0);
}

/// The archive is away while the server ends in order, whose checkpoint needs nothing of the log, and when it is
/// started.
#[test]
fn what_is_not_archived_is_kept_over_a_restart() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    let (place, away) = (directory.path().join("archive"), directory.path().join("away"));
    let archive = place.to_str().unwrap();
    let mut server = Process::spawn(run(&data, archive));
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY, filler text)")
        .unwrap();
    is_archived(&server);
    std::fs::rename(&place, &away).unwrap();
    std::fs::write(&place, "in the way").unwrap();
    let fill = |from: u32| {
        let rows = format!(
            "SELECT g, repeat('x', 1000) FROM generate_series({from}, {}) g",
            from + 19_999
        );
        format!("INSERT INTO t {rows}")
    };
    server.client().batch_execute(&fill(0)).unwrap();
    server.client().batch_execute(&fill(20_000)).unwrap();
    server.stop();
    // Nor does a look at the database, which is not told of the archive, take it.
    let (ok, text) = output(&mut cenote(&["check", "--data", data.text()]));
    assert!(ok && text.contains("all is well"), "{text}");
    let server = Process::spawn(run(&data, archive));
    server.client().batch_execute(&fill(40_000)).unwrap();
    until("the failure is seen", || seen(&server, "failure").is_some());
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    is_archived(&server);
    assert_eq!(seen(&server, "timeline").as_deref(), Some("1"));
    let again = Data::new();
    assert_eq!(count(&restored(archive, &again, &[])), 60_000);
}

/// The archive was away, is tried again in a while, and is there again when the server ends.
#[test]
fn an_end_puts_everything_into_an_archive_that_is_back() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    let (place, away) = (directory.path().join("archive"), directory.path().join("away"));
    let archive = place.to_str().unwrap();
    let mut server = Process::spawn(run(&data, archive));
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY)")
        .unwrap();
    is_archived(&server);
    std::fs::rename(&place, &away).unwrap();
    let load = Writer::start(&server, 0);
    until("it was tried several times", || {
        seen(&server, "failures").is_some_and(|failures| failures.parse::<u32>().unwrap() >= 2)
    });
    std::fs::rename(&away, &place).unwrap();
    let rows = load.end();
    server.stop();
    let again = Data::new();
    let found = count(&restored(archive, &again, &[]));
    assert!((0..=1).contains(&(found - i64::from(rows))), "{found} of {rows}");
}

/// An archive that is away stops no server, and when it is there again it goes on.
#[test]
fn a_server_serves_while_its_archive_is_away() {
    let (data, directory) = (Data::new(), tempfile::tempdir().unwrap());
    // A file is where the directory is to be.
    let place = directory.path().join("archive");
    std::fs::write(&place, "in the way").unwrap();
    let server = Process::spawn(run(&data, place.to_str().unwrap()));
    server
        .client()
        .batch_execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1)")
        .unwrap();
    until("the failure is seen", || seen(&server, "failure").is_some());
    let (ok, text) = output(&mut cenote(&["archive", "base", "--data", data.text()]));
    assert!(!ok && !text.is_empty(), "it says why: {text}");
    std::fs::remove_file(&place).unwrap();
    is_archived(&server);
    assert_eq!(seen(&server, "failure"), None);
    assert!(Path::new(&place).is_dir());
}
