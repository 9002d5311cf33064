//! Scalar functions: their names and types, and their evaluation.

use super::{Env, Expr, compare};
use crate::env::wall_clock;
use crate::error::{Result, SqlError, code};
use crate::settings;
use crate::types::datetime::DAY;
use crate::types::text::datum_text;
use crate::types::zone::Zone;
use crate::types::{base_type, is_integer, is_string, numeric};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{ColumnType, Datum};

/// A function with its arguments, converted to what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Which.
    pub function: Function,
    /// Arguments.
    pub args: Vec<Expr>,
}

/// A scalar function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Function {
    Now,
    StatementTimestamp,
    ClockTimestamp,
    CurrentDate,
    LocalTimestamp,
    Length,
    OctetLength,
    BitLength,
    Lower,
    Upper,
    Substring,
    Left,
    Right,
    TrimBoth,
    TrimLeft,
    TrimRight,
    Concat,
    Append,
    Replace,
    Position,
    Repeat,
    Reverse,
    PadLeft,
    PadRight,
    Ascii,
    Chr,
    StartsWith,
    SplitPart,
    Abs,
    Round,
    RoundTo,
    Trunc,
    TruncTo,
    Ceil,
    Floor,
    Power,
    Sqrt,
    Exp,
    Ln,
    Log10,
    Sign,
    Pi,
    Random,
    Greatest,
    Least,
    NullIf,
    NextVal,
    CurrVal,
    LastVal,
    SetVal,
    Version,
    CurrentSchema,
    CurrentUser,
    CurrentDatabase,
    BackendPid,
    CurrentSetting,
    SetConfig,
    IsInRecovery,
    Sleep,
    Md5,
}

impl Function {
    /// Whether two calls in one statement may differ.
    pub fn is_volatile(self) -> bool {
        use Function::{ClockTimestamp, Random, SetConfig, Sleep};
        matches!(self, ClockTimestamp | Random | SetConfig | Sleep) || self.uses_sequences()
    }

    /// Whether the transaction is needed to evaluate it.
    pub fn uses_sequences(self) -> bool {
        matches!(
            self,
            Function::NextVal | Function::SetVal | Function::CurrVal | Function::LastVal
        )
    }

    fn is_strict(self) -> bool {
        !matches!(
            self,
            Function::Concat | Function::Greatest | Function::Least | Function::NullIf | Function::SetConfig
        )
    }
}

/// What a name and argument types resolve to.
pub struct Signature {
    /// The function.
    pub function: Function,
    /// Types that the arguments are converted to.
    pub args: Vec<ColumnType>,
    /// Type of the result.
    pub result: ColumnType,
}

/// What the given argument types must be, beside their number, for a function to be meant.
#[derive(Clone, Copy)]
enum Given {
    Any,
    /// The first is a text.
    Text,
    /// The first is a text, the second a position in it.
    TextAndPosition,
    /// The only one is a bytea.
    Bytes,
    /// None is numeric.
    NoNumeric,
}

impl Given {
    fn fits(self, given: &[Option<ColumnType>]) -> bool {
        let fits = |at: usize, test: fn(ColumnType) -> bool| given.get(at).is_some_and(|g| g.is_none_or(test));
        match self {
            Given::Any => true,
            Given::Text => fits(0, is_string),
            Given::TextAndPosition => {
                fits(0, is_string) && fits(1, |t| matches!(t, ColumnType::Int2 | ColumnType::Int4))
            }
            Given::Bytes => given == [Some(ColumnType::Bytes)],
            Given::NoNumeric => !given.contains(&Some(ColumnType::Numeric(None))),
        }
    }
}

/// Names, what is given, the function, the argument types that it takes (several lists: overloads), its result.
type Listed = (
    &'static [&'static str],
    Given,
    Function,
    &'static [&'static [ColumnType]],
    ColumnType,
);

