//! A statement as a tree of text that knows what can be left out of it.
//!
//! The generator builds a tree; a server gets its text. Shrinking asks for every tree that is one cut smaller and keeps
//! the first that still fails. A cut may make nonsense (a name without its table): both servers refuse that alike, so
//! it is never kept.

use std::fmt::{self, Display, Formatter};

/// A piece of a statement.
#[derive(Clone, Debug)]
pub enum Tree {
    /// As it is.
    Text(String),
    /// Pieces beside each other.
    Sequence(Vec<Tree>),
    /// What can be left out.
    Optional(Box<Tree>),
    /// Items of which as many can be left out as leave `least`.
    List {
        /// Between two items.
        separator: &'static str,
        /// The items.
        items: Vec<Tree>,
        /// How few may remain.
        least: usize,
    },
    /// What can be exchanged for one of its pieces, or for simpler text of the same type.
    Exchange {
        /// Pieces beside each other.
        parts: Vec<Tree>,
        /// Positions of the parts that can stand for the whole.
        operands: Vec<usize>,
        /// Text that can stand for the whole.
        plain: Option<&'static str>,
    },
}

/// Text that stays.
pub fn text(of: impl Into<String>) -> Tree {
    Tree::Text(of.into())
}

/// What can be left out.
pub fn optional(of: Vec<Tree>) -> Tree {
    Tree::Optional(Box::new(Tree::Sequence(of)))
}

/// Nothing.
pub fn nothing() -> Tree {
    Tree::Sequence(Vec::new())
}

/// Items between separators, of which one has to stay.
pub fn list(separator: &'static str, items: Vec<Tree>) -> Tree {
    Tree::List {
        separator,
        items,
        least: 1,
    }
}

impl Tree {
    /// All trees that are one cut smaller, the greatest cuts first.
    pub fn cuts(&self) -> Vec<Tree> {
        match self {
            Tree::Text(_) => Vec::new(),
            Tree::Sequence(parts) => within(parts).map(Tree::Sequence).collect(),
            Tree::Optional(inner) if inner.to_string().is_empty() => Vec::new(),
            Tree::Optional(inner) => {
                let smaller = inner.cuts().into_iter().map(|t| Tree::Optional(Box::new(t)));
                std::iter::once(nothing()).chain(smaller).collect()
            }
            Tree::List {
                separator,
                items,
                least,
            } => {
                let list = |items| Tree::List {
                    separator,
                    items,
                    least: *least,
                };
                let shorter = (0..items.len())
                    .filter(|_| items.len() > *least)
                    .map(|at| without(items, at));
                shorter.chain(within(items)).map(list).collect()
            }
            Tree::Exchange { parts, operands, plain } => {
                let exchange = |parts| Tree::Exchange {
                    parts,
                    operands: operands.clone(),
                    plain: *plain,
                };
                let simple = plain.iter().map(|p| text(*p));
                let operand = operands.iter().map(|at| parts[*at].clone());
                simple.chain(operand).chain(within(parts).map(exchange)).collect()
            }
        }
    }
}

fn without(items: &[Tree], at: usize) -> Vec<Tree> {
    let mut items = items.to_vec();
    items.remove(at);
    items
}

/// The pieces with one of them cut.
fn within(parts: &[Tree]) -> impl Iterator<Item = Vec<Tree>> {
    parts.iter().enumerate().flat_map(move |(at, part)| {
        part.cuts().into_iter().map(move |cut| {
            let mut parts = parts.to_vec();
            parts[at] = cut;
            parts
        })
    })
}

impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Tree::Text(text) => f.write_str(text),
            Tree::Optional(inner) => inner.fmt(f),
            Tree::Sequence(parts) | Tree::Exchange { parts, .. } => parts.iter().try_for_each(|p| p.fmt(f)),
            Tree::List { separator, items, .. } => items.iter().enumerate().try_for_each(|(at, item)| {
                f.write_str(if at == 0 { "" } else { separator })?;
                item.fmt(f)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_leave_out_one_thing_each() {
        let condition = Tree::Exchange {
            parts: vec![text("a"), text(" OR "), text("b")],
            operands: vec![0, 2],
            plain: Some("true"),
        };
        let tree = Tree::Sequence(vec![
            list(", ", vec![text("x"), text("y")]),
            optional(vec![text(" WHERE "), condition]),
        ]);
        let cuts: Vec<String> = tree.cuts().iter().map(Tree::to_string).collect();
        let expected = [
            "y WHERE a OR b",
            "x WHERE a OR b",
            "x, y",
            "x, y WHERE true",
            "x, y WHERE a",
            "x, y WHERE b",
        ];
        assert_eq!(cuts, expected);
    }
}
