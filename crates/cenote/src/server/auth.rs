//! Passwords: SCRAM-SHA-256 (RFC 5802, RFC 7677) against the entries of a password file.
//!
//! ```text
//! # user:entry                      empty lines and lines that begin with # are skipped
//! anna:SCRAM-SHA-256$4096:<salt>$<stored key>:<server key>     as `cenote password anna` and PostgreSQL write it
//! bert:a password in clear                                     anything else is the password itself
//! ```
//!
//! The file is read once at start. A clear password is turned into a verifier then; only verifiers are kept. A name
//! that is not in the file goes through the same exchange with a verifier that nothing fits, so that names cannot be
//! guessed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use pgwire::api::auth::sasl::scram::{SCRAM_ITERATIONS, ScramSecret, ScramServerAuth, gen_salted_password};
use pgwire::error::{PgWireError, PgWireResult};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use pgwire::api::auth::sasl::scram::ScramServerAuthWaitingForClientFinal as Challenged;

const METHOD: &str = "SCRAM-SHA-256";
const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
/// More would let an entry keep a session's thread busy for long.
const ITERATIONS_MAX: usize = 10_000_000;

/// What the server keeps of a password: enough to check a proof, not to make one.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: usize,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Verifier {
    /// The verifier of a password, with a salt of its own.
    pub fn of_password(password: &str) -> Self {
        let mut salt = vec![0; SALT_BYTES];
        fill_random(&mut salt);
        let salted = gen_salted_password(password, &salt, SCRAM_ITERATIONS);
        match ScramSecret::verifier_from_salted_password(salt, salted, SCRAM_ITERATIONS) {
            ScramSecret::Verifier {
                salt,
                iterations,
                stored_key,
                server_key,
            } => Verifier {
                iterations,
                salt,
                stored_key,
                server_key,
            },
            ScramSecret::SaltedPassword { .. } => unreachable!("a verifier was asked for"),
        }
    }

    /// A verifier that no password fits, always the same for one name and one start of the server.
    fn of_stranger(user: &str, server_secret: &[u8; KEY_BYTES]) -> Self {
        let mut salt = gen_salted_password(user, server_secret, 1);
        salt.truncate(SALT_BYTES);
        let mut key = vec![0; KEY_BYTES];
        fill_random(&mut key);
        Verifier {
            iterations: SCRAM_ITERATIONS,
            salt,
            stored_key: key.clone(),
            server_key: key,
        }
    }

    /// Reads `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`; `None` where it is not of that form.
    pub fn parse(text: &str) -> Option<Self> {
        let (salting, keys) = text.strip_prefix(METHOD)?.strip_prefix('$')?.split_once('$')?;
        let (iterations, salt) = salting.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key = |text: &str| BASE64.decode(text).ok().filter(|key| key.len() == KEY_BYTES);
        Some(Verifier {
            iterations: iterations.parse().ok().filter(|n| (1..=ITERATIONS_MAX).contains(n))?,
            salt: BASE64.decode(salt).ok()?,
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }

    /// Answers the client's first message.
    pub fn challenge(&self, client_first: &[u8]) -> PgWireResult<(String, Challenged)> {
        let secret = ScramSecret::Verifier {
            salt: self.salt.clone(),
            iterations: self.iterations,
            stored_key: self.stored_key.clone(),
            server_key: self.server_key.clone(),
        };
        ScramServerAuth::new().on_client_first_message_with_secret(client_first, secret)
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encode = |bytes: &[u8]| BASE64.encode(bytes);
        write!(f, "{METHOD}${}:{}", self.iterations, encode(&self.salt))?;
        write!(f, "${}:{}", encode(&self.stored_key), encode(&self.server_key))
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

/// A password file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    /// It cannot be read.
    #[error("cannot read the password file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it is no entry.
    #[error("{path}:{line}: {problem}; a line is `user:entry`, as `cenote password USER` writes it")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The users that may enter.
#[derive(Debug)]
pub struct Passwords {
    verifiers: BTreeMap<String, Verifier>,
    server_secret: [u8; KEY_BYTES],
}

impl Passwords {
    /// Reads a password file.
    ///
    /// # Errors
    /// [`PasswordFileError`]: the file cannot be read, or a line is none of a user.
    pub fn read(path: &Path) -> Result<Self, PasswordFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| PasswordFileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|(line, problem)| PasswordFileError::Line {
            path: path.to_owned(),
            line,
            problem,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut verifiers = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, verifier) = parse_line(line).map_err(|problem| (index + 1, problem))?;
            if verifiers.insert(user.to_owned(), verifier).is_some() {
                return Err((index + 1, "the user has an entry already"));
            }
        }
        if verifiers.is_empty() {
            return Err((
                1,
                "the file has no entry, so no client could connect; add one with `cenote password USER`",
            ));
        }
        let mut server_secret = [0; KEY_BYTES];
        fill_random(&mut server_secret);
        Ok(Passwords {
            verifiers,
            server_secret,
        })
    }

    /// The verifier of a user; of a name that is not known, one that nothing fits.
    pub fn verifier(&self, user: &str) -> Verifier {
        self.verifiers
            .get(user)
            .cloned()
            .unwrap_or_else(|| Verifier::of_stranger(user, &self.server_secret))
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.verifiers.len()
    }

    /// Whether there is no user; never so after a successful read.
    pub fn is_empty(&self) -> bool {
        self.verifiers.is_empty()
    }
}

fn parse_line(line: &str) -> Result<(&str, Verifier), &'static str> {
    let (user, entry) = line.split_once(':').ok_or("there is no ':' after the user name")?;
    match (user, entry) {
        ("", _) => Err("the user name is empty"),
        (_, "") => Err("the password is empty"),
        (user, entry) if entry.starts_with("SCRAM-SHA-256$") => Verifier::parse(entry)
            .map(|verifier| (user, verifier))
            .ok_or("the SCRAM-SHA-256 verifier is malformed"),
        (user, entry) => Ok((user, Verifier::of_password(entry))),
    }
}

