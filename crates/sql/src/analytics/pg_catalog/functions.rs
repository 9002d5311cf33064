//! Functions of the system catalog and the session, bound to a statement.
//!
//! Each is made when a statement calls it. It answers from the statement's snapshot, so it is stable, not immutable;
//! yet its calls with constants may be folded, since a plan lives no longer than its statement.

use super::*;
use crate::analytics::function::{Call, Func, integer_at, text_at};
use crate::analytics::types::{EPOCH_DAYS, EPOCH_MICROS, format_type, timestamp, timestamptz};
use crate::error::code;
use arrow::array::{Array, UInt32Array};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF};

type Answer = std::result::Result<ColumnarValue, SqlError>;

/// The function of this name, bound to the statement; None for one that is not of the catalog.
pub(crate) fn function(snapshot: &Arc<Snapshot>, name: &str) -> Option<Arc<ScalarUDF>> {
    let func = session(snapshot, name)
        .or_else(|| naming(snapshot, name))
        .or_else(|| definitions(snapshot, name))
        .or_else(|| plain(snapshot, name))?;
    Some(func.stable(Arc::as_ptr(snapshot) as usize).udf())
}

fn text_constant(name: &str, value: impl Into<String>) -> Func {
    let value: String = value.into();
    constant(name, ScalarValue::Utf8(Some(value)))
}

fn constant(name: &str, value: ScalarValue) -> Func {
    Func::of(name, value.data_type(), move |_| {
        Ok(ColumnarValue::Scalar(value.clone()))
    })
}

fn null_text(name: &str) -> Func {
    constant(name, ScalarValue::Utf8(None))
}

/// Functions of the session: its user, its database, its times.
fn session(snapshot: &Arc<Snapshot>, name: &str) -> Option<Func> {
    let scope = &snapshot.scope;
    let now = scope.transaction_time.saturating_add(EPOCH_MICROS);
    Some(match name {
        "current_user" | "session_user" | "user" | "current_role" => text_constant(name, scope.user.as_str()),
        "current_database" | "current_catalog" => text_constant(name, scope.database.as_str()),
        "current_schema" => text_constant(name, "public"),
        "version" => text_constant(
            name,
            format!(
                "PostgreSQL {} on {}-{}",
                crate::SERVER_VERSION,
                std::env::consts::ARCH,
                std::env::consts::OS
            ),
        ),
        "pg_backend_pid" => constant(name, ScalarValue::Int32(Some(scope.pid))),
        "now" | "pg_postmaster_start_time" | "pg_conf_load_time" => Func::of(name, timestamptz(), move |_| {
            Ok(ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(
                Some(now),
                Some("+00:00".into()),
            )))
        }),
        "localtimestamp" => Func::of(name, timestamp(), move |_| {
            Ok(ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(
                Some(now),
                None,
            )))
        }),
        "current_date" => {
            let local = scope.settings.zone().to_local(scope.transaction_time);
            let day = (local.div_euclid(86_400_000_000)) as i32 + EPOCH_DAYS;
            constant(name, ScalarValue::Date32(Some(day)))
        }
        "current_setting" => current_setting(snapshot.clone()),
        // A statement of analytics cannot change its session.
        "set_config" => Func::of(name, DataType::Utf8, |_| Err(crate::env::set_config_refused())),
        "current_schemas" => current_schemas(),
        "inet_server_addr" | "inet_client_addr" => null_text(name),
        "inet_server_port" | "inet_client_port" => constant(name, ScalarValue::Int32(None)),
        "pg_is_in_recovery" => constant(name, ScalarValue::Boolean(Some(scope.settings.is_on("in_hot_standby")))),
        "pg_is_other_temp_schema" => constant(name, ScalarValue::Boolean(Some(false))),
        // There are no advisory locks: none is left.
        "pg_advisory_unlock_all" => constant(name, ScalarValue::Utf8(Some(String::new()))),
        "pg_my_temp_schema" => constant(name, ScalarValue::UInt32(Some(0))),
        _ => return None,
    })
}

fn current_setting(snapshot: Arc<Snapshot>) -> Func {
    Func::of("current_setting", DataType::Utf8, move |call| {
        call.by_rows_to_text(|columns, row| {
            let Some(name) = text_at(&columns[0], row)? else {
                return Ok(None);
            };
            let lenient = columns.len() > 1 && text_at(&columns[1], row)?.is_some_and(|v| v == "t");
            match snapshot.scope.settings.get(&name) {
                Some(value) => Ok(Some(value.into_owned())),
                None if lenient => Ok(None),
                None => Err(crate::settings::unknown(&name)),
            }
        })
    })
}

