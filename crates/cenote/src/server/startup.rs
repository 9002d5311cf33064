//! From an accepted connection to a session: encryption asked for and declined, cancel requests, the startup packet,
//! the password, and what the client is told before its first statement.
//!
//! ```text
//! startup packet | i32 length | i32 code | body
//!   code 3.x        name\0 value\0 ... \0
//!   code 80877102   i32 session | i32 secret      CancelRequest; the connection is closed without an answer
//!   code 80877103   SSLRequest, answered 'N'
//!   code 80877104   GSSENCRequest, answered 'N'
//! ```
//!
//! A [`Login`] goes on with what has come, and waits for nothing: between two packets of its client it needs no thread.
//!
//! ```text
//!   Packet ──startup packet──► First ──SASL response──► Proof ──proof──► a session
//!     │ └── no passwords asked for ────────────────────────────────────────▲
//!     └── CancelRequest
//! ```

use super::auth::{AuthFailure, Challenged, Passwords, check_proof};
use super::input::{Fields, Message};
use super::output::OutBuffer;
use super::wire::{End, Wire, protocol_violation};
use bytes::BufMut;
use cenote_sql::{SqlError, code};
use std::time::Duration;

/// The only database of a server.
pub const DATABASE: &str = "cenote";
/// A client that has not finished its startup by then is sent away.
pub const STARTUP_TIME_MAX: Duration = Duration::from_secs(60);

/// Code of a request to stop another session's statement.
pub const CANCEL_REQUEST: i32 = 80_877_102;
/// Code of a request for encryption.
pub const SSL_REQUEST: i32 = 80_877_103;
/// Code of another.
pub const GSS_ENCRYPTION_REQUEST: i32 = 80_877_104;
/// The protocol's version, in the upper half of its code.
pub const PROTOCOL_MAJOR: i32 = 3;
/// Settings in a startup packet, at most: they are kept while a password is asked for.
const SETTINGS_MAX: usize = 256;
/// SSLRequest, GSSENCRequest, and the startup packet itself, with one to spare.
pub const PACKETS_MAX: usize = 4;

const INVALID_AUTHORIZATION: &str = "28000";
const INVALID_PASSWORD: &str = "28P01";
const INVALID_CATALOG_NAME: &str = "3D000";

/// What a client wants.
#[derive(Debug)]
pub enum Request {
    /// A session.
    Session(Startup),
    /// Another session's statement stopped.
    Cancel {
        /// The other session's number.
        id: i32,
        /// Its secret.
        secret: i32,
    },
}

/// A startup packet.
#[derive(Debug, Default)]
pub struct Startup {
    /// Role name.
    pub user: String,
    /// Database name, as asked for.
    pub database: String,
    /// All other parameters, `options` taken apart.
    pub settings: Vec<(String, String)>,
}

impl Startup {
    /// A parameter by name.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A start-up, as far as it has come.
#[derive(Debug, Default)]
pub struct Login {
    step: Step,
    packets: usize,
}

/// What the client is to send next.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Packet,
    First(Startup),
    Proof(Startup, Box<Challenged>),
}

impl Login {
    /// Goes on as far as the packets reach that are here; None: the client has to say more. Without a password file
    /// every client on the loopback interface is let in.
    ///
    /// # Errors
    /// The connection is to end: the client left, made no sense, or is not let in.
    pub fn go_on(&mut self, wire: &mut Wire, passwords: Option<&Passwords>) -> Result<Option<Request>, End> {
        while let Some(message) = self.message_here(wire)? {
            let request = match std::mem::take(&mut self.step) {
                Step::Packet => self.packet(wire, message, passwords)?,
                Step::First(startup) => self.first_response(wire, message, startup, passwords)?,
                Step::Proof(startup, challenged) => Some(proof(wire, message, startup, &challenged)?),
            };
            if request.is_some() {
                return Ok(request);
            }
        }
        Ok(None)
    }

    fn message_here(&self, wire: &mut Wire) -> Result<Option<Message>, End> {
        match self.step {
            Step::Packet => wire.startup_here(),
            Step::First(_) | Step::Proof(..) => wire.password_here(),
        }
    }

