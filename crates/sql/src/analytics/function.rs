//! Scalar functions in a few words: a name, the type of the result, a body over whole columns.

use super::error::outward;
use super::types::with_pg_type;
use super::wire;
use crate::error::SqlError;
use arrow::array::{Array, ArrayRef, BooleanArray, StringArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What a function's result type is, from the types of its arguments and those that are constants.
pub(crate) type ReturnType = Arc<dyn Fn(&[DataType], &[Option<&ScalarValue>]) -> Result<DataType> + Send + Sync>;
/// What a function does: arguments as they come (one value or a column each).
pub(crate) type Body = Arc<dyn Fn(&Call<'_>) -> std::result::Result<ColumnarValue, SqlError> + Send + Sync>;

/// PostgreSQL's type id and modifier of a result, from the arguments that are constants.
pub(crate) type Mark = fn(&[Option<&ScalarValue>]) -> (u32, i32);

/// Arguments of one call.
pub(crate) struct Call<'a> {
    args: &'a ScalarFunctionArgs,
}

impl Call<'_> {
    /// Rows of this call.
    pub fn rows(&self) -> usize {
        self.args.number_rows
    }

    /// Type of the result.
    pub fn return_type(&self) -> &DataType {
        self.args.return_field.data_type()
    }

    /// An argument as it came.
    pub fn arg(&self, i: usize) -> &ColumnarValue {
        &self.args.args[i]
    }

    /// An argument as a column of [`Call::rows`] rows.
    ///
    /// # Errors
    /// DataFusion cannot make a column of the argument.
    pub fn column(&self, i: usize) -> std::result::Result<ArrayRef, SqlError> {
        self.args.args[i].to_array(self.rows()).map_err(outward)
    }

    /// All arguments as columns, of one row if all are constants; whether they are.
    ///
    /// # Errors
    /// DataFusion cannot make a column of an argument.
    pub fn columns(&self) -> std::result::Result<(Vec<ArrayRef>, bool), SqlError> {
        let constant = self.args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { self.rows() };
        let columns = self
            .args
            .args
            .iter()
            .map(|a| a.to_array(rows))
            .collect::<Result<_>>()
            .map_err(outward)?;
        Ok((columns, constant))
    }

    /// Runs `body` over the columns and gives a constant back for constants.
    ///
    /// # Errors
    /// As `body`, and where a constant cannot be taken out of the result.
    pub fn by_columns(
        &self,
        body: impl FnOnce(&[ArrayRef]) -> std::result::Result<ArrayRef, SqlError>,
    ) -> std::result::Result<ColumnarValue, SqlError> {
        let (columns, constant) = self.columns()?;
        finish(body(&columns)?, constant)
    }

    /// As [`Call::by_columns`] for text results, row by row; `body` gets row numbers.
    ///
    /// # Errors
    /// As `body`.
    pub fn by_rows_to_text(
        &self,
        body: impl Fn(&[ArrayRef], usize) -> std::result::Result<Option<String>, SqlError>,
    ) -> std::result::Result<ColumnarValue, SqlError> {
        let (columns, constant) = self.columns()?;
        let rows = if constant { 1 } else { self.rows() };
        let texts = (0..rows)
            .map(|row| body(&columns, row))
            .collect::<std::result::Result<StringArray, _>>()?;
        finish(Arc::new(texts), constant && self.rows() > 0)
    }

    /// As [`Call::by_columns`] for boolean results, row by row.
    ///
    /// # Errors
    /// As `body`.
    pub fn by_rows_to_bool(
        &self,
        body: impl Fn(&[ArrayRef], usize) -> std::result::Result<Option<bool>, SqlError>,
    ) -> std::result::Result<ColumnarValue, SqlError> {
        let (columns, constant) = self.columns()?;
        let rows = if constant { 1 } else { self.rows() };
        let values = (0..rows)
            .map(|row| body(&columns, row))
            .collect::<std::result::Result<BooleanArray, _>>()?;
        finish(Arc::new(values), constant && self.rows() > 0)
    }
}

