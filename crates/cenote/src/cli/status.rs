//! `cenote status`: a running server at a glance.

use super::client::{Connection, Table, connect, settings};
use super::say;
use super::{ConnectOptions, Failure, print_aligned};
use cenote_base::units::ByteSize;
use std::process::ExitCode;

/// Width of the words on the left.
const LABEL_WIDTH: usize = 14;

/// Prints the state of the server that the options mean.
///
/// # Errors
/// The server refuses the client.
pub fn run(options: &ConnectOptions) -> Result<ExitCode, Failure> {
    let Some(mut server) = connect(options)? else {
        let data = settings(options)?.data;
        say!(
            "no server runs on {}; start one with `cenote run --data {}`",
            data.display(),
            data.display()
        );
        return Ok(ExitCode::FAILURE);
    };
    line("server", &format!("{} on {}", server.address, server.data.display()));
    show_server(&server.ask("CENOTE SHOW cenote_server")?);
    show_recovery(&server.ask("CENOTE SHOW cenote_recovery")?);
    show_memory(&server.ask("CENOTE SHOW cenote_memory")?);
    show_scaling(&server.ask("CENOTE SHOW cenote_scaling")?);
    show_sessions(&mut server)?;
    Ok(ExitCode::SUCCESS)
}

fn line(label: &str, text: &str) {
    say!("{label:<LABEL_WIDTH$}{text}");
}

fn show_server(server: &Table) {
    for row in &server.rows {
        let field = |name| server.field(row, name);
        line(
            "",
            &format!(
                "version {}, process {}, up {}",
                field("version"),
                field("process"),
                duration(field("up_seconds"))
            ),
        );
        line("memory", field("memory"));
        if !field("poisoned").is_empty() {
            line("POISONED", field("poisoned"));
        }
    }
}

fn duration(seconds: &str) -> String {
    let seconds: u64 = seconds.parse().unwrap_or(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

fn show_recovery(recovery: &Table) {
    for row in &recovery.rows {
        let field = |name| recovery.field(row, name);
        line("recovery", &format!("{} in {} ms", field("mode"), field("duration_ms")));
        let frames = format!(
            "{} kept, {} repaired, {} discarded",
            field("frames_kept"),
            field("frames_repaired"),
            field("frames_discarded")
        );
        line("  frames", &frames);
        line("  redo read", &bytes(field("redo_bytes_read")));
        line(
            "  rolled back",
            &format!("{} transactions", field("transactions_rolled_back")),
        );
    }
}

fn show_memory(memory: &Table) {
    for row in &memory.rows {
        let field = |name| memory.field(row, name);
        let number = |name: &'static str| memory.field(row, name).parse::<u64>().unwrap_or(0);
        let (hits, misses) = (number("hits"), number("misses"));
        let share = if hits + misses == 0 {
            100.0
        } else {
            100.0 * hits as f64 / (hits + misses) as f64
        };
        line(&format!("tier {}", field("tier")), &bytes(field("bytes")));
        line(
            "  frames",
            &format!("{} in use, {} free", field("frames_in_use"), field("frames_free")),
        );
        line(
            "  hits",
            &format!(
                "{hits} of {} ({share:.2}%), {} evictions",
                hits + misses,
                field("evictions")
            ),
        );
        line(
            "  storage",
            &format!(
                "{} read, {} written",
                bytes(field("bytes_read")),
                bytes(field("bytes_written"))
            ),
        );
        if !field("device").is_empty() {
            line("  device", &device(field));
        }
    }
}

fn show_scaling(scaling: &Table) {
    for row in &scaling.rows {
        if let Some(text) = slabs(|name| scaling.field(row, name)) {
            line("  slabs", &text);
        }
    }
}

/// By how many slabs remote memory has grown; nothing where it does not.
fn slabs<'a>(field: impl Fn(&'static str) -> &'a str) -> Option<String> {
    let most: u32 = field("slabs_most").parse().ok().filter(|most| *most > 0)?;
    let wanted = match (field("slabs"), field("slabs_wanted")) {
        (slabs, wanted) if slabs == wanted => String::new(),
        (_, wanted) => format!(", {wanted} wanted"),
    };
    let by = match field("by_need") {
        "true" => "by need",
        _ => "by hand",
    };
    let (slabs, each) = (field("slabs"), bytes(field("slab_bytes")));
    Some(format!("{slabs} of {most} with {each} each{wanted}; {by}"))
}

/// What an emulated device did.
fn device<'a>(field: impl Fn(&'static str) -> &'a str) -> String {
    format!(
        "{}: {} lines read, {} written, {} returned; misses took {} ms",
        field("device"),
        field("lines_read"),
        field("lines_written"),
        field("lines_returned"),
        field("stalled_ms")
    )
}

fn bytes(text: &str) -> String {
    text.parse()
        .map_or_else(|_| text.to_owned(), |bytes| ByteSize(bytes).to_string())
}

fn show_sessions(server: &mut Connection) -> Result<(), Failure> {
    let sessions = server.ask("CENOTE SHOW cenote_sessions")?;
    line("sessions", &sessions.rows.len().to_string());
    if sessions.rows.is_empty() {
        return Ok(());
    }
    let columns = [
        "id",
        "user_name",
        "application_name",
        "client_address",
        "state",
        "statements",
        "query",
    ];
    let mut cells: Vec<Vec<String>> = vec![
        columns
            .iter()
            .map(|name| name.replace("_name", "").replace("_address", ""))
            .collect(),
    ];
    for row in &sessions.rows {
        cells.push(columns.iter().map(|name| shorten(sessions.field(row, name))).collect());
    }
    print_aligned(&cells);
    Ok(())
}

fn shorten(text: &str) -> String {
    const WIDTH: usize = 48;
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.chars().count() > WIDTH {
        true => one_line.chars().take(WIDTH - 3).chain("...".chars()).collect(),
        false => one_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_shown_where_there_may_be_some() {
        let shown = |most, wanted, by_need| {
            slabs(|name| match name {
                "slabs" => "3",
                "slabs_wanted" => wanted,
                "slabs_most" => most,
                "slab_bytes" => "16777216",
                "by_need" => by_need,
                other => panic!("{other}"),
            })
        };
        assert_eq!(shown("0", "0", "true"), None);
        assert_eq!(shown("32", "3", "true").unwrap(), "3 of 32 with 16MiB each; by need");
        assert_eq!(
            shown("32", "5", "false").unwrap(),
            "3 of 32 with 16MiB each, 5 wanted; by hand"
        );
    }
}
