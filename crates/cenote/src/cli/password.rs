//! `cenote password`: an entry of a password file from a password.

use super::Failure;
use super::say;
use crate::server::auth::Verifier;
use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

/// Reads a password and prints the line.
///
/// # Errors
/// The name cannot stand in a password file; no password was read.
pub fn run(user: &str) -> Result<ExitCode, Failure> {
    if user.is_empty() || user.contains([':', '\n', '#']) {
        return Err(
            "the user name cannot stand in a password file: give one that is not empty and has no ':' or '#'".into(),
        );
    }
    let password = read()?;
    if password.is_empty() {
        return Err("the password is empty: give one with at least one character".into());
    }
    say!("{user}:{}", Verifier::of_password(&password));
    Ok(ExitCode::SUCCESS)
}

fn read() -> Result<String, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(read_line()?);
    }
    let first = rpassword::prompt_password("Password: ")?;
    match rpassword::prompt_password("Again: ")? == first {
        true => Ok(first),
        false => Err("the two passwords differ: start again".into()),
    }
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
