//! Settings of a session: what SET, SHOW and RESET know, with PostgreSQL's names and defaults.
//!
//! A value set in a transaction that rolls back is taken back; SET LOCAL lasts until the transaction ends.

use crate::error::{Result, SqlError, code};
use crate::types::zone::Zone;
use cenote_engine::Charge;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What PostgreSQL this speaks as.
pub const SERVER_VERSION: &str = "15.0 (Cenote 0.1)";
/// `server_version_num`
pub const SERVER_VERSION_NUM: &str = "150000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Any text.
    Text,
    /// on or off.
    Bool,
    /// Whole number; those beyond the range are taken for its ends.
    Int(i64, i64),
    /// Whole number in a range.
    Range(i64, i64),
    /// Milliseconds; units are admitted.
    Millis,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A time zone.
    Zone,
    /// A name of UTF-8: as in PostgreSQL, only letters and digits count (asyncpg sends `'utf-8'` with its quotes).
    Encoding,
    /// Cannot be changed.
    Fixed,
    /// Only these words mean what they say; others would be a promise that Cenote does not keep.
    Only(&'static [&'static str]),
}

struct Definition {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    reported: bool,
}

const fn def(name: &'static str, default: &'static str, kind: Kind) -> Definition {
    Definition {
        name,
        default,
        kind,
        reported: false,
    }
}

const fn reported(name: &'static str, default: &'static str, kind: Kind) -> Definition {
    Definition {
        name,
        default,
        kind,
        reported: true,
    }
}

const ISOLATION: &[&str] = &["serializable", "repeatable read", "read committed", "read uncommitted"];
const PLANS: &[&str] = &["auto", "force_generic_plan", "force_custom_plan"];
const LEVELS: &[&str] = &[
    "debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "info", "notice", "warning", "error", "fatal",
    "panic",
];

/// The number of the server's database. A proxy asks whether a server is of the database that it serves.
pub const DATABASE_ID: &str = "cenote.database_id";
/// Whether the row executor takes queries.
pub const ROW_EXECUTOR: &str = "enable_row_executor";
/// Whether the short path takes queries.
pub const SHORT_PATH: &str = "enable_short_path";

/// At a reader: how old the state may be that a statement reads, in milliseconds; 0: as old as it is.
pub const MAX_STALENESS: &str = "cenote.max_staleness";
/// At a reader: whether a statement sees all that was acknowledged before it.
pub const STRONG_READS: &str = "cenote.strong_reads";

/// At a reader: the position of the log that a statement waits for; 0: none. A proxy sets it to a client's own commit.
pub const READ_AFTER: &str = "cenote.read_after";

