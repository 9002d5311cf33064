//! Joins: by a loop over the inner side, and by a table of hashes.

use super::gather::{copy_out, keep};
use super::{Context, State, next, push_key, reset, rewind};
use crate::error::{Result, SqlError};
use crate::expr::Expr;
use crate::plan::row::{JoinKind, Node, Step};
use cenote_engine::{Charge, ColumnType, Datum};
use std::collections::HashMap;

/// Where a nested loop stands.
pub struct NestedState {
    outer: State,
    inner: State,
    /// An outer row is at hand.
    inside: bool,
    /// The outer row at hand has had a match.
    matched: bool,
}

impl NestedState {
    pub fn of(outer: &Node, inner: &Node) -> NestedState {
        NestedState {
            outer: State::of(outer),
            inner: State::of(inner),
            inside: false,
            matched: false,
        }
    }

    /// The inner side begins anew with the next outer row; what a cache there has kept does not outlive this loop.
    pub fn reset(&mut self, outer: &Node, inner: &Node) {
        self.inside = false;
        reset(outer, &mut self.outer);
        reset(inner, &mut self.inner);
    }

    /// Writes the next pair.
    ///
    /// # Errors
    /// As the sides and the condition; 53200: the session may gather no more.
    pub fn next(&mut self, node: &Node, cx: &mut Context<'_>) -> Result<bool> {
        let Step::Nested {
            kind,
            outer,
            inner,
            on,
            nulls,
        } = &node.step
        else {
            return Err(SqlError::internal("a loop over another node"));
        };
        loop {
            if !self.inside {
                cx.tick()?;
                if !next(outer, &mut self.outer, cx)? {
                    return Ok(false);
                }
                (self.inside, self.matched) = (true, false);
                rewind(inner, &mut self.inner);
            }
            while next(inner, &mut self.inner, cx)? {
                if on.as_ref().map_or(Ok(true), |on| cx.holds(on))? {
                    self.matched = true;
                    return Ok(true);
                }
            }
            self.inside = false;
            if *kind == JoinKind::Left && !self.matched {
                nulls.iter().for_each(|slot| cx.write(*slot, Datum::Null));
                return Ok(true);
            }
        }
    }
}

/// The rows of the build side by their keys.
struct Built {
    rows: Vec<Vec<Datum>>,
    by_key: HashMap<Vec<u8>, Vec<u32>>,
    _memory: Charge,
}

/// Where a join by hashes stands.
pub struct HashState {
    outer: State,
    build: State,
    built: Option<Built>,
    key: Vec<u8>,
    /// Matches of the outer row at hand, and how many were given.
    matches: Vec<u32>,
    at: usize,
    inside: bool,
    matched: bool,
}

impl HashState {
    pub fn of(outer: &Node, build: &Node) -> HashState {
        HashState {
            outer: State::of(outer),
            build: State::of(build),
            built: None,
            key: Vec::new(),
            matches: Vec::new(),
            at: 0,
            inside: false,
            matched: false,
        }
    }

    pub fn reset(&mut self, outer: &Node, build: &Node) {
        (self.built, self.inside) = (None, false);
        reset(outer, &mut self.outer);
        reset(build, &mut self.build);
    }

    /// Writes the next pair.
    ///
    /// # Errors
    /// As the sides and the condition; 53200: the session may gather no more.
    pub fn next(&mut self, node: &Node, cx: &mut Context<'_>) -> Result<bool> {
        let Step::Hash {
            kind,
            outer,
            build,
            keys,
            on,
            carried,
        } = &node.step
        else {
            return Err(SqlError::internal("a table of hashes of another node"));
        };
        loop {
            if !self.inside {
                cx.tick()?;
                if !next(outer, &mut self.outer, cx)? {
                    return Ok(false);
                }
                self.look_up((build, carried), keys, cx)?;
            }
            let Some(built) = &self.built else { return Ok(false) };
            while let Some(row) = self.matches.get(self.at) {
                self.at += 1;
                cx.tick()?;
                copy_out(&built.rows[*row as usize], carried, cx);
                if on.as_ref().map_or(Ok(true), |on| cx.holds(on))? {
                    self.matched = true;
                    return Ok(true);
                }
            }
            self.inside = false;
            if *kind == JoinKind::Left && !self.matched {
                carried.iter().for_each(|slot| cx.write(*slot, Datum::Null));
                return Ok(true);
            }
        }
    }

    fn look_up(
        &mut self,
        (build, carried): (&Node, &[u16]),
        keys: &[(Expr, Expr, ColumnType)],
        cx: &mut Context<'_>,
    ) -> Result<()> {
        if self.built.is_none() {
            let side = keys.iter().map(|(_, own, ty)| (own, *ty)).collect::<Vec<_>>();
            self.built = Some(self.build((build, carried), &side, cx)?);
        }
        let side = keys.iter().map(|(outer, _, ty)| (outer, *ty));
        self.matches.clear();
        if key_of(side, cx, &mut self.key)?
            && let Some(found) = self.built.as_ref().and_then(|b| b.by_key.get(&self.key))
        {
            self.matches.extend_from_slice(found);
        }
        (self.at, self.inside, self.matched) = (0, true, false);
        Ok(())
    }

    fn build(
        &mut self,
        (build, carried): (&Node, &[u16]),
        keys: &[(&Expr, ColumnType)],
        cx: &mut Context<'_>,
    ) -> Result<Built> {
        let mut built = Built {
            rows: Vec::new(),
            by_key: HashMap::new(),
            _memory: Charge::new(&cx.session.memory),
        };
        let mut key = Vec::new();
        while next(build, &mut self.build, cx)? {
            // NULL equals nothing.
            if !key_of(keys.iter().copied(), cx, &mut key)? {
                continue;
            }
            let at = u32::try_from(built.rows.len()).map_err(|_| SqlError::internal("a hash table of so many rows"))?;
            built._memory.grow(key.len() + 64)?;
            built.by_key.entry(key.clone()).or_default().push(at);
            keep(&mut built.rows, carried, &mut built._memory, cx)?;
        }
        Ok(built)
    }
}

/// The key of the tuple; false where a part is NULL.
fn key_of<'e>(
    parts: impl Iterator<Item = (&'e Expr, ColumnType)>,
    cx: &Context<'_>,
    key: &mut Vec<u8>,
) -> Result<bool> {
    key.clear();
    let env = cx.env();
    for (expr, ty) in parts {
        let value = expr.value(&env)?;
        let value = value.get();
        if value.is_null() {
            return Ok(false);
        }
        push_key(ty, &value, key);
    }
    Ok(true)
}