fn current_schemas() -> Func {
    Func::of("current_schemas", list(DataType::Utf8), |call| {
        let implicit = text_at(&call.column(0)?, 0).is_ok_and(|v| v.as_deref() == Some("t"));
        let names: &[&str] = if implicit {
            &["pg_catalog", "public"]
        } else {
            &["public"]
        };
        let names: Vec<ScalarValue> = names.iter().map(|n| ScalarValue::Utf8(Some(n.to_string()))).collect();
        Ok(ColumnarValue::Scalar(ScalarValue::List(ScalarValue::new_list(
            &names,
            &DataType::Utf8,
            true,
        ))))
    })
}

/// Names and ids.
fn naming(snapshot: &Arc<Snapshot>, name: &str) -> Option<Func> {
    Some(match name {
        "cenote_regclass" | "to_regclass" => regclass(snapshot.clone(), name),
        "cenote_regtype" | "to_regtype" => regtype(name),
        "cenote_regnamespace" => regnamespace(),
        "pg_get_userbyid" => {
            let user = snapshot.scope.user.clone();
            Func::of(name, DataType::Utf8, move |call| {
                call.by_rows_to_text(|columns, row| {
                    Ok(integer_at(&columns[0], row).map(|id| {
                        if id == OWNER {
                            user.clone()
                        } else {
                            format!("unknown (OID={id})")
                        }
                    }))
                })
            })
        }
        "pg_table_is_visible" => {
            let names = names_by_id(snapshot);
            Func::of(name, DataType::Boolean, move |call| {
                call.by_rows_to_bool(|columns, row| {
                    Ok(integer_at(&columns[0], row).map(|id| {
                        u32::try_from(id)
                            .is_ok_and(|id| names.get(&id).is_some_and(|n| !n.starts_with("information_schema.")))
                    }))
                })
            })
        }
        "pg_type_is_visible"
        | "pg_function_is_visible"
        | "pg_operator_is_visible"
        | "pg_collation_is_visible"
        | "pg_opclass_is_visible"
        | "has_table_privilege"
        | "has_schema_privilege"
        | "has_database_privilege"
        | "has_column_privilege"
        | "has_sequence_privilege"
        | "has_function_privilege"
        | "has_any_column_privilege"
        | "has_type_privilege"
        | "has_tablespace_privilege"
        | "pg_has_role"
        | "has_language_privilege"
        | "has_foreign_data_wrapper_privilege"
        | "has_server_privilege" => constant(name, ScalarValue::Boolean(Some(true))),
        "pg_relation_is_publishable" => constant(name, ScalarValue::Boolean(Some(true))),
        "format_type" => Func::of(name, DataType::Utf8, |call| {
            call.by_rows_to_text(|columns, row| {
                let modifier = if columns.len() > 1 {
                    integer_at(&columns[1], row).unwrap_or(-1)
                } else {
                    -1
                };
                Ok(integer_at(&columns[0], row).map(|id| format_type(id as u32, modifier as i32)))
            })
        }),
        "quote_ident" => Func::of(name, DataType::Utf8, |call| {
            call.by_rows_to_text(|columns, row| Ok(text_at(&columns[0], row)?.map(|t| quote_ident(&t))))
        }),
        "quote_literal" | "quote_nullable" => quoting(name),
        "pg_encoding_to_char" => text_constant(name, "UTF8"),
        "pg_char_to_encoding" => constant(name, ScalarValue::Int32(Some(6))),
        _ => return None,
    })
}

fn quoting(name: &str) -> Func {
    let nullable = name == "quote_nullable";
    Func::of(name, DataType::Utf8, move |call| {
        call.by_rows_to_text(|columns, row| {
            let quoted = text_at(&columns[0], row)?.map(|t| format!("'{}'", t.replace('\'', "''")));
            Ok(quoted.or_else(|| nullable.then(|| "NULL".to_string())))
        })
    })
}

