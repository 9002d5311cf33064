//! A connection that costs its client little: a statement is one write and, usually, one read, both blocking, on the
//! thread that asks.
//!
//! A load generator shares its processors with the server that it measures. The client of the crate `postgres` serves
//! its socket by a runtime: for a statement it waits in epoll, reads until nothing is left, and hands the answer through
//! a channel. All servers pay that alike, and it hides what they differ in.

use crate::{Error, IoContext, Result};
use bytes::BytesMut;
use postgres::config::Host;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{FromSql, ToSql, Type};
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::{DataRowBody, ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server that is starting is asked again.
pub(super) const STARTING: Duration = Duration::from_secs(30);
/// How long a server may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const PORT: u16 = 5432;
/// Read at once.
const READ_BYTES: usize = 16 * 1024;
const ALL_ROWS: i32 = 0;
/// The format of all parameters and columns.
const BINARY: i16 = 1;

/// Values of a statement's parameters, in order.
pub type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A prepared statement.
#[derive(Clone)]
pub struct Statement {
    name: String,
    parameters: Vec<Type>,
    columns: Arc<[Type]>,
}

/// A row of an answer.
pub struct Row {
    body: DataRowBody,
    fields: Vec<Option<Range<usize>>>,
    columns: Arc<[Type]>,
}

impl Row {
    fn new(body: DataRowBody, columns: &Arc<[Type]>) -> Result<Row> {
        let fields: Vec<_> = body.ranges().collect().map_err(unreadable)?;
        if fields.len() != columns.len() {
            return Err(refused("a row with another number of columns than its statement has"));
        }
        Ok(Row {
            body,
            fields,
            columns: columns.clone(),
        })
    }

    /// The value of a column, counted from 0.
    ///
    /// # Panics
    /// If there is no such column, or it is of another type: the statement and its reader do not fit.
    pub fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        let ty = &self.columns[column];
        assert!(T::accepts(ty), "column {column} is of type {ty}");
        let raw = self.fields[column].clone().map(|range| &self.body.buffer()[range]);
        T::from_sql_nullable(ty, raw).expect("a server sends values of a column's type")
    }
}

/// What a statement answered: its rows, and how many rows it read or changed.
#[derive(Default)]
struct Answer {
    rows: Vec<Row>,
    count: u64,
    parameters: Vec<Type>,
    columns: Vec<Type>,
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection.
pub struct Client {
    stream: Box<dyn Stream>,
    input: BytesMut,
    output: BytesMut,
    prepared: usize,
}

impl Client {
    /// Connects by a URL, or by words such as `host=... user=...`. A server that says that it is starting (57P03) is
    /// asked again.
    ///
    /// # Errors
    /// [`Error::Sql`] if the URL cannot be read; [`Error::Io`] if there is no server; [`Error::Statement`] if it does
    /// not let the client in.
    pub fn connect(url: &str) -> Result<Client> {
        let config: postgres::Config = url.parse()?;
        let began = Instant::now();
        loop {
            match Client::connect_once(&config) {
                Err(error) if error.sqlstate() == Some("57P03") && began.elapsed() < STARTING => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }

    fn connect_once(config: &postgres::Config) -> Result<Client> {
        let mut client = Client {
            stream: open(config)?,
            input: BytesMut::new(),
            output: BytesMut::new(),
            prepared: 0,
        };
        client.start(config)?;
        Ok(client)
    }

    fn start(&mut self, config: &postgres::Config) -> Result<()> {
        let user = config.get_user().unwrap_or("postgres");
        let mut settings = vec![("user", user), ("client_encoding", "UTF8")];
        settings.extend(config.get_dbname().map(|name| ("database", name)));
        settings.extend(config.get_options().map(|options| ("options", options)));
        settings.extend(config.get_application_name().map(|name| ("application_name", name)));
        frontend::startup_message(settings, &mut self.output).context("connecting")?;
        self.authenticate(user, config.get_password())?;
        self.answer(&Arc::from([])).map(drop)
    }

    /// Answers the server's requests for authentication until it accepts the connection.
    fn authenticate(&mut self, user: &str, password: Option<&[u8]>) -> Result<()> {
        let needed = || password.ok_or_else(|| refused("the server asks for a password, and the URL has none"));
        let mut scram = None;
        loop {
            self.send()?;
            match self.receive()? {
                Message::AuthenticationOk => return Ok(()),
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(needed()?, &mut self.output).context("connecting")?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(user.as_bytes(), needed()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.output).context("connecting")?;
                }
                Message::AuthenticationSasl(_) => {
                    let exchange = sasl::ScramSha256::new(needed()?, sasl::ChannelBinding::unsupported());
                    let first = exchange.message();
                    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, first, &mut self.output)
                        .context("connecting")?;
                    scram = Some(exchange);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let exchange = scram.as_mut().ok_or_else(unexpected)?;
                    exchange.update(body.data()).context("connecting")?;
                    frontend::sasl_response(exchange.message(), &mut self.output).context("connecting")?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let exchange = scram.as_mut().ok_or_else(unexpected)?;
                    exchange.finish(body.data()).context("connecting")?;
                }
                Message::ErrorResponse(body) => return Err(said(&body)),
                _ => {
                    return Err(refused(
                        "a server that asks for an authentication that this client does not know",
                    ));
                }
            }
        }
    }

