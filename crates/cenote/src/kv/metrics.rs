//! What the server counts, as text for Prometheus, over HTTP: `GET /metrics`, and nothing else.

use super::board::Board;
use crate::log;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a request.
const REQUEST_MAX: usize = 8 << 10;
/// How long a request and its answer may take together.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Requests that are answered at a time.
const THREADS: usize = 2;

/// Where text comes from.
pub type Source = Box<dyn Fn() -> String + Send + Sync>;

/// See the module.
pub struct Metrics;

impl Metrics {
    /// Answers at a listener with what the sources say, until the process ends.
    ///
    /// # Errors
    /// Those of the system.
    pub fn serve(listener: TcpListener, sources: Vec<Source>) -> io::Result<()> {
        let (listener, sources) = (Arc::new(listener), Arc::new(sources));
        for _ in 0..THREADS {
            let (listener, sources) = (Arc::clone(&listener), Arc::clone(&sources));
            let thread = std::thread::Builder::new().name("kv-metrics".into());
            thread.spawn(move || answer_all(&listener, &sources))?;
        }
        Ok(())
    }
}

fn answer_all(listener: &TcpListener, sources: &[Source]) {
    loop {
        match listener.accept() {
            // A client that goes, or says nothing, is no event.
            Ok((stream, _)) => _ = answer(stream, sources),
            Err(error) => {
                log::warn!("metrics: a connection could not be accepted: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn answer(mut stream: TcpStream, sources: &[Source]) -> io::Result<()> {
    let until = Instant::now() + TIME_MAX;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let (status, body) = match request(&mut stream, until)? {
        Some(line) => respond(&line, sources),
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

fn respond(line: &str, sources: &[Source]) -> (&'static str, String) {
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some(path)) if path.split('?').next() == Some("/metrics") => {
            ("200 OK", sources.iter().map(|source| source()).collect())
        }
        (Some("GET"), _) => ("404 Not Found", String::new()),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

/// The first line of a request, after all of it has come; `None` if it is too long.
fn request(stream: &mut TcpStream, until: Instant) -> io::Result<Option<String>> {
    let (mut bytes, mut some) = (Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut some)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&some[..n]),
        }
        if bytes.len() > REQUEST_MAX {
            return Ok(None);
        }
    }
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

/// A figure in Prometheus's words.
fn figure(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").ok();
}

/// What a server's threads count.
pub fn text(board: &Board) -> String {
    let sums = [
        (
            "commands_total",
            "Commands, those that were refused included.",
            board.sum(|of| &of.commands),
        ),
        (
            "connections_total",
            "Connections that were accepted.",
            board.accepted.get(),
        ),
        (
            "connections_refused_total",
            "Connections beyond the limit.",
            board.refused.get(),
        ),
        (
            "arrivals_expired_total",
            "Connections that did not say the secret in time.",
            board.sum(|of| &of.expired),
        ),
        ("auth_failures_total", "Wrong secrets.", board.sum(|of| &of.denied)),
        (
            "received_bytes_total",
            "Bytes of commands.",
            board.sum(|of| &of.bytes_in),
        ),
        ("sent_bytes_total", "Bytes of answers.", board.sum(|of| &of.bytes_out)),
        (
            "expired_keys_total",
            "Keys that this server's sweep removed.",
            board.sum(|of| &of.swept),
        ),
    ];
    let gauges = [
        ("connections", "Connections that there are.", board.connections()),
        (
            "connections_max",
            "Connections that there may be.",
            board.connections_max as u64,
        ),
        ("threads", "Threads that serve connections.", board.threads.len() as u64),
    ];
    let mut text = String::new();
    for (name, help, value) in sums {
        figure(&mut text, &format!("cenote_kv_{name}"), "counter", help, value);
    }
    for (name, help, value) in gauges {
        figure(&mut text, &format!("cenote_kv_{name}"), "gauge", help, value);
    }
    text
}