    fn packet(
        &mut self,
        wire: &mut Wire,
        packet: Message,
        passwords: Option<&Passwords>,
    ) -> Result<Option<Request>, End> {
        self.packets += 1;
        if self.packets > PACKETS_MAX {
            let error = protocol_violation("too many requests before the startup packet");
            return Err(error.fatal().into());
        }
        let mut body = Fields(wire.body(packet));
        match body.i32().ok_or_else(malformed)? {
            SSL_REQUEST | GSS_ENCRYPTION_REQUEST => wire.write_byte(b'N').map(|()| None),
            CANCEL_REQUEST => read_cancel(&mut body).map(Some),
            version if version >> 16 == PROTOCOL_MAJOR => {
                let startup = read_startup(wire, packet, version & 0xffff)?;
                if passwords.is_none() {
                    return admit(wire, startup).map(Some);
                }
                put_authentication(wire, 10, b"SCRAM-SHA-256\0\0");
                self.step = Step::First(startup);
                wire.flush_now().map(|()| None)
            }
            version => Err(unknown_version(version).into()),
        }
    }

    fn first_response(
        &mut self,
        wire: &mut Wire,
        message: Message,
        startup: Startup,
        passwords: Option<&Passwords>,
    ) -> Result<Option<Request>, End> {
        let unasked = || SqlError::internal("the client sent a password that the server did not ask for");
        let passwords = passwords.ok_or_else(unasked)?;
        let client_first = sasl_initial_response(password_body(wire, message)?)?;
        let (server_first, challenged) = passwords
            .verifier(&startup.user)
            .challenge(client_first)
            .map_err(|error| malformed_scram(&error.to_string()))?;
        put_authentication(wire, 11, server_first.as_bytes());
        self.step = Step::Proof(startup, Box::new(challenged));
        wire.flush_now().map(|()| None)
    }
}

fn proof(wire: &mut Wire, message: Message, startup: Startup, challenged: &Challenged) -> Result<Request, End> {
    let last = password_body(wire, message)?;
    let server_final = check_proof(challenged, last).map_err(|failure| refused(&startup.user, failure))?;
    put_authentication(wire, 12, server_final.as_bytes());
    admit(wire, startup)
}

/// The client has proved its user.
fn admit(wire: &mut Wire, startup: Startup) -> Result<Request, End> {
    check_database(&startup)?;
    wire.out().message(b'R', &0i32.to_be_bytes());
    Ok(Request::Session(startup))
}

/// There is one database.
///
/// # Errors
/// 3D000: the client asks for another.
pub fn check_database(startup: &Startup) -> Result<(), End> {
    if startup.database != DATABASE {
        let message = format!("database \"{}\" does not exist", startup.database);
        let hint = format!("A server has one database, named {DATABASE}: psql -d {DATABASE}");
        return Err(SqlError::new(INVALID_CATALOG_NAME, message)
            .with_hint(hint)
            .fatal()
            .into());
    }
    Ok(())
}

fn read_cancel(body: &mut Fields<'_>) -> Result<Request, End> {
    match (body.i32(), body.i32()) {
        (Some(id), Some(secret)) => Ok(Request::Cancel { id, secret }),
        _ => Err(malformed().into()),
    }
}

fn read_startup(wire: &mut Wire, packet: Message, minor: i32) -> Result<Startup, End> {
    let (startup, unknown_extensions) = parse_startup(&wire.body(packet)[4..])?;
    if minor > 0 || !unknown_extensions.is_empty() {
        negotiate_version(wire.out(), &unknown_extensions);
    }
    Ok(startup)
}

/// Reads a startup packet behind its code; names of extensions of the protocol that the client asks for beside.
///
/// # Errors
/// It is malformed, says no user, or asks for too much.
pub fn parse_startup(body: &[u8]) -> Result<(Startup, Vec<String>), End> {
    let mut body = Fields(body);
    let mut startup = Startup::default();
    let mut unknown_extensions = Vec::new();
    loop {
        let name = text(&mut body)?;
        if name.is_empty() {
            break;
        }
        let value = text(&mut body)?;
        match name.as_str() {
            "user" => startup.user = value,
            "database" => startup.database = value,
            "options" => startup.settings.extend(parse_options(&value)?),
            "replication" => refuse_replication(&value)?,
            _ if name.starts_with("_pq_.") => unknown_extensions.push(name),
            _ => startup.settings.push((name, value)),
        }
        if startup.settings.len() > SETTINGS_MAX {
            let text = format!("a startup packet may have {SETTINGS_MAX} settings");
            return Err(SqlError::new(code::PROGRAM_LIMIT, text).fatal().into());
        }
    }
    if startup.user.is_empty() {
        return Err(
            SqlError::new(INVALID_AUTHORIZATION, "no user name was given in the startup packet")
                .fatal()
                .into(),
        );
    }
    if startup.database.is_empty() {
        startup.database.clone_from(&startup.user);
    }
    Ok((startup, unknown_extensions))
}

