//! What is read much in several pods stays, and is read from pages that each keeps (Rcmp's read-hot pages).

use super::super::super::Mode;
use super::{EXTENT, Pods, lively};
use cenote_base::Result;
use cenote_base::rt::{self, Nanos};

/// Both pods read an object under its lock, much and alike: it does not move, the other pod asks for it once, and once
/// more after each write.
#[test]
fn what_both_pods_read_stays_and_is_cached() -> Result<()> {
    const READS: u64 = 2000;
    let pods = Pods::new(8, lively());
    let [east, west] = [0, 1].map(|n| pods.users[n].session());
    let (lock, object) = (east.new_lock()?, east.alloc(EXTENT / 4)?);
    let read = |session: &crate::Session, value: u8| -> Result<()> {
        let guard = session.lock(lock, Mode::Read)?;
        for at in 0..8 {
            let mut bytes = [0; 100];
            guard.read(object + at * 8192, &mut bytes)?;
            assert_eq!(bytes, [value; 100]);
        }
        guard.unlock()
    };
    for value in 1..=2 {
        let guard = east.lock(lock, Mode::Write)?;
        (0..8).try_for_each(|at| guard.write(object + at * 8192, &[value; 100]))?;
        guard.unlock()?;
        for _ in 0..READS / 16 {
            read(&east, value)?;
            read(&west, value)?;
        }
    }
    // Hosts have looked at what is hot.
    rt::sleep(Nanos(4 * pods.options.every.raw()));
    let told = west.stats().cache;
    assert_eq!(
        (told.misses, told.hits),
        (16, READS - 16),
        "a page is asked for once in a version"
    );
    let home = pods.hosts[0].keeper().placement();
    assert!(
        !home.away.contains_key(&object.extent()),
        "it stays where it is written"
    );
    pods.audit();
    Ok(())
}
