//! A client's connection: messages in, messages out, and [`Output`], through which a statement answers.
//!
//! Nothing is written until [`Wire::flush`], except that a result which gathers 64 KiB streams out. Once the
//! connection is lost every call fails with the first cause, so a statement in the middle of a large result ends.

use super::input::{FrameError, Input, Message};
use super::output::{OutBuffer, STREAM_BYTES, push_cstr};
use super::registry::Entry;
use super::socket::Socket;
use bytes::{BufMut, BytesMut};
use cenote_base::rt::Nanos;
use cenote_cluster::Lease;
use cenote_sql::{Field, Format, Formats, Names, Output, Result, SqlError, code};
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// SQLSTATE of a connection that broke.
pub const CONNECTION_FAILURE: &str = "08006";

/// How long a client that is sent away has to read why.
pub const LINGER: Duration = Duration::from_millis(500);
/// Reads of 4 KiB that such a client keeps a thread for at a time.
const DROPS_MAX: usize = 16;

/// A message that is not larger takes no memory of what its session may gather.
const MESSAGE_BYTES_FREE: usize = 1 << 20;

/// How long a busy session keeps its thread while it waits for its client: longer than clients take from an answer to
/// the next statement, so that those pay no hand-over.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How long an answer waits for a lease that has run out.
const LEASE_WAIT: Nanos = Nanos::from_secs(5);

/// Why a session ends.
#[derive(Debug)]
pub enum End {
    /// The client said goodbye, or closed the connection between two messages.
    Closed,
    /// The connection broke, or was closed in the middle of a message.
    Lost(String),
    /// The session cannot go on; the client is told.
    Fatal(SqlError),
}

impl From<SqlError> for End {
    fn from(error: SqlError) -> Self {
        End::Fatal(error)
    }
}

/// Ends a session because of what the client sent.
pub fn protocol_violation(message: impl Into<String>) -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, message)
}

/// What comes from a client.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Message(Message),
    /// One for which there is no memory, by its type; what comes of it is dropped.
    Refused(u8, SqlError),
}

/// Where the bytes of messages are taken from that are larger than [`MESSAGE_BYTES_FREE`]: it gives those that it is
/// asked for instead of those that it gave before, or an error and none.
pub type Room<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// A client's connection.
#[derive(Debug)]
pub struct Wire {
    stream: Arc<Socket>,
    input: Input,
    /// Bytes that were taken for its buffer.
    taken: usize,
    out: OutBuffer,
    lost: Option<String>,
    /// Something was written since an answer began.
    has_sent: bool,
    entry: Option<Arc<Entry>>,
    /// What leaves while it does not hold may be another server's to say.
    lease: Option<Arc<Lease>>,
}

impl Wire {
    /// Takes over a connection that was just accepted.
    pub fn new(stream: Arc<Socket>) -> Self {
        Wire {
            stream,
            input: Input::new(),
            taken: 0,
            out: OutBuffer::new(),
            lost: None,
            has_sent: false,
            entry: None,
            lease: None,
        }
    }

    /// What is answered rests on a lease from here on.
    pub fn rest_on(&mut self, lease: Option<Arc<Lease>>) {
        self.lease = lease;
    }

    /// Names the session whose `application_name` follows this connection's settings.
    pub fn attach(&mut self, entry: Arc<Entry>) {
        self.entry = Some(entry);
    }

    /// The connection, for those that end it from another thread.
    pub fn stream(&self) -> Arc<Socket> {
        self.stream.clone()
    }

