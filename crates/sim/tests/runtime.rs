//! The simulator finds what it should, and only that; and goes the same way twice.

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Condvar, Event, Local, Mutex, Nanos, RwLock, fs};
use cenote_sim::{Sim, explore, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const THREADS: u64 = 4;

/// Runs `body` in several threads and waits for them.
fn in_threads(body: impl Fn(u64) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let body = Arc::clone(&body);
            rt::spawn(&format!("worker {i}"), move || body(i))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// The message of the panic that a run ends with.
fn panic_of(f: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(f)).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
}

/// A counter that reads and then writes: the sum that its threads reach.
fn torn_counter(seed: u64) -> u64 {
    let body = |_: &Sim| {
        let counter = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&counter);
        in_threads(move |_| {
            for _ in 0..10 {
                let now = theirs.load(Ordering::SeqCst);
                theirs.store(now + 1, Ordering::SeqCst);
            }
        });
        counter.load(Ordering::SeqCst)
    };
    run(seed, body).value
}

#[test]
fn a_lost_update_is_found() {
    let lost = (0..50).filter(|seed| torn_counter(*seed) < 10 * THREADS).count();
    assert!(lost > 25, "found under {lost} of 50 seeds");
}

#[test]
fn a_mutex_loses_none() {
    explore(50, |_| {
        let counter = Arc::new(Mutex::new(0));
        let theirs = Arc::clone(&counter);
        in_threads(move |_| {
            for _ in 0..10 {
                let mut held = theirs.lock();
                let now = *held;
                rt::preempt();
                *held = now + 1;
            }
        });
        assert_eq!(*counter.lock(), 10 * THREADS);
    });
}

#[test]
fn readers_and_writers_exclude_each_other() {
    explore(50, |_| {
        let pair = Arc::new(RwLock::new((0u64, 0u64)));
        let theirs = Arc::clone(&pair);
        in_threads(move |i| {
            for _ in 0..10 {
                if i % 2 == 0 {
                    let mut both = theirs.write();
                    both.0 += 1;
                    rt::preempt();
                    both.1 += 1;
                } else {
                    let both = theirs.read();
                    rt::preempt();
                    assert_eq!(both.0, both.1);
                }
            }
        });
        assert_eq!(*pair.read(), (20, 20));
    });
}

#[test]
fn same_seed_same_run() {
    let once = |seed| {
        run(seed, |_| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let theirs = Arc::clone(&seen);
            in_threads(move |i| {
                rt::sleep(Nanos(rt::random() % 1000));
                theirs.lock().push((i, rt::now(), rt::random()));
            });
            Arc::try_unwrap(seen).expect("all have ended").into_inner()
        })
    };
    let mut digests = Vec::new();
    for seed in 0..20 {
        let first = once(seed);
        assert_eq!(first, once(seed));
        assert_eq!(first.threads_left, 0);
        digests.push(first.digest);
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 20, "seeds differ");
}

#[test]
fn a_deadlock_names_its_threads_and_where_they_wait() {
    let body = |_: &Sim| {
        let locks = Arc::new((Mutex::new(()), Mutex::new(())));
        let theirs = Arc::clone(&locks);
        let other = rt::spawn("the other one", move || {
            let _second = theirs.1.lock();
            rt::preempt();
            let _first = theirs.0.lock();
        });
        let first = locks.0.lock();
        rt::preempt();
        drop((locks.1.lock(), first));
        other.join().expect("no panic");
    };
    let found = (0..50)
        .find_map(|seed| panic_of(|| _ = run(seed, body)))
        .expect("some seed locks");
    assert!(found.starts_with("deadlock"), "{found}");
    assert!(
        found.contains("\"main\"") && found.contains("\"the other one\""),
        "{found}"
    );
    assert!(
        found.contains("waits on word") && found.contains("in cenote_base::rt::"),
        "{found}"
    );
}

