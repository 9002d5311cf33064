//! A session whose client is a proxy: what it tells before ReadyForQuery, and how it becomes another client's.

use super::report::{STATE, states};
use super::state::Session;
use crate::error::{Result, SqlError, code};
use crate::output::Output;
use crate::settings::Settings;
use cenote_base::rt::atomic::Ordering;
use std::sync::Arc;

impl Session {
    /// Tells a proxy what has changed.
    pub(super) fn report_all(&mut self, out: &mut dyn Output) -> Result<()> {
        if !self.settings.is_told(&self.env.settings) {
            for (name, value) in self.settings.tell_all(&self.env.settings) {
                match value {
                    Some(value) => out.parameter_status(&name, &value)?,
                    None => out.parameter_status("_cenote.unset", &name)?,
                }
            }
        }
        let position = self.committed_at().as_raw().load(Ordering::Relaxed);
        let (holds, drawn) = (self.statements.has_commanded(), self.env.last_sequence.get().is_some());
        let Some(report) = &mut self.report else { return Ok(()) };
        if std::mem::replace(&mut report.position, position) != position {
            out.parameter_status("_cenote.position", &position.to_string())?;
        }
        if std::mem::replace(&mut report.holds, holds) != holds {
            out.parameter_status("_cenote.holds", if holds { "prepared" } else { "" })?;
        }
        if std::mem::replace(&mut report.drawn, drawn) != drawn {
            out.parameter_status("_cenote.drawn", if drawn { "on" } else { "" })?;
        }
        Ok(())
    }

    /// Becomes another client's session.
    pub(super) fn take_state(&mut self, text: &str) -> Result<()> {
        if self.transaction.in_block() {
            let text = format!("{STATE} cannot be set inside a transaction block");
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, text));
        }
        let Some(state) = self.proven(STATE, text)? else {
            return Ok(());
        };
        let Some(report) = &self.report else { return Ok(()) };
        let origin = report.origin.clone();
        let (start, now) = states(&origin, state)?;
        self.change_client((Arc::new(start), Arc::new(now)), origin)?;
        self.env.last_values.borrow_mut().clear();
        self.env.last_sequence.set(None);
        Ok(())
    }

    /// What the proxy says by setting `name`, which begins with its token; `None`: the client is none.
    pub(super) fn proven<'a>(&self, name: &str, text: &'a str) -> Result<Option<&'a str>> {
        let Some(report) = &self.report else { return Ok(None) };
        let refused = || SqlError::new("42501", format!("permission denied to set parameter \"{name}\""));
        report.state(text).ok_or_else(refused).map(Some)
    }

    /// Another client's settings, at its connection's start and now.
    pub(super) fn change_client(
        &mut self,
        (start, now): (Arc<Settings>, Arc<Settings>),
        origin: Arc<Settings>,
    ) -> Result<()> {
        self.change_settings(|settings| {
            *settings = Settings::clone(&now);
            Ok(())
        })?;
        self.settings.begin_anew(start, origin);
        Ok(())
    }
}
