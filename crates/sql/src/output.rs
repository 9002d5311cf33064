//! Where a statement's answer goes: the server's side of a session. Rows are encoded straight into the socket's buffer.

use crate::error::{Result, SqlError};
use bytes::BytesMut;
use std::sync::Arc;

/// Text (0) or binary (1), as the protocol numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i16)]
pub enum Format {
    /// As people read it.
    #[default]
    Text = 0,
    /// Network byte order.
    Binary = 1,
}

/// A column of a result, as RowDescription tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Column label.
    pub name: Arc<str>,
    /// Table it comes from, 0 when computed.
    pub table_oid: u32,
    /// Number of the column in that table from 1, 0 when computed.
    pub column: i16,
    /// PostgreSQL's type id.
    pub type_oid: u32,
    /// Bytes of the type, -1 when they vary.
    pub type_len: i16,
    /// Length of varchar(n), precision and scale of numeric(p,s), else -1.
    pub type_mod: i32,
}

/// The formats asked for: none means text for all, one is for all, else one a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats<'a>(pub &'a [Format]);

impl Formats<'_> {
    /// Format of column `i`.
    pub fn of(self, i: usize) -> Format {
        match self.0 {
            [] => Format::Text,
            [one] => *one,
            many => many.get(i).copied().unwrap_or_default(),
        }
    }
}

/// Receives what a session answers. An `Err` from any method means that the client is gone; the statement ends with it.
///
/// The session's duties: for each statement of [`crate::Session::simple`] that returns rows, `row_description`, then
/// `row`s, then one `complete`. [`crate::Session::execute`] gives `row`s and one `complete`, `portal_suspended` or
/// `empty_query`. Errors are not written here but returned.
pub trait Output {
    /// RowDescription.
    fn row_description(&mut self, fields: &[Field], formats: Formats<'_>) -> Result<()>;
    /// A DataRow. The implementer writes type and length, the count of `columns`, and calls `encode` once, which
    /// appends for each column its i32 length (-1 for null) and bytes; then patches the length. If `encode` fails, what
    /// was appended is cut off and the error handed back. The implementer flushes to the socket when its buffer is
    /// large.
    fn row(&mut self, columns: u16, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()>;
    /// CommandComplete.
    fn complete(&mut self, tag: &str) -> Result<()>;
    /// EmptyQueryResponse.
    fn empty_query(&mut self) -> Result<()>;
    /// PortalSuspended.
    fn portal_suspended(&mut self) -> Result<()>;
    /// ParameterDescription: type ids.
    fn parameter_description(&mut self, types: &[u32]) -> Result<()>;
    /// NoData.
    fn no_data(&mut self) -> Result<()>;
    /// NoticeResponse.
    fn notice(&mut self, notice: &SqlError) -> Result<()>;
    /// ParameterStatus: a setting that clients track has changed.
    fn parameter_status(&mut self, name: &str, value: &str) -> Result<()>;
    /// CopyOutResponse for `columns` columns, all in one format.
    fn copy_out(&mut self, format: Format, columns: u16) -> Result<()>;
    /// CopyData: `encode` appends its payload.
    fn copy_row(&mut self, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()>;
    /// CopyDone.
    fn copy_done(&mut self) -> Result<()>;
    /// CopyInResponse, then flush: the client sends data now, which goes to `Session::copy_data` and `copy_done`.
    fn copy_in(&mut self, format: Format, columns: u16) -> Result<()>;
}