/// Functions whose argument and result types are fixed. The first that fits by name and what is given is meant.
const FUNCTIONS: &[Listed] = {
    use ColumnType::{Bool, Bytes, Date, Float8, Int4, Int8, Text, Timestamp, TimestampTz};
    use Function as F;
    use Given::{Any, NoNumeric, TextAndPosition};
    &[
        (
            &["now", "current_timestamp", "transaction_timestamp"],
            Any,
            F::Now,
            &[&[]],
            TimestampTz,
        ),
        (
            &["statement_timestamp"],
            Any,
            F::StatementTimestamp,
            &[&[]],
            TimestampTz,
        ),
        (&["clock_timestamp"], Any, F::ClockTimestamp, &[&[]], TimestampTz),
        (&["current_date"], Any, F::CurrentDate, &[&[]], Date),
        (&["localtimestamp"], Any, F::LocalTimestamp, &[&[]], Timestamp),
        (
            &["length", "octet_length"],
            Given::Bytes,
            F::OctetLength,
            &[&[Bytes]],
            Int4,
        ),
        (
            &["length", "char_length", "character_length"],
            Given::Text,
            F::Length,
            &[&[Text]],
            Int4,
        ),
        (&["octet_length"], Given::Text, F::OctetLength, &[&[Text]], Int4),
        (&["bit_length"], Given::Text, F::BitLength, &[&[Text]], Int4),
        (&["lower"], Given::Text, F::Lower, &[&[Text]], Text),
        (&["upper"], Given::Text, F::Upper, &[&[Text]], Text),
        (
            &["substring", "substr"],
            TextAndPosition,
            F::Substring,
            &[&[Text, Int4], &[Text, Int4, Int4]],
            Text,
        ),
        (&["left"], Given::Text, F::Left, &[&[Text, Int4]], Text),
        (&["right"], Given::Text, F::Right, &[&[Text, Int4]], Text),
        (
            &["btrim", "trim"],
            Given::Text,
            F::TrimBoth,
            &[&[Text], &[Text, Text]],
            Text,
        ),
        (&["ltrim"], Given::Text, F::TrimLeft, &[&[Text], &[Text, Text]], Text),
        (&["rtrim"], Given::Text, F::TrimRight, &[&[Text], &[Text, Text]], Text),
        (&["replace"], Given::Text, F::Replace, &[&[Text, Text, Text]], Text),
        (
            &["strpos", "position"],
            Given::Text,
            F::Position,
            &[&[Text, Text]],
            Int4,
        ),
        (&["repeat"], Given::Text, F::Repeat, &[&[Text, Int4]], Text),
        (&["reverse"], Given::Text, F::Reverse, &[&[Text]], Text),
        (
            &["lpad"],
            Given::Text,
            F::PadLeft,
            &[&[Text, Int4], &[Text, Int4, Text]],
            Text,
        ),
        (
            &["rpad"],
            Given::Text,
            F::PadRight,
            &[&[Text, Int4], &[Text, Int4, Text]],
            Text,
        ),
        (&["ascii"], Given::Text, F::Ascii, &[&[Text]], Int4),
        (&["chr"], Any, F::Chr, &[&[Int4]], Text),
        (&["starts_with"], Given::Text, F::StartsWith, &[&[Text, Text]], Bool),
        (&["split_part"], Given::Text, F::SplitPart, &[&[Text, Text, Int4]], Text),
        (&["power", "pow"], NoNumeric, F::Power, &[&[Float8, Float8]], Float8),
        (&["sqrt"], NoNumeric, F::Sqrt, &[&[Float8]], Float8),
        (&["exp"], NoNumeric, F::Exp, &[&[Float8]], Float8),
        (&["ln"], NoNumeric, F::Ln, &[&[Float8]], Float8),
        (&["log"], NoNumeric, F::Log10, &[&[Float8]], Float8),
        (&["pi"], Any, F::Pi, &[&[]], Float8),
        (&["random"], Any, F::Random, &[&[]], Float8),
        (&["md5"], Given::Text, F::Md5, &[&[Text]], Text),
        (&["nextval"], Any, F::NextVal, &[&[Int8]], Int8),
        (&["currval"], Any, F::CurrVal, &[&[Int8]], Int8),
        (&["lastval"], Any, F::LastVal, &[&[]], Int8),
        (&["setval"], Any, F::SetVal, &[&[Int8, Int8], &[Int8, Int8, Bool]], Int8),
        (&["version"], Any, F::Version, &[&[]], Text),
        (&["current_schema"], Any, F::CurrentSchema, &[&[]], Text),
        (
            &["current_user", "session_user", "user", "current_role"],
            Any,
            F::CurrentUser,
            &[&[]],
            Text,
        ),
        (
            &["current_database", "current_catalog"],
            Any,
            F::CurrentDatabase,
            &[&[]],
            Text,
        ),
        (&["pg_backend_pid"], Any, F::BackendPid, &[&[]], Int4),
        (
            &["current_setting"],
            Any,
            F::CurrentSetting,
            &[&[Text], &[Text, Bool]],
            Text,
        ),
        (&["set_config"], Any, F::SetConfig, &[&[Text, Text, Bool]], Text),
        (&["pg_is_in_recovery"], Any, F::IsInRecovery, &[&[]], Bool),
        (&["pg_sleep"], Any, F::Sleep, &[&[Float8]], Text),
    ]
};

