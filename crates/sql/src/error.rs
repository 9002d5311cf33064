//! Errors as PostgreSQL reports them: a five-letter SQLSTATE, a message, and where it helps a detail, a hint and the
//! character of the statement at which the error was found.

use std::fmt;

/// Result of everything that a statement can fail in.
pub type Result<T> = std::result::Result<T, SqlError>;

/// What a client is told about a failed statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError(Box<Report>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    code: &'static str,
    severity: Severity,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    position: Option<u32>,
    context: Option<String>,
    names: Names,
    stale: bool,
}

/// Names of the objects that an error is about, as drivers read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Table whose row or definition failed.
    pub table: Option<String>,
    /// Column that failed.
    pub column: Option<String>,
    /// Constraint that failed.
    pub constraint: Option<String>,
}

/// How far an error reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The session must end.
    Fatal,
    /// Nothing failed: something that the user may want to know.
    Warning,
    /// As warning, less loud.
    Notice,
    /// What the user has asked to be told.
    Info,
}

impl Severity {
    /// The word of the protocol.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Warning => "WARNING",
            Severity::Notice => "NOTICE",
            Severity::Info => "INFO",
        }
    }
}

impl SqlError {
    /// An error with SQLSTATE `code` (one of [`code`]).
    #[cold]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        SqlError(Box::new(Report {
            code,
            severity: Severity::Error,
            message: message.into(),
            detail: None,
            hint: None,
            position: None,
            context: None,
            names: Names::default(),
            stale: false,
        }))
    }

    /// A notice or warning, which travels the same way.
    pub fn notice(severity: Severity, code: &'static str, message: impl Into<String>) -> Self {
        let mut report = Self::new(code, message);
        report.0.severity = severity;
        report
    }

    /// `0A000`: PostgreSQL can, Cenote cannot.
    #[cold]
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(code::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }

    /// `0A000`: Cenote does not keep the promise of SERIALIZABLE.
    #[cold]
    pub fn serializable() -> Self {
        Self::unsupported("isolation level SERIALIZABLE")
            .with_hint("Use REPEATABLE READ, which gives a snapshot to the whole transaction.")
    }

    /// `XX000`: an invariant of ours does not hold.
    #[cold]
    pub fn internal(what: impl Into<String>) -> Self {
        Self::new(code::INTERNAL_ERROR, what)
    }

    /// Adds the DETAIL line.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds the HINT line.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the CONTEXT line.
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.0.context = Some(context.into());
        self
    }

    /// Adds the place: characters from the start of the statement, counted from 1. The first one given stays.
    pub fn at(mut self, position: u32) -> Self {
        if position > 0 && self.0.position.is_none() {
            self.0.position = Some(position);
        }
        self
    }

    /// Names the table.
    pub fn on_table(mut self, table: impl Into<String>) -> Self {
        self.0.names.table = Some(table.into());
        self
    }

    /// Names the column.
    pub fn on_column(mut self, column: impl Into<String>) -> Self {
        self.0.names.column = Some(column.into());
        self
    }

    /// Names the constraint.
    pub fn on_constraint(mut self, constraint: impl Into<String>) -> Self {
        self.0.names.constraint = Some(constraint.into());
        self
    }

    /// Makes it end the session.
    pub fn fatal(mut self) -> Self {
        self.0.severity = Severity::Fatal;
        self
    }

    /// Marks that a table was redefined between planning and running.
    pub(crate) fn stale(mut self) -> Self {
        self.0.stale = true;
        self
    }

    /// Whether a table was redefined between planning and running: plan again.
    pub fn is_stale(&self) -> bool {
        self.0.stale
    }
    /// SQLSTATE, five characters.
    pub fn code(&self) -> &'static str {
        self.0.code
    }
    /// How far it reaches.
    pub fn severity(&self) -> Severity {
        self.0.severity
    }
    /// The message line.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The DETAIL line.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
    /// The HINT line.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
    /// The CONTEXT line.
    pub fn context(&self) -> Option<&str> {
        self.0.context.as_deref()
    }
    /// Characters from the start of the statement, counted from 1.
    pub fn position(&self) -> Option<u32> {
        self.0.position
    }
    /// Objects concerned.
    pub fn names(&self) -> &Names {
        &self.0.names
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.0.severity.word(), self.0.message, self.0.code)?;
        if let Some(detail) = &self.0.detail {
            write!(f, " DETAIL: {detail}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}

/// The SQLSTATEs that `sql` raises by itself.
#[allow(missing_docs)]
pub mod code {
    pub const SUCCESS: &str = "00000";
    pub const SNAPSHOT_TOO_OLD: &str = "72000";
    pub const WARNING: &str = "01000";
    pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub const PROTOCOL_VIOLATION: &str = "08P01";
    pub const CARDINALITY_VIOLATION: &str = "21000";
    pub const STRING_TOO_LONG: &str = "22001";
    pub const OUT_OF_RANGE: &str = "22003";
    pub const NULL_NOT_ALLOWED: &str = "22004";
    pub const DATETIME_OVERFLOW: &str = "22008";
    pub const INVALID_DATETIME: &str = "22007";
    pub const SUBSTRING_ERROR: &str = "22011";
    pub const DIVISION_BY_ZERO: &str = "22012";
    pub const INVALID_FRAME_OFFSET: &str = "22013";
    pub const INVALID_NTILE: &str = "22014";
    pub const INVALID_NTH_VALUE: &str = "22016";
    pub const INVALID_ARGUMENT: &str = "22023";
    pub const INVALID_ESCAPE: &str = "22025";
    pub const INVALID_LIMIT: &str = "2201W";
    pub const INVALID_OFFSET: &str = "2201X";
    pub const INVALID_LOGARITHM: &str = "2201E";
    pub const INVALID_POWER: &str = "2201F";
    pub const BAD_COPY_FORMAT: &str = "22P04";
    pub const ARRAY_SUBSCRIPT: &str = "2202E";
    pub const INVALID_TEXT: &str = "22P02";
    pub const INVALID_BINARY: &str = "22P03";
    pub const BAD_ENCODING: &str = "22021";
    pub const NOT_NULL_VIOLATION: &str = "23502";
    pub const UNIQUE_VIOLATION: &str = "23505";
    pub const ACTIVE_TRANSACTION: &str = "25001";
    pub const READ_ONLY_TRANSACTION: &str = "25006";
    pub const NO_ACTIVE_TRANSACTION: &str = "25P01";
    pub const IN_FAILED_TRANSACTION: &str = "25P02";
    pub const INVALID_STATEMENT_NAME: &str = "26000";
    pub const INVALID_CURSOR_NAME: &str = "34000";
    pub const INVALID_SAVEPOINT: &str = "3B001";
    pub const INVALID_SCHEMA: &str = "3F000";
    pub const SERIALIZATION_FAILURE: &str = "40001";
    pub const DEADLOCK: &str = "40P01";
    pub const SYNTAX_ERROR: &str = "42601";
    pub const INVALID_COLUMN_REFERENCE: &str = "42P10";
    pub const GROUPING_ERROR: &str = "42803";
    pub const CANNOT_COERCE: &str = "42846";
    pub const DATATYPE_MISMATCH: &str = "42804";
    pub const UNDEFINED_COLUMN: &str = "42703";
    pub const UNDEFINED_FUNCTION: &str = "42883";
    pub const UNDEFINED_TABLE: &str = "42P01";
    pub const UNDEFINED_PARAMETER: &str = "42P02";
    pub const UNDEFINED_OBJECT: &str = "42704";
    pub const WINDOWING_ERROR: &str = "42P20";
    pub const WRONG_OBJECT_TYPE: &str = "42809";
    pub const AMBIGUOUS_COLUMN: &str = "42702";
    pub const AMBIGUOUS_FUNCTION: &str = "42725";
    pub const DUPLICATE_COLUMN: &str = "42701";
    pub const DUPLICATE_ALIAS: &str = "42712";
    pub const DUPLICATE_TABLE: &str = "42P07";
    pub const DUPLICATE_CURSOR: &str = "42P03";
    pub const DUPLICATE_STATEMENT: &str = "42P05";
    pub const INVALID_TABLE_DEFINITION: &str = "42P16";
    pub const TOO_MANY_COLUMNS: &str = "54011";
    pub const PROGRAM_LIMIT: &str = "54000";
    pub const OBJECT_NOT_IN_STATE: &str = "55000";
    pub const CANNOT_CHANGE_PARAMETER: &str = "55P02";
    pub const INSUFFICIENT_RESOURCES: &str = "53000";
    pub const OUT_OF_MEMORY: &str = "53200";
    pub const CONFIGURATION_LIMIT: &str = "53400";
    pub const QUERY_CANCELED: &str = "57014";
    pub const IDLE_IN_TRANSACTION_TIMEOUT: &str = "25P03";
    pub const IDLE_SESSION_TIMEOUT: &str = "57P05";
    pub const IO_ERROR: &str = "58030";
    pub const ADMIN_SHUTDOWN: &str = "57P01";
    pub const INTERNAL_ERROR: &str = "XX000";
}