    /// The socket, as long as this exists.
    pub fn socket(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Whether bytes were read that no message was made of yet.
    pub fn has_input(&self) -> bool {
        self.input.has_bytes()
    }

    /// Gives back the memory of buffers that hold nothing.
    pub fn shrink(&mut self) {
        self.input.shrink();
        self.out.shrink();
    }

    /// The next message; None: it has not come within [`PAUSE_MAX`], or, without `timeout`, is not here now.
    ///
    /// # Errors
    /// [`End`]: the connection broke or closed, or what came is no message.
    pub fn next_message_or_pause(
        &mut self,
        timeout: bool,
        room: Room<'_>,
    ) -> std::result::Result<Option<Incoming>, End> {
        loop {
            match self.input.next_message() {
                Ok(Some(message)) => return Ok(Some(Incoming::Message(message))),
                Ok(None) => {}
                Err(error) => return Err(frame_lost(&error)),
            }
            if let Err(error) = self.take_room(room) {
                return Ok(Some(Incoming::Refused(self.input.drop_message(), error)));
            }
            if !self.fill_by(timeout)? {
                return Ok(None);
            }
        }
    }

    fn take_room(&mut self, room: Room<'_>) -> Result<()> {
        let bytes = match self.input.bytes_to_fill() {
            ..=MESSAGE_BYTES_FREE => 0,
            bytes => bytes,
        };
        if bytes != self.taken {
            self.taken = 0;
            room(bytes)?;
            self.taken = bytes;
        }
        Ok(())
    }

    /// A startup packet, if it is here.
    ///
    /// # Errors
    /// [`End`]: the connection broke or closed, or what came is no packet.
    pub fn startup_here(&mut self) -> std::result::Result<Option<Message>, End> {
        self.here(|input| input.next_startup().map_err(|error| frame_lost(&error)))
    }

    /// A message of the password exchange, if it is here: a client that was not let in yet sends nothing else, which
    /// would be gathered up to 256 MiB.
    ///
    /// # Errors
    /// [`End`]: the connection broke or closed, or what came is no such message.
    pub fn password_here(&mut self) -> std::result::Result<Option<Message>, End> {
        self.here(
            |input| match input.next_tag().filter(|tag| !matches!(tag, b'p' | b'X')) {
                None => input.next_message().map_err(|error| frame_lost(&error)),
                Some(tag) => {
                    let text = format!("expected SASL response, got message type {tag}");
                    Err(protocol_violation(text).fatal().into())
                }
            },
        )
    }

    fn here(
        &mut self,
        next: impl Fn(&mut Input) -> std::result::Result<Option<Message>, End>,
    ) -> std::result::Result<Option<Message>, End> {
        loop {
            if let Some(message) = next(&mut self.input)? {
                return Ok(Some(message));
            }
            if !self.fill_by(false)? {
                return Ok(None);
            }
        }
    }

    /// Reads once; false: nothing came within [`PAUSE_MAX`], or, without `timeout`, nothing is here now.
    fn fill_by(&mut self, timeout: bool) -> std::result::Result<bool, End> {
        loop {
            let read = match timeout {
                true => self.input.fill(&*self.stream),
                false => self.input.fill(Present(&self.stream)),
            };
            match read {
                Ok(0) if self.input.has_bytes() => {
                    return Err(End::Lost(
                        "the client closed the connection in the middle of a message".into(),
                    ));
                }
                Ok(0) => return Err(End::Closed),
                Ok(_) => return Ok(true),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(false),
                    _ => return Err(End::Lost(error.to_string())),
                },
            }
        }
    }

    /// The body of a message that was handed out last.
    pub fn body(&self, message: Message) -> &[u8] {
        self.input.body(message)
    }

    /// The messages that wait to be written.
    pub fn out(&mut self) -> &mut OutBuffer {
        &mut self.out
    }

    /// What is written from here on is the answer to something new.
    pub fn begin_answer(&mut self) {
        self.has_sent = false;
    }

    /// Whether something was written since.
    pub fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Writes what waits, with one system call unless the client reads slowly.
    ///
    /// # Errors
    /// [`End::Lost`]: the connection broke.
    pub fn flush(&mut self) -> std::result::Result<(), End> {
        if self.lease.as_ref().is_some_and(|lease| !lease.holds()) {
            self.wait_for_lease();
        }
        self.has_sent |= !self.out.is_empty();
        if self.lost.is_none()
            && let Err(error) = self.out.flush(&*self.stream)
        {
            self.lost = Some(error.to_string());
        }
        match &self.lost {
            Some(cause) => Err(End::Lost(cause.clone())),
            None => Ok(()),
        }
    }

    /// Where the lease is not renewed in time, the client is told 57P01 instead of what waits to be written.
    #[cold]
    fn wait_for_lease(&mut self) {
        let Some(lease) = self.lease.as_ref() else { return };
        if lease.wait(LEASE_WAIT).is_ok() || self.lost.is_some() {
            return;
        }
        let text = "this server does not know whether it has the database still";
        let error = SqlError::new(code::ADMIN_SHUTDOWN, text).fatal();
        self.out.forget();
        self.report(b'E', &error);
        // Whether it can be written makes no difference.
        let _ = self.out.flush(Unwaiting(&self.stream));
        self.lost = Some(text.into());
    }

    /// Fails if the connection broke while a statement wrote to it.
    ///
    /// # Errors
    /// [`End::Lost`]: the connection broke.
    pub fn alive(&self) -> std::result::Result<(), End> {
        match &self.lost {
            Some(cause) => Err(End::Lost(cause.clone())),
            None => Ok(()),
        }
    }

