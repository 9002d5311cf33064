//! Progress where the output is no terminal: a line each quarter, and none of what takes no time.
//!
//! A terminal shows one line that is written again and again, behind a carriage return. In a file or a pipe that is a
//! single line of thousands of characters.

use std::time::Duration;

/// A run shorter than this tells only its end.
const SHORT: Duration = Duration::from_secs(2);

/// The quarters of a run that have been told.
#[derive(Debug, Default)]
pub struct Quarters(u64);

impl Quarters {
    /// The percentage to tell of a run that has done so much after such a time; None: nothing new to tell.
    pub fn due(&mut self, done: u64, all: u64, elapsed: Duration) -> Option<u64> {
        let quarter = (4 * done).checked_div(all)?.min(4);
        if quarter <= self.0 || (elapsed < SHORT && quarter < 4) {
            return None;
        }
        self.0 = quarter;
        Some(quarter * 25)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quarter_is_told_once() {
        let mut quarters = Quarters::default();
        let told: Vec<_> = (0..=100)
            .filter_map(|done| quarters.due(done, 100, Duration::from_secs(3)))
            .collect();
        assert_eq!(told, [25, 50, 75, 100]);
        let mut quarters = Quarters::default();
        let told: Vec<_> = (0..=100)
            .filter_map(|done| quarters.due(done, 100, Duration::from_millis(3)))
            .collect();
        assert_eq!(told, [100], "what is over at once");
        assert_eq!(quarters.due(0, 0, SHORT), None);
    }
}