/// The function of this name for these argument types (None: an untyped literal); None where there is none.
pub fn resolve(name: &str, given: &[Option<ColumnType>]) -> Option<Signature> {
    if let Some((.., function, lists, result)) = FUNCTIONS
        .iter()
        .find(|(names, wanted, ..)| names.contains(&name) && wanted.fits(given))
    {
        let args = lists.iter().find(|args| args.len() == given.len())?;
        return Some(Signature {
            function: *function,
            args: args.to_vec(),
            result: *result,
        });
    }
    match name {
        "concat" if !given.is_empty() => Some(Signature {
            function: Function::Concat,
            args: vec![ColumnType::Text; given.len()],
            result: ColumnType::Text,
        }),
        "round" | "trunc" if given.len() == 2 => rounding_to(name, given),
        _ => of_one_number(name, given),
    }
}

/// `round` or `trunc` to a number of digits.
fn rounding_to(name: &str, given: &[Option<ColumnType>]) -> Option<Signature> {
    let exact = ColumnType::Numeric(None);
    let number = number(&given[..1], true)?;
    (number == exact || given[0].is_some_and(is_integer)).then(|| Signature {
        function: if name == "round" {
            Function::RoundTo
        } else {
            Function::TruncTo
        },
        args: vec![exact, ColumnType::Int4],
        result: exact,
    })
}

/// Functions of a number that give one of its type.
fn of_one_number(name: &str, given: &[Option<ColumnType>]) -> Option<Signature> {
    let function = match name {
        "abs" => Function::Abs,
        "round" => Function::Round,
        "trunc" => Function::Trunc,
        "ceil" | "ceiling" => Function::Ceil,
        "floor" => Function::Floor,
        "sign" => Function::Sign,
        _ => return None,
    };
    let ty = number(given, function != Function::Abs)?;
    (given.len() == 1).then(|| Signature {
        function,
        args: vec![ty],
        result: ty,
    })
}

/// The numeric type that a function of one number works in; `wide`: integers go to double precision.
fn number(given: &[Option<ColumnType>], wide: bool) -> Option<ColumnType> {
    let [given] = given else { return None };
    match given {
        None => Some(ColumnType::Float8),
        Some(t) if is_integer(*t) => Some(if wide { ColumnType::Float8 } else { *t }),
        Some(ColumnType::Float4) if wide => Some(ColumnType::Float8),
        Some(t @ (ColumnType::Float4 | ColumnType::Float8 | ColumnType::Numeric(_))) => Some(base_type(*t)),
        Some(_) => None,
    }
}