static DEFINITIONS: &[Definition] = &[
    reported("application_name", "", Kind::Text),
    def("bytea_output", "hex", Kind::Only(&["hex"])),
    reported(DATABASE_ID, "", Kind::Fixed),
    def(MAX_STALENESS, "10000", Kind::Millis),
    def(READ_AFTER, "0", Kind::Range(0, i64::MAX)),
    def(STRONG_READS, "off", Kind::Bool),
    def("check_function_bodies", "on", Kind::Bool),
    reported("client_encoding", "UTF8", Kind::Encoding),
    def("client_min_messages", "notice", Kind::Word(LEVELS)),
    reported(
        "DateStyle",
        "ISO, MDY",
        Kind::Only(&[
            "iso", "iso, mdy", "iso,mdy", "mdy", "iso, dmy", "iso,dmy", "iso, ymd", "iso,ymd",
        ]),
    ),
    def("default_statistics_target", "100", Kind::Range(1, 10_000)),
    def("default_table_access_method", "rows", Kind::Only(&["rows", "heap"])),
    def("default_tablespace", "", Kind::Only(&[""])),
    def("default_transaction_deferrable", "off", Kind::Bool),
    def("default_transaction_isolation", "read committed", Kind::Word(ISOLATION)),
    reported("default_transaction_read_only", "off", Kind::Bool),
    def(ROW_EXECUTOR, "on", Kind::Bool),
    def(SHORT_PATH, "on", Kind::Bool),
    def("escape_string_warning", "on", Kind::Bool),
    def("extra_float_digits", "1", Kind::Int(1, 3)),
    def("fsync", "on", Kind::Fixed),
    def("full_page_writes", "on", Kind::Fixed),
    def("idle_in_transaction_session_timeout", "0", Kind::Millis),
    def("idle_session_timeout", "0", Kind::Millis),
    reported("in_hot_standby", "off", Kind::Fixed),
    reported("integer_datetimes", "on", Kind::Fixed),
    reported("IntervalStyle", "postgres", Kind::Only(&["postgres"])),
    reported("is_superuser", "on", Kind::Fixed),
    def("jit", "off", Kind::Bool),
    def("lc_collate", "C", Kind::Fixed),
    def("lc_ctype", "C.UTF-8", Kind::Fixed),
    def("lc_messages", "C", Kind::Text),
    def("lc_monetary", "C", Kind::Text),
    def("lc_numeric", "C", Kind::Text),
    def("lc_time", "C", Kind::Text),
    def("lock_timeout", "0", Kind::Millis),
    def("maintenance_work_mem", "65536", Kind::Text),
    def("max_identifier_length", "63", Kind::Fixed),
    def("max_index_keys", "32", Kind::Fixed),
    def("plan_cache_mode", "auto", Kind::Word(PLANS)),
    def("query_memory", "256MB", Kind::Fixed),
    def("row_security", "on", Kind::Bool),
    def("search_path", "\"$user\", public", Kind::Text),
    reported("server_encoding", "UTF8", Kind::Fixed),
    reported("server_version", SERVER_VERSION, Kind::Fixed),
    def("server_version_num", SERVER_VERSION_NUM, Kind::Fixed),
    reported("session_authorization", "", Kind::Fixed),
    reported(
        "standard_conforming_strings",
        "on",
        Kind::Only(&["on", "true", "yes", "1"]),
    ),
    def("statement_timeout", "0", Kind::Millis),
    def("synchronize_seqscans", "on", Kind::Bool),
    def(
        "synchronous_commit",
        "on",
        Kind::Only(&["on", "local", "remote_write", "remote_apply", "true", "yes", "1"]),
    ),
    reported("TimeZone", "UTC", Kind::Zone),
    def("transaction_deferrable", "off", Kind::Bool),
    def("transaction_isolation", "read committed", Kind::Word(ISOLATION)),
    def("transaction_read_only", "off", Kind::Bool),
    def("transaction_timeout", "0", Kind::Only(&["0"])),
    def("work_mem", "4096", Kind::Text),
    def("xmloption", "content", Kind::Text),
];

fn find(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|d| d.name.eq_ignore_ascii_case(name))
}

/// Settings of names that only the client knows (`my.own`), at most.
const CUSTOM_MAX: usize = 1000;
/// Bytes of a value, at most, and of such a name.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a value beside its text and its name's.
const VALUE_BYTES: usize = 64;

/// The values of one session. Each change makes others, and a session keeps those that it may have to return to: of
/// before its transaction, and of each savepoint.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    set: BTreeMap<String, String>,
    local: BTreeMap<String, String>,
    zone: Zone,
    user: String,
    /// What they hold of their session's memory, if that is worth counting.
    pub memory: Option<Arc<Charge>>,
}

/// Values of a session's settings, as they are kept: for the session and, beside them, by SET LOCAL.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    set: BTreeMap<String, String>,
    local: BTreeMap<String, String>,
}

impl Settings {
    /// All values that can be set.
    pub fn values(&self) -> Values {
        let settable = |name: &str| find(name).is_none_or(|definition| definition.kind != Kind::Fixed);
        let of = |values: &BTreeMap<String, String>| {
            let settable = values.iter().filter(|(name, _)| settable(name));
            settable.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        Values {
            set: of(&self.set),
            local: of(&self.local),
        }
    }

    /// Those of a session that is otherwise as `origin`.
    ///
    /// # Errors
    /// As [`Settings::set`].
    pub fn of_values(origin: &Settings, values: &Values) -> Result<Settings> {
        let mut settings = origin.clone();
        for (values, local) in [(&values.set, false), (&values.local, true)] {
            let mut values = values.iter();
            values.try_for_each(|(name, value)| settings.set(name, value, local))?;
        }
        Ok(settings)
    }

    /// Defaults for `user`.
    pub fn new(user: &str) -> Settings {
        Settings {
            user: user.to_string(),
            ..Settings::default()
        }
    }

    /// Notes what the server lets queries hold.
    pub fn note_query_memory(&mut self, bytes: u64) {
        let shown = show_bytes(bytes);
        if self.get("query_memory").as_deref() != Some(&shown) {
            self.put("query_memory".to_string(), shown, false);
        }
    }

    /// The number of the database that the server has, or reads.
    pub fn note_database(&mut self, database: u128) {
        self.put(DATABASE_ID.to_string(), format!("{database:032x}"), false);
    }

    /// The server is a reader of a database that another one changes.
    pub fn note_reader(&mut self) {
        self.put("in_hot_standby".to_string(), "on".to_string(), false);
    }

    /// The session's time zone.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// A value as SHOW gives it; None for an unknown name.
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        let Some(definition) = find(name) else {
            let key = name.to_ascii_lowercase();
            return self
                .local
                .get(&key)
                .or_else(|| self.set.get(&key))
                .map(|v| Cow::Borrowed(v.as_str()));
        };
        if definition.name == "session_authorization" {
            return Some(Cow::Borrowed(&self.user));
        }
        let raw = self
            .local
            .get(definition.name)
            .or_else(|| self.set.get(definition.name));
        let value = raw.map_or(definition.default, String::as_str);
        Some(if definition.kind == Kind::Millis {
            Cow::Owned(show_millis(value))
        } else {
            Cow::Borrowed(value)
        })
    }

