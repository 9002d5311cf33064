//! The whole way, with stores in this process: what is loaded is found, what is inserted goes again.

use super::record::Layout;
use super::*;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Mutex;

fn options(layout: Layout, threads: usize) -> Options {
    Options {
        out: PathBuf::new(),
        targets: vec![TargetKind::Embedded],
        workloads: vec![
            Workload::A,
            Workload::B,
            Workload::C,
            Workload::D,
            Workload::E,
            Workload::F,
        ],
        distributions: vec![Distribution::Zipfian, Distribution::Uniform],
        layout,
        records: 500,
        fields: 10,
        field_bytes: 100,
        length: Length::Operations(5000),
        rounds: 2,
        threads,
        pods: 1,
        program: None,
        connections: threads,
        pipeline: 1,
        seed: 1,
        is_pinned: false,
    }
}

#[test]
fn each_workload_finds_what_it_looks_for_in_the_embedded_store() {
    for (layout, threads) in [
        (Layout::Hash, 1),
        (Layout::Hash, 2),
        (Layout::Value, 1),
        (Layout::Value, 3),
    ] {
        let options = options(layout, threads);
        let records = Arc::new(Records::new(layout, options.fields, options.field_bytes));
        let target = Target::start(TargetKind::Embedded, &options, &records).expect("room in shared memory");
        let mut targets = [target.expect("it is always there")];
        load(&options, &mut targets[0]).expect("loaded");
        let cells = measure(&options, &mut targets).expect("each record is there, and whole");
        // A, B, C, E and F with both distributions, D as it is.
        assert_eq!(cells.len(), 11);
        assert!(cells.iter().all(|cell| cell.rounds.len() == 2));
    }
}

/// A store that has lost a record is not measured, but told of.
#[test]
fn a_record_that_is_missing_is_noticed() {
    let options = options(Layout::Hash, 1);
    let records = Arc::new(Records::new(Layout::Hash, options.fields, options.field_bytes));
    let target = Target::start(TargetKind::Embedded, &options, &records).expect("room in shared memory");
    let mut target = target.expect("it is always there");
    let mut fewer = options.clone();
    fewer.records = 499;
    load(&fewer, &mut target).expect("loaded");
    let error = measure(&options, &mut [target]).err().expect("a record is missing");
    assert!(error.to_string().contains("found no record"), "{error}");
}

type Hashes = Arc<Mutex<HashMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>>>;

/// A server of a few commands, that runs until the test ends.
fn serve(hashes: &Hashes) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let (port, hashes) = (listener.local_addr().expect("bound").port(), Arc::clone(hashes));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(|stream| stream.ok()) {
            let hashes = Arc::clone(&hashes);
            std::thread::spawn(move || while answer(&stream, &hashes).is_ok() {});
        }
    });
    port
}

/// Reads a byte at a time: it is the protocol that is tested here.
fn number(mut stream: &TcpStream) -> std::io::Result<usize> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line[1..]).trim().parse().expect("a number"))
}

fn answer(mut stream: &TcpStream, hashes: &Hashes) -> std::io::Result<()> {
    let mut strings = Vec::new();
    for _ in 0..number(stream)? {
        let mut string = vec![0; number(stream)? + 2];
        stream.read_exact(&mut string)?;
        string.truncate(string.len() - 2);
        strings.push(string);
    }
    let (mut hashes, mut out) = (hashes.lock().expect("no panic"), Vec::new());
    match &strings[0][..] {
        b"HSET" => {
            let hash = hashes.entry(strings[1].clone()).or_default();
            let pairs = strings[2..].chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            hash.extend(pairs);
            out.extend(b":1\r\n");
        }
        b"HGETALL" => {
            let hash = hashes.get(&strings[1]).cloned().unwrap_or_default();
            resp::array(&mut out, 2 * hash.len());
            hash.iter().for_each(|(name, value)| {
                resp::string(&mut out, name);
                resp::string(&mut out, value);
            });
        }
        b"DEL" => out.extend(format!(":{}\r\n", u8::from(hashes.remove(&strings[1]).is_some())).bytes()),
        _ => out.extend(b"-ERR unknown\r\n"),
    }
    stream.write_all(&out)
}

fn over_wire(options: &Options, layout: Layout, port: u16) -> Box<dyn Worker> {
    let records = Arc::new(Records::new(layout, options.fields, options.field_bytes));
    Box::new(wire::Wire::connect(port, 3, options.pipeline, &records).expect("connected"))
}

#[test]
fn each_workload_finds_what_it_looks_for_over_the_wire() {
    for pipeline in [1, 7] {
        let hashes = Hashes::default();
        let mut options = options(Layout::Hash, 1);
        (options.records, options.pipeline) = (100, pipeline);
        let mut workers = [over_wire(&options, Layout::Hash, serve(&hashes))];
        let load = vec![Stream::load(options.records, (0, 1), 1)];
        assert_eq!(
            together(&mut workers, load, Until::Exhausted)
                .expect("loaded")
                .1
                .operations,
            100
        );
        for workload in options.workloads.clone() {
            let stream = Stream::new(workload, Distribution::Zipfian, options.records, (0, 1), 5, 1000);
            let ((_, counts), streams) = carry_out(&mut workers, vec![stream], Until::Done(500)).expect("carried out");
            assert_eq!(
                (counts.operations, counts.missing, counts.errors),
                (500, 0, 0),
                "{workload:?} {pipeline}"
            );
            let inserts = matches!(workload, Workload::D | Workload::E);
            assert_eq!(hashes.lock().expect("no panic").len() > 100, inserts);
            let undone = together(&mut workers, vec![streams[0].undo()], Until::Exhausted)
                .expect("carried out")
                .1;
            assert_eq!((undone.missing, hashes.lock().expect("no panic").len()), (0, 100));
        }
    }
}

/// Answers that are errors, or say that there is nothing, are counted as such.
#[test]
fn wrong_answers_of_a_server_are_noticed() {
    let options = options(Layout::Hash, 1);
    let run = |layout, stream| {
        let mut workers = [over_wire(&options, layout, serve(&Hashes::default()))];
        together(&mut workers, vec![stream], Until::Done(10))
            .expect("answered")
            .1
    };
    let reads = || Stream::new(Workload::C, Distribution::Uniform, 100, (0, 1), 1, 0);
    assert_eq!(run(Layout::Hash, reads()).missing, 10);
    let counts = run(Layout::Value, reads());
    assert_eq!(
        (counts.errors, counts.first_error.as_deref()),
        (10, Some("ERR unknown"))
    );
}