    /// Prepares a statement.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server; [`Error::Io`] if the connection breaks.
    pub fn prepare(&mut self, text: &str) -> Result<Statement> {
        let name = format!("s{}", self.prepared);
        self.prepared += 1;
        frontend::parse(&name, text, [], &mut self.output).context("writing a statement")?;
        frontend::describe(b'S', &name, &mut self.output).context("writing a statement")?;
        frontend::sync(&mut self.output);
        self.send()?;
        let answer = self.answer(&Arc::from([]))?;
        Ok(Statement {
            name,
            parameters: answer.parameters,
            columns: answer.columns.into(),
        })
    }

    /// The rows of a statement.
    ///
    /// # Errors
    /// As of [`Client::execute`].
    pub fn query(&mut self, statement: &Statement, values: Values<'_>) -> Result<Vec<Row>> {
        Ok(self.run(statement, values)?.rows)
    }

    /// How many rows a statement has changed.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server; [`Error::Refused`] if the values do not fit; [`Error::Io`] if the connection
    /// breaks.
    pub fn execute(&mut self, statement: &Statement, values: Values<'_>) -> Result<u64> {
        Ok(self.run(statement, values)?.count)
    }

    /// Runs statements without parameters.
    ///
    /// # Errors
    /// [`Error::Statement`] of the server; [`Error::Io`] if the connection breaks.
    pub fn batch(&mut self, text: &str) -> Result<()> {
        frontend::query(text, &mut self.output).context("writing a statement")?;
        self.send()?;
        self.answer(&Arc::from([])).map(drop)
    }

    fn run(&mut self, statement: &Statement, values: Values<'_>) -> Result<Answer> {
        self.write_bind(statement, values)?;
        frontend::execute("", ALL_ROWS, &mut self.output).context("writing a statement")?;
        frontend::sync(&mut self.output);
        self.send()?;
        self.answer(&statement.columns)
    }

    fn write_bind(&mut self, statement: &Statement, values: Values<'_>) -> Result<()> {
        if values.len() != statement.parameters.len() {
            return Err(refused(
                "a statement gets another number of values than it has parameters",
            ));
        }
        let pairs = values.iter().zip(&statement.parameters);
        let write = |(value, ty): (&&(dyn ToSql + Sync), &Type), out: &mut BytesMut| {
            value.to_sql_checked(ty, out).map(|is_null| match is_null {
                postgres::types::IsNull::Yes => postgres_protocol::IsNull::Yes,
                postgres::types::IsNull::No => postgres_protocol::IsNull::No,
            })
        };
        let name = &statement.name;
        frontend::bind("", name, [BINARY], pairs, write, [BINARY], &mut self.output).map_err(|error| {
            self.output.clear();
            match error {
                frontend::BindError::Conversion(error) => Error::Refused(format!("a value does not fit: {error}")),
                frontend::BindError::Serialization(error) => Error::Refused(format!("a value is too long: {error}")),
            }
        })
    }

    fn send(&mut self) -> Result<()> {
        let sent = self.stream.write_all(&self.output).context("writing to the server");
        self.output.clear();
        sent
    }

