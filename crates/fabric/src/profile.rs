//! Device profiles: what kinds of memory, networks and storage are known to cost, as data, each with its source.
//!
//! Figures are those that papers published, or are called assumed; nothing here is measured on this machine. Whatever
//! uses a profile says "emulated" or "simulated" and the profile's name. The known ones stand in `profiles.toml`; a
//! file of a user's is read in the same way ([`parse`], [`find`]):
//!
//! | key | what it says | from | to |
//! |---|---|---|---|
//! | `source` | where the figures come from | | |
//! | `like` | takes all else from a profile before it, or a known one | | |
//! | `load_latency_ns` | until a load that misses the caches has its line; until storage answers | 1 | 1e9 |
//! | `bandwidth` | bytes a second that a host can move, in each direction | 1e6 | 1e14 |
//! | `stream_bandwidth` | bytes a second that one thread streams, where no times by size are known | 1e6 | 1e14 |
//! | `read_ns.SIZE`, `write_ns.SIZE` | a whole transfer of so many bytes, by itself | 1 | 1e10 |
//! | `loaded.PERCENT` | latency at this share of the bandwidth, as a multiple of that at rest | 1 | 100 |
//! | `host_port.lanes`, `.bandwidth`; `switch`, `device` likewise | widths of the links on the way | 1; 1e6 | 1024; 1e14 |
//! | `operations` | operations a second of a network card or of storage | 1e3 | 1e12 |
//! | `doorbell_ns` | processor time to post a batch to a network card | 0 | 1e6 |
//! | `depth` | works that a queue pair holds | 1 | 65536 |
//! | `snoop_ns` | a device asks another host for a line that it has, until the answer; unless told, as a load | 1 | 1e9 |
//! | `core_transfer_ns` | a core takes a line that another core of its host has changed, or takes it from those that have it | 0 | 1e6 |
//! | `core_load_ns` | a core loads a line that other cores of its host share, and that was changed since it had it | 0 | 1e6 |
//! | `fill_buffers` | lines that a core can have under way | 1 | 1024 |
//! | `sync_ns` | making what was written durable, when nothing is queued | 0 | 1e10 |
//!
//! `source` and `load_latency_ns` must be there.

use cenote_base::error::IoContext;
use cenote_base::{Error, Result, rt};
use std::sync::LazyLock;

/// What a kind of memory, network or storage costs. Absent values are unknown, and cost nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// Its name, as users give it.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// Nanoseconds until a load that misses the caches has its line.
    pub load_latency_ns: f64,
    /// Bytes a second that a host can move, in each direction.
    pub bandwidth: Option<f64>,
    /// Bytes a second that one thread streams.
    pub stream_bandwidth: Option<f64>,
    /// Nanoseconds to read so many bytes, ascending, where published.
    pub read_ns: Vec<(u64, f64)>,
    /// Nanoseconds to write so many bytes, ascending, where published.
    pub write_ns: Vec<(u64, f64)>,
    /// The bandwidth-latency curve: utilisation (0 to 1), ascending, and latency as a multiple of that at rest.
    pub loaded: Vec<(f64, f64)>,
    /// The host's port.
    pub host_port: Width,
    /// The switch between, all ports together.
    pub switch: Width,
    /// The device's port, or its memory where that is narrower.
    pub device: Width,
    /// Operations a second.
    pub operations: Option<f64>,
    /// Nanoseconds of the processor to post a batch.
    pub doorbell_ns: f64,
    /// Works that a queue pair holds.
    pub depth: Option<usize>,
    /// Nanoseconds until another host that has a line has answered the device.
    pub snoop_ns: Option<f64>,
    /// Nanoseconds until a core has a line that another core of its host has changed, or has it alone.
    pub core_transfer_ns: f64,
    /// Nanoseconds until a core has a line that others of its host share.
    pub core_load_ns: f64,
    /// Lines that a core can have under way.
    pub fill_buffers: Option<usize>,
    /// Nanoseconds to make what was written durable.
    pub sync_ns: f64,
}

/// How wide a link is, where known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Width {
    /// Lanes.
    pub lanes: Option<u32>,
    /// Bytes a second, in each direction.
    pub bandwidth: Option<f64>,
}

const KNOWN: &str = include_str!("profiles.toml");

/// [`KNOWN`], read once: experiments ask for profiles at each access.
static BUILT_IN: LazyLock<Vec<Profile>> =
    LazyLock::new(|| parse_upon(KNOWN, Vec::new()).expect("profiles.toml is valid: a test reads it"));

