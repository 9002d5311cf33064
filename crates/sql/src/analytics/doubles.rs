//! A numeric as a float: the float that is nearest to it.
//!
//! Arrow divides a decimal's digits by a power of ten, both as floats: of 1.5 with thirty decimals it makes
//! 1.4999999999999998. So casts of decimals to floats, those that DataFusion puts in included, go by a function.

use super::casts::strict;
use super::expressions::changed;
use super::function::Func;
use crate::error::Result;
use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::*;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// Floats hold all whole numbers up to here, and powers of ten up to 10^22: a division of the two is rounded once.
const WHOLE_MAX: u128 = 1 << 53;
const POWER_MAX: u32 = 22;

/// Behind DataFusion's own conversions: writes casts of decimals to floats as a function.
#[derive(Debug)]
pub(super) struct NearestFloats;

impl AnalyzerRule for NearestFloats {
    fn name(&self) -> &str {
        "nearest_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> PlanResult<LogicalPlan> {
        changed(plan, |expr, schema| match expr {
            Expr::Cast(cast) if is_to_float(&cast.expr, cast.field.data_type(), schema) => {
                let nearest = nearest().call(vec![*cast.expr]);
                Transformed::yes(match cast.field.data_type() {
                    DataType::Float32 => Expr::Cast(datafusion::logical_expr::Cast::new(
                        Box::new(nearest),
                        DataType::Float32,
                    )),
                    _ => nearest,
                })
            }
            other => Transformed::no(other),
        })
    }
}

fn is_to_float(from: &Expr, to: &DataType, schema: &DFSchema) -> bool {
    let from_decimal = || {
        matches!(
            from.get_type(schema),
            Ok(DataType::Decimal128(..) | DataType::Decimal256(..))
        )
    };
    matches!(to, DataType::Float32 | DataType::Float64) && from_decimal()
}

fn nearest() -> Func {
    Func::of("cenote_nearest_float", DataType::Float64, |call| {
        call.by_columns(|columns| floats(&columns[0]))
    })
}

fn floats(column: &ArrayRef) -> Result<ArrayRef> {
    let floats: Float64Array = match column.data_type() {
        DataType::Decimal128(_, scale) => {
            let of = |value| of_digits(value, *scale);
            column
                .as_primitive::<Decimal128Type>()
                .iter()
                .map(|v| v.map(of))
                .collect()
        }
        DataType::Decimal256(_, scale) => {
            let of = |value: i256| match value.to_i128() {
                Some(value) => of_digits(value, *scale),
                None => of_text(&value.to_string(), *scale),
            };
            column
                .as_primitive::<Decimal256Type>()
                .iter()
                .map(|v| v.map(of))
                .collect()
        }
        _ => return strict(column, &DataType::Float64),
    };
    Ok(Arc::new(floats))
}

fn of_digits(mut value: i128, scale: i8) -> f64 {
    let mut power = u32::from(scale.unsigned_abs());
    while scale > 0 && power > 0 && value % 10 == 0 {
        (value, power) = (value / 10, power - 1);
    }
    match value.unsigned_abs() <= WHOLE_MAX && power <= POWER_MAX && scale >= 0 {
        true => value as f64 / 10f64.powi(power as i32),
        false => of_text(&value.to_string(), if scale < 0 { scale } else { power as i8 }),
    }
}

fn of_text(digits: &str, scale: i8) -> f64 {
    let text = format!("{digits}e{}", -i32::from(scale));
    text.parse().expect("digits and an exponent are a float")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_the_nearest() {
        let thirty = 10i128.pow(30);
        assert_eq!(of_digits(3 * thirty / 2, 30), 1.5);
        assert_eq!(of_digits(0, 30), 0.0);
        assert_eq!(of_digits(-7, 1), -0.7);
        assert_eq!(of_digits(123_456_789_012_345_678, 4), 12_345_678_901_234.568);
        assert_eq!(of_digits(25, -3), 25_000.0);
        assert_eq!(of_digits(1, 30), 1e-30);
        assert_eq!(of_text("15000000000000000000000000000000000000000000", 43), 1.5);
    }
}
