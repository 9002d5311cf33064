//! A server whose SQL is a toy, and a client that speaks in bytes.

use cenote::server::auth::Passwords;
use cenote::server::registry::{Canceller, Registry};
use cenote::server::session::Conversation;
use cenote::server::{Access, Server, Service, bind};
use cenote_sql::{Bind, Field, Format, Formats, Output, Result, SessionInfo, SqlError, code};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What the toy's sessions have in common.
#[derive(Debug, Default)]
pub struct Toy {
    /// Sessions that were not dropped yet.
    pub alive: AtomicUsize,
    /// Bytes of large messages, and the most that there were.
    pub held: AtomicUsize,
    pub most_held: AtomicUsize,
}

/// The toy's sessions hold no more of a message.
pub const HELD_MAX: usize = 8 << 20;

pub struct ToyService(pub Arc<Toy>);

/// Knows: `rows N`, `begin`, `commit`, `fail`, `panic`, `wait`, `deaf` (waits, and ends well
/// where it is cancelled), `copy in`, `copy out`, and the empty statement.
pub struct ToySession {
    toy: Arc<Toy>,
    status: u8,
    stop: Arc<AtomicBool>,
    statements: BTreeMap<String, String>,
    portals: BTreeMap<String, (String, u64)>,
    copied: Option<Vec<u8>>,
}

impl Service for ToyService {
    type Session = ToySession;
    fn open(&self, _info: SessionInfo) -> Result<ToySession> {
        self.0.alive.fetch_add(1, Ordering::SeqCst);
        let stop = Arc::new(AtomicBool::new(false));
        Ok(ToySession {
            toy: self.0.clone(),
            status: b'I',
            stop,
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            copied: None,
        })
    }
}

