//! Windows that WINDOW names, and what a window takes from one that it names.

use crate::error::{Result, SqlError, code};
use crate::names::fold;
use sqlparser::ast::{Ident, NamedWindowDefinition, NamedWindowExpr, WindowSpec, WindowType};

/// The windows of one SELECT, each whole.
#[derive(Debug, Clone, Default)]
pub struct NamedWindows(Vec<(String, WindowSpec)>);

impl NamedWindows {
    /// The windows that these define; each may build on those before it. `place`: where a name stands.
    ///
    /// # Errors
    /// 42P20: a name twice, or a window overrides what it builds on. 42704: it builds on none that is before it.
    pub fn of(definitions: &[NamedWindowDefinition], place: &dyn Fn(&Ident) -> u32) -> Result<NamedWindows> {
        let mut windows = NamedWindows::default();
        for NamedWindowDefinition(ident, definition) in definitions {
            let name = fold(ident);
            if windows.0.iter().any(|(known, _)| *known == name) {
                return Err(windowing(format!("window \"{name}\" is already defined")).at(place(ident)));
            }
            let spec = match definition {
                NamedWindowExpr::WindowSpec(spec) => windows.completed(spec, place)?,
                NamedWindowExpr::NamedWindow(other) => {
                    let text = format!("syntax error at or near \"{other}\"");
                    return Err(SqlError::new(code::SYNTAX_ERROR, text).at(place(other)));
                }
            };
            windows.0.push((name, spec));
        }
        Ok(windows)
    }

    /// The window of a function.
    ///
    /// # Errors
    /// As [`NamedWindows::of`].
    pub fn window(&self, over: &WindowType, place: &dyn Fn(&Ident) -> u32) -> Result<WindowSpec> {
        match over {
            WindowType::NamedWindow(name) => self.named(name, place).cloned(),
            WindowType::WindowSpec(spec) => self.completed(spec, place),
        }
    }

    fn named(&self, ident: &Ident, place: &dyn Fn(&Ident) -> u32) -> Result<&WindowSpec> {
        let name = fold(ident);
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, spec)| spec).ok_or_else(|| {
            let text = format!("window \"{name}\" does not exist");
            SqlError::new(code::UNDEFINED_OBJECT, text).at(place(ident))
        })
    }

    /// The window with what it takes from the one that it names.
    fn completed(&self, spec: &WindowSpec, place: &dyn Fn(&Ident) -> u32) -> Result<WindowSpec> {
        match &spec.window_name {
            None => Ok(spec.clone()),
            Some(name) => merged(&fold(name), self.named(name, place)?, spec),
        }
    }
}

fn merged(name: &str, base: &WindowSpec, spec: &WindowSpec) -> Result<WindowSpec> {
    if !spec.partition_by.is_empty() {
        return Err(windowing(format!(
            "cannot override PARTITION BY clause of window \"{name}\""
        )));
    }
    if !spec.order_by.is_empty() && !base.order_by.is_empty() {
        return Err(windowing(format!(
            "cannot override ORDER BY clause of window \"{name}\""
        )));
    }
    if base.window_frame.is_some() {
        let text = format!("cannot copy window \"{name}\" because it has a frame clause");
        return Err(windowing(text));
    }
    let order_by = match spec.order_by.is_empty() {
        true => base.order_by.clone(),
        false => spec.order_by.clone(),
    };
    Ok(WindowSpec {
        window_name: None,
        partition_by: base.partition_by.clone(),
        order_by,
        window_frame: spec.window_frame.clone(),
    })
}

fn windowing(text: String) -> SqlError {
    SqlError::new(code::WINDOWING_ERROR, text)
}
