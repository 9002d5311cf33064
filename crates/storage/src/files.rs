//! Errors of files, with the path and what was being done.

use std::path::Path;

use cenote_base::Result;
use cenote_base::error::IoContext;

/// The result of an operation on the file at `path`; `what` is the operation in the present participle.
pub(crate) fn doing<T>(result: std::io::Result<T>, what: &str, path: &Path) -> Result<T> {
    result.doing(|| format!("{what} {}", path.display()))
}
