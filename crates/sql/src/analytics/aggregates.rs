//! The aggregate that a scalar subquery stands for.

use crate::error::{SqlError, code};
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use std::sync::Arc;

/// The value of the only row; NULL of none; 21000 of several. What a scalar subquery means.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct OnlyValue {
    signature: Signature,
}

impl OnlyValue {
    /// The aggregate.
    pub fn udaf() -> Arc<AggregateUDF> {
        Arc::new(AggregateUDF::new_from_impl(OnlyValue {
            signature: Signature::any(1, Volatility::Immutable),
        }))
    }
}

impl AggregateUDFImpl for OnlyValue {
    fn name(&self) -> &str {
        "cenote_only_value"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }
    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Only {
            value: ScalarValue::try_from(args.return_field.data_type())?,
            rows: 0,
        }))
    }
    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let value = args
            .return_field
            .as_ref()
            .clone()
            .with_name("value")
            .with_nullable(true);
        Ok(vec![
            Arc::new(value),
            Arc::new(arrow::datatypes::Field::new("rows", DataType::UInt64, true)),
        ])
    }
}

#[derive(Debug)]
struct Only {
    value: ScalarValue,
    rows: u64,
}

impl Only {
    fn take(&mut self, value: ScalarValue, rows: u64) -> Result<()> {
        self.rows += rows;
        if self.rows > 1 {
            let message = "more than one row returned by a subquery used as an expression";
            return Err(super::error::inward(SqlError::new(
                code::CARDINALITY_VIOLATION,
                message,
            )));
        }
        if rows == 1 {
            self.value = value;
        }
        Ok(())
    }
}

impl Accumulator for Only {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        match values[0].len() {
            0 => Ok(()),
            rows => self.take(ScalarValue::try_from_array(&values[0], 0)?, rows as u64),
        }
    }
    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.value.size()
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), ScalarValue::UInt64(Some(self.rows))])
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for row in 0..states[0].len() {
            let rows = match ScalarValue::try_from_array(&states[1], row)? {
                ScalarValue::UInt64(Some(rows)) => rows,
                _ => 0,
            };
            self.take(ScalarValue::try_from_array(&states[0], row)?, rows)?;
        }
        Ok(())
    }
}