/// All built-in profiles.
pub fn built_in() -> Vec<Profile> {
    BUILT_IN.clone()
}

/// The built-in profile of a name; the error lists them.
///
/// # Errors
/// [`Error::Invalid`] with the known names, if this is none of them.
pub fn named(name: &str) -> Result<Profile> {
    among(&BUILT_IN, name).map_err(|names| Error::Invalid(format!("no device profile \"{name}\"; there are {names}")))
}

/// The profile of a name, or all names.
fn among(profiles: &[Profile], name: &str) -> Result<Profile, String> {
    let found = profiles.iter().find(|p| p.name == name);
    found.cloned().ok_or_else(|| names(profiles))
}

fn names(profiles: &[Profile]) -> String {
    let names: Vec<&str> = profiles.iter().map(|p| p.name.as_str()).collect();
    names.join(", ")
}

/// The profile that a user means: a built-in's name, the path of a file that holds one profile, or `PATH:NAME`.
///
/// # Errors
/// [`Error::Invalid`] if there is neither a profile nor a file of that name, if the file is no text of profiles, or if
/// it holds several and none is named; [`Error::Io`] if it cannot be read.
pub fn find(text: &str) -> Result<Profile> {
    if let Ok(known) = named(text) {
        return Ok(known);
    }
    let (path, name) = match text.rsplit_once(':') {
        Some((path, name)) if !name.contains('/') => (path, Some(name)),
        _ => (text, None),
    };
    if !rt::fs::exists(path).unwrap_or(false) {
        return named(text).map_err(|e| Error::Invalid(format!("{e}; nor is there a file of that name")));
    }
    let bytes = rt::fs::read(path).doing(|| format!("reading profiles from {path}"))?;
    let profiles = parse(&String::from_utf8_lossy(&bytes)).map_err(|e| Error::Invalid(format!("{path}: {e}")))?;
    chosen(profiles, path, name)
}

fn chosen(mut profiles: Vec<Profile>, path: &str, name: Option<&str>) -> Result<Profile> {
    match name {
        Some(name) => among(&profiles, name)
            .map_err(|names| Error::Invalid(format!("{path}: no profile \"{name}\"; there are {names}"))),
        None if profiles.len() == 1 => Ok(profiles.remove(0)),
        None => {
            let names = names(&profiles);
            Err(Error::Invalid(format!(
                "{path} holds several profiles: say {path}:NAME, with one of {names}"
            )))
        }
    }
}

impl Profile {
    /// Nanoseconds to read `bytes` in one transfer, with nothing else under way.
    pub fn read_time(&self, bytes: u64) -> f64 {
        self.time(&self.read_ns, bytes)
    }

    /// Nanoseconds to write `bytes` in one transfer, with nothing else under way.
    pub fn write_time(&self, bytes: u64) -> f64 {
        self.time(&self.write_ns, bytes)
    }

    /// Nanoseconds until another host that has a line has answered the device that asks for it: a round trip, as a load
    /// is one.
    pub fn snoop_time(&self) -> f64 {
        self.snoop_ns.unwrap_or(self.load_latency_ns)
    }

    /// Between published sizes along the line; beyond the last at its last slope; without a curve
    /// the latency, and the bandwidth where known.
    fn time(&self, curve: &[(u64, f64)], bytes: u64) -> f64 {
        let Some(above) = curve.iter().position(|p| bytes <= p.0) else {
            return match curve {
                [.., a, b] => line((a.0 as f64, a.1), (b.0 as f64, b.1), bytes as f64),
                _ => self.load_latency_ns + self.streaming(bytes),
            };
        };
        match above {
            0 => curve[0].1,
            i => line(
                (curve[i - 1].0 as f64, curve[i - 1].1),
                (curve[i].0 as f64, curve[i].1),
                bytes as f64,
            ),
        }
    }

    /// Nanoseconds that one thread needs for the bytes beyond its first line.
    fn streaming(&self, bytes: u64) -> f64 {
        let beyond = bytes.saturating_sub(crate::LINE as u64) as f64;
        let speed = self.stream_bandwidth.or(self.bandwidth);
        speed.map_or(0.0, |bytes_per_second| beyond / bytes_per_second * 1e9)
    }

