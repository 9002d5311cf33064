//! The server's log: lines on standard error with time (UTC), level and text.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// An operator has to act.
    Error = 0,
    /// Something was not as it should be, and was dealt with.
    Warn = 1,
    /// What happens.
    Info = 2,
    /// Each connection.
    Debug = 3,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Error => "ERROR",
            Level::Warn => "WARN ",
            Level::Info => "INFO ",
            Level::Debug => "DEBUG",
        }
    }
}

impl FromStr for Level {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Level::Error),
            "warn" => Ok(Level::Warn),
            "info" => Ok(Level::Info),
            "debug" => Ok(Level::Debug),
            _ => Err(format!("log level {text:?} is none of error, warn, info, debug")),
        }
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Writes lines of `level` and above from now on.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether lines of `level` are written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes a line with one system call, so that lines of several threads do not mix.
pub fn write(level: Level, text: fmt::Arguments<'_>) {
    let line = format!(
        "{} {} {text}\n",
        chrono::Utc::now().format("%Y-%m-%d %H:%M:%S%.3f"),
        level.word()
    );
    std::io::stderr().lock().write_all(line.as_bytes()).ok();
}

/// Lets one line a second through, of many that say the same.
#[derive(Debug, Default)]
pub struct Limiter {
    last_second: AtomicU64,
    left_out: AtomicU64,
}

impl Limiter {
    /// A limiter that has let nothing through.
    pub const fn new() -> Self {
        Limiter {
            last_second: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Whether a line may be written now: then how many were left out since the last one.
    pub fn pass(&self) -> Option<u64> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        if self.last_second.swap(now, Ordering::Relaxed) == now {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

macro_rules! log_at {
    ($level:ident, $($text:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}
macro_rules! error { ($($text:tt)*) => { $crate::log::log_at!(Error, $($text)*) }; }
macro_rules! warn_ { ($($text:tt)*) => { $crate::log::log_at!(Warn, $($text)*) }; }
macro_rules! info { ($($text:tt)*) => { $crate::log::log_at!(Info, $($text)*) }; }
macro_rules! debug { ($($text:tt)*) => { $crate::log::log_at!(Debug, $($text)*) }; }
pub(crate) use {debug, error, info, log_at, warn_ as warn};