    /// A duration setting in milliseconds.
    pub fn millis(&self, name: &str) -> u64 {
        let raw = self.local.get(name).or_else(|| self.set.get(name));
        let default = || find(name).map_or("0", |definition| definition.default);
        raw.map_or_else(default, String::as_str).parse().unwrap_or(0)
    }

    /// Bytes that the values take.
    pub fn bytes(&self) -> usize {
        let values = self.set.iter().chain(&self.local);
        values.map(|(name, value)| VALUE_BYTES + name.len() + value.len()).sum()
    }

    /// Whether a boolean setting is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).as_deref() == Some("on")
    }

    /// Whether a boolean setting whose default is on has been turned off.
    pub fn is_off(&self, name: &str) -> bool {
        let raw = self.local.get(name).or_else(|| self.set.get(name));
        raw.is_some_and(|value| value == "off")
    }

    /// SET (or SET LOCAL).
    ///
    /// # Errors
    /// There is no such setting, it cannot be changed, or not to this value.
    pub fn set(&mut self, name: &str, value: &str, local: bool) -> Result<()> {
        let Some(definition) = find(name) else {
            return self.set_custom(name, value, local);
        };
        fits(definition.name, value)?;
        let value = check(definition, value)?;
        if definition.kind == Kind::Zone {
            self.zone = Zone::named(&value).ok_or_else(|| invalid(definition.name, &value))?;
        }
        self.put(definition.name.to_string(), value, local);
        Ok(())
    }

    fn set_custom(&mut self, name: &str, value: &str, local: bool) -> Result<()> {
        // Names of this prefix are what sessions report to a proxy.
        if !name.contains('.') || name.to_ascii_lowercase().starts_with("_cenote.") {
            return Err(unknown(name));
        }
        fits(name, value)?;
        if self.set.len() + self.local.len() >= CUSTOM_MAX + DEFINITIONS.len() {
            let text = format!("the session has {CUSTOM_MAX} settings of its own, as many as it may");
            return Err(SqlError::new(code::CONFIGURATION_LIMIT, text));
        }
        self.put(name.to_ascii_lowercase(), value.to_string(), local);
        Ok(())
    }

    /// A value for the session covers one of SET LOCAL that came before it.
    fn put(&mut self, key: String, value: String, local: bool) {
        if local {
            self.local.insert(key, value);
        } else {
            self.local.remove(&key);
            self.set.insert(key, value);
        }
    }

    /// RESET, SET (or SET LOCAL) TO DEFAULT: back to what the connection began with.
    ///
    /// # Errors
    /// There is no such setting, or it cannot be changed.
    pub fn reset(&mut self, name: &str, start: &Settings, local: bool) -> Result<()> {
        let Some(definition) = find(name) else {
            return self.reset_custom(name, start, local);
        };
        if definition.kind == Kind::Fixed {
            return Err(fixed(definition.name));
        }
        let value = start.set.get(definition.name);
        let value = value.map_or(definition.default, String::as_str).to_string();
        self.set(definition.name, &value, local)
    }

    fn reset_custom(&mut self, name: &str, start: &Settings, local: bool) -> Result<()> {
        let value = start.set.get(&name.to_ascii_lowercase()).map_or("", String::as_str);
        self.set_custom(name, value, local)
    }

    /// RESET ALL.
    pub fn reset_all(&mut self, start: &Settings) {
        *self = start.clone();
    }

    /// Whether SET LOCAL is in force.
    pub fn has_local(&self) -> bool {
        !self.local.is_empty()
    }

    /// Ends SET LOCAL. Whether anything changed.
    pub fn end_transaction(&mut self) -> bool {
        if self.local.is_empty() {
            return false;
        }
        self.local.clear();
        let name = self.set.get("TimeZone").map_or("UTC", String::as_str);
        self.zone = Zone::named(name).unwrap_or_default();
        true
    }

    /// What clients are told at start.
    pub fn reported(&self) -> Vec<(&'static str, String)> {
        let shown = DEFINITIONS.iter().filter(|d| d.reported);
        shown
            .map(|d| (d.name, self.get(d.name).unwrap_or_default().into_owned()))
            .collect()
    }

    /// Names and values that differ from `former`; None: there is no such setting any more.
    pub fn differences<'a>(&'a self, former: &'a Settings) -> Vec<(&'a str, Option<String>)> {
        let maps = [&self.set, &self.local, &former.set, &former.local];
        let names: BTreeSet<&str> = maps.iter().flat_map(|map| map.keys().map(String::as_str)).collect();
        names
            .into_iter()
            .filter(|name| find(name).is_none_or(|definition| definition.kind != Kind::Fixed))
            .map(|name| (name, self.get(name)))
            .filter(|(name, value)| *value != former.get(name))
            .map(|(name, value)| (name, value.map(Cow::into_owned)))
            .collect()
    }

    /// A whole number, 0 where it is none.
    pub fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// All names and values, by name.
    pub fn all(&self) -> Vec<(String, String)> {
        DEFINITIONS
            .iter()
            .map(|d| (d.name.to_string(), self.get(d.name).unwrap_or_default().into_owned()))
            .collect()
    }
}