    /// Latency at a utilisation (0 to 1), as a multiple of that at rest.
    pub fn loaded_factor(&self, utilisation: f64) -> f64 {
        let at = utilisation.clamp(0.0, 1.0);
        match self.loaded.iter().position(|p| at <= p.0) {
            None => self.loaded.last().map_or(1.0, |p| p.1),
            Some(0) => line((0.0, 1.0), self.loaded[0], at),
            Some(i) => line(self.loaded[i - 1], self.loaded[i], at),
        }
    }
}

fn line(a: (f64, f64), b: (f64, f64), at: f64) -> f64 {
    if b.0 <= a.0 {
        return b.1;
    }
    a.1 + (b.1 - a.1) / (b.0 - a.0) * (at - a.0)
}

/// Reads profiles from text: a line `[name]` begins one, then `key = value` lines (see the module); `#` begins a
/// comment. The error names the line, the field, and what is accepted.
///
/// # Errors
/// [`Error::Invalid`] with the line, the field and what is accepted.
pub fn parse(text: &str) -> Result<Vec<Profile>> {
    let profiles = parse_upon(text, built_in())?;
    if profiles.is_empty() {
        return Err(Error::Invalid("no profile: a line [name] begins one".into()));
    }
    Ok(profiles)
}

/// `known`: what `like` may name besides the profiles before.
fn parse_upon(text: &str, known: Vec<Profile>) -> Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: String| Error::Invalid(format!("profiles, line {}: {what}", number + 1));
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            begin(&mut profiles, name.trim()).map_err(wrong)?;
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| wrong("expected key = value".into()))?;
        set_last(&mut profiles, &known, key.trim(), value.trim()).map_err(wrong)?;
    }
    profiles.iter().try_for_each(complete)?;
    Ok(profiles)
}

/// A `#` inside of quotes is none of a comment.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let begins = |c: char| {
        quoted ^= c == '"';
        c == '#' && !quoted
    };
    line.find(begins).map_or(line, |at| &line[..at])
}

fn begin(profiles: &mut Vec<Profile>, name: &str) -> Result<(), String> {
    if name.is_empty() || name.contains([':', '/', '"']) {
        return Err(format!("\"{name}\" is no name for a profile: no ':', '/' or quotes"));
    }
    if profiles.iter().any(|p| p.name == name) {
        return Err(format!("profile {name} is there twice"));
    }
    profiles.push(Profile {
        name: name.into(),
        ..Profile::default()
    });
    Ok(())
}

fn set_last(profiles: &mut [Profile], known: &[Profile], key: &str, value: &str) -> Result<(), String> {
    let Some((profile, before)) = profiles.split_last_mut() else {
        return Err("expected [name] first".into());
    };
    if key != "like" {
        return set(profile, key, value);
    }
    let name = value.trim_matches('"');
    let model = before.iter().chain(known).find(|p| p.name == name);
    let model = model.ok_or_else(|| format!("like: no profile \"{name}\" before"))?;
    *profile = Profile {
        name: std::mem::take(&mut profile.name),
        ..model.clone()
    };
    Ok(())
}

fn set(profile: &mut Profile, key: &str, value: &str) -> Result<(), String> {
    let bytes_per_second = || number(key, value, 1e6, 1e14, "bytes a second");
    match key.split_once('.') {
        None => return set_plain(profile, key, value),
        Some(("read_ns", size)) => insert(&mut profile.read_ns, transfer(key, size, value)?),
        Some(("write_ns", size)) => insert(&mut profile.write_ns, transfer(key, size, value)?),
        Some(("loaded", percent)) => {
            let at = number(&format!("the percentage of {key}"), percent, 0.0, 100.0, "per cent")?;
            insert(
                &mut profile.loaded,
                (at / 100.0, number(key, value, 1.0, 100.0, "times")?),
            );
        }
        Some((link, what)) => {
            let link = width(profile, link).ok_or_else(|| format!("unknown key {key}"))?;
            match what {
                "lanes" => link.lanes = Some(number(key, value, 1.0, 1024.0, "lanes")? as u32),
                "bandwidth" => link.bandwidth = Some(bytes_per_second()?),
                _ => return Err(format!("unknown key {key}")),
            }
        }
    }
    Ok(())
}

fn width<'a>(profile: &'a mut Profile, link: &str) -> Option<&'a mut Width> {
    Some(match link {
        "host_port" => &mut profile.host_port,
        "switch" => &mut profile.switch,
        "device" => &mut profile.device,
        _ => return None,
    })
}