/// Evaluates a call.
///
/// # Errors
/// An argument cannot be computed, or the function refuses its arguments, as PostgreSQL's does.
pub fn call(call: &Call, env: &Env<'_>) -> Result<Datum> {
    let args: Vec<Datum> = call.args.iter().map(|a| a.eval(env)).collect::<Result<_>>()?;
    if call.function.is_strict() && args.iter().any(Datum::is_null) {
        return Ok(Datum::Null);
    }
    match call.function {
        Function::Greatest | Function::Least => extreme(call.function == Function::Greatest, args),
        Function::NullIf => null_if(args),
        Function::SetConfig => set_config(args, env),
        function if function.uses_sequences() => sequence(function, &args, env),
        function => match args.first() {
            None => session(function, &args, env),
            Some(Datum::Text(first)) if !matches!(function, Function::CurrentSetting) => {
                text(function, first, &args[1..])
            }
            Some(Datum::Bytes(bytes)) => Ok(Datum::Int4(bytes.len() as i32)),
            _ if matches!(function, Function::CurrentSetting | Function::Sleep | Function::Chr) => {
                session(function, &args, env)
            }
            _ if function == Function::Concat => text(function, "", &args),
            _ => math(function, &args),
        },
    }
}

fn session(function: Function, args: &[Datum], env: &Env<'_>) -> Result<Datum> {
    let session = env.session;
    Ok(match function {
        Function::Now => Datum::TimestampTz(session.transaction_time),
        Function::StatementTimestamp => Datum::TimestampTz(session.statement_time),
        Function::ClockTimestamp => Datum::TimestampTz(wall_clock()),
        Function::CurrentDate => Datum::Date(session.zone().to_local(session.transaction_time).div_euclid(DAY) as i32),
        Function::LocalTimestamp => Datum::Timestamp(session.zone().to_local(session.transaction_time)),
        Function::Pi => Datum::Float8(std::f64::consts::PI),
        Function::Random => Datum::Float8((session.next_random() >> 11) as f64 / (1u64 << 53) as f64),
        Function::Version => Datum::Text(format!(
            "PostgreSQL {} on {}",
            settings::SERVER_VERSION,
            std::env::consts::ARCH
        )),
        Function::CurrentSchema => Datum::Text("public".into()),
        Function::CurrentUser => Datum::Text(session.user.clone()),
        Function::CurrentDatabase => Datum::Text(session.database.clone()),
        Function::BackendPid => Datum::Int4(session.pid),
        Function::IsInRecovery => Datum::Bool(session.settings.is_on("in_hot_standby")),
        Function::CurrentSetting => current_setting(args, env)?,
        Function::Chr => chr(&args[0])?,
        Function::Sleep => {
            sleep(&args[0], env)?;
            Datum::Text(String::new())
        }
        _ => return Err(unexpected()),
    })
}

fn current_setting(args: &[Datum], env: &Env<'_>) -> Result<Datum> {
    let Some(Datum::Text(name)) = args.first() else {
        return Err(unexpected());
    };
    match env.session.setting(name) {
        Some(value) => Ok(Datum::Text(value)),
        None if args.get(1) == Some(&Datum::Bool(true)) => Ok(Datum::Null),
        None => Err(settings::unknown(name)),
    }
}

/// As SET (with TRUE, SET LOCAL), a value of NULL as RESET; the answer is what SHOW gives then.
fn set_config(args: Vec<Datum>, env: &Env<'_>) -> Result<Datum> {
    let mut args = args.into_iter();
    let name = match args.next() {
        Some(Datum::Text(name)) => name,
        Some(Datum::Null) => return Err(SqlError::new(code::NULL_NOT_ALLOWED, "SET requires parameter name")),
        _ => return Err(unexpected()),
    };
    let value = match args.next() {
        Some(Datum::Text(value)) => Some(value),
        Some(Datum::Null) => None,
        _ => return Err(unexpected()),
    };
    let local = args.next() == Some(Datum::Bool(true));
    env.session.set_config(&name, value.as_deref(), local).map(Datum::Text)
}

fn chr(code_point: &Datum) -> Result<Datum> {
    let Datum::Int4(n) = code_point else {
        return Err(unexpected());
    };
    let character = u32::try_from(*n).ok().filter(|n| *n != 0).and_then(char::from_u32);
    let invalid = || {
        SqlError::new(
            code::PROGRAM_LIMIT,
            format!("requested character not valid for encoding: {n}"),
        )
    };
    character.map(|c| Datum::Text(c.to_string())).ok_or_else(invalid)
}