impl Drop for ToySession {
    fn drop(&mut self) {
        self.toy.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

fn field() -> Field {
    Field {
        name: "n".into(),
        table_oid: 0,
        column: 0,
        type_oid: 25,
        type_len: -1,
        type_mod: -1,
    }
}

impl ToySession {
    fn rows(&self, from: u64, to: u64, out: &mut dyn Output) -> Result<()> {
        for n in from..to {
            out.row(1, &mut |row| {
                let text = n.to_string();
                row.extend_from_slice(&(text.len() as i32).to_be_bytes());
                row.extend_from_slice(text.as_bytes());
                if n == 13_013 {
                    Err(SqlError::new("22012", "unlucky"))
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    fn run(&mut self, text: &str, out: &mut dyn Output) -> Result<()> {
        match text {
            "" => return out.empty_query(),
            "begin" => self.status = b'T',
            "commit" => self.status = b'I',
            "fail" => return Err(SqlError::new("22012", "division by zero").at(3).with_hint("Do not.")),
            "panic" => panic!("asked for"),
            "wait" => return self.wait(),
            "deaf" => self.wait().err().map_or((), drop),
            "copy in" => {
                self.copied = Some(Vec::new());
                return out.copy_in(Format::Text, 1);
            }
            "copy out" => {
                out.copy_out(Format::Text, 1)?;
                out.copy_row(&mut |row| {
                    row.extend_from_slice(b"line\n");
                    Ok(())
                })?;
                out.copy_done()?;
            }
            "notice" => out.notice(&SqlError::notice(
                cenote_sql::Severity::Notice,
                "00000",
                "mind the step",
            ))?,
            _ => return Err(SqlError::new(code::SYNTAX_ERROR, format!("syntax error at {text:?}"))),
        }
        out.complete(&text.to_uppercase())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if self.stop.swap(false, Ordering::SeqCst) {
                return Err(SqlError::new(
                    code::QUERY_CANCELED,
                    "canceling statement due to user request",
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(SqlError::internal("nobody cancelled"))
    }

    fn failed(&mut self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.fail();
        }
        result
    }
}

impl Conversation for ToySession {
    fn simple(&mut self, text: &str, out: &mut dyn Output) -> Result<()> {
        let result = match text.strip_prefix("rows ").map(|n| n.parse::<u64>().unwrap()) {
            Some(count) => out
                .row_description(&[field()], Formats(&[]))
                .and_then(|()| self.rows(0, count, out))
                .and_then(|()| out.complete(&format!("SELECT {count}"))),
            None => self.run(text, out),
        };
        self.failed(result)
    }
    fn parse(&mut self, name: &str, text: &str, _types: &[u32]) -> Result<()> {
        if text == "syntax" {
            return Err(SqlError::new(code::SYNTAX_ERROR, "syntax error"));
        }
        self.statements.insert(name.into(), text.into());
        Ok(())
    }
    fn bind(&mut self, portal: &str, statement: &str, _bind: Bind<'_>) -> Result<()> {
        let text = self
            .statements
            .get(statement)
            .ok_or_else(|| SqlError::new(code::INVALID_STATEMENT_NAME, "no such statement"))?;
        self.portals.insert(portal.into(), (text.clone(), 0));
        Ok(())
    }
    fn describe_statement(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        out.parameter_description(&[])?;
        match self.statements[name].starts_with("rows ") {
            true => out.row_description(&[field()], Formats(&[])),
            false => out.no_data(),
        }
    }
    fn describe_portal(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        match self.portals[name].0.starts_with("rows ") {
            true => out.row_description(&[field()], Formats(&[])),
            false => out.no_data(),
        }
    }
    fn execute(&mut self, portal: &str, max_rows: u32, out: &mut dyn Output) -> Result<()> {
        let (text, at) = self
            .portals
            .get(portal)
            .cloned()
            .ok_or_else(|| SqlError::new(code::INVALID_CURSOR_NAME, "no such portal"))?;
        let Some(count) = text.strip_prefix("rows ").map(|n| n.parse::<u64>().unwrap()) else {
            let result = self.run(&text, out);
            return self.failed(result);
        };
        let end = if max_rows == 0 {
            count
        } else {
            count.min(at + u64::from(max_rows))
        };
        self.rows(at, end, out)?;
        self.portals.insert(portal.into(), (text, end));
        match end < count {
            true => out.portal_suspended(),
            false => out.complete(&format!("SELECT {}", end - at)),
        }
    }
    fn close_statement(&mut self, name: &str) {
        self.statements.remove(name);
    }
    fn close_portal(&mut self, name: &str) {
        self.portals.remove(name);
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn fail(&mut self) {
        self.copied = None;
        if self.status == b'T' {
            self.status = b'E';
        }
    }
    fn status(&self) -> u8 {
        self.status
    }
    fn reported_settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("server_version", "15.0 (Cenote)".into()),
            ("client_encoding", "UTF8".into()),
        ]
    }
    fn report_settings(&mut self, _out: &mut dyn Output) -> Result<()> {
        Ok(())
    }
    fn is_copying(&self) -> bool {
        self.copied.is_some()
    }
    fn copy_data(&mut self, data: &[u8]) -> Result<()> {
        let copied = self.copied.as_mut().expect("a COPY");
        copied.extend_from_slice(data);
        match copied.ends_with(b"bad\n") {
            true => self.failed(Err(SqlError::new(code::BAD_COPY_FORMAT, "bad line"))),
            false => Ok(()),
        }
    }
    fn copy_look(&mut self) -> Result<()> {
        match self.stop.swap(false, Ordering::SeqCst) {
            true => self.failed(Err(SqlError::new(code::QUERY_CANCELED, "canceling statement"))),
            false => Ok(()),
        }
    }
    fn copy_done(&mut self, out: &mut dyn Output) -> Result<()> {
        let data = self.copied.take().expect("a COPY");
        out.complete(&format!("COPY {}", data.iter().filter(|&&byte| byte == b'\n').count()))
    }
    fn idle_limit(&self) -> Option<(Duration, SqlError)> {
        None
    }
    fn canceller(&self) -> Canceller {
        let stop = self.stop.clone();
        Canceller::new(move || stop.store(true, Ordering::SeqCst))
    }
    fn pause(&mut self) {}
    fn hold_message(&mut self, bytes: usize) -> Result<()> {
        self.toy.held.store(0, Ordering::SeqCst);
        if bytes > HELD_MAX {
            return Err(SqlError::new(code::OUT_OF_MEMORY, "a large message"));
        }
        self.toy.held.store(bytes, Ordering::SeqCst);
        self.toy.most_held.fetch_max(bytes, Ordering::SeqCst);
        Ok(())
    }
}

/// A server with the toy behind it, on a free port of the loopback interface.
pub struct Host {
    pub toy: Arc<Toy>,
    pub server: Server,
    pub address: SocketAddr,
}

impl Host {
    pub fn start() -> Host {
        Self::with(None, 100)
    }

    pub fn with(passwords: Option<Passwords>, max_connections: usize) -> Host {
        Self::with_access(Access {
            passwords,
            max_connections,
            max_threads: usize::MAX,
        })
    }

    pub fn with_access(access: Access) -> Host {
        let toy = Arc::new(Toy::default());
        let listener = bind("127.0.0.1:0", access.passwords.is_some()).unwrap();
        let server = Server::start(listener, ToyService(toy.clone()), access, Arc::new(Registry::default())).unwrap();
        let address = server.address().unwrap();
        Host { toy, server, address }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Waits until as many sessions are left.
    pub fn wait_alive(&self, sessions: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.toy.alive.load(Ordering::SeqCst) != sessions {
            assert!(
                Instant::now() < deadline,
                "{} sessions are alive",
                self.toy.alive.load(Ordering::SeqCst)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server.stop(Duration::from_secs(5));
    }
}

pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

pub fn query(text: &str) -> Vec<u8> {
    message(b'Q', format!("{text}\0").as_bytes())
}

pub fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0\0\0").as_bytes())
}

pub fn bind_portal(portal: &str, statement: &str) -> Vec<u8> {
    message(b'B', format!("{portal}\0{statement}\0\0\0\0\0\0\0").as_bytes())
}

pub fn execute(portal: &str, max_rows: i32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), &[0], &max_rows.to_be_bytes()].concat())
}

pub fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = 196_608i32.to_be_bytes().to_vec();
    for (name, value) in parameters {
        body.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
    }
    body.push(0);
    [&(body.len() as i32 + 4).to_be_bytes()[..], &body].concat()
}

/// A client that speaks in bytes.
pub struct Client {
    pub stream: TcpStream,
    pub id: i32,
    pub secret: i32,
}

impl Client {
    /// Connects and goes through the startup.
    pub fn connect(address: SocketAddr) -> Client {
        let mut client = Self::raw(address);
        client.send(&startup(&[
            ("user", "anybody"),
            ("database", "cenote"),
            ("application_name", "test"),
        ]));
        for (tag, body) in client.until_ready() {
            if tag == b'K' {
                client.id = i32::from_be_bytes(body[..4].try_into().unwrap());
                client.secret = i32::from_be_bytes(body[4..].try_into().unwrap());
            }
            assert_ne!(tag, b'E', "{}", String::from_utf8_lossy(&body));
        }
        client
    }

    /// Connects and says nothing.
    pub fn raw(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client {
            stream,
            id: 0,
            secret: 0,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            Err(error) => panic!("{error}"),
        }
        let len = i32::from_be_bytes(header[1..].try_into().unwrap()) - 4;
        let mut body = vec![0; usize::try_from(len).unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        Some((header[0], body))
    }

    /// All messages up to ReadyForQuery, which is the last.
    pub fn until_ready(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut messages = Vec::new();
        loop {
            let message = self.next().expect("the server closed the connection");
            let ready = message.0 == b'Z';
            messages.push(message);
            if ready {
                return messages;
            }
        }
    }

    /// The message types up to ReadyForQuery.
    pub fn tags(&mut self) -> String {
        self.until_ready().iter().map(|(tag, _)| char::from(*tag)).collect()
    }

    /// The SQLSTATE of the error that the server sends before it closes the connection.
    pub fn last_words(&mut self) -> String {
        let mut state = String::new();
        while let Some((tag, body)) = self.next() {
            if tag == b'E' {
                state = sqlstate(&body);
            }
        }
        state
    }
}

/// The SQLSTATE of an ErrorResponse.
pub fn sqlstate(body: &[u8]) -> String {
    let field = body
        .split(|&byte| byte == 0)
        .find(|field| field.first() == Some(&b'C'))
        .unwrap();
    String::from_utf8(field[1..].to_vec()).unwrap()
}