fn finish(array: ArrayRef, constant: bool) -> std::result::Result<ColumnarValue, SqlError> {
    if !constant {
        return Ok(ColumnarValue::Array(array));
    }
    ScalarValue::try_from_array(&array, 0)
        .map(ColumnarValue::Scalar)
        .map_err(outward)
}

/// The value of a cell as text, None for NULL.
pub(crate) fn text_at(column: &ArrayRef, row: usize) -> std::result::Result<Option<String>, SqlError> {
    if column.is_null(row) || matches!(column.data_type(), DataType::Null) {
        return Ok(None);
    }
    wire::text_of(&**column, row).map(Some)
}

/// The value of a cell as an integer, None for NULL or what is none.
pub(crate) fn integer_at(column: &ArrayRef, row: usize) -> Option<i64> {
    if column.is_null(row) || matches!(column.data_type(), DataType::Null) {
        return None;
    }
    match wire::integer(&**column, row) {
        Some(value) => i64::try_from(value).ok(),
        None => wire::text_of(&**column, row).ok()?.trim().parse().ok(),
    }
}

/// A scalar function. Two with the same name and key are the same.
pub(crate) struct Func {
    name: String,
    /// Tells functions of one name apart that were made for different statements.
    key: usize,
    signature: Signature,
    returns: ReturnType,
    /// Which of PostgreSQL's types the result is, where Arrow has one for several.
    mark: Option<Mark>,
    body: Body,
}

impl Func {
    /// A function of any arguments, immutable.
    pub fn any(
        name: &str,
        returns: impl Fn(&[DataType], &[Option<&ScalarValue>]) -> Result<DataType> + Send + Sync + 'static,
        body: impl Fn(&Call<'_>) -> std::result::Result<ColumnarValue, SqlError> + Send + Sync + 'static,
    ) -> Func {
        let signature = Signature::one_of(
            vec![TypeSignature::VariadicAny, TypeSignature::Nullary],
            Volatility::Immutable,
        );
        Func {
            name: name.into(),
            key: 0,
            signature,
            returns: Arc::new(returns),
            mark: None,
            body: Arc::new(body),
        }
    }

    /// A function of any arguments that gives a fixed type.
    pub fn of(
        name: &str,
        returns: DataType,
        body: impl Fn(&Call<'_>) -> std::result::Result<ColumnarValue, SqlError> + Send + Sync + 'static,
    ) -> Func {
        Func::any(name, move |_, _| Ok(returns.clone()), body)
    }

    /// A function whose results are of this type of PostgreSQL's.
    pub fn marked(mut self, mark: Mark) -> Func {
        self.mark = Some(mark);
        self
    }

    /// A function that keeps something alive for one statement and may answer differently in the next.
    pub fn stable(mut self, key: usize) -> Func {
        self.key = key;
        self.signature.volatility = Volatility::Stable;
        self
    }

    /// As DataFusion wants it.
    pub fn udf(self) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::new_from_impl(self))
    }

    /// A call of it.
    pub fn call(self, args: Vec<Expr>) -> Expr {
        self.udf().call(args)
    }
}

impl fmt::Debug for Func {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for Func {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.key == other.key
    }
}

impl Eq for Func {}

impl Hash for Func {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.key.hash(state);
    }
}

impl ScalarUDFImpl for Func {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        (self.returns)(types, &vec![None; types.len()])
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<arrow::datatypes::FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        let data_type = (self.returns)(&types, args.scalar_arguments)?;
        let field = Field::new(&self.name, data_type, true);
        Ok(Arc::new(match self.mark {
            Some(mark) => {
                let (oid, modifier) = mark(args.scalar_arguments);
                with_pg_type(field, oid, modifier)
            }
            None => field,
        }))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.body)(&Call { args: &args }).map_err(super::error::inward)
    }
}