/// 42704: no setting has this name.
#[cold]
pub fn unknown(name: &str) -> SqlError {
    SqlError::new(
        code::UNDEFINED_OBJECT,
        format!("unrecognized configuration parameter \"{name}\""),
    )
}

/// 0A000 for what `set_config` does not change: a transaction's own modes, and SERIALIZABLE as a default.
///
/// # Errors
/// It is one of them.
pub fn refuse_unsettable(name: &str, value: Option<&str>) -> Result<()> {
    let is = |of: &str| name.eq_ignore_ascii_case(of);
    if is("transaction_isolation") || is("transaction_read_only") {
        let text = format!("set_config of {}", name.to_ascii_lowercase());
        return Err(SqlError::unsupported(text).with_hint("Use SET TRANSACTION."));
    }
    refuse_serializable(name, value)
}

/// 0A000 for SERIALIZABLE as a default.
///
/// # Errors
/// It is that.
pub fn refuse_serializable(name: &str, value: Option<&str>) -> Result<()> {
    let serializable = value.is_some_and(|v| v.trim().eq_ignore_ascii_case("serializable"));
    if serializable && name.eq_ignore_ascii_case("default_transaction_isolation") {
        return Err(SqlError::serializable());
    }
    Ok(())
}

/// A value is kept, and copied with each change of a setting.
fn fits(name: &str, value: &str) -> Result<()> {
    if name.len().max(value.len()) <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let text = format!("a setting's name and value may have {VALUE_BYTES_MAX} bytes each");
    Err(SqlError::new(code::PROGRAM_LIMIT, text))
}

#[cold]
fn invalid(name: &str, value: &str) -> SqlError {
    SqlError::new(
        code::INVALID_ARGUMENT,
        format!("invalid value for parameter \"{name}\": \"{value}\""),
    )
}

#[cold]
fn fixed(name: &str) -> SqlError {
    SqlError::new(
        code::CANNOT_CHANGE_PARAMETER,
        format!("parameter \"{name}\" cannot be changed"),
    )
}

