//! Statements as they are parsed: what all other parts of `sql` know of them.

use cenote_engine::Isolation;
use sqlparser::ast::{self, DataType, Ident, ObjectName, Query};
use std::sync::Arc;

/// A statement with the text that it came in (positions of errors refer to it).
#[derive(Debug)]
pub struct Parsed {
    /// The statement.
    pub statement: Statement,
    /// The whole text that was sent.
    pub text: Arc<str>,
}

/// A statement, by the part of `sql` that carries it out.
#[derive(Debug)]
pub enum Statement {
    /// Nothing.
    Empty,
    /// SELECT, VALUES, WITH.
    Query(Box<Query>),
    /// INSERT.
    Insert(Box<ast::Insert>),
    /// UPDATE.
    Update(Box<ast::Update>),
    /// DELETE.
    Delete(Box<ast::Delete>),
    /// Definitions.
    Define(Box<ast::Statement>),
    /// Session and transaction commands.
    Utility(Utility),
    /// COPY.
    Copy(Box<Copy>),
    /// EXPLAIN.
    Explain {
        options: ExplainOptions,
        inner: Box<Statement>,
    },
}

/// Options of EXPLAIN.
#[derive(Debug, Clone, Copy)]
pub struct ExplainOptions {
    /// Run the statement, and say what it did.
    pub analyze: bool,
    /// Count its accesses to the buffer's memory.
    pub memory: bool,
    /// Say what it logs: nothing is said beyond what is shown, but it is asked for.
    pub wal: bool,
    /// Say when its nodes ran: as [`ExplainOptions::wal`].
    pub timing: bool,
    /// Show the estimates.
    pub costs: bool,
    /// As JSON.
    pub json: bool,
}

impl ExplainOptions {
    /// An option of this that only ANALYZE can answer, where it is not given.
    pub fn lacks_analyze(&self) -> Option<&'static str> {
        let needing = [("WAL", self.wal), ("TIMING", self.timing), ("MEMORY", self.memory)];
        let found = needing.into_iter().find(|(_, given)| *given && !self.analyze);
        found.map(|(name, _)| name)
    }
}

impl Default for ExplainOptions {
    fn default() -> Self {
        ExplainOptions {
            analyze: false,
            memory: false,
            wal: false,
            timing: false,
            costs: true,
            json: false,
        }
    }
}

/// A table that VACUUM or ANALYZE names, with the columns that are meant; none: all.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Maintained {
    pub table: ObjectName,
    pub columns: Vec<String>,
}

/// A command that reads and writes no rows.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Utility {
    /// With its command tag.
    Begin(&'static str, Modes),
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    Savepoint(String),
    Release(String),
    RollbackTo(String),
    SetTransaction(Modes),
    SetSessionTransaction(Modes),
    /// None: to the default.
    Set {
        name: String,
        value: Option<String>,
        local: bool,
    },
    Show(String),
    ShowAll,
    Reset(String),
    ResetAll,
    /// DISCARD ALL; else only one kind of thing.
    Discard {
        all: bool,
        plans: bool,
        sequences: bool,
    },
    /// None: all.
    Deallocate(Option<String>),
    /// A portal; None: all.
    Close(Option<String>),
    /// Cenote has no LISTEN, so no session listens.
    Unlisten,
    Prepare {
        name: String,
        types: Vec<DataType>,
        statement: Box<Statement>,
    },
    Execute {
        name: String,
        args: Vec<ast::Expr>,
    },
    Vacuum {
        tables: Vec<Maintained>,
        analyze: bool,
        verbose: bool,
    },
    Analyze {
        tables: Vec<Maintained>,
        verbose: bool,
    },
    Checkpoint,
    Truncate {
        tables: Vec<ObjectName>,
        restart: bool,
    },
    LockTable,
    CreateSequence {
        name: ObjectName,
        if_not_exists: bool,
        options: SequenceOptions,
    },
}

/// CREATE SEQUENCE; None: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceOptions {
    /// INCREMENT BY.
    pub increment: Option<i64>,
    /// START WITH.
    pub start: Option<i64>,
    /// MINVALUE.
    pub min: Option<i64>,
    /// MAXVALUE.
    pub max: Option<i64>,
    /// CYCLE.
    pub cycle: bool,
}

/// What BEGIN and SET TRANSACTION say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// ISOLATION LEVEL.
    pub isolation: Option<Isolation>,
    /// READ ONLY, READ WRITE.
    pub read_only: Option<bool>,
}

/// COPY.
#[derive(Debug)]
pub struct Copy {
    /// Table or query.
    pub source: CopySource,
    /// FROM STDIN (else TO STDOUT).
    pub from: bool,
    /// How the data is written.
    pub format: CopyFormat,
}

/// What is copied.
#[derive(Debug)]
pub enum CopySource {
    /// A table and columns (none: all).
    Table(ObjectName, Vec<Ident>),
    /// A query.
    Query(Box<Query>),
}

/// How COPY data is written.
#[derive(Debug, Clone)]
pub struct CopyFormat {
    /// csv (else text).
    pub csv: bool,
    /// Between columns.
    pub delimiter: u8,
    /// Stands for NULL.
    pub null: String,
    /// A line of column names comes first.
    pub header: bool,
    /// Those names have to be the columns'.
    pub header_match: bool,
    /// csv: around values.
    pub quote: u8,
    /// csv: before a quote in a value.
    pub escape: u8,
    /// csv: columns quoted even where they need not be; None: all.
    pub force_quote: Option<Vec<String>>,
}