fn text(body: &mut Fields<'_>) -> Result<String, End> {
    let bytes = body.cstr().ok_or_else(malformed)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| {
        protocol_violation("the startup packet is not valid UTF-8")
            .fatal()
            .into()
    })
}

fn malformed() -> SqlError {
    protocol_violation("invalid startup packet layout").fatal()
}

fn unknown_version(version: i32) -> SqlError {
    let (major, minor) = (version >> 16, version & 0xffff);
    let message = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0");
    SqlError::new("0A000", message).fatal()
}

fn refuse_replication(value: &str) -> Result<(), End> {
    match value {
        "false" | "off" | "no" | "0" => Ok(()),
        _ => Err(SqlError::unsupported("replication over the client protocol")
            .fatal()
            .into()),
    }
}

/// `-c name=value`, `-cname=value` and `--name=value`, separated by spaces; a backslash takes the next character as it
/// is.
fn parse_options(options: &str) -> Result<Vec<(String, String)>, End> {
    let mut settings = Vec::new();
    let mut words = split_options(options).into_iter();
    while let Some(word) = words.next() {
        let setting = match word.as_str() {
            "-c" => words.next().unwrap_or_default(),
            _ => match word.strip_prefix("--").or(word.strip_prefix("-c")) {
                Some(setting) => setting.to_owned(),
                None => return Err(invalid_option(&word)),
            },
        };
        let (name, value) = setting.split_once('=').ok_or_else(|| invalid_option(&setting))?;
        settings.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(settings)
}

fn split_options(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.extend(characters.next()),
            c if c.is_ascii_whitespace() => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            c => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

fn invalid_option(word: &str) -> End {
    let error = SqlError::new(
        "42601",
        format!("invalid command-line argument for server process: {word}"),
    );
    End::Fatal(error.with_hint("Options look like \"-c name=value\".").fatal())
}

/// NegotiateProtocolVersion: this server speaks 3.0 and none of these extensions.
pub fn negotiate_version(out: &mut OutBuffer, unknown: &[String]) {
    let body = out.begin(b'v');
    body.put_i32(PROTOCOL_MAJOR << 16);
    body.put_i32(unknown.len() as i32);
    for name in unknown {
        super::output::push_cstr(body, name.as_bytes());
    }
    out.end().expect("a startup packet is short");
}

fn put_authentication(wire: &mut Wire, code: i32, data: &[u8]) {
    let body = wire.out().begin(b'R');
    body.put_i32(code);
    body.put_slice(data);
    wire.out().end().expect("a password message is short");
}

fn password_body(wire: &Wire, message: Message) -> Result<&[u8], End> {
    match message.tag {
        b'p' => Ok(wire.body(message)),
        _ => Err(End::Closed),
    }
}

/// What the client begins SCRAM with.
///
/// # Errors
/// It is malformed, or of another mechanism.
pub fn sasl_initial_response(message: &[u8]) -> Result<&[u8], End> {
    let mut fields = Fields(message);
    let parts = fields.cstr().zip(fields.i32());
    let (mechanism, len) = parts.ok_or_else(|| malformed_scram("the SASL response is too short"))?;
    if mechanism != b"SCRAM-SHA-256" {
        return Err(malformed_scram(
            "the client chose a SASL mechanism that was not offered",
        ));
    }
    let data = usize::try_from(len).ok().and_then(|len| fields.bytes(len));
    data.filter(|_| fields.is_empty())
        .ok_or_else(|| malformed_scram("the SASL response has a wrong length"))
}

fn malformed_scram(detail: &str) -> End {
    protocol_violation("malformed SCRAM message")
        .with_detail(detail)
        .fatal()
        .into()
}

/// Why a client is not let in.
pub fn refused(user: &str, failure: AuthFailure) -> End {
    match failure {
        AuthFailure::WrongPassword => {
            let message = format!("password authentication failed for user \"{user}\"");
            SqlError::new(INVALID_PASSWORD, message).fatal().into()
        }
        AuthFailure::Malformed(detail) => malformed_scram(&detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_apart_as_postgres_does() {
        let parsed = parse_options(r"-c geqo=off --search-path=a\ b  -cwork_mem=1MB").unwrap();
        let expected = [("geqo", "off"), ("search_path", "a b"), ("work_mem", "1MB")];
        assert_eq!(
            parsed,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert!(parse_options("-x").is_err());
        assert!(parse_options("-c nothing").is_err());
    }
}