/// Sleeps in short steps so that a cancel is noticed.
fn sleep(seconds: &Datum, env: &Env<'_>) -> Result<()> {
    let Datum::Float8(seconds) = seconds else {
        return Err(unexpected());
    };
    let until = wall_clock().saturating_add((seconds.max(0.0) * 1e6) as i64);
    loop {
        let left = until - wall_clock();
        if left <= 0 {
            return Ok(());
        }
        env.session.check_cancel()?;
        rt::sleep(Nanos::from_micros(left.min(10_000) as u64));
    }
}

fn sequence(function: Function, args: &[Datum], env: &Env<'_>) -> Result<Datum> {
    let session = env.session;
    let id = match args.first() {
        Some(Datum::Int8(id)) => *id as u32,
        _ => session
            .last_sequence
            .get()
            .ok_or_else(|| SqlError::new(code::OBJECT_NOT_IN_STATE, "lastval is not yet defined in this session"))?,
    };
    let value = match function {
        Function::CurrVal | Function::LastVal => {
            let known = session.last_values.borrow().get(&id).copied();
            let missing = || {
                SqlError::new(
                    code::OBJECT_NOT_IN_STATE,
                    "currval of this sequence is not yet defined in this session",
                )
            };
            return Ok(Datum::Int8(known.ok_or_else(missing)?));
        }
        Function::NextVal => with_tx(env, |tx| Ok(tx.nextval(id)?))?,
        _ => {
            let Some(Datum::Int8(value)) = args.get(1) else {
                return Err(unexpected());
            };
            let called = args.get(2) != Some(&Datum::Bool(false));
            with_tx(env, |tx| Ok(tx.setval(id, *value, called)?))?;
            *value
        }
    };
    session.last_values.borrow_mut().insert(id, value);
    session.last_sequence.set(Some(id));
    Ok(Datum::Int8(value))
}

fn with_tx<T>(env: &Env<'_>, f: impl FnOnce(&mut cenote_engine::Tx) -> Result<T>) -> Result<T> {
    let Some(cell) = env.sequences else {
        return Err(SqlError::unsupported("nextval or setval in this place"));
    };
    let mut tx = cell.try_borrow_mut().map_err(|_| unexpected())?;
    f(&mut tx)
}

fn text(function: Function, first: &str, rest: &[Datum]) -> Result<Datum> {
    let string = |at: usize| match rest.get(at) {
        Some(Datum::Text(s)) => s.as_str(),
        _ => "",
    };
    let int = |at: usize| match rest.get(at) {
        Some(Datum::Int4(n)) => Some(i64::from(*n)),
        _ => None,
    };
    let count = || first.chars().count() as i64;
    let set = |default: &str| {
        if rest.is_empty() {
            default.to_string()
        } else {
            string(0).to_string()
        }
    };
    Ok(match function {
        Function::Length => Datum::Int4(count() as i32),
        Function::OctetLength => Datum::Int4(first.len() as i32),
        Function::BitLength => Datum::Int4(first.len() as i32 * 8),
        Function::Lower => Datum::Text(first.to_lowercase()),
        Function::Upper => Datum::Text(first.to_uppercase()),
        Function::Substring => Datum::Text(substring(first, int(0).unwrap_or(1), int(1))?),
        Function::Left => Datum::Text(take_chars(first, 0, keep(int(0).unwrap_or(0), count()))),
        Function::Right => Datum::Text(take_chars(first, count() - keep(int(0).unwrap_or(0), count()), count())),
        Function::TrimBoth => Datum::Text(first.trim_matches(|c| set(" ").contains(c)).to_string()),
        Function::TrimLeft => Datum::Text(first.trim_start_matches(|c| set(" ").contains(c)).to_string()),
        Function::TrimRight => Datum::Text(first.trim_end_matches(|c| set(" ").contains(c)).to_string()),
        Function::Concat | Function::Append => {
            let mut out = first.to_string();
            rest.iter()
                .for_each(|d| out.push_str(&datum_text(&d.as_ref(), &Zone::Utc)));
            Datum::Text(out)
        }
        Function::Replace if string(0).is_empty() => Datum::Text(first.to_string()),
        Function::Replace => Datum::Text(first.replace(string(0), string(1))),
        Function::Position => Datum::Int4(
            first
                .find(string(0))
                .map_or(0, |at| first[..at].chars().count() as i32 + 1),
        ),
        Function::Repeat => Datum::Text(repeat(first, int(0).unwrap_or(0))?),
        Function::Reverse => Datum::Text(first.chars().rev().collect()),
        Function::PadLeft => {
            let fill = padding(first, int(0).unwrap_or(0), rest.get(1).map_or(" ", |_| string(1)))?;
            Datum::Text(fill + &take_chars(first, 0, int(0).unwrap_or(0)))
        }
        Function::PadRight => {
            let fill = padding(first, int(0).unwrap_or(0), rest.get(1).map_or(" ", |_| string(1)))?;
            Datum::Text(take_chars(first, 0, int(0).unwrap_or(0)) + &fill)
        }
        Function::Ascii => Datum::Int4(first.chars().next().map_or(0, |c| c as i32)),
        Function::StartsWith => Datum::Bool(first.starts_with(string(0))),
        Function::SplitPart => Datum::Text(split_part(first, string(0), int(1).unwrap_or(1))?),
        Function::Md5 => Datum::Text(super::md5::hex_digest(first.as_bytes())),
        _ => return Err(unexpected()),
    })
}

