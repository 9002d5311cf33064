//! What the store costs: `cargo run --release -p cenote-store --example shared [seconds of each row]`.
//!
//! Small values by several processes at once, coherent and with flushes, beside Redis if `redis-server` is installed;
//! large values by one and by several callers, beside copies of the same bytes by the same threads, and a plain file in
//! shared memory; evictions. Medians of rounds in turn. A table in markdown.

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_space::{Neighbour, Service, Space, SpaceOptions};
use cenote_store::{Options, PutOptions, Store, Visibility};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const KEYS: u64 = 100_000;
const PROCESSES: usize = 4;
const REPLACE: PutOptions = PutOptions {
    tenant: 0,
    time_to_live: None,
    replaces: true,
    replicas: 0,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return work(&arguments[1..]);
    }
    let seconds = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let time = Nanos((seconds * 1e9) as u64);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    small(directory.path(), time);
    large(directory.path(), time);
    evictions(directory.path(), time);
}

fn keep(directory: &Path, name: &str, mib: u64, options: Options) -> (Space, Service, Store) {
    let part = directory.join(name);
    let space = SpaceOptions {
        bytes: mib << 20,
        ..SpaceOptions::default()
    };
    let space = Space::create(&part, &space).expect("memory");
    let socket = directory.join(format!("{name}-keeper"));
    let service = Service::start(&socket, space.keeper(1).expect("kept here")).expect("a socket");
    let store = Store::create(&space, options).expect("a store");
    (space, service, store)
}

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = n;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Does something until the time has passed: how often a second.
fn rate(time: Nanos, mut step: impl FnMut()) -> f64 {
    let (began, mut n) = (rt::now(), 0_u64);
    loop {
        for _ in 0..64 {
            step();
        }
        n += 64;
        let passed = rt::now().since(began);
        if passed > time {
            return n as f64 / passed.raw() as f64 * 1e9;
        }
    }
}

/// Another process: `worker WHAT PLACE SET-OR-GET SECONDS PIPELINE`, which says its rate.
fn work(arguments: &[String]) {
    let [what, place, operation, nanos, pipeline] = arguments else {
        panic!("worker WHAT PLACE OPERATION NANOSECONDS PIPELINE")
    };
    let time = Nanos(nanos.parse().expect("a number"));
    let (is_set, pipeline) = (operation == "set", pipeline.parse().expect("a number"));
    let mut random = Random(u64::from(std::process::id()));
    let rate = match what.as_str() {
        "store" => store_rate(Path::new(place), is_set, time, &mut random),
        _ => redis_rate(place.parse().expect("a port"), is_set, time, pipeline, &mut random),
    };
    println!("{rate}");
}

fn store_rate(part: &Path, is_set: bool, time: Nanos, random: &mut Random) -> f64 {
    let name = part.file_name().expect("a name").to_string_lossy().into_owned();
    let keeper = Neighbour::connect(&part.with_file_name(format!("{name}-keeper"))).expect("a keeper");
    let space = Space::join(part, RegionOptions::default(), Arc::new(keeper)).expect("a space");
    let store = Store::open(&space, Options::default()).expect("a store");
    let mut value = [7; 64];
    let ready = std::io::stdin().lines().next();
    assert!(ready.is_some(), "the starter says when");
    rate(time, || {
        let key = key(random.below(KEYS));
        match is_set {
            true => drop(store.put(&key, &value, REPLACE).expect("put")),
            false => drop(store.get_into(&key, &mut value).expect("asked").expect("there")),
        }
    })
}

fn redis_rate(port: u16, is_set: bool, time: Nanos, pipeline: usize, random: &mut Random) -> f64 {
    let mut server = TcpStream::connect(("127.0.0.1", port)).expect("Redis");
    server.set_nodelay(true).expect("set");
    let (mut request, mut answer) = (Vec::new(), vec![0; 64 << 10]);
    let of_one = if is_set { 5 } else { 71 };
    let ready = std::io::stdin().lines().next();
    assert!(ready.is_some(), "the starter says when");
    let batches = rate(time, || {
        request.clear();
        for _ in 0..pipeline {
            let key = key(random.below(KEYS));
            match is_set {
                true => request.extend(b"*3\r\n$3\r\nSET\r\n$16\r\n"),
                false => request.extend(b"*2\r\n$3\r\nGET\r\n$16\r\n"),
            }
            request.extend(key);
            if is_set {
                request.extend(b"\r\n$64\r\n");
                request.extend([7; 64]);
            }
            request.extend(b"\r\n");
        }
        server.write_all(&request).expect("asked");
        let mut left = of_one * pipeline;
        while left > 0 {
            let n = server.read(&mut answer[..left]).expect("answered");
            assert!(n > 0, "Redis has ended");
            left -= n;
        }
    });
    batches * pipeline as f64
}

