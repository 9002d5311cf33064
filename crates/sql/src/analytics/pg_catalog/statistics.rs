//! The rows of `pg_stats`.

use super::{Cell, Row, Snapshot, row};
use crate::types::text::datum_text;
use crate::types::zone::Zone;
use cenote_engine::{ColumnStatistics, Datum, Table};

/// A row for each column that was analyzed.
pub(crate) fn of(snapshot: &Snapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    for table in snapshot.scope.definitions.tables() {
        let Some(statistics) = snapshot.engine.statistics(table) else {
            continue;
        };
        let columns = statistics.columns.iter().enumerate();
        rows.extend(columns.filter_map(|(at, column)| Some(column_row(table, at, column.as_ref()?))));
    }
    rows
}

fn column_row(table: &Table, at: usize, column: &ColumnStatistics) -> Row {
    let (common, shares): (Vec<&Datum>, Vec<f64>) = column.common.iter().map(|(value, share)| (value, *share)).unzip();
    let known = |is_known: bool, cell: Cell| if is_known { cell } else { Cell::Null };
    let has_common = !common.is_empty();
    row! {
        "schemaname" => "public", "tablename" => table.name.as_str(), "attname" => table.columns[at].name.as_str(),
        "null_frac" => column.null_fraction, "avg_width" => column.width.round() as i64,
        "n_distinct" => column.distinct,
        "most_common_vals" => known(has_common, array(common.into_iter()).into()),
        "most_common_freqs" => known(has_common, Cell::Floats(shares)),
        "histogram_bounds" => known(!column.bounds.is_empty(), array(column.bounds.iter()).into()),
        "correlation" => column.correlation.map_or(Cell::Null, Cell::Float),
    }
}

/// An array's text.
fn array<'v>(values: impl Iterator<Item = &'v Datum>) -> String {
    let items: Vec<String> = values
        .map(|value| quoted(&datum_text(&value.as_ref(), &Zone::default())))
        .collect();
    format!("{{{}}}", items.join(","))
}

/// An item, in quotes where it could be taken for something else.
fn quoted(item: &str) -> String {
    let is_special = |c: char| c.is_whitespace() || "{},\"\\".contains(c);
    if !item.is_empty() && !item.contains(is_special) && !item.eq_ignore_ascii_case("null") {
        return item.to_string();
    }
    format!("\"{}\"", item.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_quoted_as_in_arrays() {
        let texts = ["a", "", "b c", "NULL", "q\"\\", "{x,y}"].map(|text| Datum::Text(text.into()));
        assert_eq!(array(texts.iter()), r#"{a,"","b c","NULL","q\"\\","{x,y}"}"#);
    }
}
