//! GROUP BY with GROUPING SETS, ROLLUP and CUBE: the keys, each once, and the sets of them by which rows are grouped.

use crate::expr::bind::{Bound, shape, strip};
use sqlparser::ast::Expr;

/// Sets of one GROUP BY, at most: PostgreSQL's limit.
const SETS_MAX: usize = 4096;
/// Items of a CUBE, at most.
const CUBE_MAX: usize = 12;

/// What GROUP BY says, its items resolved.
#[derive(Default)]
pub(super) struct Sets<'e> {
    /// The keys, each once.
    pub keys: Vec<&'e Expr>,
    /// Positions of the keys of each set; none where all keys are the only one.
    pub sets: Vec<Vec<usize>>,
}

/// The sets that the items make, each with each: `resolve` finds what an item names.
pub(super) fn sets_of<'e>(items: &'e [Expr], resolve: &dyn Fn(&'e Expr) -> Bound<&'e Expr>) -> Bound<Sets<'e>> {
    let mut found = Sets::default();
    let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
    for item in items {
        let mut each = Vec::new();
        for set in sets_of_item(item)? {
            let mut keys = Vec::new();
            for key in set {
                keys.push(found.place_of(strip(resolve(key)?)));
            }
            each.push(keys);
        }
        if sets.len() * each.len() > SETS_MAX {
            return shape("so many grouping sets");
        }
        sets = sets
            .iter()
            .flat_map(|set| each.iter().map(|more| joined(set, more)))
            .collect();
    }
    let is_plain = matches!(sets.as_slice(), [one] if one.len() == found.keys.len());
    found.sets = if is_plain { Vec::new() } else { sets };
    Ok(found)
}

impl<'e> Sets<'e> {
    fn place_of(&mut self, key: &'e Expr) -> usize {
        match self.keys.iter().position(|known| *known == key) {
            Some(at) => at,
            None => {
                self.keys.push(key);
                self.keys.len() - 1
            }
        }
    }
}

/// One set and another, each key once.
fn joined(set: &[usize], more: &[usize]) -> Vec<usize> {
    let mut all = set.to_vec();
    for key in more {
        if !all.contains(key) {
            all.push(*key);
        }
    }
    all
}

fn sets_of_item(item: &Expr) -> Bound<Vec<Vec<&Expr>>> {
    Ok(match item {
        Expr::GroupingSets(sets) => sets.iter().map(|set| set.iter().collect()).collect(),
        Expr::Rollup(parts) => (0..=parts.len())
            .rev()
            .map(|n| parts[..n].iter().flatten().collect())
            .collect(),
        Expr::Cube(parts) if parts.len() > CUBE_MAX => return shape("CUBE of so many items"),
        Expr::Cube(parts) => {
            let of = |mask: usize| parts.iter().enumerate().filter(move |(at, _)| mask >> at & 1 == 1);
            let all = 0..1_usize << parts.len();
            all.rev()
                .map(|mask| of(mask).flat_map(|(_, part)| part).collect())
                .collect()
        }
        Expr::Tuple(parts) => vec![parts.iter().collect()],
        one => vec![vec![one]],
    })
}
