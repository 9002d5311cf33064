//! Tables that line up.

/// Lays out rows under a header: the first column to the left, numbers to the right.
pub fn lay_out(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    line(&mut out, &widths, header.iter().copied());
    out.push_str(&widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>().join("  "));
    out.push('\n');
    for row in rows {
        line(&mut out, &widths, row.iter().map(String::as_str));
    }
    out
}

fn line<'a>(out: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let cells: Vec<String> = cells
        .zip(widths)
        .enumerate()
        .map(|(i, (cell, width))| {
            if i == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        })
        .collect();
    out.push_str(cells.join("  ").trim_end());
    out.push('\n');
}

/// `1234567.8` as `1,234,568`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

/// The middle value (of an even number, the upper of the two).
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_are_grouped() {
        let text = lay_out(
            &["name", "tps"],
            &[
                vec!["a".into(), thousands(1234.4)],
                vec!["bcdef".into(), thousands(5.0)],
            ],
        );
        assert_eq!(text, "name     tps\n-----  -----\na      1,234\nbcdef      5\n");
        assert_eq!(thousands(-1234567.8), "-1,234,568");
    }

    #[test]
    fn median_is_robust() {
        assert_eq!(median(&[3.0, 1.0, 100.0]), 3.0);
        assert!(median(&[]).is_nan());
    }
}