fn check(definition: &Definition, value: &str) -> Result<String> {
    let lower = value.trim().to_ascii_lowercase();
    let refused = || invalid(definition.name, value);
    Ok(match definition.kind {
        Kind::Text | Kind::Zone => value.to_string(),
        Kind::Fixed => return Err(fixed(definition.name)),
        Kind::Bool => match lower.as_str() {
            "on" | "true" | "yes" | "1" | "t" | "y" => "on".to_string(),
            "off" | "false" | "no" | "0" | "f" | "n" => "off".to_string(),
            _ => {
                return Err(SqlError::new(
                    code::INVALID_ARGUMENT,
                    format!("parameter \"{}\" requires a Boolean value", definition.name),
                ));
            }
        },
        Kind::Int(least, most) => {
            let number: i64 = lower.parse().map_err(|_| refused())?;
            // PostgreSQL admits less; everything below is answered with the shortest exact text.
            number.clamp(least, most).to_string()
        }
        Kind::Range(least, most) => {
            let number: i64 = lower.parse().map_err(|_| refused())?;
            if !(least..=most).contains(&number) {
                let name = definition.name;
                let text = format!("{number} is outside the valid range for parameter \"{name}\" ({least} .. {most})");
                return Err(SqlError::new(code::INVALID_ARGUMENT, text));
            }
            number.to_string()
        }
        Kind::Millis => parse_millis(&lower).ok_or_else(refused)?.to_string(),
        Kind::Word(words) => words.iter().find(|w| **w == lower).ok_or_else(refused)?.to_string(),
        Kind::Only(words) if words.iter().any(|w| w.eq_ignore_ascii_case(value.trim())) => match definition.name {
            "DateStyle" | "standard_conforming_strings" => definition.default.to_string(),
            _ => lower,
        },
        Kind::Encoding => {
            let plain: String = lower.chars().filter(char::is_ascii_alphanumeric).collect();
            match plain.as_str() {
                "utf8" | "unicode" | "sqlascii" => definition.default.to_string(),
                _ => return Err(SqlError::unsupported(format!("{} = '{value}'", definition.name))),
            }
        }
        Kind::Only(_) => return Err(SqlError::unsupported(format!("{} = '{value}'", definition.name))),
    })
}

fn parse_millis(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = match text[end..].trim() {
        "" | "ms" => 1.0,
        "us" => 0.001,
        "s" => 1000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    let millis = (number * unit).round();
    (millis <= f64::from(i32::MAX)).then_some(millis as u64)
}

fn show_bytes(bytes: u64) -> String {
    match bytes {
        b if b % (1 << 30) == 0 => format!("{}GB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{}MB", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}kB", b >> 10),
        b => format!("{b}B"),
    }
}

fn show_millis(raw: &str) -> String {
    let millis: u64 = raw.parse().unwrap_or(0);
    match millis {
        0 => "0".to_string(),
        m if m % 86_400_000 == 0 => format!("{}d", m / 86_400_000),
        m if m % 3_600_000 == 0 => format!("{}h", m / 3_600_000),
        m if m % 60_000 == 0 => format!("{}min", m / 60_000),
        m if m % 1000 == 0 => format!("{}s", m / 1000),
        m => format!("{m}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_queries_is_shown_and_stays() {
        let mut settings = Settings::new("me");
        assert_eq!(settings.get("query_memory").unwrap(), "256MB");
        settings.note_query_memory(96 << 20);
        assert_eq!(settings.get("query_memory").unwrap(), "96MB");
        assert!(settings.set("query_memory", "1GB", false).is_err());
        settings.note_query_memory(2 << 30);
        assert_eq!(settings.get("query_memory").unwrap(), "2GB");
    }

    #[test]
    fn values_are_checked_and_shown() {
        let mut settings = Settings::new("me");
        settings.set("lock_timeout", "2s", false).unwrap();
        assert_eq!(settings.get("LOCK_TIMEOUT").unwrap(), "2s");
        assert_eq!(settings.millis("lock_timeout"), 2000);
        assert_eq!(
            settings.set("client_encoding", "LATIN1", false).unwrap_err().code(),
            "0A000"
        );
        for name in ["utf-8", "'utf-8'", "UTF8", "Unicode", "SQL_ASCII"] {
            settings.set("client_encoding", name, false).unwrap();
            assert_eq!(settings.get("client_encoding").unwrap(), "UTF8");
        }
        assert_eq!(
            settings.set("synchronous_commit", "off", false).unwrap_err().code(),
            "0A000"
        );
        assert_eq!(settings.set("nonsense", "1", false).unwrap_err().code(), "42704");
        settings.set("application_name", "x", false).unwrap();
        assert!(settings.reported().contains(&("application_name", "x".into())));
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        assert_eq!(
            settings.set("application_name", &long, false).unwrap_err().code(),
            "54000"
        );
        assert_eq!(settings.set("my.own", &long, false).unwrap_err().code(), "54000");
        let refused = (0..).find_map(|n| settings.set(&format!("my.s{n}"), "", false).err());
        assert_eq!(refused.unwrap().code(), "53400");
        settings.set("timezone", "+02", true).unwrap();
        assert!(settings.end_transaction());
        assert_eq!(settings.get("TimeZone").unwrap(), "UTC");
    }
}
