//! Definition statements: tables, indexes, sequences. What cannot be honoured is refused, never half done.

use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::expr::bind::Params;
use crate::expr::type_names::type_named;
use crate::names::{Places, fold, qualified, span_of};
use crate::parse::SequenceOptions;
use crate::plan::Planner;
use crate::plan::known::Known;
use crate::types::cast::Context;
use cenote_engine::{ColumnDef, ColumnType, Datum, NewIndex, NewSequence, NewTable, Table, Tx};
use sqlparser::ast::{
    self, AlterTableOperation, ColumnOption, CreateIndex, CreateTable, DataType, Expr, IndexColumn, ObjectName,
    ObjectType, TableConstraint,
};
use std::sync::Arc;

/// Carries out definition statements in a transaction.
pub struct Definer<'a> {
    /// The transaction.
    pub tx: &'a mut Tx,
    /// The session, for defaults.
    pub session: &'a SessionEnv,
    /// The statement's text.
    pub text: &'a str,
    /// NOTICEs to give.
    pub notices: Vec<SqlError>,
}

/// Columns of a table, at most: PostgreSQL's limit.
const COLUMNS_MAX: usize = 1600;

/// The sequence of a serial column: greatest value.
fn serial_of(ty: &DataType) -> Option<(ColumnType, i64)> {
    let DataType::Custom(name, modifiers) = ty else {
        return None;
    };
    if !modifiers.is_empty() {
        return None;
    }
    match qualified(name).ok()?.1.as_str() {
        "serial" | "serial4" => Some((ColumnType::Int4, i64::from(i32::MAX))),
        "bigserial" | "serial8" => Some((ColumnType::Int8, i64::MAX)),
        "smallserial" | "serial2" => Some((ColumnType::Int2, i64::from(i16::MAX))),
        _ => None,
    }
}

