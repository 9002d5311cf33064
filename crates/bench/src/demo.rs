//! The demonstration: a server is killed in the middle of a write load, twice: with its buffer pool in a CXL region,
//! which outlives it, and in private memory, which does not. Then its host is lost, and it goes on on another
//! ([`crate::moving`]).

use crate::interrupted::{Successor, fill, interrupt, ms, remove_dir};
use crate::load::BUCKET_MS;
use crate::plot::{Line, Panel};
use crate::server::{CenoteOptions, RegionFile, Server};
use crate::table::{lay_out, thousands};
use crate::{IoContext, Result};

pub use crate::interrupted::{Options, Shown};

/// Runs the demonstration, prints what happens, writes plots; an error if anything acknowledged was lost.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process. [`crate::Error::Lost`] if anything acknowledged was lost.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let mut all = Vec::new();
    for (memory, title) in [
        ("cxl", "buffer pool in a CXL region: instant recovery"),
        ("dram", "classic buffer pool: log replay, cold cache"),
    ] {
        println!("\n== {title} ==");
        all.push(show(options, memory)?);
    }
    println!("\n== host a is lost: the database goes on on host b of its pod, in the same memory ==");
    match crate::host::Host::new() {
        Ok(_) => all.push(crate::moving::show(options)?),
        Err(problem) => println!("left out: {problem}; root has it"),
    }
    report(options, &all)?;
    all.iter().try_for_each(|shown| shown.verdict.must_hold())?;
    println!("Nothing that was acknowledged is lost, and no transfer is half there.");
    Ok(())
}

fn show(options: &Options, memory: &str) -> Result<Shown> {
    let data = options.out.join(format!("data-{memory}"));
    remove_dir(&data)?;
    let server = CenoteOptions {
        program: options.program.clone(),
        data: data.clone(),
        memory: memory.into(),
        memory_size: options.memory_size.clone(),
        port: crate::server::free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    };
    let running = Server::cenote(&server)?;
    println!(
        "started process {} on port {}, ready after {:.1} ms",
        running.id(),
        running.port,
        ms(running.ready)
    );
    fill(&running, options.accounts)?;
    let shown = kill_under_load(options, &server, running)?;
    remove_dir(&data)?;
    Ok(shown)
}

/// Kills `running` under load, restarts it, checks what it holds and stops it.
///
/// # Errors
/// [`crate::Error::Server`] if a server does not start, answer or stop; [`crate::Error::Sql`] if a statement fails;
/// [`crate::Error::Io`] of
/// a file or process.
pub fn kill_under_load(options: &Options, server: &CenoteOptions, running: Server) -> Result<Shown> {
    interrupt(options, &server.memory, running, |progress, mut running| {
        running.kill();
        println!("{:6.2} s  SIGKILL", progress.elapsed().as_secs_f64());
        let exec_at = progress.elapsed();
        Ok(Successor {
            confirmed_ms: None,
            exec_at,
            server: Server::cenote(server)?,
        })
    })
}

fn report(options: &Options, all: &[Shown]) -> Result<()> {
    println!("\n{}", table(all));
    for shown in all {
        let fields: Vec<String> = shown.report.iter().map(|(k, v)| format!("{k}={v}")).collect();
        println!("recovery with --memory {}: {}", shown.memory, fields.join("  "));
    }
    let json = options.out.join("demo.json");
    let text = serde_json::to_string_pretty(all).map_err(|e| crate::Error::Plot(e.to_string()))?;
    std::fs::write(&json, text).context("writing demo.json")?;
    let [svg, png] = crate::plot::panels(&options.out.join("demo"), &all.iter().map(panel).collect::<Vec<_>>())?;
    println!(
        "plots: {} {}   data: {}\n",
        svg.display(),
        png.display(),
        json.display()
    );
    Ok(())
}

/// The figures of each run, side by side.
pub fn table(all: &[Shown]) -> String {
    let header = [
        "",
        "tx/s before",
        "confirmed, ms",
        "ready, ms",
        "first answer, ms",
        "90% again, ms",
        "hits, %",
        "acknowledged",
        "lost",
        "half done",
    ];
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|s| {
            vec![
                format!("--memory {}", s.memory),
                thousands(s.rate_before),
                s.confirmed_ms.map_or("-".into(), |m| format!("{m:.0}")),
                format!("{:.1}", s.ready_ms),
                format!("{:.0}", s.first_answer_ms),
                s.recovered_ms.map_or("not in time".into(), |m| format!("{m:.0}")),
                format!("{:.1}", 100.0 * s.hit_rate),
                thousands(s.verdict.acknowledged as f64),
                s.verdict.lost.to_string(),
                (s.verdict.unexpected + s.verdict.wrong_balances).to_string(),
            ]
        })
        .collect();
    lay_out(&header, &rows)
}

fn panel(shown: &Shown) -> Panel {
    const TENTH: usize = 5;
    let points = shown.buckets.chunks(TENTH).enumerate().map(|(i, chunk)| {
        let seconds = (i * TENTH) as f64 * BUCKET_MS as f64 / 1000.0;
        (
            seconds,
            f64::from(chunk.iter().sum::<u32>()) * 1000.0 / (chunk.len() as f64 * BUCKET_MS as f64),
        )
    });
    let mode = shown.report.iter().find(|(k, _)| k == "mode").map_or("?", |(_, v)| v);
    let mark = if shown.confirmed_ms.is_some() {
        "host lost"
    } else {
        "SIGKILL"
    };
    Panel {
        title: format!(
            "--memory {}: recovery '{mode}', ready in {:.0} ms",
            shown.memory, shown.ready_ms
        ),
        unit: "transactions / s".into(),
        lines: vec![Line {
            name: "transactions".into(),
            points: points.collect(),
        }],
        marks: vec![(shown.killed_at, mark.into())],
    }
}