/// How many characters `left` and `right` keep: a negative count means all but so many.
fn keep(wanted: i64, count: i64) -> i64 {
    if wanted >= 0 {
        wanted.min(count)
    } else {
        (count + wanted).max(0)
    }
}

fn take_chars(text: &str, from: i64, to: i64) -> String {
    text.chars()
        .skip(from.max(0) as usize)
        .take((to - from.max(0)).max(0) as usize)
        .collect()
}

fn substring(text: &str, start: i64, length: Option<i64>) -> Result<String> {
    let end = match length {
        Some(n) if n < 0 => {
            return Err(SqlError::new(
                code::SUBSTRING_ERROR,
                "negative substring length not allowed",
            ));
        }
        Some(n) => start + n,
        None => i64::MAX,
    };
    Ok(take_chars(text, (start - 1).max(0), (end - 1).max(0)))
}

fn repeat(text: &str, times: i64) -> Result<String> {
    let times = times.max(0) as usize;
    if text.len().saturating_mul(times) > 1 << 29 {
        return Err(SqlError::new(code::PROGRAM_LIMIT, "requested length too large"));
    }
    Ok(text.repeat(times))
}

fn padding(text: &str, width: i64, fill: &str) -> Result<String> {
    if width > 1 << 28 {
        return Err(SqlError::new(code::PROGRAM_LIMIT, "requested length too large"));
    }
    let missing = (width - text.chars().count() as i64).max(0) as usize;
    Ok(fill
        .chars()
        .cycle()
        .take(if fill.is_empty() { 0 } else { missing })
        .collect())
}

fn split_part(text: &str, separator: &str, field: i64) -> Result<String> {
    if field == 0 {
        return Err(SqlError::new(code::INVALID_ARGUMENT, "field position must not be zero"));
    }
    let parts: Vec<&str> = if separator.is_empty() {
        vec![text]
    } else {
        text.split(separator).collect()
    };
    let at = if field > 0 {
        field - 1
    } else {
        parts.len() as i64 + field
    };
    Ok(usize::try_from(at)
        .ok()
        .and_then(|i| parts.get(i))
        .unwrap_or(&"")
        .to_string())
}

