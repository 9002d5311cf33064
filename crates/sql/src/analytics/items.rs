//! The rows of a subquery that stands to the right of IN.

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use std::collections::HashSet;

/// The different values, in the type in which they are compared.
pub(crate) struct Items {
    compared: DataType,
    values: HashSet<ScalarValue>,
    has_null: bool,
}

impl Items {
    /// The first columns of `batches`, of type `own`, for a left side of type `left`.
    ///
    /// # Errors
    /// A value cannot be converted.
    pub fn of(batches: &[RecordBatch], own: &DataType, left: &DataType) -> Result<Items> {
        let mut items = Items {
            compared: comparison_coercion(left, own).unwrap_or_else(|| left.clone()),
            values: HashSet::new(),
            has_null: false,
        };
        for batch in batches {
            for row in 0..batch.num_rows() {
                match ScalarValue::try_from_array(batch.column(0), row)? {
                    null if null.is_null() => items.has_null = true,
                    value => {
                        let value = items.comparable(&value)?;
                        items.values.insert(value);
                    }
                }
            }
        }
        Ok(items)
    }

    /// Bytes, about.
    pub fn size(&self) -> usize {
        size_of::<Items>() + ScalarValue::size_of_hashset(&self.values)
    }

    /// SQL's IN: None (NULL) where nothing is equal but something is NULL.
    ///
    /// # Errors
    /// The value cannot be converted.
    pub fn contain(&self, left: &ScalarValue) -> Result<Option<bool>> {
        if self.values.is_empty() && !self.has_null {
            return Ok(Some(false));
        }
        if left.is_null() {
            return Ok(None);
        }
        Ok(match self.values.contains(&self.comparable(left)?) {
            true => Some(true),
            false => (!self.has_null).then_some(false),
        })
    }

    /// The value in the common type; equal ones have equal bits.
    fn comparable(&self, value: &ScalarValue) -> Result<ScalarValue> {
        let value = match value.data_type() == self.compared {
            true => value.clone(),
            false => value.cast_to(&self.compared)?,
        };
        Ok(match value {
            ScalarValue::Float32(Some(0.0)) => ScalarValue::Float32(Some(0.0)),
            ScalarValue::Float64(Some(0.0)) => ScalarValue::Float64(Some(0.0)),
            other => other,
        })
    }
}