    /// As [`flush`](Self::flush), and waits for nothing: a client that does not even read what a start-up tells it is
    /// given up.
    ///
    /// # Errors
    /// [`End::Lost`]: the connection broke, or the client does not read.
    pub fn flush_now(&mut self) -> std::result::Result<(), End> {
        let written = self.out.flush(Unwaiting(&self.stream));
        written.map_err(|error| End::Lost(error.to_string()))
    }

    /// Writes what waits before the connection ends. A client without a session is not waited for.
    ///
    /// # Errors
    /// [`End::Lost`]: the connection broke.
    pub fn last_words(&mut self) -> std::result::Result<(), End> {
        match self.entry.is_some() {
            true => self.flush(),
            false => self.flush_now(),
        }
    }

    /// A byte outside of all messages: the answer to a request for encryption. Waits for nothing.
    ///
    /// # Errors
    /// [`End::Lost`]: the connection broke, or the client does not read.
    pub fn write_byte(&mut self, byte: u8) -> std::result::Result<(), End> {
        io::Write::write_all(&mut Unwaiting(&self.stream), &[byte]).map_err(|error| End::Lost(error.to_string()))
    }

    /// Nothing is written any more. The client still reads what was, as long as the connection is not closed over bytes
    /// that it has sent: so those are [dropped](Self::drop_input) until it has closed its side.
    pub fn end_output(&mut self) {
        self.stream.shutdown(Shutdown::Write).ok();
    }

    /// Drops some of what the client has sent, and does not wait; false: it has closed its side.
    pub fn drop_input(&mut self) -> bool {
        let mut dropped = [0; 4096];
        for _ in 0..DROPS_MAX {
            match io::Read::read(&mut Present(&self.stream), &mut dropped) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Drops what the client sends until it has closed its side, or [`LINGER`] is over.
    pub fn linger(&mut self) {
        self.stream.set_read_timeout(Some(LINGER)).ok();
        let deadline = Instant::now() + LINGER;
        let mut dropped = [0; 4096];
        while matches!(io::Read::read(&mut &*self.stream, &mut dropped), Ok(1..)) && Instant::now() < deadline {}
    }

    /// ErrorResponse or NoticeResponse. A row that was open is cut off.
    pub fn report(&mut self, tag: u8, error: &SqlError) {
        self.out.drop_open();
        let body = self.out.begin(tag);
        let word = error.severity().word();
        put_field(body, b'S', word);
        put_field(body, b'V', word);
        put_field(body, b'C', error.code());
        put_field(body, b'M', error.message());
        put_optional(body, b'D', error.detail());
        put_optional(body, b'H', error.hint());
        if let Some(position) = error.position() {
            put_field(body, b'P', &position.to_string());
        }
        put_optional(body, b'W', error.context());
        put_names(body, error.names());
        body.put_u8(0);
        self.out.end().expect("a report is shorter than 2 GiB");
    }

    fn stream_out(&mut self) -> Result<()> {
        match self.out.len() >= STREAM_BYTES || self.lost.is_some() {
            true => self.flush_output(),
            false => Ok(()),
        }
    }

    fn flush_output(&mut self) -> Result<()> {
        self.flush().map_err(|_| self.gone())
    }

    #[cold]
    fn gone(&self) -> SqlError {
        let cause = self.lost.as_deref().unwrap_or("closed");
        SqlError::new(CONNECTION_FAILURE, format!("connection to client lost: {cause}")).fatal()
    }

    fn with_message(&mut self, tag: u8, encode: impl FnOnce(&mut BytesMut) -> Result<()>) -> Result<()> {
        let body = self.out.begin(tag);
        match encode(body) {
            Ok(()) => self
                .out
                .end()
                .map_err(|_| SqlError::new(code::PROGRAM_LIMIT, "a message of more than 2 GiB cannot be sent")),
            Err(error) => {
                self.out.drop_open();
                Err(error)
            }
        }
    }

    fn copy_response(&mut self, tag: u8, format: Format, columns: u16) -> Result<()> {
        self.with_message(tag, |body| {
            body.put_u8(format as i16 as u8);
            body.put_u16(columns);
            (0..columns).for_each(|_| body.put_i16(format as i16));
            Ok(())
        })
    }
}

/// The end of a connection that takes too long before its session begins.
pub fn startup_too_late() -> End {
    End::Lost("the client did not finish its startup in time".into())
}

/// Writes what the socket takes at once.
struct Unwaiting<'a>(&'a Socket);

impl io::Write for Unwaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(
            self.0,
            bytes,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what has come and does not wait.
struct Present<'a>(&'a Socket);

impl io::Read for Present<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (read, _) = rustix::net::recv(self.0, buffer, RecvFlags::DONTWAIT)?;
        Ok(read)
    }
}

