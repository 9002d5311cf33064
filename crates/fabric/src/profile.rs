//! Device profiles: what kinds of memory are known to cost, as data, each with its source.
//!
//! Figures are those that papers published; nothing here is measured on this machine. Whatever
//! uses a profile says "emulated" or "simulated" and the profile's name.

use cenote_base::{Error, Result};

/// What a kind of memory costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name, as users give it.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// Nanoseconds until a load that misses the caches has its line.
    pub load_latency_ns: f64,
    /// Bytes a second that a host can move, where known.
    pub bandwidth: Option<f64>,
    /// Nanoseconds to read so many bytes, ascending, where published.
    pub read_ns: Vec<(u64, f64)>,
    /// Nanoseconds to write so many bytes, ascending, where published.
    pub write_ns: Vec<(u64, f64)>,
}

const POLAR_1: &str = "PolarCXLMem, table 1";
const POLAR_2: &str = "PolarCXLMem, tables 1 and 2";

/// name, source, load latency in ns, GB/s or 0 where unknown.
const BUILT_IN: [(&str, &str, f64, f64); 12] = [
    ("dram", POLAR_1, 146.0, 0.0),
    ("dram-remote", POLAR_1, 231.0, 0.0),
    ("cxl-direct", POLAR_1, 265.2, 0.0),
    ("cxl-direct-remote", POLAR_1, 345.9, 0.0),
    ("cxl-switch", POLAR_2, 549.0, 0.0),
    ("cxl-switch-remote", POLAR_1, 651.0, 0.0),
    (
        "rdma",
        "PolarCXLMem, table 2; ConnectX-6, about 12 GB/s usable",
        4550.0,
        12.0,
    ),
    ("pasha-cxl", "Pasha: 2.3 times the latency of DRAM (146 ns)", 335.8, 0.0),
    (
        "hana-cmm-d",
        "HANA: CMM-D, 2.3 times the latency of DRAM (146 ns)",
        335.8,
        0.0,
    ),
    (
        "hana-fpga",
        "HANA: FPGA, about 4 times the latency of DRAM (146 ns)",
        584.0,
        0.0,
    ),
    ("rcmp-node-local", "Rcmp: node-local, read", 93.0, 0.0),
    ("rcmp-cross-node", "Rcmp: cross-node, standing for CXL", 138.5, 0.0),
];

/// Bytes, then microseconds over CXL and RDMA (PolarCXLMem, table 2).
const READ_US: [(u64, f64, f64); 5] = [
    (64, 0.75, 4.55),
    (512, 0.85, 4.79),
    (1024, 1.07, 4.91),
    (4096, 1.86, 5.58),
    (16384, 2.46, 7.13),
];
const WRITE_US: [(u64, f64, f64); 5] = [
    (64, 0.78, 4.48),
    (512, 0.84, 4.69),
    (1024, 0.88, 4.77),
    (4096, 1.02, 5.06),
    (16384, 1.68, 6.12),
];

/// All built-in profiles.
pub fn built_in() -> Vec<Profile> {
    BUILT_IN
        .iter()
        .map(|(name, source, latency, gigabytes)| Profile {
            name: (*name).into(),
            source: (*source).into(),
            load_latency_ns: *latency,
            bandwidth: (*gigabytes > 0.0).then_some(gigabytes * 1e9),
            read_ns: curve(name, &READ_US),
            write_ns: curve(name, &WRITE_US),
        })
        .collect()
}

fn curve(name: &str, table: &[(u64, f64, f64)]) -> Vec<(u64, f64)> {
    let pick = |f: fn(&(u64, f64, f64)) -> f64| table.iter().map(|r| (r.0, f(r) * 1e3)).collect();
    match name {
        "cxl-switch" => pick(|r| r.1),
        "rdma" => pick(|r| r.2),
        _ => Vec::new(),
    }
}

/// The built-in profile of a name; the error lists them.
pub fn named(name: &str) -> Result<Profile> {
    built_in().into_iter().find(|p| p.name == name).ok_or_else(|| {
        let names: Vec<_> = BUILT_IN.iter().map(|p| p.0).collect();
        Error::Invalid(format!("no device profile \"{name}\"; there are {}", names.join(", ")))
    })
}

