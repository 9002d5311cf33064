//! Statements: parse, plan, execute. PostgreSQL's dialect, types, error codes and encodings are the interface.
//!
//! The path of a statement: [`Session`] receives its text or a bound portal.

#[cfg(feature = "analytics")]
pub mod analytics;
mod bind;
mod database;
mod ddl;
mod engine_error;
mod env;
mod error;
mod exec;
mod expr;
mod hook;
mod names;
mod output;
mod parse;
mod plan;
mod session;
mod settings;
pub mod types;
mod watchdog;

pub use bind::Bind;
pub use database::Sql;
pub use error::{Names, Result, Severity, SqlError, code};
pub use hook::{Analytics, DEFAULT_QUERY_MEMORY, Description, ForeignQuery, Rows, Scope, SystemViews};
pub use output::{Field, Format, Formats, Output};
pub use session::{CARRIED, CancelHandle, LEFT, Session, SessionInfo};
pub use settings::{DATABASE_ID, SERVER_VERSION, SERVER_VERSION_NUM, Settings};
pub use types::zone::Zone;