/// `regclass`: a name becomes an id, an id its name.
fn regclass(snapshot: Arc<Snapshot>, name: &str) -> Func {
    let names = names_by_id(&snapshot);
    let ids: HashMap<String, u32> = names.iter().map(|(id, name)| (name.clone(), *id)).collect();
    let lenient = name == "to_regclass";
    Func::any(
        name,
        |types, _| {
            Ok(if is_text(&types[0]) {
                DataType::UInt32
            } else {
                DataType::Utf8
            })
        },
        move |call| {
            if *call.return_type() == DataType::Utf8 {
                return to_name(call, |id| names.get(&id).cloned().unwrap_or_else(|| id.to_string()));
            }
            to_id(call, |text| {
                let text = text.trim();
                let bare = text
                    .strip_prefix("pg_catalog.")
                    .or_else(|| text.strip_prefix("public."))
                    .unwrap_or(text);
                let folded = if bare.starts_with('"') {
                    bare.to_string()
                } else {
                    bare.to_lowercase()
                };
                let found = ids
                    .get(&folded)
                    .or_else(|| ids.get(folded.trim_matches('"')))
                    .copied()
                    .or_else(|| bare.parse().ok());
                match found {
                    None if !lenient => Err(SqlError::new(
                        code::UNDEFINED_TABLE,
                        format!("relation \"{bare}\" does not exist"),
                    )),
                    found => Ok(found),
                }
            })
        },
    )
}

fn regtype(name: &str) -> Func {
    let lenient = name == "to_regtype";
    Func::any(
        name,
        |types, _| {
            Ok(if is_text(&types[0]) {
                DataType::UInt32
            } else {
                DataType::Utf8
            })
        },
        move |call| {
            if *call.return_type() == DataType::Utf8 {
                return to_name(call, |id| format_type(id, -1));
            }
            to_id(call, |text| {
                match builtin_by_name(text).map(|t| t.oid).or_else(|| text.parse().ok()) {
                    None if !lenient => Err(SqlError::new(
                        code::UNDEFINED_OBJECT,
                        format!("type \"{text}\" does not exist"),
                    )),
                    found => Ok(found),
                }
            })
        },
    )
}

fn regnamespace() -> Func {
    Func::any(
        "cenote_regnamespace",
        |types, _| {
            Ok(if is_text(&types[0]) {
                DataType::UInt32
            } else {
                DataType::Utf8
            })
        },
        |call| {
            let schemas = [
                (CATALOG_SCHEMA, "pg_catalog"),
                (PUBLIC_SCHEMA, "public"),
                (INFORMATION_SCHEMA, "information_schema"),
            ];
            if *call.return_type() == DataType::Utf8 {
                return to_name(call, |id| {
                    schemas
                        .iter()
                        .find(|(s, _)| *s == i64::from(id))
                        .map_or_else(|| id.to_string(), |(_, n)| n.to_string())
                });
            }
            to_id(call, |text| match schemas.iter().find(|(_, n)| *n == text.trim()) {
                Some((id, _)) => Ok(Some(*id as u32)),
                None => Err(SqlError::new(
                    code::INVALID_SCHEMA,
                    format!("schema \"{text}\" does not exist"),
                )),
            })
        },
    )
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null
    )
}

fn to_name(call: &Call<'_>, name: impl Fn(u32) -> String) -> Answer {
    call.by_rows_to_text(|columns, row| {
        Ok(integer_at(&columns[0], row).map(|id| {
            if id == 0 {
                "-".to_string()
            } else {
                name(u32::try_from(id).unwrap_or(0))
            }
        }))
    })
}

fn to_id(call: &Call<'_>, id: impl Fn(&str) -> std::result::Result<Option<u32>, SqlError>) -> Answer {
    call.by_columns(|columns| {
        let ids = (0..columns[0].len()).map(|row| match text_at(&columns[0], row)? {
            Some(text) => id(&text),
            None => Ok(None),
        });
        Ok(Arc::new(ids.collect::<std::result::Result<UInt32Array, SqlError>>()?) as ArrayRef)
    })
}

/// Definitions as text, and sizes.
fn definitions(snapshot: &Arc<Snapshot>, name: &str) -> Option<Func> {
    Some(match name {
        "pg_get_expr" => Func::of(name, DataType::Utf8, |call| {
            call.by_rows_to_text(|columns, row| text_at(&columns[0], row))
        }),
        "pg_get_indexdef" => index_definitions(snapshot),
        "pg_get_constraintdef" => {
            let all = Objects { snapshot };
            let known: HashMap<i64, String> = all
                .indexes()
                .iter()
                .map(|i| (i64::from(i.id | CONSTRAINT_IDS), i.constraint_definition()))
                .collect();
            Func::of(name, DataType::Utf8, move |call| {
                call.by_rows_to_text(|columns, row| {
                    Ok(integer_at(&columns[0], row).and_then(|id| known.get(&id).cloned()))
                })
            })
        }
        "pg_get_serial_sequence" => serial_sequence(snapshot.clone()),
        "pg_relation_size" | "pg_table_size" | "pg_total_relation_size" | "pg_indexes_size" => {
            relation_size(snapshot.clone(), name)
        }
        "pg_database_size" => {
            let bytes: u64 = snapshot
                .scope
                .definitions
                .tables()
                .into_iter()
                .map(|t| snapshot.engine.table_bytes(t))
                .sum();
            constant(name, ScalarValue::Int64(Some(bytes as i64)))
        }
        "pg_size_pretty" => Func::of(name, DataType::Utf8, |call| {
            call.by_rows_to_text(|columns, row| Ok(integer_at(&columns[0], row).map(size_pretty)))
        }),
        _ => return None,
    })
}

