//! Which host, in which of its lives, uses a region or a data directory.
//!
//! What was written to memory beyond caches and not flushed is lost with the host, and with its caches. So a start asks
//! whether it runs where the one before ran. Without a pool that is the machine's boot. With one it is what the pool
//! says: the host's name, and its epoch, which rises when the pool has declared the host lost. Two hosts may share a
//! boot (namespaces of one machine), and a boot outlasts an epoch.

/// A host in one of its lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    name: String,
    number: u64,
    epoch: u64,
}

impl Origin {
    /// The machine that this process runs on, until it is booted again.
    pub fn machine() -> Origin {
        Origin::booted(crate::boot())
    }

    /// The machine of a boot; 0 if nothing tells.
    pub fn booted(boot: u64) -> Origin {
        Origin {
            name: format!("boot {boot:012x}"),
            number: boot,
            epoch: 0,
        }
    }

    /// A host of a pool, in the epoch that the pool counts for it.
    pub fn host(name: &str, epoch: u64) -> Origin {
        Origin {
            name: name.into(),
            number: number_of(name),
            epoch,
        }
    }

    /// The name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number in place of the name, as headers hold it; 0 if it is not known which host this is.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The host's life.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it is known which host this is.
    pub fn is_known(&self) -> bool {
        self.number != 0
    }
}

impl core::fmt::Display for Origin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.epoch {
            0 => f.write_str(&self.name),
            epoch => write!(f, "host {}, epoch {epoch}", self.name),
        }
    }
}

/// FNV-1a, with the highest bit set: a boot's number has it clear, and no name is number 0.
fn number_of(name: &str) -> u64 {
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_boots_and_epochs_are_told_apart() {
        let all = [
            Origin::host("a", 1),
            Origin::host("a", 2),
            Origin::host("b", 1),
            Origin::booted(7),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(one.is_known());
            assert_eq!(all.iter().position(|other| other == one), Some(i));
        }
        assert!(!Origin::booted(0).is_known());
        assert_ne!(Origin::host("a", 1).number(), Origin::host("b", 1).number());
        assert_eq!(Origin::host("a", 3).to_string(), "host a, epoch 3");
    }
}