/// The proof in the client's last message: the server's own signature if it fits.
///
/// # Errors
/// [`AuthFailure`]: the password is wrong, or the message is none of the exchange.
pub fn check_proof(challenged: &Challenged, client_final: &[u8]) -> Result<String, AuthFailure> {
    challenged
        .on_client_final_message(client_final)
        .map_err(|error| match error {
            PgWireError::InvalidPassword(_) => AuthFailure::WrongPassword,
            other => AuthFailure::Malformed(other.to_string()),
        })
}

/// Why a client is not let in.
#[derive(Debug)]
pub enum AuthFailure {
    /// The name or the password is wrong; which of them is not told.
    WrongPassword,
    /// The exchange does not follow the protocol.
    Malformed(String),
}

/// Fills `bytes` from the kernel's random generator.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .expect("the kernel has a random generator");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_survives_its_text() {
        let verifier = Verifier::of_password("pencil");
        let text = verifier.to_string();
        assert_eq!(Verifier::parse(&text), Some(verifier));
        for cut in 0..text.len() - 1 {
            assert_eq!(Verifier::parse(&text[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn the_file_tells_which_line_is_wrong() {
        let users = Passwords::parse("# people\n\nanna:secret:with:colons\n").unwrap();
        assert_eq!(users.len(), 1);
        assert_eq!(Passwords::parse("a:x\nb\n").unwrap_err().0, 2);
        assert_eq!(Passwords::parse("a:x\na:y\n").unwrap_err().0, 2);
        assert_eq!(Passwords::parse("a:SCRAM-SHA-256$4096:zz\n").unwrap_err().0, 1);
        assert!(Passwords::parse("# no user\n").is_err());
    }

    #[test]
    fn a_stranger_gets_the_same_salt_again() {
        let users = Passwords::parse("a:x\n").unwrap();
        assert_eq!(users.verifier("unknown").salt, users.verifier("unknown").salt);
        assert_ne!(users.verifier("unknown").salt, users.verifier("unheard").salt);
    }
}
