//! Tenants, their quotas and priorities, as the manager's file names them.
//!
//! ```toml
//! secret = "for nodes and operators"
//!
//! [[tenant]]
//! name = "orders"
//! secret = "..."
//! quota = "64GiB"       # without: no limit
//! priority = 2          # 0 to 255, 1 unless told
//! ```
//!
//! Without a file there is one tenant, `default`, without a limit, and no client is asked for a secret: then the
//! manager listens on loopback addresses alone.

use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The tenant of clients that name none.
pub const DEFAULT_TENANT: &str = "default";
/// Bytes of the longest name.
pub const NAME_MAX: usize = 128;
const PRIORITY_DEFAULT: u8 = 1;

/// A tenant's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// What it is known by, if it is asked.
    pub secret: Option<String>,
    /// The most that it gets, in bytes.
    pub quota: Option<u64>,
    /// Which tenant's idle grants go first where memory is short.
    pub priority: u8,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenants {
    /// What nodes and operators are known by.
    pub secret: Option<String>,
    /// By name.
    pub tenants: BTreeMap<String, Tenant>,
}

/// The file, before it is checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    secret: String,
    #[serde(default)]
    tenant: Vec<FileTenant>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTenant {
    name: String,
    secret: String,
    quota: Option<String>,
    priority: Option<u8>,
}

impl Default for Tenants {
    fn default() -> Self {
        let anyone = Tenant {
            secret: None,
            quota: None,
            priority: PRIORITY_DEFAULT,
        };
        Self {
            secret: None,
            tenants: BTreeMap::from([(DEFAULT_TENANT.into(), anyone)]),
        }
    }
}

impl Tenants {
    /// Reads the file's text.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names line and key, or tenant and field.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| Error::Invalid(error.to_string().trim_end().into()))?;
        if file.secret.is_empty() {
            return Err(Error::Invalid("secret: it is empty".into()));
        }
        let mut tenants = BTreeMap::new();
        for tenant in file.tenant {
            let name = tenant.name.clone();
            check_name("a tenant's name", &name)?;
            let checked = tenant
                .check()
                .map_err(|why| Error::Invalid(format!("tenant \"{name}\": {why}")))?;
            if tenants.insert(name.clone(), checked).is_some() {
                return Err(Error::Invalid(format!("tenant \"{name}\" is there twice")));
            }
        }
        Ok(Self {
            secret: Some(file.secret),
            tenants,
        })
    }

    /// Whether no client is asked for a secret.
    pub fn is_open(&self) -> bool {
        self.secret.is_none()
    }

    /// The tenant of this name, if the secret is its own.
    ///
    /// # Errors
    /// [`Error::Invalid`]; it does not tell whether the name or the secret is wrong.
    pub fn admit(&self, name: &str, secret: &str) -> Result<&Tenant> {
        let tenant = self.tenants.get(name).filter(|tenant| fits(&tenant.secret, secret));
        tenant.ok_or_else(|| {
            Error::Invalid(format!(
                "no tenant \"{name}\" with this secret: see the manager's --tenants file"
            ))
        })
    }

    /// Lets a node or an operator in.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn admit_staff(&self, secret: &str) -> Result<()> {
        match fits(&self.secret, secret) {
            true => Ok(()),
            false => Err(Error::Invalid(
                "the pool's secret is another one: give the manager's with --secret-file".into(),
            )),
        }
    }
}

impl FileTenant {
    fn check(self) -> std::result::Result<Tenant, String> {
        if self.secret.is_empty() {
            return Err("secret: it is empty".into());
        }
        let quota = self
            .quota
            .map(|text| text.parse::<ByteSize>().map_err(|e| format!("quota: {e}")));
        Ok(Tenant {
            secret: Some(self.secret),
            quota: quota.transpose()?.map(ByteSize::bytes),
            priority: self.priority.unwrap_or(PRIORITY_DEFAULT),
        })
    }
}

/// A name that can stand in a list and a file.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let fine = !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(|c| c.is_control() || c == '/');
    match fine {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{what} has 1 to {NAME_MAX} bytes without control characters and slashes; \"{}\" does not",
            name.escape_debug()
        ))),
    }
}

/// Takes as long wherever they differ.
fn fits(wanted: &Option<String>, given: &str) -> bool {
    let Some(wanted) = wanted else { return true };
    let differ = wanted.bytes().zip(given.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    differ == 0 && wanted.len() == given.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = "secret = \"s\"\n[[tenant]]\nname = \"a\"\nsecret = \"x\"\nquota = \"1GiB\"\n[[tenant]]\nname = \"b\"\nsecret = \"y\"\npriority = 9\n";
        let tenants = Tenants::parse(text).expect("a good file");
        assert_eq!(tenants.admit("a", "x").expect("let in").quota, Some(1 << 30));
        assert_eq!(tenants.admit("b", "y").expect("let in").priority, 9);
        for (name, secret) in [("a", "y"), ("a", ""), ("a", "xx"), ("c", "x")] {
            assert!(tenants.admit(name, secret).is_err(), "{name} {secret}");
        }
        assert!(tenants.admit_staff("s").is_ok() && tenants.admit_staff("").is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |text: &str, what: &str| {
            let error = Tenants::parse(text).expect_err("refused").to_string();
            assert!(error.contains(what), "{error}");
        };
        says("", "secret");
        says("secret = \"\"", "secret");
        says("secret = \"s\"\nfoo = 1", "foo");
        says(
            "secret = \"s\"\n[[tenant]]\nname = \"a\"\nsecret = \"x\"\nquota = \"much\"",
            "quota",
        );
        says("secret = \"s\"\n[[tenant]]\nname = \"a/b\"\nsecret = \"x\"", "a/b");
        let twice = "[[tenant]]\nname = \"a\"\nsecret = \"x\"\n";
        says(&format!("secret = \"s\"\n{twice}{twice}"), "twice");
    }
}