fn set_plain(profile: &mut Profile, key: &str, value: &str) -> Result<(), String> {
    let within = |low, high, unit| number(key, value, low, high, unit);
    match key {
        "source" => profile.source = value.trim_matches('"').into(),
        "load_latency_ns" => profile.load_latency_ns = within(1.0, 1e9, "nanoseconds")?,
        "bandwidth" => profile.bandwidth = Some(within(1e6, 1e14, "bytes a second")?),
        "stream_bandwidth" => profile.stream_bandwidth = Some(within(1e6, 1e14, "bytes a second")?),
        "operations" => profile.operations = Some(within(1e3, 1e12, "operations a second")?),
        "doorbell_ns" => profile.doorbell_ns = within(0.0, 1e6, "nanoseconds")?,
        "depth" => profile.depth = Some(within(1.0, 65536.0, "works")? as usize),
        "snoop_ns" => profile.snoop_ns = Some(within(1.0, 1e9, "nanoseconds")?),
        "core_transfer_ns" => profile.core_transfer_ns = within(0.0, 1e6, "nanoseconds")?,
        "core_load_ns" => profile.core_load_ns = within(0.0, 1e6, "nanoseconds")?,
        "fill_buffers" => profile.fill_buffers = Some(within(1.0, 1024.0, "lines")? as usize),
        "sync_ns" => profile.sync_ns = within(0.0, 1e10, "nanoseconds")?,
        _ => return Err(format!("unknown key {key}")),
    }
    Ok(())
}

/// A number of a range, or what is accepted.
fn number(key: &str, value: &str, low: f64, high: f64, unit: &str) -> Result<f64, String> {
    let parsed = value.replace('_', "").parse::<f64>().ok();
    let fits = parsed.filter(|v| (low..=high).contains(v));
    fits.ok_or_else(|| format!("{key} = {value}: expected {low} to {high} ({unit})"))
}

fn transfer(key: &str, size: &str, value: &str) -> Result<(u64, f64), String> {
    let bytes = number(&format!("the size of {key}"), size, 1.0, (1u64 << 30) as f64, "bytes")?;
    Ok((bytes as u64, number(key, value, 1.0, 1e10, "nanoseconds")?))
}

fn insert<K: PartialOrd>(curve: &mut Vec<(K, f64)>, point: (K, f64)) {
    curve.retain(|p| p.0 != point.0);
    let at = curve.iter().position(|p| p.0 > point.0).unwrap_or(curve.len());
    curve.insert(at, point);
}

/// What only the whole shows: missing values, curves that fall.
fn complete(profile: &Profile) -> Result<()> {
    let wrong = |field: &str, what: &str| Err(Error::Invalid(format!("profile {}: {field} {what}", profile.name)));
    if profile.load_latency_ns == 0.0 {
        return wrong("load_latency_ns", "is missing: expected 1 to 1000000000 (nanoseconds)");
    }
    if profile.source.is_empty() {
        return wrong("source", "is missing: say where the figures come from");
    }
    let falls = [
        ("read_ns", falls(&profile.read_ns)),
        ("write_ns", falls(&profile.write_ns)),
        ("loaded", falls(&profile.loaded)),
    ];
    match falls.iter().find(|f| f.1) {
        Some((field, _)) => wrong(field, "falls as size or load grows: expected it to stay or rise"),
        None => Ok(()),
    }
}