    fn receive(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.input).map_err(unreadable)? {
                return Ok(message);
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes).context("reading from the server")? {
                0 => return Err(refused("the server has closed the connection")),
                n => self.input.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Everything up to ReadyForQuery. An error counts when that has come.
    fn answer(&mut self, columns: &Arc<[Type]>) -> Result<Answer> {
        let (mut answer, mut failed) = (Answer::default(), None);
        loop {
            match self.receive()? {
                Message::DataRow(body) => answer.rows.push(Row::new(body, columns)?),
                Message::CommandComplete(body) => answer.count = rows_of(body.tag().map_err(unreadable)?),
                Message::ReadyForQuery(_) => return failed.map_or(Ok(answer), Err),
                Message::ErrorResponse(body) => failed = failed.or_else(|| Some(said(&body))),
                Message::ParameterDescription(body) => {
                    let types = body.parameters().map(|oid| Ok(Type::from_oid(oid)));
                    answer.parameters = known(types.collect().map_err(unreadable)?)?;
                }
                Message::RowDescription(body) => {
                    let types = body.fields().map(|field| Ok(Type::from_oid(field.type_oid())));
                    answer.columns = known(types.collect().map_err(unreadable)?)?;
                }
                _ => {}
            }
        }
    }
}

/// A socket to the first of the hosts that is there.
fn open(config: &postgres::Config) -> Result<Box<dyn Stream>> {
    let ports = config.get_ports();
    let mut failed = refused("a URL without a host");
    for (n, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(n).or(ports.first()).copied().unwrap_or(PORT);
        match open_host(host, port) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn open_host(host: &Host, port: u16) -> Result<Box<dyn Stream>> {
    match host {
        Host::Tcp(name) => {
            let place = format!("connecting to {name}:{port}");
            let mut found = (name.as_str(), port).to_socket_addrs().context(&place)?;
            let address = found.next().ok_or_else(|| refused("a host without an address"))?;
            let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).context(&place)?;
            stream.set_nodelay(true).context(&place)?;
            Ok(Box::new(stream))
        }
        Host::Unix(dir) => {
            let path = dir.join(format!(".s.PGSQL.{port}"));
            let stream = UnixStream::connect(&path).context(format!("connecting to {}", path.display()))?;
            Ok(Box::new(stream))
        }
    }
}

/// The number at the end of a command's tag: `UPDATE 1`, `INSERT 0 1`, `SELECT 5`.
fn rows_of(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn known(types: Vec<Option<Type>>) -> Result<Vec<Type>> {
    let types: Option<Vec<Type>> = types.into_iter().collect();
    types.ok_or_else(|| refused("a statement with a type that this client does not know"))
}

/// What a server says of a statement that fails.
fn said(body: &ErrorResponseBody) -> Error {
    let (mut code, mut message) = (String::new(), String::new());
    let mut fields = body.fields();
    while let Ok(Some(field)) = fields.next() {
        let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = text(),
            b'M' => message = text(),
            _ => {}
        }
    }
    Error::Statement { code, message }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::Refused(format!("a server's answer cannot be read: {error}"))
}

fn unexpected() -> Error {
    refused("a server's answer that nothing was asked for")
}

fn refused(what: &str) -> Error {
    Error::Refused(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_rows_of_a_command_are_at_the_end_of_its_tag() {
        let counted = ["UPDATE 1", "INSERT 0 12", "SELECT 305", "BEGIN", "DELETE 0"].map(rows_of);
        assert_eq!(counted, [1, 12, 305, 0, 0]);
    }

    /// A server that answers with what was written down, whatever it is asked: first its greeting, then the rest.
    fn scripted(answers: &'static [&'static [u8]]) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            for answer in answers {
                let mut asked = [0; 4096];
                assert!(stream.read(&mut asked).expect("a message") > 0);
                // In two parts, the second late: a message need not come at once.
                let (first, second) = answer.split_at(answer.len() / 2);
                stream.write_all(first).expect("it reads");
                std::thread::sleep(Duration::from_millis(5));
                stream.write_all(second).expect("it reads");
            }
        });
        format!("postgres://someone@127.0.0.1:{port}/some")
    }

    const GREETING: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    const PREPARED: &[u8] =
        b"1\0\0\0\x04t\0\0\0\x0a\0\x01\0\0\0\x17T\0\0\0\x1a\0\x01n\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x01\
          Z\0\0\0\x05I";
    const TWO_ROWS: &[u8] = b"2\0\0\0\x04D\0\0\0\x0e\0\x01\0\0\0\x04\0\0\0\x07D\0\0\0\x0a\0\x01\xff\xff\xff\xff\
          C\0\0\0\x0dSELECT 2\0Z\0\0\0\x05I";
    const REFUSED: &[u8] = b"E\0\0\0\x19SERROR\0C40001\0Mlost\0\0Z\0\0\0\x05E";

    #[test]
    fn rows_are_read_and_an_error_leaves_the_connection_usable() {
        let url = scripted(&[GREETING, PREPARED, TWO_ROWS, REFUSED, TWO_ROWS]);
        let mut client = Client::connect(&url).expect("it is let in");
        let statement = client.prepare("SELECT n FROM t WHERE n = $1").expect("prepared");
        let rows = client.query(&statement, &[&7i32]).expect("two rows");
        assert_eq!((rows.len(), rows[0].get::<i32>(0)), (2, 7));
        assert_eq!(rows[1].get::<Option<i32>>(0), None);
        let error = client.query(&statement, &[&7i32]).err().expect("refused");
        assert_eq!(error.sqlstate(), Some("40001"));
        assert_eq!(error.to_string(), "statement failed: lost (40001)");
        assert_eq!(client.execute(&statement, &[&7i32]).expect("it goes on"), 2);
    }

    #[test]
    fn values_that_do_not_fit_are_refused_before_anything_is_sent() {
        let url = scripted(&[GREETING, PREPARED, TWO_ROWS]);
        let mut client = Client::connect(&url).expect("it is let in");
        let statement = client.prepare("SELECT n FROM t WHERE n = $1").expect("prepared");
        assert!(client.query(&statement, &[]).is_err());
        assert!(client.query(&statement, &[&"text"]).is_err());
        assert_eq!(client.query(&statement, &[&7i32]).expect("two rows").len(), 2);
    }
}