fn index_definitions(snapshot: &Arc<Snapshot>) -> Func {
    let all = Objects { snapshot };
    let known: HashMap<i64, (String, Vec<String>)> = all
        .indexes()
        .iter()
        .map(|i| {
            (
                i64::from(i.id),
                (
                    i.definition(),
                    i.columns
                        .iter()
                        .map(|c| quote_ident(&i.table.columns[*c].name))
                        .collect(),
                ),
            )
        })
        .collect();
    Func::of("pg_get_indexdef", DataType::Utf8, move |call| {
        call.by_rows_to_text(|columns, row| {
            let Some((whole, parts)) = integer_at(&columns[0], row).and_then(|id| known.get(&id)) else {
                return Ok(None);
            };
            let part = if columns.len() > 1 {
                integer_at(&columns[1], row).unwrap_or(0)
            } else {
                0
            };
            Ok(if part == 0 {
                Some(whole.clone())
            } else {
                parts.get(part as usize - 1).cloned()
            })
        })
    })
}

fn serial_sequence(snapshot: Arc<Snapshot>) -> Func {
    Func::of("pg_get_serial_sequence", DataType::Utf8, move |call| {
        call.by_rows_to_text(|columns, row| {
            let (Some(table), Some(column)) = (text_at(&columns[0], row)?, text_at(&columns[1], row)?) else {
                return Ok(None);
            };
            let bare = table.strip_prefix("public.").unwrap_or(&table).trim_matches('"');
            if relations().iter().any(|r| r.name == bare) || bare.starts_with("information_schema.") {
                return Ok(None);
            }
            let Some(table) = snapshot.table(bare) else {
                return Err(SqlError::new(
                    code::UNDEFINED_TABLE,
                    format!("relation \"{table}\" does not exist"),
                ));
            };
            let position = table.column_named(&column);
            let owned = snapshot
                .scope
                .definitions
                .sequences()
                .into_iter()
                .find(|s| s.owned_by.is_some_and(|(id, c)| id == table.id && Some(c) == position));
            Ok(owned.map(|s| format!("public.{}", quote_ident(&s.name))))
        })
    })
}

fn relation_size(snapshot: Arc<Snapshot>, name: &str) -> Func {
    let bytes = move |id: i64| {
        snapshot
            .scope
            .definitions
            .table_by_id(u32::try_from(id).unwrap_or(0))
            .map_or(0, |t| snapshot.engine.table_bytes(t) as i64)
    };
    Func::of(name, DataType::Int64, move |call| {
        call.by_columns(|columns| {
            let sizes: arrow::array::Int64Array = (0..columns[0].len())
                .map(|row| integer_at(&columns[0], row).map(&bytes))
                .collect();
            Ok(Arc::new(sizes) as ArrayRef)
        })
    })
}

/// As PostgreSQL rounds: a unit is used from ten times its size on.
fn size_pretty(bytes: i64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes;
    for unit in units {
        if value.abs() < 10 * 1024 || unit == "PB" {
            return format!("{value} {unit}");
        }
        value = (value + 512 * value.signum()) / 1024;
    }
    format!("{bytes} bytes")
}