#[test]
fn a_lost_wake_up_is_found() {
    // The flag is looked at outside the lock that its setter notifies under.
    let body = |_: &Sim| {
        let shared = Arc::new((AtomicU64::new(0), Mutex::new(()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let setter = rt::spawn("setter", move || {
            theirs.0.store(1, Ordering::SeqCst);
            theirs.2.notify_all();
        });
        if shared.0.load(Ordering::SeqCst) == 0 {
            let held = shared.1.lock();
            drop(shared.2.wait(held));
        }
        setter.join().expect("no panic");
    };
    assert!((0..100).any(|seed| panic_of(|| _ = run(seed, body)).is_some()));
}

#[test]
fn condition_variables_and_events_work() {
    explore(50, |_| {
        let queue = Arc::new((Mutex::new(Vec::new()), Condvar::new(), Event::new()));
        let theirs = Arc::clone(&queue);
        let consumer = rt::spawn("consumer", move || {
            let mut sum = 0;
            for _ in 0..20 {
                let items = theirs.0.lock();
                let mut items = theirs.1.wait_while(items, |i| i.is_empty());
                sum += items.pop().unwrap_or(0);
            }
            theirs.2.set();
            sum
        });
        for i in 0..20 {
            queue.0.lock().push(i);
            queue.1.notify_one();
        }
        queue.2.wait();
        assert_eq!(consumer.join().expect("no panic"), 190);
        let (_held, timed_out) = queue.1.wait_timeout(queue.0.lock(), Nanos::from_secs(1));
        // Sleepers may wake without a reason, so nothing is known of the flag.
        let _ = timed_out;
    });
}

#[test]
fn time_is_virtual() {
    let outcome = run(3, |_| rt::sleep(Nanos::from_secs(3600)));
    assert!(outcome.time >= Nanos::from_secs(3600));
    let outcome = run(4, |_| {
        let start = rt::now();
        assert!(!Event::new().wait_timeout(Nanos::from_millis(5)));
        rt::now().since(start)
    });
    assert!(outcome.value >= Nanos::from_millis(5));
}

#[test]
fn locals_and_slots_belong_to_coroutines() {
    explore(20, |_| {
        let local: Arc<Local<AtomicU64>> = Arc::default();
        let theirs = Arc::clone(&local);
        in_threads(move |i| {
            let slot = rt::thread_slot();
            theirs.get().store(i, Ordering::SeqCst);
            for _ in 0..5 {
                rt::preempt();
                assert_eq!(theirs.get().load(Ordering::SeqCst), i);
                assert_eq!(rt::thread_slot(), slot);
            }
        });
        let last = rt::spawn("late", rt::thread_slot).join().expect("no panic");
        assert!(last <= THREADS as usize, "slots are recycled");
    });
}

#[test]
fn panics_in_threads_reach_their_joiner_only() {
    explore(20, |_| {
        let lock = Arc::new(Mutex::new(1));
        let theirs = Arc::clone(&lock);
        let failing = rt::spawn("failing", move || {
            let _held = theirs.lock();
            panic!("on purpose");
        });
        let panic = failing.join().expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(*lock.lock(), 1);
    });
    let message = panic_of(|| _ = run(1, |_| assert_eq!(1, 2, "in the body")));
    assert!(message.expect("it panics").contains("in the body"));
}

#[test]
fn a_livelock_ends() {
    let endless = |_: &Sim| loop {
        rt::relax();
    };
    let sim = Sim::new(1).with_step_limit(10_000);
    let message = panic_of(|| _ = sim.run::<()>(endless)).expect("it ends");
    assert!(message.starts_with("livelock"), "{message}");
}

#[test]
fn spinners_give_way() {
    explore(30, |_| {
        let turn = Arc::new(AtomicU64::new(0));
        in_threads(move |i| {
            for round in 0..5 {
                let mut spin = rt::Spin::new();
                while turn.load(Ordering::SeqCst) != round * THREADS + i {
                    spin.turn();
                }
                turn.fetch_add(1, Ordering::SeqCst);
            }
        });
    });
}

#[test]
fn files_are_in_memory_and_crash() {
    explore(20, |sim| {
        fs::create_dir_all("/db").expect("made");
        let path = |i| format!("/db/{i}");
        in_threads(move |i| {
            let file = fs::open(path(i), fs::OpenOptions::CREATE).expect("opened");
            file.write_at(b"kept", 0).expect("written");
            file.sync_data().expect("synced");
            fs::sync_dir("/db").expect("synced");
            file.write_at(b"lost", 0).expect("written");
        });
        let crashed = sim.files().crash_clone();
        assert_eq!(crashed.files().len(), THREADS as usize);
        assert!(rt::now() > Nanos::from_micros(60), "syncs take time");
    });
}
