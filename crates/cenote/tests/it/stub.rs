//! A server on a database of its own, with statements that SQL does not have, and a client that speaks in bytes.

use bytes::BytesMut;
use cenote::server::auth::Passwords;
use cenote::server::registry::Registry;
use cenote::server::{Access, Context, Server, ServerStatements, bind};
use cenote_engine::{Engine, EngineOptions, MemoryKind};
use cenote_sql::{Bind, Field, Format, Formats, Output, Result, Session, SessionInfo, Sql, SqlError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits until it is cancelled, of which the error is the whole answer.
pub const WAIT: &str = "wait";
/// Lines of one column; one with a tab is bad.
pub const COPY_IN: &str = "copy lines from stdin";
/// Rows of the table of numbers.
const NUMBERS: usize = 10;

/// The first rows of the table of numbers.
pub fn rows(count: usize) -> String {
    format!("select n from numbers where n < {count}")
}

/// Statements that a test needs and SQL does not have: `fail`, `panic`, [`WAIT`], and `deaf`, which waits and succeeds
/// where it is cancelled.
struct TestStatements;

impl ServerStatements for TestStatements {
    fn answer(&self, session: &mut Session, text: &str, out: &mut dyn Output) -> Option<Result<()>> {
        match text {
            "fail" => Some(Err(SqlError::new("22012", "division by zero")
                .at(3)
                .with_hint("Do not."))),
            WAIT => Some(sleep(session, out)),
            "panic" => panic!("the test asks for a panic"),
            "deaf" => {
                let cancelled = sleep(session, out).expect_err("the wait is cancelled");
                assert_eq!(cancelled.code(), "57014");
                Some(out.complete("DEAF"))
            }
            _ => None,
        }
    }
}

/// Waits by a portal, of which a client sees nothing before its first row.
fn sleep(session: &mut Session, out: &mut dyn Output) -> Result<()> {
    session.parse("", "select pg_sleep(20)", &[])?;
    session.bind("", "", Bind::from_wire(&[0; 6])?)?;
    session.execute("", 0, out)
}

/// A server with a database behind it, on a free port of the loopback interface.
pub struct Host {
    pub server: Server,
    pub address: SocketAddr,
    pub engine: Arc<Engine>,
    _data: tempfile::TempDir,
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
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::open(EngineOptions::new(data.path(), MemoryKind::Dram, 64 << 20)).unwrap();
        let sql = Sql::new(engine.clone(), None);
        let listener = bind("127.0.0.1:0", access.passwords.is_some()).unwrap();
        make_tables(&sql);
        let context = Context {
            sql,
            statements: Arc::new(TestStatements),
            access,
            registry: Arc::new(Registry::default()),
            lease: None,
        };
        let server = Server::start(listener, None, context).unwrap();
        let address = server.address();
        Host {
            server,
            address,
            engine,
            _data: data,
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Waits until as many sessions are left.
    pub fn wait_alive(&self, sessions: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let alive = self.server.registry.sessions().len();
            if alive == sessions {
                return;
            }
            assert!(Instant::now() < deadline, "{alive} sessions are alive");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server.stop(Duration::from_secs(5));
        self.engine.shutdown().ok();
    }
}

fn make_tables(sql: &Arc<Sql>) {
    let mut session = sql.session(SessionInfo::default()).unwrap();
    let numbers: Vec<String> = (0..NUMBERS).map(|n| format!("({n})")).collect();
    let text = format!(
        "create table numbers (n int primary key); insert into numbers values {}; create table lines (line text)",
        numbers.join(", ")
    );
    session.simple(&text, &mut NoOutput).unwrap();
}

type Encode<'a> = &'a mut dyn FnMut(&mut BytesMut) -> Result<()>;

/// The answer to statements that a test does not look at.
struct NoOutput;

impl Output for NoOutput {
    fn row_description(&mut self, _: &[Field], _: Formats<'_>) -> Result<()> {
        Ok(())
    }
    fn row(&mut self, _: u16, _: Encode<'_>) -> Result<()> {
        Ok(())
    }
    fn complete(&mut self, _: &str) -> Result<()> {
        Ok(())
    }
    fn empty_query(&mut self) -> Result<()> {
        Ok(())
    }
    fn portal_suspended(&mut self) -> Result<()> {
        Ok(())
    }
    fn parameter_description(&mut self, _: &[u32]) -> Result<()> {
        Ok(())
    }
    fn no_data(&mut self) -> Result<()> {
        Ok(())
    }
    fn notice(&mut self, _: &SqlError) -> Result<()> {
        Ok(())
    }
    fn parameter_status(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
    fn copy_out(&mut self, _: Format, _: u16) -> Result<()> {
        Ok(())
    }
    fn copy_row(&mut self, _: Encode<'_>) -> Result<()> {
        Ok(())
    }
    fn copy_done(&mut self) -> Result<()> {
        Ok(())
    }
    fn copy_in(&mut self, _: Format, _: u16) -> Result<()> {
        Ok(())
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
            ("user", "tester"),
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
        // Machines of tests stand still for longer than a server may take.
        stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
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