fn frame_lost(error: &FrameError) -> End {
    End::Fatal(protocol_violation(error.to_string()).fatal())
}

fn put_field(body: &mut BytesMut, code: u8, text: &str) {
    body.put_u8(code);
    push_cstr(body, text.as_bytes());
}

fn put_optional(body: &mut BytesMut, code: u8, text: Option<&str>) {
    if let Some(text) = text {
        put_field(body, code, text);
    }
}

fn put_names(body: &mut BytesMut, names: &Names) {
    if names.table.is_some() {
        put_field(body, b's', "public");
    }
    put_optional(body, b't', names.table.as_deref());
    put_optional(body, b'c', names.column.as_deref());
    put_optional(body, b'n', names.constraint.as_deref());
}

fn put_row_description(body: &mut BytesMut, fields: &[Field], formats: Formats<'_>) -> Result<()> {
    let count = u16::try_from(fields.len())
        .map_err(|_| SqlError::new(code::PROGRAM_LIMIT, "a result of more than 65535 columns"))?;
    body.put_u16(count);
    for (index, field) in fields.iter().enumerate() {
        push_cstr(body, field.name.as_bytes());
        body.put_u32(field.table_oid);
        body.put_i16(field.column);
        body.put_u32(field.type_oid);
        body.put_i16(field.type_len);
        body.put_i32(field.type_mod);
        body.put_i16(formats.of(index) as i16);
    }
    Ok(())
}

impl Output for Wire {
    fn row_description(&mut self, fields: &[Field], formats: Formats<'_>) -> Result<()> {
        self.with_message(b'T', |body| put_row_description(body, fields, formats))
    }

    fn row(&mut self, columns: u16, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()> {
        self.with_message(b'D', |body| {
            body.put_u16(columns);
            encode(body)
        })?;
        self.stream_out()
    }

    fn complete(&mut self, tag: &str) -> Result<()> {
        self.out.complete(tag);
        self.stream_out()
    }

    fn empty_query(&mut self) -> Result<()> {
        self.out.empty(b'I');
        Ok(())
    }

    fn portal_suspended(&mut self) -> Result<()> {
        self.out.empty(b's');
        Ok(())
    }

    fn parameter_description(&mut self, types: &[u32]) -> Result<()> {
        self.with_message(b't', |body| {
            body.put_u16(types.len() as u16);
            types.iter().for_each(|&oid| body.put_u32(oid));
            Ok(())
        })
    }

    fn no_data(&mut self) -> Result<()> {
        self.out.empty(b'n');
        Ok(())
    }

    fn notice(&mut self, notice: &SqlError) -> Result<()> {
        self.report(b'N', notice);
        self.stream_out()
    }

    fn parameter_status(&mut self, name: &str, value: &str) -> Result<()> {
        if let (Some(entry), "application_name") = (&self.entry, name) {
            entry.set_application_name(value);
        }
        self.out.parameter_status(name, value);
        Ok(())
    }

    fn copy_out(&mut self, format: Format, columns: u16) -> Result<()> {
        self.copy_response(b'H', format, columns)
    }

    fn copy_row(&mut self, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()> {
        self.with_message(b'd', encode)?;
        self.stream_out()
    }

    fn copy_done(&mut self) -> Result<()> {
        self.out.empty(b'c');
        Ok(())
    }

    fn copy_in(&mut self, format: Format, columns: u16) -> Result<()> {
        self.copy_response(b'G', format, columns)?;
        self.flush_output()
    }
}

/// CopyFail, as the error of its COPY.
#[cold]
pub fn copy_failed(body: &[u8]) -> SqlError {
    let cause = String::from_utf8_lossy(body.strip_suffix(&[0]).unwrap_or(body)).into_owned();
    SqlError::new(code::QUERY_CANCELED, format!("COPY from stdin failed: {cause}"))
}

/// A message that does not belong into a COPY.
#[cold]
pub fn unexpected_in_copy(tag: u8) -> SqlError {
    protocol_violation(format!("unexpected message type 0x{tag:02X} during COPY from stdin"))
}