fn falls<K>(curve: &[(K, f64)]) -> bool {
    curve.windows(2).any(|pair| pair[1].1 < pair[0].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_come_back() {
        for (name, latency) in [
            ("dram", 146.0),
            ("dram-remote", 231.0),
            ("cxl-direct", 265.2),
            ("cxl-direct-remote", 345.9),
            ("cxl-switch", 549.0),
            ("cxl-switch-remote", 651.0),
            ("cxl-fpga", 584.0),
        ] {
            assert_eq!(named(name).expect("known").load_latency_ns, latency, "{name}");
        }
        let rdma = named("rdma").expect("known");
        assert_eq!(rdma.read_time(16384), 7130.0);
        assert_eq!(rdma.write_time(1), 4480.0);
        let between = rdma.read_time(2560);
        assert!(between > 4910.0 && between < 5580.0);
        assert!(rdma.read_time(1 << 20) > 7130.0);
        let cxl = named("cxl-switch").expect("known");
        assert_eq!((cxl.read_time(64), cxl.write_time(16384)), (750.0, 1680.0));
        assert_eq!(named("dram").expect("known").read_time(64), 146.0);
        assert!(named("floppy").expect_err("unknown").to_string().contains("cxl-direct"));
    }

    #[test]
    fn every_known_profile_says_where_it_comes_from() {
        for profile in built_in() {
            assert!(profile.source.len() > 10, "{}", profile.name);
            assert!(profile.bandwidth.is_some(), "{}", profile.name);
        }
    }

    #[test]
    fn latency_rises_with_load() {
        let dram = named("dram").expect("known");
        assert_eq!(dram.loaded_factor(0.0), 1.0);
        assert_eq!(dram.loaded_factor(0.75), 1.35);
        assert_eq!(dram.loaded_factor(7.0), 3.5);
        let factors: Vec<f64> = (0..=100).map(|p| dram.loaded_factor(f64::from(p) / 100.0)).collect();
        assert!(factors.is_sorted(), "{factors:?}");
        assert_eq!(named("rdma").expect("known").loaded_factor(0.9), 1.0);
    }

    #[test]
    fn profiles_are_read_from_text() {
        let text = "# mine\n[lab]\nsource = \"our lab, #3\"\nload_latency_ns = 300\nread_ns.4096 = 900\n\
                    [lab-far]\nlike = \"lab\"\nload_latency_ns = 4e2 # far\nhost_port.lanes = 8\n[x]\nlike = dram\n";
        let profiles = parse(text).expect("valid");
        let [lab, far, x] = &profiles[..] else {
            panic!("three profiles")
        };
        assert_eq!((lab.name.as_str(), lab.load_latency_ns), ("lab", 300.0));
        assert_eq!((lab.source.as_str(), lab.read_time(64)), ("our lab, #3", 900.0));
        assert_eq!((far.load_latency_ns, far.read_time(64)), (400.0, 900.0));
        assert_eq!(far.host_port.lanes, Some(8));
        assert_eq!((x.name.as_str(), x.load_latency_ns), ("x", 146.0));
    }

    #[test]
    fn nonsense_is_refused_with_field_and_range() {
        let lab = "[a]\nsource = \"s\"\nload_latency_ns = 100\n";
        for (bad, says) in [
            ("x = 1".to_owned(), "line 1: expected [name] first"),
            ("[a]\nfoo = 1".to_owned(), "line 2: unknown key foo"),
            (
                "[a]\nbandwidth = -1".to_owned(),
                "bandwidth = -1: expected 1000000 to 100000000000000 (bytes",
            ),
            (
                "[a]\nload_latency_ns = fast".to_owned(),
                "load_latency_ns = fast: expected 1 to 1000000000 (nanoseconds)",
            ),
            ("[a]\nload_latency_ns = NaN".to_owned(), "expected 1 to"),
            ("[a]\nload_latency_ns = 0".to_owned(), "expected 1 to"),
            (
                "[a]\nsource = \"s\"".to_owned(),
                "profile a: load_latency_ns is missing",
            ),
            ("[a]\nload_latency_ns = 5".to_owned(), "profile a: source is missing"),
            (
                format!("{lab}loaded.120 = 2"),
                "the percentage of loaded.120 = 120: expected 0 to 100",
            ),
            (
                format!("{lab}loaded.50 = 0.5"),
                "loaded.50 = 0.5: expected 1 to 100 (times)",
            ),
            (format!("{lab}loaded.50 = 3\nloaded.80 = 2"), "profile a: loaded falls"),
            (
                format!("{lab}read_ns.64 = 9\nread_ns.8 = 10"),
                "profile a: read_ns falls",
            ),
            (
                format!("{lab}host_port.lanes = 0"),
                "host_port.lanes = 0: expected 1 to 1024 (lanes)",
            ),
            (format!("{lab}host_port.colour = 0"), "unknown key host_port.colour"),
            (format!("{lab}router.lanes = 4"), "unknown key router.lanes"),
            (format!("{lab}depth = 1e9"), "depth = 1e9: expected 1 to 65536"),
            (format!("{lab}[a]\n"), "profile a is there twice"),
            (format!("{lab}like = floppy"), "like: no profile \"floppy\""),
            ("[a:b]".to_owned(), "no name for a profile"),
            ("nothing".to_owned(), "expected key = value"),
            (String::new(), "no profile"),
        ] {
            let error = parse(&bad).expect_err(&bad).to_string();
            assert!(error.contains(says), "{bad:?} gave {error:?}, not {says:?}");
        }
    }
}
