//! ORDER BY over gathered rows.

use crate::expr::{compare, compare_padded};
use crate::plan::select::SortKey;
use cenote_engine::Datum;
use std::cmp::Ordering;

/// Sorts rows by the keys; equal rows keep their order.
pub(super) fn sort(rows: &mut Vec<Vec<Datum>>, keys: &[SortKey]) {
    if !sort_texts(rows, keys) {
        rows.sort_by(|a, b| compare_keys(a, b, keys));
    }
}

/// By one text column without NULLs, as most statements order: only the texts are looked at. False where that is not
/// the case.
fn sort_texts(rows: &mut Vec<Vec<Datum>>, keys: &[SortKey]) -> bool {
    let [key] = keys else { return false };
    let mut texts: Vec<(&[u8], usize)> = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let Datum::Text(text) = &row[key.at] else { return false };
        texts.push((text.as_bytes(), i));
    }
    let order = |a: &[u8], b: &[u8]| if key.trim { compare_padded(a, b) } else { a.cmp(b) };
    texts.sort_by(|a, b| {
        if key.descending {
            order(b.0, a.0)
        } else {
            order(a.0, b.0)
        }
    });
    let places: Vec<usize> = texts.into_iter().map(|(_, i)| i).collect();
    *rows = places.into_iter().map(|i| std::mem::take(&mut rows[i])).collect();
    true
}

/// The order of two rows by the keys.
pub(super) fn compare_keys(a: &[Datum], b: &[Datum], keys: &[SortKey]) -> Ordering {
    for key in keys {
        let ordering = order_values(&a[key.at], &b[key.at], key);
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

fn order_values(a: &Datum, b: &Datum, key: &SortKey) -> Ordering {
    match (a.is_null(), b.is_null()) {
        (true, true) => Ordering::Equal,
        (true, false) => {
            if key.nulls_first {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (false, true) => {
            if key.nulls_first {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        (false, false) => {
            let ordering = compare(&a.as_ref(), &b.as_ref(), key.trim)
                .ok()
                .flatten()
                .unwrap_or(Ordering::Equal);
            if key.descending { ordering.reverse() } else { ordering }
        }
    }
}
