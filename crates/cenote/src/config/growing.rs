//! Settings of remote memory that grows under load, by slabs.

use crate::config_error::ConfigError;
use cenote_base::units::ByteSize;
use cenote_engine::Growth;
use clap::Args;

/// Of what remote memory grows by there are 32 slabs, unless it is said.
const SLABS: u64 = 32;
const SLAB_UNIT: u64 = 1 << 20;
/// A slab is a grant with a lease, and a start reaches each of them.
const SLAB_USUAL_MIN: ByteSize = ByteSize::mib(16);
const SLAB_MIN: ByteSize = ByteSize::mib(1);
/// What a buffer pool keeps count of.
const SLABS_MAX: u64 = 64;
const _: () = assert!(
    SLABS_MAX <= cenote_pool::SLABS_AT_ONCE as u64,
    "a start asks for all slabs at once"
);
/// Pages a second that a GiB has to save from being read in storage.
const WORTH: u32 = 100;
const WORTH_MAX: u32 = 1_000_000;

/// How far remote memory grows, and when.
#[derive(Debug, Clone, Default, Args)]
pub struct GrowthOptions {
    /// With --memory tiered: bytes up to which the memory behind this process's own grows while the load needs it, and
    /// from which it shrinks again to --memory-size [default: it does not grow]
    #[arg(long, env = "CENOTE_MEMORY_MAX", value_name = "SIZE")]
    pub memory_max: Option<ByteSize>,
    /// With --memory-max: bytes by which it grows and shrinks; 64 times at most [default: a 32nd of what it grows by,
    /// at least 16MiB]
    #[arg(long, env = "CENOTE_MEMORY_SLAB", value_name = "SIZE")]
    pub memory_slab: Option<ByteSize>,
    /// With --memory-max: pages a second that a GiB of it has to save from being read in storage, to be taken and kept
    /// [default: 100]
    #[arg(long, env = "CENOTE_MEMORY_WORTH", value_name = "N")]
    pub memory_worth: Option<u32>,
}

impl GrowthOptions {
    /// Decides them, for memory of `size`; `None`: it does not grow.
    ///
    /// # Errors
    /// Something is said of memory that does not grow; numbers that no memory grows by.
    pub fn decide(self, is_tiered: bool, size: ByteSize) -> Result<Option<Growth>, ConfigError> {
        let refused = |problem: String| Err(ConfigError::Value(problem));
        let is_more_given = self.memory_slab.is_some() || self.memory_worth.is_some();
        if !is_tiered && (is_more_given || self.memory_max.is_some()) {
            return refused("memory_max, memory_slab and memory_worth are for --memory tiered".into());
        }
        match self.memory_max.unwrap_or(size) {
            max if max < size => refused(format!(
                "memory_max is {max}; it is at least memory_size, {size}, from which the memory grows"
            )),
            max if max > size => named_in(size, self.of(ByteSize(max.bytes() - size.bytes()))?).map(Some),
            _ if is_more_given => refused(
                "memory_slab and memory_worth are for memory that grows: set memory_max beyond memory_size, too".into(),
            ),
            _ => Ok(None),
        }
    }

    /// Of memory that grows by so much.
    fn of(self, room: ByteSize) -> Result<Growth, ConfigError> {
        let refused = |problem: String| Err(ConfigError::Value(problem));
        let slab = self.memory_slab.unwrap_or_else(|| usual_slab(room));
        if room < SLAB_MIN {
            return refused(format!(
                "memory_max is {room} beyond memory_size; slabs have {SLAB_MIN} at least: set it higher, or leave it out"
            ));
        }
        if slab < SLAB_MIN || slab > room {
            return refused(format!(
                "memory_slab is {slab}; it may be {SLAB_MIN} to {room}, which is what memory_max is beyond memory_size"
            ));
        }
        let most = room.bytes() / slab.bytes();
        if most > SLABS_MAX {
            let least = ByteSize((room.bytes() / SLABS_MAX).next_multiple_of(SLAB_UNIT));
            return refused(format!(
                "memory_slab is {slab}, of which memory_max has {most} beyond memory_size, and {SLABS_MAX} is the most: \
                 set memory_slab to {least} or more, or memory_max lower"
            ));
        }
        let worth = self.memory_worth.unwrap_or(WORTH);
        if !(1..=WORTH_MAX).contains(&worth) {
            return refused(format!("memory_worth is {worth}; it may be 1 to {WORTH_MAX}"));
        }
        Ok(Growth {
            slab: slab.bytes(),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            worth,
        })
    }
}

