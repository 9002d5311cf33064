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
                    if *kind == JoinKind::Anti {
                        break;
                    }
                    // One match of a semi join does.
                    self.inside = *kind != JoinKind::Semi;
                    return Ok(true);
                }
            }
            self.inside = false;
            match kind {
                JoinKind::Left if !self.matched => {
                    nulls.iter().for_each(|slot| cx.write(*slot, Datum::Null));
                    return Ok(true);
                }
                JoinKind::Anti if !self.matched => return Ok(true),
                _ => {}
            }
        }
    }
}

/// The rows of the build side by their keys.
struct Built {
    rows: Vec<Vec<Datum>>,
    by_key: HashMap<Vec<u8>, Vec<u32>>,
    /// Of a full join, which rows have had a match.
    matched: Vec<bool>,
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
    outer_done: bool,
    /// Build rows that were looked at for a match, behind the outer rows.
    unmatched: usize,
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
            outer_done: false,
            unmatched: 0,
        }
    }

    pub fn reset(&mut self, outer: &Node, build: &Node) {
        (self.built, self.inside) = (None, false);
        (self.outer_done, self.unmatched) = (false, 0);
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
            nulls,
        } = &node.step
        else {
            return Err(SqlError::internal("a table of hashes of another node"));
        };
        loop {
            if !self.inside {
                cx.tick()?;
                if self.outer_done || !next(outer, &mut self.outer, cx)? {
                    self.outer_done = true;
                    return match kind {
                        JoinKind::Full => self.unmatched(node, (carried, nulls), cx),
                        _ => Ok(false),
                    };
                }
                self.look_up((node, build), keys, cx)?;
            }
            let Some(built) = &mut self.built else { return Ok(false) };
            while let Some(row) = self.matches.get(self.at) {
                self.at += 1;
                cx.tick()?;
                copy_out(&built.rows[*row as usize], carried, cx);
                if on.as_ref().map_or(Ok(true), |on| cx.holds(on))? {
                    self.matched = true;
                    if *kind == JoinKind::Full {
                        built.matched[*row as usize] = true;
                    }
                    if *kind == JoinKind::Anti {
                        break;
                    }
                    self.inside = *kind != JoinKind::Semi;
                    return Ok(true);
                }
            }
            self.inside = false;
            match kind {
                JoinKind::Left | JoinKind::Full if !self.matched => {
                    carried.iter().for_each(|slot| cx.write(*slot, Datum::Null));
                    return Ok(true);
                }
                JoinKind::Anti if !self.matched => return Ok(true),
                _ => {}
            }
        }
    }

    fn look_up(
        &mut self,
        (node, build): (&Node, &Node),
        keys: &[(Expr, Expr, ColumnType)],
        cx: &mut Context<'_>,
    ) -> Result<()> {
        if self.built.is_none() {
            // The outer row is in the tuple: the build side writes its own slots.
            self.built = Some(self.build(node, build, cx)?);
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

    fn build(&mut self, node: &Node, build: &Node, cx: &mut Context<'_>) -> Result<Built> {
        let Step::Hash {
            kind,
            keys,
            on,
            carried,
            ..
        } = &node.step
        else {
            return Err(SqlError::internal("a table of hashes of another node"));
        };
        let mut built = Built {
            rows: Vec::new(),
            by_key: HashMap::new(),
            matched: Vec::new(),
            _memory: Charge::new(&cx.session.memory),
        };
        let one_does = kind.is_decided_by_one() && on.is_none();
        let mut key = Vec::new();
        while next(build, &mut self.build, cx)? {
            // NULL equals nothing.
            let is_whole = key_of(keys.iter().map(|(_, own, ty)| (own, *ty)), cx, &mut key)?;
            if !is_whole && *kind != JoinKind::Full || one_does && built.by_key.contains_key(&key) {
                continue;
            }
            let at = u32::try_from(built.rows.len()).map_err(|_| SqlError::internal("a hash table of so many rows"))?;
            if is_whole {
                built._memory.grow(key.len() + 64)?;
                built.by_key.entry(key.clone()).or_default().push(at);
            }
            keep(&mut built.rows, carried, &mut built._memory, cx)?;
        }
        if *kind == JoinKind::Full {
            built._memory.grow(built.rows.len())?;
            built.matched = vec![false; built.rows.len()];
        }
        Ok(built)
    }

    /// Writes the next build row that has had no match.
    fn unmatched(&mut self, node: &Node, (carried, nulls): (&[u16], &[u16]), cx: &mut Context<'_>) -> Result<bool> {
        if self.built.is_none() {
            let Step::Hash { build, .. } = &node.step else {
                return Err(SqlError::internal("a table of hashes of another node"));
            };
            self.built = Some(self.build(node, build, cx)?);
        }
        let Some(built) = &self.built else { return Ok(false) };
        while let Some(is_matched) = built.matched.get(self.unmatched) {
            cx.tick()?;
            self.unmatched += 1;
            if !is_matched {
                copy_out(&built.rows[self.unmatched - 1], carried, cx);
                nulls.iter().for_each(|slot| cx.write(*slot, Datum::Null));
                return Ok(true);
            }
        }
        Ok(false)
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
