//! Definitions as bytes, for the catalog's `definition` column.
//!
//! A format byte, then fields in order: numbers little endian, texts and lists with a u32 count before them. Unknown
//! formats are refused.

use super::defs::{ColumnDef, IndexDef, PrimaryKey, SequenceDef, TableDef};
use crate::error::{Error, Result};
use crate::types::ColumnType;

const FORMAT: u8 = 1;

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn text(&mut self, v: &str) {
        self.u32(v.len() as u32);
        self.0.extend_from_slice(v.as_bytes());
    }
    fn positions(&mut self, v: &[usize]) {
        self.u32(v.len() as u32);
        v.iter().for_each(|p| self.u32(*p as u32));
    }
    fn flag(&mut self, v: bool) {
        self.u8(u8::from(v));
    }
}

struct Reader<'a>(&'a [u8]);

fn bad() -> Error {
    Error::Corrupt("a definition in the catalog".into())
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(bad)?;
        self.0 = rest;
        Ok(head)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| bad())
    }
    fn u64(&mut self) -> Result<u64> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| bad())
    }
    fn i64(&mut self) -> Result<i64> {
        self.u64().map(|v| v as i64)
    }
    fn flag(&mut self) -> Result<bool> {
        Ok(self.u8()? != 0)
    }
    fn text(&mut self) -> Result<String> {
        let len = self.u32()? as usize;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| bad())
    }
    fn positions(&mut self, columns: usize) -> Result<Vec<usize>> {
        self.list(|r| match r.u32()? as usize {
            p if p < columns => Ok(p),
            _ => Err(bad()),
        })
    }
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return Err(bad());
        }
        (0..count).map(|_| one(self)).collect()
    }
    fn format(&mut self) -> Result<()> {
        if self.u8()? == FORMAT { Ok(()) } else { Err(bad()) }
    }
}

pub(crate) fn encode_table(def: &TableDef) -> Vec<u8> {
    let mut w = Writer::default();
    w.u8(FORMAT);
    w.u32(def.id);
    w.text(&def.name);
    w.u32(def.space);
    w.u64(def.version);
    w.u32(def.columns.len() as u32);
    for column in &def.columns {
        w.text(&column.name);
        let (kind, modifier) = column.ty.to_words();
        w.u32(kind);
        w.u32(modifier);
        w.flag(column.not_null);
        w.flag(column.default.is_some());
        w.text(column.default.as_deref().unwrap_or_default());
    }
    w.flag(def.primary_key.is_some());
    if let Some(primary) = &def.primary_key {
        w.u32(primary.id);
        w.text(&primary.name);
        w.positions(&primary.columns);
    }
    w.u32(def.indexes.len() as u32);
    for index in &def.indexes {
        w.u32(index.id);
        w.text(&index.name);
        w.u32(index.space);
        w.positions(&index.columns);
        w.flag(index.unique);
        w.flag(index.constraint);
    }
    w.0
}

pub(crate) fn decode_table(bytes: &[u8]) -> Result<TableDef> {
    let mut r = Reader(bytes);
    r.format()?;
    let (id, name, space, version) = (r.u32()?, r.text()?, r.u32()?, r.u64()?);
    let columns = r.list(read_column)?;
    let primary_key = if r.flag()? {
        Some(PrimaryKey {
            id: r.u32()?,
            name: r.text()?,
            columns: r.positions(columns.len())?,
        })
    } else {
        None
    };
    let indexes = r.list(|r| {
        Ok(IndexDef {
            id: r.u32()?,
            name: r.text()?,
            space: r.u32()?,
            columns: r.positions(columns.len())?,
            unique: r.flag()?,
            constraint: r.flag()?,
        })
    })?;
    Ok(TableDef {
        id,
        name,
        space,
        columns,
        primary_key,
        indexes,
        version,
    })
}

fn read_column(r: &mut Reader<'_>) -> Result<ColumnDef> {
    let name = r.text()?;
    let ty = ColumnType::from_words(r.u32()?, r.u32()?).ok_or_else(bad)?;
    let not_null = r.flag()?;
    let has_default = r.flag()?;
    let text = r.text()?;
    Ok(ColumnDef {
        name,
        ty,
        not_null,
        default: has_default.then_some(text),
    })
}

pub(crate) fn encode_sequence(def: &SequenceDef) -> Vec<u8> {
    let mut w = Writer::default();
    w.u8(FORMAT);
    w.u32(def.id);
    w.text(&def.name);
    for value in [def.start, def.increment, def.min, def.max] {
        w.u64(value as u64);
    }
    w.flag(def.cycle);
    w.flag(def.owned_by.is_some());
    let (table, column) = def.owned_by.unwrap_or_default();
    w.u32(table);
    w.u32(column as u32);
    w.0
}

pub(crate) fn decode_sequence(bytes: &[u8]) -> Result<SequenceDef> {
    let mut r = Reader(bytes);
    r.format()?;
    let (id, name) = (r.u32()?, r.text()?);
    let (start, increment, min, max) = (r.i64()?, r.i64()?, r.i64()?, r.i64()?);
    let (cycle, owned) = (r.flag()?, r.flag()?);
    let owner = (r.u32()?, r.u32()? as usize);
    Ok(SequenceDef {
        id,
        name,
        start,
        increment,
        min,
        max,
        cycle,
        owned_by: owned.then_some(owner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_round_trip_and_cut_ones_are_refused() {
        let column = |name: &str, ty| ColumnDef {
            name: name.into(),
            ty,
            not_null: true,
            default: Some("1".into()),
        };
        let def = TableDef {
            id: 7,
            name: "t".into(),
            space: 1000,
            columns: vec![
                column("a", ColumnType::Numeric(Some((10, 2)))),
                column("b", ColumnType::Varchar(Some(9))),
            ],
            primary_key: Some(PrimaryKey {
                id: 8,
                name: "t_pkey".into(),
                columns: vec![0],
            }),
            indexes: vec![IndexDef {
                id: 9,
                name: "i".into(),
                space: 1001,
                columns: vec![1, 0],
                unique: true,
                constraint: false,
            }],
            version: 3,
        };
        let bytes = encode_table(&def);
        assert_eq!(decode_table(&bytes).unwrap(), def);
        for cut in 0..bytes.len() {
            assert!(decode_table(&bytes[..cut]).is_err());
        }
        let sequence = SequenceDef {
            id: 1,
            name: "s".into(),
            start: 5,
            increment: -2,
            min: i64::MIN,
            max: 5,
            cycle: true,
            owned_by: Some((7, 1)),
        };
        assert_eq!(decode_sequence(&encode_sequence(&sequence)).unwrap(), sequence);
    }
}
