//! The password file: clients prove theirs by it, and the proxy proves itself to servers by the same.

use crate::server::auth::Passwords;
use std::collections::BTreeMap;
use std::path::Path;

/// Users, with what they prove themselves with.
#[derive(Debug)]
pub struct Users {
    /// For clients.
    pub passwords: Passwords,
    clear: BTreeMap<String, String>,
}

impl Users {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read; an entry is malformed; an entry is a verifier, with which no server lets the proxy in.
    pub fn read(path: &Path) -> Result<Users, String> {
        let passwords = Passwords::read(path).map_err(|error| error.to_string())?;
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let clear = clear_entries(&text).map_err(|user| {
            format!(
                "{}: the entry of {user:?} is a verifier, and a proxy needs the password itself, to enter servers with: \
                 write a line `{user}:password`",
                path.display()
            )
        })?;
        Ok(Users { passwords, clear })
    }

    /// A user's password.
    pub fn clear(&self, user: &str) -> Option<&str> {
        self.clear.get(user).map(String::as_str)
    }
}

fn clear_entries(text: &str) -> Result<BTreeMap<String, String>, String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(':'))
        .map(|(user, entry)| match entry.starts_with("SCRAM-SHA-256$") {
            true => Err(user.to_owned()),
            false => Ok((user.to_owned(), entry.to_owned())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers_are_refused_by_name() {
        let entries = clear_entries("# users\n\nanna:a:b\n").unwrap();
        assert_eq!(entries["anna"], "a:b");
        assert_eq!(
            clear_entries("anna:x\nbert:SCRAM-SHA-256$4096:a$b:c\n").unwrap_err(),
            "bert"
        );
    }
}
