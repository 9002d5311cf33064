//! The engine's errors as PostgreSQL reports them.

use crate::error::{SqlError, code};
use crate::types::text::datum_text;
use crate::types::zone::Zone;

impl From<cenote_engine::Error> for SqlError {
    #[cold]
    fn from(error: cenote_engine::Error) -> Self {
        use cenote_engine::Error as E;
        let report = SqlError::new(error.sqlstate(), error.to_string());
        match error {
            E::UniqueViolation {
                table,
                index,
                columns,
                values,
            } => {
                let shown: Vec<String> = values
                    .iter()
                    .map(|v| {
                        if v.is_null() {
                            "null".to_string()
                        } else {
                            datum_text(&v.as_ref(), &Zone::Utc)
                        }
                    })
                    .collect();
                let detail = format!("Key ({})=({}) already exists.", columns.join(", "), shown.join(", "));
                report.with_detail(detail).on_table(table).on_constraint(index)
            }
            E::StaleTable(_) => report.stale(),
            E::NotNull { table, column } => report.on_table(table).on_column(column),
            E::Deadlock(detail) => {
                let mut plain = SqlError::new(code::DEADLOCK, "deadlock detected");
                if !detail.is_empty() {
                    plain = plain.with_detail(detail);
                }
                plain.with_hint("Run the transaction again.")
            }
            _ => report,
        }
    }
}