/// The sum of what several processes do at once.
fn together(what: &str, place: &str, operation: &str, time: Nanos, pipeline: usize) -> f64 {
    let start = |_| {
        let program = std::env::current_exe().expect("this program");
        Command::new(program)
            .args([
                "worker",
                what,
                place,
                operation,
                &time.raw().to_string(),
                &pipeline.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started")
    };
    let mut workers: Vec<Child> = (0..PROCESSES).map(start).collect();
    rt::sleep(Nanos::from_millis(300));
    for worker in &mut workers {
        let input = worker.stdin.as_mut().expect("a pipe");
        writeln!(input, "go").expect("told");
    }
    let rate_of = |worker: &mut Child| {
        let mut line = String::new();
        let output = worker.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("said");
        worker.wait().expect("ended");
        line.trim().parse::<f64>().expect("a rate")
    };
    workers.iter_mut().map(rate_of).sum()
}

struct Redis(Child, u16);

impl Redis {
    fn start(directory: &Path) -> Option<Self> {
        let port = 20_000 + (rt::random() % 20_000) as u16;
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
                "--bind",
                "127.0.0.1",
            ])
            .current_dir(directory)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        for _ in 0..200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(Self(child, port));
            }
            rt::sleep(Nanos::from_millis(20));
        }
        None
    }

    fn fill(&self) {
        let mut server = TcpStream::connect(("127.0.0.1", self.1)).expect("Redis");
        let mut answer = [0; 5];
        for n in 0..KEYS {
            let mut request = b"*3\r\n$3\r\nSET\r\n$16\r\n".to_vec();
            request.extend(key(n));
            request.extend(b"\r\n$64\r\n");
            request.extend([7; 64]);
            request.extend(b"\r\n");
            server.write_all(&request).expect("asked");
            server.read_exact(&mut answer).expect("answered");
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn small(directory: &Path, time: Nanos) {
    println!("| {PROCESSES} processes, {KEYS} keys, values of 64 B | GET/s | SET/s |\n|---|---|---|");
    let modes = [("coherent", Visibility::Coherent), ("flush", Visibility::Flush)];
    let stores = modes.map(|(name, visibility)| {
        let kept = keep(
            directory,
            name,
            512,
            Options {
                visibility,
                ..Options::default()
            },
        );
        for n in 0..KEYS {
            kept.2.put(&key(n), &[7; 64], REPLACE).expect("put");
        }
        (name, kept)
    });
    let redis = Redis::start(directory);
    redis.iter().for_each(Redis::fill);
    let mut rows: Vec<(String, String, String, usize)> = Vec::new();
    for (name, _) in &stores {
        rows.push((
            format!("store, {name}"),
            "store".into(),
            directory.join(name).display().to_string(),
            1,
        ));
    }
    if let Some(redis) = &redis {
        for pipeline in [1, 16] {
            rows.push((
                format!("Redis, pipeline {pipeline}"),
                "redis".into(),
                redis.1.to_string(),
                pipeline,
            ));
        }
    }
    let mut rates = vec![[Vec::new(), Vec::new()]; rows.len()];
    for _ in 0..3 {
        for ((_, what, place, pipeline), rates) in rows.iter().zip(&mut rates) {
            for (operation, rates) in ["get", "set"].iter().zip(rates) {
                rates.push(together(what, place, operation, time, *pipeline));
            }
        }
    }
    for ((name, ..), [get, set]) in rows.iter().zip(rates) {
        println!("| {name} | {:.0} | {:.0} |", median(get), median(set));
    }
}

/// Bytes a second of several threads that each do something for a while.
fn callers(n: usize, time: Nanos, step: impl Fn(usize) -> Box<dyn FnMut() -> usize + Send> + Sync) -> f64 {
    let rates: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|caller| {
                let mut step = step(caller);
                scope.spawn(move || {
                    let (began, mut bytes) = (rt::now(), 0);
                    while rt::now().since(began) < time {
                        bytes += step();
                    }
                    bytes as f64 / rt::now().since(began).raw() as f64
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("ended"))
            .collect()
    });
    rates.iter().sum()
}

fn large(directory: &Path, time: Nanos) {
    println!("\n| value | callers | copy GB/s | get | ratio | put | ratio | flush get | file read | file write |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (_space, _service, store) = keep(directory, "large", 1500, Options::default());
    let flush = Options {
        visibility: Visibility::Flush,
        ..Options::default()
    };
    let (_other, _its, flushing) = keep(directory, "large-flush", 600, flush);
    for len in [64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        // More than caches hold.
        let count = ((256 << 20) / len) as u64;
        let value = vec![5; len];
        for n in 0..count {
            store.put(&key(n), &value, REPLACE).expect("put");
            flushing.put(&key(n), &value, REPLACE).expect("put");
        }
        let file = File::create_new(directory.join("plain")).expect("a file");
        (0..count).for_each(|n| file.write_all_at(&value, n * len as u64).expect("written"));
        let file = Arc::new(
            File::options()
                .read(true)
                .write(true)
                .open(directory.join("plain"))
                .expect("the file"),
        );
        for n in [1, 4] {
            row(len, n, count, time, &store, &flushing, &file);
        }
        std::fs::remove_file(directory.join("plain")).expect("it is there");
        for n in 0..count {
            assert!(store.remove(&key(n)).expect("removed") && flushing.remove(&key(n)).expect("removed"));
        }
    }
}

fn row(len: usize, n: usize, count: u64, time: Nanos, store: &Store, flushing: &Store, file: &Arc<File>) {
    let source = Arc::new(vec![5_u8; count as usize * len]);
    let random = |caller: usize| Random(caller as u64 + 1);
    let copy = |caller: usize| -> Box<dyn FnMut() -> usize + Send> {
        let (source, mut into, mut random) = (Arc::clone(&source), vec![0; len], random(caller));
        Box::new(move || {
            let at = random.below(count) as usize * len;
            into.copy_from_slice(&source[at..at + len]);
            std::hint::black_box(&mut into).len()
        })
    };
    let get = |store: &Store| {
        let store = store.clone();
        move |caller: usize| -> Box<dyn FnMut() -> usize + Send> {
            let (store, mut into, mut random) = (store.clone(), vec![0; len], random(caller));
            Box::new(move || {
                let got = store.get_into(&key(random.below(count)), &mut into);
                got.expect("asked").expect("there").len as usize
            })
        }
    };
    let put = |caller: usize| -> Box<dyn FnMut() -> usize + Send> {
        let (store, from, mut random) = (store.clone(), vec![6; len], random(caller));
        Box::new(move || {
            store.put(&key(random.below(count)), &from, REPLACE).expect("put");
            len
        })
    };
    let of_file = |writes: bool| {
        let file = Arc::clone(file);
        move |caller: usize| -> Box<dyn FnMut() -> usize + Send> {
            let (file, mut bytes, mut random) = (Arc::clone(&file), vec![5; len], random(caller));
            Box::new(move || {
                let at = random.below(count) * len as u64;
                match writes {
                    true => file.write_all_at(&bytes, at).expect("written"),
                    false => file.read_exact_at(&mut bytes, at).expect("read"),
                }
                len
            })
        }
    };
    let mut rates = vec![Vec::new(); 6];
    for _ in 0..3 {
        rates[0].push(callers(n, time, copy));
        rates[1].push(callers(n, time, get(store)));
        rates[2].push(callers(n, time, put));
        rates[3].push(callers(n, time, get(flushing)));
        rates[4].push(callers(n, time, of_file(false)));
        rates[5].push(callers(n, time, of_file(true)));
    }
    let r: Vec<f64> = rates.into_iter().map(median).collect();
    let (kib, of) = (len >> 10, |n: usize| r[n] / r[0]);
    println!(
        "| {kib} KiB | {n} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
        r[0],
        r[1],
        of(1),
        r[2],
        of(2),
        r[3],
        r[4],
        r[5]
    );
}

fn evictions(directory: &Path, time: Nanos) {
    let bound = Options {
        bound: 64 << 20,
        ..Options::default()
    };
    let (_space, _service, store) = keep(directory, "evicting", 256, bound);
    let mut n = 0;
    let mut put = || {
        n += 1;
        store.put(&key(n), &[7; 64], PutOptions::default()).expect("put");
    };
    (0..500_000).for_each(|_| put());
    let before = store.stats().expect("counted").evicted;
    let rate = rate(time, put);
    let evicted = store.stats().expect("counted").evicted - before;
    println!("\nPuts of new keys above the bound, one caller: {rate:.0} a second, {evicted} evicted in {time}.");
}