/// The memory that is always there names all pages that there may be: half of it is for pages of its own.
fn named_in(size: ByteSize, growth: Growth) -> Result<Growth, ConfigError> {
    let named = ByteSize(growth.named());
    match named.bytes() <= size.bytes() / 2 {
        true => Ok(growth),
        false => Err(ConfigError::Value(format!(
            "memory_size is {size}, and takes {named} to name the pages that memory_max lets it have: set memory_size to \
             twice that at least, or memory_max lower"
        ))),
    }
}

fn usual_slab(room: ByteSize) -> ByteSize {
    let part = ByteSize(room.bytes().div_ceil(SLABS).next_multiple_of(SLAB_UNIT));
    part.max(SLAB_USUAL_MIN).min(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ByteSize = ByteSize::gib(1);

    /// Of memory of 1 GiB that grows up to so much.
    fn up_to(max: ByteSize) -> GrowthOptions {
        GrowthOptions {
            memory_max: Some(max),
            ..GrowthOptions::default()
        }
    }

    fn decided(options: GrowthOptions) -> Option<(ByteSize, u32, u32)> {
        let growth = options.decide(true, SIZE).expect("it is");
        growth.map(|growth| (ByteSize(growth.slab), growth.most, growth.worth))
    }

    fn refused(options: GrowthOptions, is_tiered: bool, why: &str) {
        let error = options.decide(is_tiered, SIZE).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn what_slabs_may_hold_is_named_in_memory_that_is_there() {
        // 64 bytes for each page of 16 KiB: half of a GiB names 128 GiB.
        assert!(decided(up_to(ByteSize::gib(129))).is_some());
        refused(up_to(ByteSize::gib(140)), true, "memory_size is 1GiB");
    }

    #[test]
    fn memory_grows_by_a_32nd_at_least_16_mib() {
        for (room, slab, most) in [
            (ByteSize::gib(32), ByteSize::gib(1), 32),
            (ByteSize::mib(1025), ByteSize::mib(33), 31),
            (ByteSize::mib(100), ByteSize::mib(16), 6),
            (ByteSize::mib(5), ByteSize::mib(5), 1),
            (ByteSize((5 << 20) + 7), ByteSize((5 << 20) + 7), 1),
        ] {
            let max = ByteSize(SIZE.bytes() + room.bytes());
            assert_eq!(decided(up_to(max)), Some((slab, most, 100)), "{room}");
        }
        let given = GrowthOptions {
            memory_slab: Some(ByteSize::mib(300)),
            memory_worth: Some(7),
            ..up_to(ByteSize::gib(3))
        };
        assert_eq!(decided(given), Some((ByteSize::mib(300), 6, 7)));
    }

    #[test]
    fn memory_without_a_maximum_does_not_grow() {
        assert_eq!(decided(GrowthOptions::default()), None);
        assert_eq!(decided(up_to(SIZE)), None);
        assert_eq!(GrowthOptions::default().decide(false, SIZE).expect("it is"), None);
    }

    #[test]
    fn settings_that_mean_nothing_are_refused_by_name() {
        let more = up_to(ByteSize::gib(2));
        let slab = |size| GrowthOptions {
            memory_slab: Some(size),
            ..GrowthOptions::default()
        };
        let worth = |worth| GrowthOptions {
            memory_worth: Some(worth),
            ..GrowthOptions::default()
        };
        let of = |options: GrowthOptions| GrowthOptions {
            memory_max: more.memory_max,
            ..options
        };
        for options in [more.clone(), slab(SIZE), worth(1)] {
            refused(options, false, "for --memory tiered");
        }
        refused(slab(SLAB_MIN), true, "set memory_max beyond memory_size");
        refused(worth(1), true, "set memory_max beyond memory_size");
        refused(up_to(ByteSize::mib(1023)), true, "memory_max is 1023MiB");
        refused(up_to(ByteSize(SIZE.bytes() + 5)), true, "memory_max is 5B beyond");
        refused(of(slab(ByteSize::kib(1023))), true, "memory_slab is 1023KiB");
        refused(of(slab(ByteSize::mib(1025))), true, "it may be 1MiB to 1GiB");
        refused(of(slab(ByteSize::mib(15))), true, "set memory_slab to 16MiB or more");
        assert_eq!(
            of(slab(ByteSize::mib(16)))
                .decide(true, SIZE)
                .expect("64")
                .map(|g| g.most),
            Some(64)
        );
        refused(of(worth(0)), true, "memory_worth is 0; it may be 1 to 1000000");
        refused(of(worth(1_000_001)), true, "memory_worth is 1000001");
    }
}
