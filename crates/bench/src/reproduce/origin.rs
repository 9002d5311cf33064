//! Where a page comes from: the commit, the code that it measures, the numbers as data; and whether it is to be made
//! anew.
//!
//! Beside a page lies `data.json`: for each figure the commit, the seeds, and each comparison with all of its samples;
//! and a *probe*, a small figure that runs in seconds. A figure is stale when the code has another sum than it had
//! ([`Code::of`]); `make figures` makes stale ones anew, each by itself, and puts the page together from all. A test
//! runs the probe and compares.

use super::judge::{Claim, Kind, Samples, Verdict};
use super::options::Options;
use super::report::Figure;
use crate::{Error, IoContext, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository: the one that cargo runs this program for, as a build directory may serve several
/// checkouts; else the one that it was built from.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.join("../..")
}

/// The commit of a checkout, as `git describe` names it; "unknown" where there is none.
pub fn commit(root: &Path) -> String {
    let mut git = Command::new("git");
    let described = git
        .arg("-C")
        .arg(root)
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    let text = described.ok().filter(|out| out.status.success());
    let text = text.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    text.filter(|t| !t.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// The sources that a paper's figures measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code(String);

/// What both measure, and each.
const BOTH: [&str; 4] = [
    "crates/base/src",
    "crates/fabric/src",
    "crates/sim/src",
    "crates/bench/src/reproduce",
];
const ENGINE: [&str; 3] = ["crates/storage/src", "crates/buffer/src", "crates/engine/src"];
const POOL: [&str; 2] = ["crates/space/src", "crates/bench/src/ycsb"];
/// What servers on storage nodes have besides [`ENGINE`].
const NODES: &str = "crates/storage-node/src";
/// What is traced for serverless. Its executors are not among these: traces of other ones are to be made by hand.
const TRACED: [&str; 2] = ["crates/bench/src/tpch", "crates/bench/src/tpcc"];

impl Code {
    /// A sum over the names and bytes of all files that the figures of a paper depend on.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of(paper: &str, root: &Path) -> Result<Self> {
        let (own, nodes): (&[&str], &[&str]) = match paper {
            "rcmp" => (&POOL, &[]),
            "serverless" => (&ENGINE, &[NODES, TRACED[0], TRACED[1]]),
            _ => (&ENGINE, &[]),
        };
        let mut files = Vec::new();
        for folder in BOTH.iter().chain(own).chain(nodes) {
            list(&root.join(folder), &mut files)?;
        }
        files.sort();
        let mut sum = 0xCBF2_9CE4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
            }
        };
        for file in files {
            let bytes = std::fs::read(&file).context(format!("reading {}", file.display()))?;
            add(file.strip_prefix(root).unwrap_or(&file).to_string_lossy().as_bytes());
            add(&bytes);
        }
        Ok(Self(format!("{sum:016x}")))
    }

    /// As text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let what = || format!("listing {}", folder.display());
    for entry in std::fs::read_dir(folder).context(what())? {
        let path = entry.context(what())?.path();
        match path.is_dir() {
            true => list(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// What is known of a page that was written.
#[derive(Debug, Clone)]
pub struct Page(Value);

/// The file beside the page.
pub const DATA: &str = "data.json";

impl Page {
    /// Of the page in a folder; an empty one where nothing is told.
    pub fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join(DATA)).unwrap_or_default();
        Self(serde_json::from_slice(&bytes).unwrap_or_else(|_| json!({ "figures": {}, "probe": null })))
    }

    /// Writes it, a line for each comparison.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(&self.0).map_err(|e| Error::Simulation(e.to_string()))?;
        let text = text.replace("},{", "},\n{").replace("[{", "[\n{") + "\n";
        std::fs::write(folder.join(DATA), text).context(format!("writing {DATA}"))
    }

    /// Whether a figure is a full one of the code as it is, by as many seeds at least.
    pub fn has(&self, figure: &str, code: &Code, seeds: u32) -> bool {
        let told = &self.0["figures"][figure];
        let is_enough = told["seeds"].as_u64() >= Some(u64::from(seeds));
        told["code"] == code.text() && told["full"] == true && is_enough
    }

    /// Whether there is a probe of the code as it is.
    pub fn has_probe(&self, code: &Code) -> bool {
        self.0["probe"]["code"] == code.text()
    }

    /// A figure that was run.
    pub fn set(&mut self, figure: &Figure, origin: &Origin) {
        self.0["figures"][figure.name] = origin.with(figure);
    }

    /// The probe that was run.
    pub fn set_probe(&mut self, figure: &Figure, origin: &Origin) {
        self.0["probe"] = origin.with(figure);
    }

    /// The verdicts on all comparisons of some figures.
    pub fn verdicts(&self, figures: &[&str]) -> Vec<Verdict> {
        let all = figures
            .iter()
            .filter_map(|f| self.0["figures"][f]["compared"].as_array());
        let named = |one: &Value| Verdict::named(one["verdict"].as_str()?);
        all.flatten().filter_map(named).collect()
    }

    /// The name of the figure that is the probe, and its comparisons by their names.
    pub fn probe(&self) -> (Option<&str>, Vec<(String, Samples)>) {
        let probe = &self.0["probe"];
        let compared = probe["compared"].as_array().into_iter().flatten().filter_map(compared);
        (probe["name"].as_str(), compared.collect())
    }
}

