//! A database in a temporary directory, sessions on it, and an `Output` that keeps what it is told.

use bytes::BytesMut;
use cenote_engine::{Engine, EngineOptions, MemoryKind};
use cenote_sql::{Analytics, Bind, Field, Format, Formats, Output, Result, Session, SessionInfo, Sql, SqlError};
use std::sync::Arc;

/// A database that vanishes with its directory.
pub struct Database {
    pub sql: Arc<Sql>,
    directory: Option<tempfile::TempDir>,
}

impl Database {
    pub fn new() -> Database {
        Database::with_analytics(None)
    }

    pub fn with_analytics(analytics: Option<Arc<dyn Analytics>>) -> Database {
        Database::open(|_| analytics, 64 << 20)
    }

    /// With a pool of so many bytes.
    pub fn with_memory(bytes: u64) -> Database {
        Database::open(|_| None, bytes)
    }

    /// With DataFusion for what the short path refuses.
    #[cfg(feature = "analytics")]
    pub fn of_any_shape() -> Database {
        use cenote_sql::analytics::{Config, DataFusion};
        let analytics = |engine: &Arc<Engine>| DataFusion::new(engine.clone(), None, Config::default());
        Database::open(|engine| Some(analytics(engine)), 64 << 20)
    }

    fn open(analytics: impl FnOnce(&Arc<Engine>) -> Option<Arc<dyn Analytics>>, memory: u64) -> Database {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = EngineOptions::new(directory.path(), MemoryKind::Dram, memory);
        let engine = Engine::open(options).expect("an engine");
        let analytics = analytics(&engine);
        Database {
            sql: Sql::new(engine, analytics),
            directory: Some(directory),
        }
    }

    /// With the planner for queries of any shape.
    #[cfg(feature = "analytics")]
    pub fn with_datafusion() -> Database {
        use cenote_sql::analytics::{Config, DataFusion};
        let mut database = Database::new();
        let engine = database.sql.engine().clone();
        let analytics = DataFusion::new(engine.clone(), None, Config::default());
        database.sql = Sql::new(engine, Some(analytics));
        database
    }

    pub fn session(&self) -> Session {
        let info = SessionInfo {
            user: "tester".into(),
            database: "cenote".into(),
            pid: 7,
            ..SessionInfo::default()
        };
        self.sql.session(info).expect("a session")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.sql.engine().shutdown().ok();
        drop(self.directory.take());
    }
}

/// What a session answered.
#[derive(Default)]
pub struct Answer {
    pub fields: Vec<Field>,
    /// How many RowDescriptions there were.
    pub described: usize,
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
    pub tags: Vec<String>,
    pub notices: Vec<SqlError>,
    pub params: Vec<u32>,
    pub copied: String,
    pub suspended: bool,
    /// Lines to give to COPY FROM STDIN, a message each.
    pub copy_input: Vec<Vec<u8>>,
    pub parameters: Vec<(String, String)>,
}

impl Answer {
    /// Rows as text, columns between bars.
    pub fn lines(&self) -> Vec<String> {
        let column = |c: &Option<Vec<u8>>| {
            c.as_ref()
                .map_or("NULL".to_string(), |b| String::from_utf8_lossy(b).into_owned())
        };
        self.rows
            .iter()
            .map(|r| r.iter().map(column).collect::<Vec<_>>().join("|"))
            .collect()
    }
}