fn math(function: Function, args: &[Datum]) -> Result<Datum> {
    let digits = match args.get(1) {
        Some(Datum::Int4(n)) => *n,
        _ => 0,
    };
    Ok(match (function, &args[0]) {
        (Function::Abs, Datum::Int2(v)) => {
            Datum::Int2(v.checked_abs().ok_or_else(|| super::arithmetic::overflow("smallint"))?)
        }
        (Function::Abs, Datum::Int4(v)) => {
            Datum::Int4(v.checked_abs().ok_or_else(|| super::arithmetic::overflow("integer"))?)
        }
        (Function::Abs, Datum::Int8(v)) => {
            Datum::Int8(v.checked_abs().ok_or_else(|| super::arithmetic::overflow("bigint"))?)
        }
        (Function::Abs, Datum::Float4(v)) => Datum::Float4(v.abs()),
        (_, Datum::Numeric(v)) => Datum::Numeric(match function {
            Function::Abs => numeric::abs(v),
            Function::Round | Function::RoundTo => numeric::round(v, digits)?,
            Function::Trunc | Function::TruncTo => numeric::trunc(v, digits)?,
            Function::Ceil => numeric::ceil(v)?,
            Function::Floor => numeric::floor(v)?,
            Function::Sign => cenote_engine::Numeric::from_i128(i128::from(numeric::signum(v))),
            _ => return Err(unexpected()),
        }),
        (_, Datum::Float8(v)) => Datum::Float8(float_math(function, *v, args.get(1))?),
        _ => return Err(unexpected()),
    })
}

fn float_math(function: Function, v: f64, second: Option<&Datum>) -> Result<f64> {
    let result = match function {
        Function::Abs => v.abs(),
        Function::Round => v.round_ties_even(),
        Function::Trunc => v.trunc(),
        Function::Ceil => v.ceil(),
        Function::Floor => v.floor(),
        Function::Sign => {
            if v == 0.0 || v.is_nan() {
                v
            } else {
                v.signum()
            }
        }
        Function::Sqrt if v < 0.0 => {
            return Err(SqlError::new(
                code::INVALID_POWER,
                "cannot take square root of a negative number",
            ));
        }
        Function::Sqrt => v.sqrt(),
        Function::Exp => v.exp(),
        Function::Ln | Function::Log10 if v == 0.0 => {
            return Err(SqlError::new(code::INVALID_LOGARITHM, "cannot take logarithm of zero"));
        }
        Function::Ln | Function::Log10 if v < 0.0 => {
            return Err(SqlError::new(
                code::INVALID_LOGARITHM,
                "cannot take logarithm of a negative number",
            ));
        }
        Function::Ln => v.ln(),
        Function::Log10 => v.log10(),
        Function::Power => match second {
            Some(Datum::Float8(e)) if v == 0.0 && *e < 0.0 => {
                return Err(SqlError::new(
                    code::INVALID_POWER,
                    "zero raised to a negative power is undefined",
                ));
            }
            Some(Datum::Float8(e)) if v < 0.0 && e.fract() != 0.0 => {
                return Err(SqlError::new(
                    code::INVALID_POWER,
                    "a negative number raised to a non-integer power yields a complex result",
                ));
            }
            Some(Datum::Float8(e)) => v.powf(*e),
            _ => return Err(unexpected()),
        },
        _ => return Err(unexpected()),
    };
    if result.is_infinite() && v.is_finite() {
        return Err(SqlError::new(code::OUT_OF_RANGE, "value out of range: overflow"));
    }
    Ok(result)
}

fn extreme(greatest: bool, args: Vec<Datum>) -> Result<Datum> {
    let mut best = Datum::Null;
    for value in args.into_iter().filter(|v| !v.is_null()) {
        let ordering = compare(&value.as_ref(), &best.as_ref(), false)?;
        if ordering.is_none_or(|o| if greatest { o.is_gt() } else { o.is_lt() }) {
            best = value;
        }
    }
    Ok(best)
}

fn null_if(args: Vec<Datum>) -> Result<Datum> {
    let mut args = args.into_iter();
    let (first, second) = (args.next().unwrap_or(Datum::Null), args.next().unwrap_or(Datum::Null));
    let equal = compare(&first.as_ref(), &second.as_ref(), false)?.is_some_and(|o| o.is_eq());
    Ok(if equal { Datum::Null } else { first })
}

#[cold]
fn unexpected() -> SqlError {
    SqlError::internal("function called with values of the wrong type")
}
