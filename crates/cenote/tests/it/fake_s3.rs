//! A bucket that speaks as much of S3's protocol as an archive needs, in memory, and fails as it is told.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Keys that one listing tells at most: few, so that listings go on.
const KEYS_MAX: usize = 3;

#[derive(Default)]
pub struct State {
    pub objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// So many requests are answered with 503, and so many writes are done and not answered.
    pub refuses: AtomicU32,
    pub keeps_silent: AtomicU32,
    /// Requests that were not signed.
    pub unsigned: AtomicU32,
}

/// Serves until the process ends.
pub struct FakeS3 {
    pub port: u16,
    pub state: Arc<State>,
}

struct Request {
    method: String,
    /// Of the key in the bucket, or empty.
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl FakeS3 {
    pub fn start() -> FakeS3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state: Arc<State> = Arc::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&state, stream));
            }
        });
        FakeS3 { port, state }
    }

    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }
}

fn serve(state: &State, stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read(&mut reader) {
        let is_signed = request
            .headers
            .get("authorization")
            .is_some_and(|by| by.starts_with("AWS4-HMAC-SHA256 Credential=key/"));
        if !is_signed {
            state.unsigned.fetch_add(1, Ordering::SeqCst);
        }
        let counts_down = |count: &AtomicU32| {
            count
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
        };
        let (status, body) = match counts_down(&state.refuses) {
            true => (503, Vec::new()),
            false => answer(state, &request),
        };
        if request.method == "PUT" && counts_down(&state.keeps_silent) {
            return;
        }
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: Sun, 29 Nov 2026 00:00:00 GMT\r\n\r\n",
            body.len()
        );
        if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), decoded(value))
    };
    Some(Request {
        method,
        key: decoded(path.trim_start_matches("/bucket").trim_start_matches('/')),
        query: query.split('&').map(pair).collect(),
        headers,
        body,
    })
}

fn decoded(text: &str) -> String {
    text.replace("%2F", "/")
        .replace("%2f", "/")
        .replace("%20", " ")
        .replace('+', " ")
}

fn answer(state: &State, request: &Request) -> (u16, Vec<u8>) {
    let mut objects = state.objects.lock().unwrap();
    match request.method.as_str() {
        "PUT" if request.headers.get("if-none-match").is_some_and(|any| any == "*") => {
            if objects.contains_key(&request.key) {
                return (412, Vec::new());
            }
            objects.insert(request.key.clone(), request.body.clone());
            (200, Vec::new())
        }
        "GET" if request.query.contains_key("list-type") => (200, list(&objects, &request.query).into_bytes()),
        "GET" => match objects.get(&request.key) {
            Some(bytes) => (200, bytes.clone()),
            None => (404, b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
        },
        "POST" if request.query.contains_key("delete") => {
            let body = String::from_utf8(request.body.clone()).unwrap();
            let mut deleted = String::new();
            for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")) {
                objects.remove(key.0);
                write!(deleted, "<Deleted><Key>{}</Key></Deleted>", key.0).unwrap();
            }
            (200, format!("<DeleteResult>{deleted}</DeleteResult>").into_bytes())
        }
        other => panic!("an archive does not ask for {other} {}", request.key),
    }
}

fn list(objects: &BTreeMap<String, Vec<u8>>, query: &BTreeMap<String, String>) -> String {
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (prefix, after, is_delimited) = (get("prefix"), get("continuation-token"), !get("delimiter").is_empty());
    let (mut text, mut told, mut last, mut is_cut) = (String::new(), 0, String::new(), false);
    for (key, bytes) in objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        let folder = key[prefix.len()..].split_once('/').filter(|_| is_delimited);
        let entry = folder.map_or_else(|| key.clone(), |(folder, _)| format!("{prefix}{folder}/"));
        if entry <= after || entry == last {
            continue;
        }
        if told == KEYS_MAX {
            is_cut = true;
            break;
        }
        (told, last) = (told + 1, entry.clone());
        match folder {
            Some(_) => write!(text, "<CommonPrefixes><Prefix>{entry}</Prefix></CommonPrefixes>").unwrap(),
            None => write!(
                text,
                "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-11-29T00:00:00.000Z</LastModified></Contents>",
                bytes.len()
            )
            .unwrap(),
        }
    }
    let next = if is_cut {
        format!("<NextContinuationToken>{last}</NextContinuationToken>")
    } else {
        String::new()
    };
    format!("<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{next}{text}</ListBucketResult>")
}