impl Output for Answer {
    fn row_description(&mut self, fields: &[Field], _formats: Formats<'_>) -> Result<()> {
        self.fields = fields.to_vec();
        self.described += 1;
        Ok(())
    }
    fn row(&mut self, columns: u16, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()> {
        let mut buffer = BytesMut::new();
        encode(&mut buffer)?;
        let mut rest = &buffer[..];
        let mut row = Vec::new();
        while !rest.is_empty() {
            let len = i32::from_be_bytes(rest[..4].try_into().expect("a length"));
            rest = &rest[4..];
            row.push((len >= 0).then(|| rest[..len as usize].to_vec()));
            rest = &rest[len.max(0) as usize..];
        }
        assert_eq!(row.len(), usize::from(columns), "columns announced");
        self.rows.push(row);
        Ok(())
    }
    fn complete(&mut self, tag: &str) -> Result<()> {
        self.tags.push(tag.to_string());
        Ok(())
    }
    fn empty_query(&mut self) -> Result<()> {
        self.tags.push(String::new());
        Ok(())
    }
    fn portal_suspended(&mut self) -> Result<()> {
        self.suspended = true;
        Ok(())
    }
    fn parameter_description(&mut self, types: &[u32]) -> Result<()> {
        self.params = types.to_vec();
        Ok(())
    }
    fn no_data(&mut self) -> Result<()> {
        self.fields.clear();
        Ok(())
    }
    fn notice(&mut self, notice: &SqlError) -> Result<()> {
        self.notices.push(notice.clone());
        Ok(())
    }
    fn parameter_status(&mut self, name: &str, value: &str) -> Result<()> {
        self.parameters.push((name.to_string(), value.to_string()));
        Ok(())
    }
    fn copy_out(&mut self, _format: Format, _columns: u16) -> Result<()> {
        Ok(())
    }
    fn copy_row(&mut self, encode: &mut dyn FnMut(&mut BytesMut) -> Result<()>) -> Result<()> {
        let mut buffer = BytesMut::new();
        encode(&mut buffer)?;
        self.copied.push_str(&String::from_utf8_lossy(&buffer));
        Ok(())
    }
    fn copy_done(&mut self) -> Result<()> {
        Ok(())
    }
    fn copy_in(&mut self, _format: Format, _columns: u16) -> Result<()> {
        Ok(())
    }
}

/// Runs a text by the simple protocol.
pub fn simple(session: &mut Session, text: &str) -> Result<Answer> {
    let mut answer = Answer::default();
    run_simple(session, text, &mut answer)?;
    Ok(answer)
}

/// Runs a text by the simple protocol up to ReadyForQuery; COPY takes `answer.copy_input`.
pub fn run_simple(session: &mut Session, text: &str, answer: &mut Answer) -> Result<()> {
    let mut done = session.simple(text, answer);
    while done.is_ok() && session.is_copying() {
        done = match answer.copy_input.is_empty() {
            true => session.copy_done(answer),
            false => session.copy_data(&answer.copy_input.remove(0)),
        };
    }
    done.and(session.report_settings(answer))
}

/// The tail of a Bind message with text parameters and text results.
pub fn bind_tail(params: &[Option<&str>]) -> Vec<u8> {
    let mut tail = vec![0, 0];
    tail.extend_from_slice(&(params.len() as u16).to_be_bytes());
    for param in params {
        match param {
            None => tail.extend_from_slice(&(-1i32).to_be_bytes()),
            Some(text) => {
                tail.extend_from_slice(&(text.len() as i32).to_be_bytes());
                tail.extend_from_slice(text.as_bytes());
            }
        }
    }
    tail.extend_from_slice(&[0, 0]);
    tail
}

/// Runs a statement by the extended protocol, as drivers do.
pub fn extended(session: &mut Session, text: &str, params: &[Option<&str>]) -> Result<Answer> {
    let mut answer = Answer::default();
    let done = extended_steps(session, text, params, &mut answer);
    let synced = session.sync();
    done?;
    synced?;
    Ok(answer)
}

fn extended_steps(session: &mut Session, text: &str, params: &[Option<&str>], answer: &mut Answer) -> Result<()> {
    session.parse("", text, &[])?;
    let tail = bind_tail(params);
    session.bind("", "", Bind::from_wire(&tail)?)?;
    session.describe_portal("", answer)?;
    session.execute("", 0, answer)
}
