use super::*;

/// Every tenth transaction is of kind 1, every third of these misses; the clock runs.
struct Counter {
    drawn: u64,
}

impl Terminal for Counter {
    type Input = u64;
    const KINDS: &'static [&'static str] = &["often", "seldom"];

    fn draw(&mut self) -> (usize, u64) {
        self.drawn += 1;
        (usize::from(self.drawn.is_multiple_of(10)), self.drawn)
    }

    fn run(&mut self, input: &u64) -> Result<Outcome> {
        std::thread::sleep(Duration::from_micros(200));
        if *input == u64::MAX {
            return Err(Error::Refused("broken".into()));
        }
        Ok(if input.is_multiple_of(30) {
            Outcome::Missed
        } else {
            Outcome::Done
        })
    }

    fn statements(&self) -> u64 {
        2 * self.drawn
    }

    fn waits(&mut self, _: usize) -> [Duration; 2] {
        [Duration::from_secs(60); 2]
    }
}

fn length(warmup: u64, measured: u64, has_waits: bool) -> Length {
    Length {
        warmup: Duration::from_millis(warmup),
        measured: Duration::from_millis(measured),
        has_waits,
        server_pid: Some(std::process::id()),
    }
}

#[test]
fn kinds_are_counted_and_the_warm_up_is_not() {
    let mut terminals = [Counter { drawn: 0 }, Counter { drawn: 0 }];
    let round = run(&mut terminals, &length(200, 200, false), "test").expect("it runs");
    let drawn: u64 = terminals.iter().map(|t| t.drawn).sum();
    let [often, seldom] = [&round.kinds[0], &round.kinds[1]];
    assert!(
        round.ended() > 100 && round.ended() < drawn * 4 / 5,
        "{} of {drawn}",
        round.ended()
    );
    assert!(
        often.ended.abs_diff(9 * seldom.ended) < 40,
        "{} {}",
        often.ended,
        seldom.ended
    );
    assert!(seldom.missed.abs_diff(seldom.ended / 3) < 5 && often.missed == 0);
    assert!(
        round.statements.abs_diff(2 * round.ended()) <= 8,
        "{}",
        round.statements
    );
    assert!(often.latency_ns.min() >= 200_000 && round.server_seconds.is_some());
}

#[test]
fn waits_end_with_the_time_and_an_error_ends_all() {
    let began = Instant::now();
    let round = run(&mut [Counter { drawn: 0 }], &length(0, 100, true), "test").expect("it runs");
    assert!(round.ended() <= 1 && began.elapsed() < Duration::from_secs(10));
    let mut terminals = [Counter { drawn: 0 }, Counter { drawn: u64::MAX - 1 }];
    let error = run(&mut terminals, &length(0, 60_000, false), "test")
        .err()
        .expect("an error");
    assert!(error.to_string() == "broken" && began.elapsed() < Duration::from_secs(20));
}