impl Profile {
    /// Nanoseconds to read `bytes` in one transfer.
    pub fn read_time(&self, bytes: u64) -> f64 {
        self.time(&self.read_ns, bytes)
    }

    /// Nanoseconds to write `bytes` in one transfer.
    pub fn write_time(&self, bytes: u64) -> f64 {
        self.time(&self.write_ns, bytes)
    }

    /// Between published sizes along the line; beyond the last at its last slope; without a curve
    /// the latency, and the bandwidth where known.
    fn time(&self, curve: &[(u64, f64)], bytes: u64) -> f64 {
        let Some(above) = curve.iter().position(|p| bytes <= p.0) else {
            return match curve {
                [.., a, b] => line(*a, *b, bytes),
                _ => self.load_latency_ns + self.bandwidth.map_or(0.0, |b| bytes as f64 / b * 1e9),
            };
        };
        match above {
            0 => curve[0].1,
            i => line(curve[i - 1], curve[i], bytes),
        }
    }
}

fn line(a: (u64, f64), b: (u64, f64), at: u64) -> f64 {
    let slope = (b.1 - a.1) / (b.0 - a.0) as f64;
    a.1 + slope * (at as f64 - a.0 as f64)
}

/// Reads profiles from text: a line `[name]` begins one, then `key = value` lines: `source`,
/// `load_latency_ns`, `bandwidth` (bytes a second), `read_ns.SIZE`, `write_ns.SIZE`; `#` begins a
/// comment. The error names the line.
pub fn parse(text: &str) -> Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let wrong = |what: &str| Error::Invalid(format!("profiles, line {}: {what}", number + 1));
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            profiles.push(empty(name.trim()));
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| wrong("expected key = value"))?;
        let profile = profiles.last_mut().ok_or_else(|| wrong("expected [name] first"))?;
        set(profile, key.trim(), value.trim()).ok_or_else(|| wrong("unknown key or bad value"))?;
    }
    Ok(profiles)
}

fn empty(name: &str) -> Profile {
    Profile {
        name: name.into(),
        source: String::new(),
        load_latency_ns: 0.0,
        bandwidth: None,
        read_ns: Vec::new(),
        write_ns: Vec::new(),
    }
}

fn set(profile: &mut Profile, key: &str, value: &str) -> Option<()> {
    let number = || value.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    let point = |size: &str| Some((size.parse::<u64>().ok()?, number()?));
    match key.split_once('.') {
        Some(("read_ns", size)) => insert(&mut profile.read_ns, point(size)?),
        Some(("write_ns", size)) => insert(&mut profile.write_ns, point(size)?),
        Some(_) => return None,
        None => match key {
            "source" => profile.source = value.trim_matches('"').into(),
            "load_latency_ns" => profile.load_latency_ns = number()?,
            "bandwidth" => profile.bandwidth = Some(number()?),
            _ => return None,
        },
    }
    Some(())
}

fn insert(curve: &mut Vec<(u64, f64)>, point: (u64, f64)) {
    curve.retain(|p| p.0 != point.0);
    curve.push(point);
    curve.sort_by_key(|p| p.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_come_back() {
        assert_eq!(named("cxl-switch").expect("known").load_latency_ns, 549.0);
        let rdma = named("rdma").expect("known");
        assert_eq!(rdma.read_time(16384), 7130.0);
        assert_eq!(rdma.write_time(1), 4480.0);
        let between = rdma.read_time(2560);
        assert!(between > 4910.0 && between < 5580.0);
        assert!(rdma.read_time(1 << 20) > 7130.0);
        assert!(named("floppy").expect_err("unknown").to_string().contains("cxl-direct"));
    }

    #[test]
    fn profiles_are_read_from_text() {
        let text = "# mine\n[lab]\nsource = \"our lab\"\nload_latency_ns = 300\nread_ns.4096 = 900\n";
        let lab = &parse(text).expect("valid")[0];
        assert_eq!((lab.name.as_str(), lab.load_latency_ns), ("lab", 300.0));
        assert_eq!(lab.read_time(64), 900.0);
        for (bad, line) in [
            ("x = 1", "line 1"),
            ("[a]\nfoo = 1", "line 2"),
            ("[a]\nbandwidth = -1", "line 2"),
        ] {
            assert!(parse(bad).expect_err("bad").to_string().contains(line), "{bad}");
        }
    }
}