fn compared(one: &Value) -> Option<(String, Samples)> {
    let samples: Vec<f64> = one["samples"].as_array()?.iter().filter_map(Value::as_f64).collect();
    let what = one["what"].as_str()?.to_owned();
    (!samples.is_empty()).then(|| (what, Samples::of(samples)))
}

/// How figures were made.
#[derive(Debug, Clone)]
pub struct Origin {
    commit: String,
    code: Code,
    options: Options,
}

impl Origin {
    /// Of a run.
    pub fn of(options: &Options, code: &Code) -> Self {
        Self {
            commit: options.commit.clone().unwrap_or_else(|| commit(&root())),
            code: code.clone(),
            options: options.clone(),
        }
    }

    /// In words.
    pub fn text(&self) -> String {
        let (first, seeds) = (self.options.seed, u64::from(self.options.seeds.max(1)));
        let seeds = match seeds {
            1 => format!("seed {first}"),
            n => format!("{n} seeds ({first} to {})", first + n - 1),
        };
        let how = match self.options.quick {
            true => "a quick run (fewer points, shorter windows)",
            false => "a full run",
        };
        format!("Made by {how} of commit {}, {seeds}.", self.commit)
    }

    fn with(&self, figure: &Figure) -> Value {
        let mut said = data(figure);
        said["commit"] = json!(self.commit);
        said["code"] = json!(self.code.text());
        said["full"] = json!(!self.options.quick);
        said["first_seed"] = json!(self.options.seed);
        said["seeds"] = json!(self.options.seeds);
        said
    }
}

/// A figure's comparisons, as data.
fn data(figure: &Figure) -> Value {
    let one = |claim: &Claim| {
        json!({
            "what": claim.what,
            "paper": claim.paper.number(),
            "samples": claim.ours.values(),
            "verdict": claim.verdict().name(),
            "input": claim.kind == Kind::Input,
        })
    };
    let claims: Vec<Value> = figure.claims.iter().map(one).collect();
    json!({ "name": figure.name, "compared": claims })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_code_makes_another_sum() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for folder in BOTH.iter().chain(&ENGINE) {
            std::fs::create_dir_all(dir.path().join(folder)).expect("made");
        }
        let file = dir.path().join("crates/sim/src/link.rs");
        std::fs::write(&file, "one").expect("written");
        let sum = || Code::of("polarcxlmem", dir.path()).expect("a sum");
        let before = sum();
        assert_eq!(before, sum());
        std::fs::write(&file, "two").expect("written");
        assert_ne!(before, sum());
        let page = |code: &Code, full: bool| {
            Page(json!({ "figures": { "fig1": { "code": code.text(), "full": full, "seeds": 5 } } }))
        };
        assert!(page(&sum(), true).has("fig1", &sum(), 5) && !page(&sum(), true).has("fig3", &sum(), 5));
        assert!(!page(&before, true).has("fig1", &sum(), 5), "of other code");
        assert!(!page(&sum(), false).has("fig1", &sum(), 5), "a quick run");
        assert!(!page(&sum(), true).has("fig1", &sum(), 6), "too few seeds");
    }
}