impl Definer<'_> {
    /// Runs a definition statement; gives its command tag.
    ///
    /// # Errors
    /// 42P01, 42P07, 42701 and their like: the names do not fit the catalog. 0A000: Cenote has no such definition. Else
    /// as the engine's change of its catalog, such as 55P03 and 40P01 for locks.
    pub fn run(&mut self, statement: &ast::Statement) -> Result<&'static str> {
        match statement {
            ast::Statement::CreateTable(create) => self.create_table(create).map(|()| "CREATE TABLE"),
            ast::Statement::CreateIndex(create) => self.create_index(create).map(|()| "CREATE INDEX"),
            ast::Statement::AlterTable(alter) => {
                for operation in &alter.operations {
                    self.alter(&alter.name, alter.if_exists, operation)?;
                }
                Ok("ALTER TABLE")
            }
            ast::Statement::Drop {
                object_type,
                if_exists,
                names,
                ..
            } => self.drop(*object_type, *if_exists, names),
            other => {
                let words: Vec<String> = other
                    .to_string()
                    .split_whitespace()
                    .take(2)
                    .map(str::to_uppercase)
                    .collect();
                Err(SqlError::unsupported(words.join(" ")))
            }
        }
    }

    fn places(&self) -> Places<'_> {
        Places(self.text)
    }

    fn table(&self, name: &ObjectName) -> Result<Arc<Table>> {
        let table = local_name(name)?;
        let undefined = || {
            SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{table}\" does not exist"))
                .at(self.places().of(span_of(name)))
        };
        self.tx.table(&table)?.ok_or_else(undefined)
    }

    fn create_table(&mut self, create: &CreateTable) -> Result<()> {
        refuse_table_clauses(create)?;
        let name = local_name(&create.name)?;
        if self.tx.table(&name)?.is_some() || self.tx.index(&name)?.is_some() {
            let taken = SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"));
            if !create.if_not_exists {
                return Err(taken);
            }
            let skipping = format!("relation \"{name}\" already exists, skipping");
            self.notices.push(SqlError::notice(
                crate::Severity::Notice,
                code::DUPLICATE_TABLE,
                skipping,
            ));
            return Ok(());
        }
        let mut draft = Draft {
            new: NewTable {
                name: name.clone(),
                ..NewTable::default()
            },
            sequences: Vec::new(),
        };
        for column in &create.columns {
            self.add_column(&mut draft, column)?;
        }
        if draft.new.columns.len() > COLUMNS_MAX {
            let text = format!("tables can have at most {COLUMNS_MAX} columns");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, text));
        }
        for constraint in &create.constraints {
            self.add_constraint(&mut draft, constraint)?;
        }
        if let Some((_, columns)) = &draft.new.primary_key {
            columns.iter().for_each(|c| draft.new.columns[*c].not_null = true);
        }
        let table = self.tx.create_table(draft.new)?;
        for (sequence, max, column) in draft.sequences {
            let owned_by = Some((table.id, column));
            self.tx.create_sequence(NewSequence {
                owned_by,
                ..NewSequence::ascending(&sequence, max)
            })?;
        }
        self.check_defaults(&table)
    }

    fn add_column(&mut self, draft: &mut Draft, column: &ast::ColumnDef) -> Result<()> {
        let name = fold(&column.name);
        if draft.new.columns.iter().any(|c| c.name == name) {
            let text = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(code::DUPLICATE_COLUMN, text).at(self.places().of(column.name.span)));
        }
        let at = draft.new.columns.len();
        let serial = serial_of(&column.data_type);
        let ty = match serial {
            Some((ty, _)) => ty,
            None => type_named(&column.data_type)?,
        };
        let mut definition = ColumnDef {
            name: name.clone(),
            ty,
            not_null: serial.is_some(),
            default: None,
        };
        if let Some((_, max)) = serial {
            definition.default = Some(self.serial_default(draft, &name, max, at)?);
        }
        draft.new.columns.push(definition);
        for option in &column.options {
            let constraint = option.name.as_ref().map(fold);
            self.add_option(draft, at, constraint, &option.option)?;
        }
        Ok(())
    }

    fn serial_default(&self, draft: &mut Draft, column: &str, max: i64, at: usize) -> Result<String> {
        let taken: Vec<&String> = draft.sequences.iter().map(|s| &s.0).collect();
        let base = format!("{}_{column}_seq", draft.new.name);
        let mut name = base.clone();
        let mut number = 0;
        while taken.contains(&&name) || self.tx.sequence(&name)?.is_some() || self.tx.table(&name)?.is_some() {
            number += 1;
            name = format!("{base}{number}");
        }
        let default = format!("nextval('{}'::regclass)", quoted(&name));
        draft.sequences.push((name, max, at));
        Ok(default)
    }

    fn add_option(
        &mut self,
        draft: &mut Draft,
        at: usize,
        constraint: Option<String>,
        option: &ColumnOption,
    ) -> Result<()> {
        match option {
            ColumnOption::Null => {}
            ColumnOption::NotNull => draft.new.columns[at].not_null = true,
            ColumnOption::Default(expr) => draft.new.columns[at].default = Some(expr.to_string()),
            ColumnOption::PrimaryKey(_) => self.set_primary_key(draft, constraint, vec![at])?,
            ColumnOption::Unique(_) => self.add_unique(draft, constraint, vec![at])?,
            ColumnOption::Check(_) => return Err(SqlError::unsupported("CHECK constraint")),
            ColumnOption::ForeignKey(_) => return Err(SqlError::unsupported("FOREIGN KEY constraint")),
            ColumnOption::Generated {
                generation_expr: None,
                sequence_options,
                ..
            } => {
                if sequence_options.as_ref().is_some_and(|o| !o.is_empty()) {
                    return Err(SqlError::unsupported("sequence options of an identity column"));
                }
                let column = draft.new.columns[at].name.clone();
                let max = match draft.new.columns[at].ty {
                    ColumnType::Int2 => i64::from(i16::MAX),
                    ColumnType::Int4 => i64::from(i32::MAX),
                    ColumnType::Int8 => i64::MAX,
                    _ => {
                        return Err(SqlError::new(
                            code::INVALID_ARGUMENT,
                            "identity column type must be smallint, integer, or bigint",
                        ));
                    }
                };
                let default = self.serial_default(draft, &column, max, at)?;
                draft.new.columns[at].default = Some(default);
                draft.new.columns[at].not_null = true;
            }
            ColumnOption::Generated { .. } => return Err(SqlError::unsupported("generated columns")),
            ColumnOption::Collation(name)
                if ["c", "posix", "default"].contains(&qualified(name)?.1.to_lowercase().as_str()) => {}
            other => return Err(SqlError::unsupported(format!("the column option {other}"))),
        }
        Ok(())
    }

    fn add_constraint(&mut self, draft: &mut Draft, constraint: &TableConstraint) -> Result<()> {
        match constraint {
            TableConstraint::PrimaryKey(p) => {
                let columns = self.key_columns(&p.columns, &draft.new.columns)?;
                self.set_primary_key(draft, p.name.as_ref().map(fold), columns)
            }
            TableConstraint::Unique(u) => {
                if u.nulls_distinct == ast::NullsDistinctOption::NotDistinct {
                    return Err(SqlError::unsupported("NULLS NOT DISTINCT"));
                }
                let columns = self.key_columns(&u.columns, &draft.new.columns)?;
                self.add_unique(draft, u.name.as_ref().map(fold), columns)
            }
            TableConstraint::Check(_) => Err(SqlError::unsupported("CHECK constraint")),
            TableConstraint::ForeignKey(_) => Err(SqlError::unsupported("FOREIGN KEY constraint")),
            other => Err(SqlError::unsupported(format!("the constraint {other}"))),
        }
    }

    fn set_primary_key(&self, draft: &mut Draft, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        if draft.new.primary_key.is_some() {
            let text = format!("multiple primary keys for table \"{}\" are not allowed", draft.new.name);
            return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, text));
        }
        let name = match name {
            Some(name) => name,
            None => self.free_name(draft, &format!("{}_pkey", draft.new.name))?,
        };
        draft.new.primary_key = Some((name, columns));
        Ok(())
    }

    fn add_unique(&self, draft: &mut Draft, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        let name = match name {
            Some(name) => name,
            None => {
                let parts: Vec<&str> = columns.iter().map(|c| draft.new.columns[*c].name.as_str()).collect();
                self.free_name(draft, &format!("{}_{}_key", draft.new.name, parts.join("_")))?
            }
        };
        draft.new.indexes.push(NewIndex {
            name,
            columns,
            unique: true,
            constraint: true,
        });
        Ok(())
    }

    /// `base`, or the first of `base1`, `base2`... that nothing is called by.
    fn free_name(&self, draft: &Draft, base: &str) -> Result<String> {
        let mut name = base.to_string();
        let mut number = 0;
        loop {
            let drafted = draft.new.indexes.iter().any(|i| i.name == name)
                || draft.new.primary_key.as_ref().is_some_and(|p| p.0 == name);
            if !drafted && self.tx.table(&name)?.is_none() && self.tx.index(&name)?.is_none() {
                return Ok(name);
            }
            number += 1;
            name = format!("{base}{number}");
        }
    }

    fn key_columns(&self, list: &[IndexColumn], columns: &[ColumnDef]) -> Result<Vec<usize>> {
        let mut out = Vec::new();
        for item in list {
            let Expr::Identifier(ident) = &item.column.expr else {
                return Err(SqlError::unsupported("an index on an expression"));
            };
            if item.operator_class.is_some() {
                return Err(SqlError::unsupported("an operator class"));
            }
            let name = fold(ident);
            let missing = || {
                let text = format!("column \"{name}\" named in key does not exist");
                SqlError::new(code::UNDEFINED_COLUMN, text).at(self.places().of(ident.span))
            };
            let at = columns.iter().position(|c| c.name == name).ok_or_else(missing)?;
            if out.contains(&at) {
                let text = format!("column \"{name}\" appears twice in key");
                return Err(SqlError::new(code::DUPLICATE_COLUMN, text).at(self.places().of(ident.span)));
            }
            out.push(at);
        }
        Ok(out)
    }

    /// Each DEFAULT must be an expression without columns that converts to its column's type.
    fn check_defaults(&self, table: &Arc<Table>) -> Result<()> {
        let params = Params::default();
        let planner = Planner {
            tx: self.tx,
            session: self.session,
            text: "",
            params: &params,
            analytics: false,
            for_many: false,
            known: Known::new(self.session, None),
        };
        let sequence = |name: &str| planner.sequence(name);
        for column in table.columns.iter().filter(|c| c.default.is_some()) {
            let text = column.default.as_deref().unwrap_or_default();
            let binder = planner.binder(None, &sequence);
            let typed = binder
                .bind(&crate::parse::parse_expression(text)?)
                .map_err(SqlError::from)?;
            let given = typed.ty;
            binder
                .coerce(typed, column.ty, Context::Assignment)
                .map_err(|refusal| {
                    let error = SqlError::from(refusal);
                    match given {
                        Some(from) if error.code() == code::DATATYPE_MISMATCH => {
                            let text = format!(
                                "column \"{}\" is of type {} but default expression is of type {}",
                                column.name,
                                column.ty.name(),
                                from.name()
                            );
                            SqlError::new(code::DATATYPE_MISMATCH, text)
                                .with_hint("You will need to rewrite or cast the expression.")
                        }
                        _ => error,
                    }
                })?;
            if !params.borrow().is_empty() {
                return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
            }
        }
        Ok(())
    }

    fn create_index(&mut self, create: &CreateIndex) -> Result<()> {
        if create.predicate.is_some() {
            return Err(SqlError::unsupported("a partial index"));
        }
        if !create.include.is_empty() {
            return Err(SqlError::unsupported("INCLUDE"));
        }
        if create.nulls_distinct == Some(false) {
            return Err(SqlError::unsupported("NULLS NOT DISTINCT"));
        }
        if let Some(using) = &create.using
            && !using.to_string().eq_ignore_ascii_case("btree")
        {
            return Err(SqlError::unsupported(format!("access method {using}")));
        }
        let table = self.table(&create.table_name)?;
        let columns = self
            .key_columns(&create.columns, &table.columns)
            .map_err(|e| rename_missing(e, &create.columns))?;
        let draft = Draft {
            new: NewTable {
                name: table.name.clone(),
                ..NewTable::default()
            },
            sequences: Vec::new(),
        };
        let name = match &create.name {
            Some(name) => local_name(name)?,
            None => {
                let parts: Vec<&str> = columns.iter().map(|c| table.columns[*c].name.as_str()).collect();
                self.free_name(&draft, &format!("{}_{}_idx", table.name, parts.join("_")))?
            }
        };
        if self.tx.index(&name)?.is_some() || self.tx.table(&name)?.is_some() {
            if create.if_not_exists {
                let skipping = format!("relation \"{name}\" already exists, skipping");
                self.notices.push(SqlError::notice(
                    crate::Severity::Notice,
                    code::DUPLICATE_TABLE,
                    skipping,
                ));
                return Ok(());
            }
            return Err(SqlError::new(
                code::DUPLICATE_TABLE,
                format!("relation \"{name}\" already exists"),
            ));
        }
        self.tx
            .create_index(
                &table,
                NewIndex {
                    name,
                    columns,
                    unique: create.unique,
                    constraint: false,
                },
            )
            .map_err(could_not_create)?;
        Ok(())
    }

    fn alter(&mut self, name: &ObjectName, if_exists: bool, operation: &AlterTableOperation) -> Result<()> {
        let table = match self.table(name) {
            Err(e) if if_exists && e.code() == code::UNDEFINED_TABLE => {
                let text = format!("relation \"{name}\" does not exist, skipping");
                self.notices
                    .push(SqlError::notice(crate::Severity::Notice, code::UNDEFINED_TABLE, text));
                return Ok(());
            }
            found => found?,
        };
        match operation {
            AlterTableOperation::AddConstraint { constraint, .. } => self.alter_add(&table, constraint, operation),
            AlterTableOperation::DropConstraint { if_exists, name, .. } => {
                self.alter_drop(&table, *if_exists, &fold(name))
            }
            other => Err(SqlError::unsupported(format!("ALTER TABLE {other}"))),
        }
    }

    fn alter_add(
        &mut self,
        table: &Arc<Table>,
        constraint: &TableConstraint,
        operation: &AlterTableOperation,
    ) -> Result<()> {
        let draft = Draft {
            new: NewTable {
                name: table.name.clone(),
                ..NewTable::default()
            },
            sequences: Vec::new(),
        };
        match constraint {
            TableConstraint::PrimaryKey(p) => {
                let columns = self.key_columns(&p.columns, &table.columns)?;
                let name = match p.name.as_ref().map(fold) {
                    Some(name) => name,
                    None => self.free_name(&draft, &format!("{}_pkey", table.name))?,
                };
                self.tx
                    .add_primary_key(table, &name, columns)
                    .map_err(could_not_create)?;
                Ok(())
            }
            TableConstraint::Unique(u) => {
                let columns = self.key_columns(&u.columns, &table.columns)?;
                let name = match u.name.as_ref().map(fold) {
                    Some(name) => name,
                    None => {
                        let parts: Vec<&str> = columns.iter().map(|c| table.columns[*c].name.as_str()).collect();
                        self.free_name(&draft, &format!("{}_{}_key", table.name, parts.join("_")))?
                    }
                };
                let index = NewIndex {
                    name,
                    columns,
                    unique: true,
                    constraint: true,
                };
                self.tx.create_index(table, index).map_err(could_not_create)?;
                Ok(())
            }
            TableConstraint::ForeignKey(_) => Err(SqlError::unsupported("FOREIGN KEY constraint")),
            TableConstraint::Check(_) => Err(SqlError::unsupported("CHECK constraint")),
            _ => Err(SqlError::unsupported(format!("ALTER TABLE {operation}"))),
        }
    }

    fn alter_drop(&mut self, table: &Arc<Table>, if_exists: bool, wanted: &str) -> Result<()> {
        match table.index_named(wanted).filter(|i| table.indexes[*i].constraint) {
            Some(index) => self.tx.drop_index(table, index).map(drop).map_err(SqlError::from),
            None if table.primary_key.as_ref().is_some_and(|p| p.name == wanted) => {
                Err(SqlError::unsupported("dropping a primary key"))
            }
            None if if_exists => Ok(()),
            None => {
                let text = format!("constraint \"{wanted}\" of relation \"{}\" does not exist", table.name);
                Err(SqlError::new(code::UNDEFINED_OBJECT, text))
            }
        }
    }

    fn drop(&mut self, kind: ObjectType, if_exists: bool, names: &[ObjectName]) -> Result<&'static str> {
        let (word, tag) = match kind {
            ObjectType::Table => ("table", "DROP TABLE"),
            ObjectType::Index => ("index", "DROP INDEX"),
            ObjectType::Sequence => ("sequence", "DROP SEQUENCE"),
            ObjectType::View => ("view", "DROP VIEW"),
            other => return Err(SqlError::unsupported(format!("DROP {other}"))),
        };
        for name in names {
            let wanted = local_name(name)?;
            if self.drop_one(kind, &wanted)? {
                continue;
            }
            let missing = format!("{word} \"{wanted}\" does not exist");
            let state = if kind == ObjectType::Index {
                code::UNDEFINED_OBJECT
            } else {
                code::UNDEFINED_TABLE
            };
            if !if_exists {
                return Err(SqlError::new(state, missing));
            }
            self.notices.push(SqlError::notice(
                crate::Severity::Notice,
                "00000",
                format!("{missing}, skipping"),
            ));
        }
        Ok(tag)
    }

    /// False where there is no such object.
    fn drop_one(&mut self, kind: ObjectType, name: &str) -> Result<bool> {
        match kind {
            ObjectType::Table => match self.tx.table(name)? {
                Some(table) => self.tx.drop_table(&table)?,
                None => return Ok(false),
            },
            ObjectType::Index => match self.tx.index(name)? {
                Some((table, index)) if table.indexes[index].constraint => {
                    let text = format!(
                        "cannot drop index {name} because constraint {name} on table {} requires it",
                        table.name
                    );
                    return Err(SqlError::new("2BP01", text).with_hint(format!(
                        "You can drop constraint {name} on table {} instead.",
                        table.name
                    )));
                }
                Some((table, index)) => drop(self.tx.drop_index(&table, index)?),
                None => return Ok(false),
            },
            ObjectType::Sequence => match self.tx.sequence(name)? {
                Some(sequence) if sequence.owned_by.is_some() => {
                    let text = format!("cannot drop sequence {name} because other objects depend on it");
                    return Err(SqlError::new("2BP01", text));
                }
                Some(_) => self.tx.drop_sequence(name)?,
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// CREATE SEQUENCE.
    ///
    /// # Errors
    /// 42P07: the name is taken, and IF NOT EXISTS is not given. 22023: the options contradict each other.
    pub fn create_sequence(&mut self, name: &ObjectName, if_not_exists: bool, options: SequenceOptions) -> Result<()> {
        let name = local_name(name)?;
        if self.tx.sequence(&name)?.is_some() || self.tx.table(&name)?.is_some() {
            if if_not_exists {
                let skipping = format!("relation \"{name}\" already exists, skipping");
                self.notices.push(SqlError::notice(
                    crate::Severity::Notice,
                    code::DUPLICATE_TABLE,
                    skipping,
                ));
                return Ok(());
            }
            return Err(SqlError::new(
                code::DUPLICATE_TABLE,
                format!("relation \"{name}\" already exists"),
            ));
        }
        let increment = options.increment.unwrap_or(1);
        if increment == 0 {
            return Err(SqlError::new(code::INVALID_ARGUMENT, "INCREMENT must not be zero"));
        }
        let ascending = increment > 0;
        let min = options.min.unwrap_or(if ascending { 1 } else { i64::MIN });
        let max = options.max.unwrap_or(if ascending { i64::MAX } else { -1 });
        let start = options.start.unwrap_or(if ascending { min } else { max });
        if min >= max || !(min..=max).contains(&start) {
            return Err(SqlError::new(
                code::INVALID_ARGUMENT,
                "START, MINVALUE and MAXVALUE of the sequence do not fit each other",
            ));
        }
        self.tx.create_sequence(NewSequence {
            name,
            start,
            increment,
            min,
            max,
            cycle: options.cycle,
            owned_by: None,
        })?;
        Ok(())
    }

    /// TRUNCATE.
    ///
    /// # Errors
    /// 42P01: a table does not exist. Else as the engine's change of its catalog.
    pub fn truncate(&mut self, tables: &[ObjectName], restart: bool) -> Result<()> {
        let tables: Vec<Arc<Table>> = tables.iter().map(|n| self.table(n)).collect::<Result<_>>()?;
        for table in &tables {
            self.tx.truncate(table)?;
        }
        if restart {
            for sequence in self.tx.sequences()? {
                if sequence
                    .owned_by
                    .is_some_and(|(id, _)| tables.iter().any(|t| t.id == id))
                {
                    self.tx.restart_sequence(&sequence)?;
                }
            }
        }
        Ok(())
    }

    /// The table of this name, for VACUUM and ANALYZE.
    ///
    /// # Errors
    /// 42P01: the table does not exist.
    pub fn existing(&self, name: &ObjectName) -> Result<Arc<Table>> {
        self.table(name)
    }
}

/// A table being defined.
struct Draft {
    new: NewTable,
    /// Name, greatest value and column of each serial's sequence.
    sequences: Vec<(String, i64, usize)>,
}

/// The name of an object of ours: in no schema or in `public`.
fn local_name(name: &ObjectName) -> Result<String> {
    match qualified(name)? {
        (None, name) => Ok(name),
        (Some(schema), name) if schema == "public" => Ok(name),
        (Some(schema), _) if schema == "pg_catalog" || schema == "information_schema" => {
            Err(SqlError::new("42501", format!("permission denied for schema {schema}")))
        }
        (Some(schema), _) => Err(SqlError::new(
            code::INVALID_SCHEMA,
            format!("schema \"{schema}\" does not exist"),
        )),
    }
}

fn quoted(name: &str) -> String {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if plain {
        name.to_string()
    } else {
        format!("\"{name}\"").replace('\'', "''")
    }
}

/// A column that an index names: PostgreSQL's words differ from those for a constraint.
fn rename_missing(error: SqlError, columns: &[IndexColumn]) -> SqlError {
    let missing = columns.iter().find(|c| {
        error
            .message()
            .contains(&format!("\"{}\"", c.column.expr).to_lowercase())
    });
    match missing {
        Some(column) if error.code() == code::UNDEFINED_COLUMN => SqlError::new(
            code::UNDEFINED_COLUMN,
            format!("column \"{}\" does not exist", column.column.expr),
        )
        .at(error.position().unwrap_or(0)),
        _ => error,
    }
}

/// 23505 of an index being built says so.
fn could_not_create(error: cenote_engine::Error) -> SqlError {
    match error {
        cenote_engine::Error::UniqueViolation {
            table,
            index,
            columns,
            values,
        } => {
            let shown: Vec<String> = values
                .iter()
                .map(|v: &Datum| crate::types::text::datum_text(&v.as_ref(), &crate::types::zone::Zone::Utc))
                .collect();
            SqlError::new(
                code::UNIQUE_VIOLATION,
                format!("could not create unique index \"{index}\""),
            )
            .with_detail(format!(
                "Key ({})=({}) is duplicated.",
                columns.join(", "),
                shown.join(", ")
            ))
            .on_table(table)
            .on_constraint(index)
        }
        other => other.into(),
    }
}

fn refuse_table_clauses(create: &CreateTable) -> Result<()> {
    let refused = [
        (create.temporary, "TEMPORARY table"),
        (create.or_replace, "OR REPLACE"),
        (create.external, "EXTERNAL table"),
        (create.query.is_some(), "CREATE TABLE AS"),
        (create.like.is_some(), "LIKE"),
        (create.inherits.is_some(), "INHERITS"),
        (
            create.partition_by.is_some() || create.partition_of.is_some(),
            "partitioning",
        ),
        (create.on_commit.is_some(), "ON COMMIT"),
        (
            create.table_options.to_string().to_lowercase().contains("tablespace"),
            "TABLESPACE",
        ),
    ];
    match refused.iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}
