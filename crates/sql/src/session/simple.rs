//! The simple protocol: texts of any number of statements, and the data of a COPY FROM STDIN among them.

use super::copying::{Copying, LoadTarget, RestOfText};
use super::portals::Portal;
use super::prepared::{Prepared, has_plan};
use super::state::Session;
use super::transaction::Phase;
use super::unplanned::Asked;
use crate::error::{Result, SqlError, code};
use crate::output::Output;
use crate::parse::template::{Template, template};
use crate::types::text::parse_datum;

impl Session {
    /// `Query`: any number of statements. On `Err` the server sends ErrorResponse; in both cases ReadyForQuery follows,
    /// unless the session [waits for COPY data](Self::is_copying) then.
    ///
    /// # Errors
    /// The text does not parse, or one of its statements fails; those behind it do not run.
    pub fn simple(&mut self, text: &str, out: &mut dyn Output) -> Result<()> {
        self.statements.set_unnamed(None);
        self.portals.close_unnamed();
        if let Some(done) = self.simple_template(text, out) {
            return done.map_err(|e| self.failed(e));
        }
        let statements = match self.statements.of_text(text, &[]) {
            Ok(statements) => statements,
            Err(error) => return Err(self.failed(error)),
        };
        if statements.is_empty() {
            return out.empty_query();
        }
        self.simple_from(text, statements, 0, out)
    }

    /// Runs the statements of a text from the `next`th on, up to its end or to a COPY that waits for its client.
    fn simple_from(
        &mut self,
        text: &str,
        mut statements: Vec<Prepared>,
        next: usize,
        out: &mut dyn Output,
    ) -> Result<()> {
        self.transaction.several = statements.len() > 1;
        for at in next..statements.len() {
            let done = self.simple_statement(&mut statements[at], out);
            if let Err(error) = done {
                self.statements.keep_text(text, statements);
                return Err(self.failed(error));
            }
            if let Some(copying) = &mut self.copying {
                copying.rest = Some(RestOfText {
                    text: text.to_string(),
                    statements,
                    next: at + 1,
                });
                return Ok(());
            }
        }
        let done = self.end_implicit();
        self.give_up_snapshot();
        self.statements.keep_text(text, statements);
        done.map_err(|e| self.failed(e))
    }

    /// Runs a text by its template; None: it has none that the short path knows, or a literal is wrong (then the text
    /// itself says where).
    fn simple_template(&mut self, text: &str, out: &mut dyn Output) -> Option<Result<()>> {
        if self.transaction.phase() == Phase::Failed {
            return None;
        }
        let found = template(text)?;
        let mut prepared = self.statements.take_template(&found)?;
        let entered = self.begin_statement(&prepared.parsed);
        let bound = entered.and_then(|()| self.bind_template(&mut prepared, &found));
        let Ok(mut portal) = bound else {
            self.statements.keep_template(found.key, None);
            return None;
        };
        let Some(portal) = &mut portal else {
            self.statements.keep_template(found.key, Some(prepared));
            return None;
        };
        let done = self.watch().and_then(|watch| {
            let done = self.run_portal_with(portal, &mut prepared, 0, true, out);
            self.unwatch(watch, done)
        });
        let done = done.and_then(|()| self.end_implicit());
        self.give_up_snapshot();
        self.statements.keep_template(found.key, Some(prepared));
        Some(done)
    }

    /// The portal of a template; None: a literal is no value of its type, or the template has no plan for it.
    fn bind_template(&mut self, prepared: &mut Prepared, found: &Template) -> Result<Option<Portal>> {
        let planned = self.plan(prepared)?;
        if planned.params.len() != found.literals.len() {
            return Err(SqlError::internal("a template with other parameters"));
        }
        let cx = self.env.text_context();
        let values = found
            .literals
            .iter()
            .zip(&planned.params)
            .map(|((_, literal), ty)| parse_datum(literal, *ty, cx));
        let Ok(params) = values.collect::<Result<Vec<_>>>() else {
            return Ok(None);
        };
        let planned = match self.custom_plan(prepared, &planned, &params) {
            Ok(custom) => custom.unwrap_or(planned),
            // For these values it is a statement of many rows: the text itself goes to analytics.
            Err(_) => return Ok(None),
        };
        Ok(Some(Portal {
            planned: Some(planned),
            params,
            ..Portal::default()
        }))
    }

    fn simple_statement(&mut self, prepared: &mut Prepared, out: &mut dyn Output) -> Result<()> {
        self.begin_statement(&prepared.parsed)?;
        let mut portal = Portal::default();
        let watch = self.watch()?;
        let done = self.run_simple(prepared, &mut portal, out);
        self.unwatch_unless_copying(watch, done)
    }

    /// Runs a statement of the simple protocol.
    fn run_simple(&mut self, prepared: &mut Prepared, portal: &mut Portal, out: &mut dyn Output) -> Result<()> {
        if !has_plan(prepared.statement()) {
            let asked = Asked {
                describe: true,
                ..Asked::default()
            };
            return self.run_unplanned(&prepared.parsed.clone(), asked, out);
        }
        let planned = self.plan(prepared)?;
        if !planned.params.is_empty() {
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
        }
        portal.planned = Some(planned);
        self.run_portal_with(portal, prepared, 0, true, out)
    }
}

impl Session {
    /// Whether the last statement waits for COPY data: `copy_data` and `copy_done` go on with it,
    /// [`fail`](Session::fail) ends it, and nothing else is to be called meanwhile.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Data of a COPY FROM STDIN.
    ///
    /// # Errors
    /// A line is no row of the table, or cannot be inserted; the statement was cancelled, or its time is up. The COPY
    /// has failed.
    pub fn copy_data(&mut self, data: &[u8]) -> Result<()> {
        let Some(mut copying) = self.copying.take() else {
            return Ok(());
        };
        match self.feed(&mut copying, data, false) {
            Ok(()) => {
                self.copying = Some(copying);
                Ok(())
            }
            failed => {
                let failed = self.unwatch(copying.watch.take(), failed);
                failed.map_err(|error| self.failed(error))
            }
        }
    }

    /// The client of a COPY says nothing: whether it is to wait on.
    ///
    /// # Errors
    /// As [`copy_data`](Self::copy_data).
    pub fn copy_look(&mut self) -> Result<()> {
        match self.env.check_cancel() {
            Ok(()) => Ok(()),
            Err(_) => self.copy_data(&[]),
        }
    }

    /// The data is at its end; the statements behind the COPY in its text follow.
    ///
    /// # Errors
    /// As [`copy_data`](Self::copy_data), and what the statements behind it fail with.
    pub fn copy_done(&mut self, out: &mut dyn Output) -> Result<()> {
        let Some(mut copying) = self.copying.take() else {
            return Ok(());
        };
        let done = self.feed(&mut copying, &[], true);
        let done = done.and_then(|()| out.complete(&format!("COPY {}", copying.load.count)));
        match (self.unwatch(copying.watch.take(), done), copying.rest) {
            (Ok(()), Some(rest)) => self.simple_from(&rest.text, rest.statements, rest.next, out),
            (done, _) => done.map_err(|error| self.failed(error)),
        }
    }

    fn feed(&mut self, copying: &mut Copying, data: &[u8], last: bool) -> Result<()> {
        self.env.check_cancel()?;
        self.heed();
        copying.lines.push(data);
        let mut target = LoadTarget {
            tx: &mut self.tx,
            env: &self.env,
            scratch: &mut self.scratch,
        };
        let done = copying.load.lines(&mut target, &mut copying.lines, last);
        self.sql.engine().heed_nothing();
        done.and_then(|()| copying.lines.compact())
    }
}
