//! The options of a run, its progress bars, and its threads.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::path::PathBuf;

/// The figures to make, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// One of [`PAPERS`].
    pub paper: String,
    /// Names of its figures; none: all.
    pub figures: Vec<String>,
    /// Fewer points, shorter windows.
    pub quick: bool,
    /// Output folder.
    pub out: PathBuf,
    /// The first seed of the simulation.
    pub seed: u64,
    /// How many seeds, one after the other; numbers are medians.
    pub seeds: u32,
    /// What is told as the code's version; none: what `git describe` says of the sources.
    pub commit: Option<String>,
    /// Figures that lie in `out`, made by a full run of the code as it is and as many seeds, are not run again.
    pub if_stale: bool,
    /// Of serverless: where traces of TPC-H and TPC-C are; made if they are not there. None: made anew, and not kept.
    pub traces: Option<PathBuf>,
    /// Cenote's program, for traces; none: the one that lies beside this.
    pub program: Option<PathBuf>,
}

/// Progress bars of a run.
#[derive(Default)]
pub struct Progress(MultiProgress);

impl Progress {
    /// A bar of so many steps.
    pub fn bar(&self, message: &str, steps: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{msg:>14} {bar:40} {pos}/{len} {elapsed} (about {eta} more)");
        let bar = self.0.add(ProgressBar::new(steps)).with_message(message.to_owned());
        bar.set_style(style.expect("a valid template"));
        bar.enable_steady_tick(std::time::Duration::from_millis(500));
        bar
    }
}

/// Calls `f` for each item on threads of its own, as many at a time as there are processors; results in order.
pub fn parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    parallel_at_most(usize::MAX, items, f)
}

/// As [`parallel`], so many at a time at most.
pub fn parallel_at_most<T: Sync, R: Send>(most: usize, items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism()
        .map_or(1, std::num::NonZero::get)
        .min(most.max(1));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<std::sync::Mutex<Option<R>>> = items.iter().map(|_| std::sync::Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(i) else { return };
                    *results[i].lock().expect("no thread panics with it") = Some(f(item));
                }
            });
        }
    });
    let value = |r: std::sync::Mutex<Option<R>>| r.into_inner().expect("no thread panics with it");
    results.into_iter().map(|r| value(r).expect("each was run")).collect()
}