/// What needs nothing of the statement, or has nothing to say here.
fn plain(_snapshot: &Arc<Snapshot>, name: &str) -> Option<Func> {
    Some(match name {
        "obj_description"
        | "col_description"
        | "shobj_description"
        | "pg_get_viewdef"
        | "pg_get_triggerdef"
        | "pg_get_ruledef"
        | "pg_get_functiondef"
        | "pg_get_function_result"
        | "pg_get_function_arguments"
        | "pg_get_function_identity_arguments"
        | "pg_get_partkeydef"
        | "pg_get_statisticsobjdef_columns"
        | "pg_get_statisticsobjdef" => null_text(name),
        "pg_tablespace_location" => text_constant(name, ""),
        "pg_sequence_last_value" | "pg_stat_get_live_tuples" => constant(name, ScalarValue::Int64(None)),
        "cenote_some_array" => Func::any(
            name,
            |types, _| Ok(types[0].clone()),
            |call| {
                let DataType::List(item) = call.return_type().clone() else {
                    return Ok(call.arg(0).clone());
                };
                call.by_columns(|columns| {
                    let empty = ScalarValue::List(ScalarValue::new_list(&[], item.data_type(), true));
                    let values = (0..columns[0].len()).map(|row| {
                        if columns[0].is_null(row) {
                            Ok(empty.clone())
                        } else {
                            ScalarValue::try_from_array(&columns[0], row)
                        }
                    });
                    let values = values
                        .collect::<datafusion::common::Result<Vec<_>>>()
                        .map_err(crate::analytics::error::outward)?;
                    ScalarValue::iter_to_array(values).map_err(crate::analytics::error::outward)
                })
            },
        ),
        "json_build_object" | "jsonb_build_object" => Func::of(name, DataType::Utf8, |call| {
            call.by_rows_to_text(|columns, row| json_object(columns, row).map(Some))
        }),
        "cenote_subscripts" => subscripts(),
        "array_upper" | "array_lower" => {
            let upper = name == "array_upper";
            Func::of(name, DataType::Int32, move |call| {
                call.by_columns(|columns| {
                    let length = |row: usize| match columns[0].data_type() {
                        DataType::List(_) if !columns[0].is_null(row) => {
                            Some(arrow::array::AsArray::as_list::<i32>(&columns[0]).value(row).len() as i32)
                        }
                        _ => None,
                    };
                    let bounds: arrow::array::Int32Array = (0..columns[0].len())
                        .map(|row| length(row).filter(|n| *n > 0).map(|n| if upper { n } else { 1 }))
                        .collect();
                    Ok(Arc::new(bounds) as ArrayRef)
                })
            })
        }
        _ => return None,
    })
}

/// `generate_subscripts`: positions from 1, in `int2vector` and `oidvector` from 0.
fn subscripts() -> Func {
    Func::of("cenote_subscripts", list(DataType::Int32), |call| {
        call.by_columns(|columns| {
            let DataType::List(item) = columns[0].data_type() else {
                return Err(SqlError::new(
                    code::DATATYPE_MISMATCH,
                    "generate_subscripts takes an array",
                ));
            };
            let first = if matches!(item.data_type(), DataType::Int16 | DataType::UInt32) {
                0
            } else {
                1
            };
            let lists = arrow::array::AsArray::as_list::<i32>(&columns[0]);
            let positions = (0..lists.len()).map(|row| {
                let count = if lists.is_null(row) {
                    0
                } else {
                    lists.value(row).len() as i32
                };
                let values: Vec<ScalarValue> = (first..first + count).map(|i| ScalarValue::Int32(Some(i))).collect();
                ScalarValue::List(ScalarValue::new_list(&values, &DataType::Int32, true))
            });
            let positions: Vec<ScalarValue> = positions.collect();
            if positions.is_empty() {
                return Ok(arrow::array::new_empty_array(&list(DataType::Int32)));
            }
            ScalarValue::iter_to_array(positions).map_err(crate::analytics::error::outward)
        })
    })
}

/// `{"name" : value, ...}` of names and values in turn.
fn json_object(columns: &[ArrayRef], row: usize) -> std::result::Result<String, SqlError> {
    let quoted = |text: &str| {
        format!(
            "\"{}\"",
            text.replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
                .replace('\t', "\\t")
        )
    };
    let mut members = Vec::new();
    for pair in columns.chunks(2) {
        let [name, value] = pair else {
            return Err(SqlError::new(
                code::INVALID_ARGUMENT,
                "argument list must have even number of elements",
            ));
        };
        let name = text_at(name, row)?.unwrap_or_default();
        let value = match (value.data_type(), text_at(value, row)?) {
            (_, None) => "null".to_string(),
            (DataType::Boolean, Some(text)) => {
                if text == "t" {
                    "true".into()
                } else {
                    "false".into()
                }
            }
            (data_type, Some(text)) if data_type.is_numeric() => text,
            (_, Some(text)) => quoted(&text),
        };
        members.push(format!("{} : {value}", quoted(&name)));
    }
    Ok(format!("{{{}}}", members.join(", ")))
}
