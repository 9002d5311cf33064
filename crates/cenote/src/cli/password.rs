//! `cenote password`: an entry of a password file from a password.

use super::Failure;
use super::say;
use crate::server::auth::Verifier;
use rustix::termios::{LocalModes, OptionalActions, isatty, tcgetattr, tcsetattr};
use std::io::{self, BufRead};
use std::process::ExitCode;

/// Reads a password and prints the line.
pub fn run(user: &str) -> Result<ExitCode, Failure> {
    if user.is_empty() || user.contains([':', '\n', '#']) {
        return Err("a user name is not empty and has no ':' or '#' in it".into());
    }
    let password = read()?;
    if password.is_empty() {
        return Err("the password is empty".into());
    }
    say!("{user}:{}", Verifier::of_password(&password));
    Ok(ExitCode::SUCCESS)
}

fn read() -> Result<String, Failure> {
    if !isatty(io::stdin()) {
        return Ok(read_line()?);
    }
    let first = read_unseen("Password: ")?;
    match read_unseen("Again: ")? == first {
        true => Ok(first),
        false => Err("the two passwords differ".into()),
    }
}

fn read_unseen(prompt: &str) -> io::Result<String> {
    eprint!("{prompt}");
    let shown = tcgetattr(io::stdin())?;
    let mut unseen = shown.clone();
    unseen.local_modes.remove(LocalModes::ECHO);
    tcsetattr(io::stdin(), OptionalActions::Now, &unseen)?;
    let line = read_line();
    tcsetattr(io::stdin(), OptionalActions::Now, &shown)?;
    eprintln!();
    line
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
