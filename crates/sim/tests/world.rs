//! Worlds: processes on hosts, kill, loss, pause, clocks, vCPUs and their queues, reports.

use cenote_base::Error;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault;
use cenote_base::rt::fs::{self, OpenOptions};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_sim::{Exit, HostSpec, Pace, Topology, World, clock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn world(seed: u64, pace: Pace, hosts: usize, vcpus: u32) -> World {
    World::new(seed, pace, Topology::hosts(hosts, vcpus)).expect("a possible topology")
}

/// Under some seeds, exploring, and under one, projecting.
fn in_both(hosts: usize, vcpus: u32, body: impl Fn(&World)) {
    for seed in 0..20 {
        world(seed, Pace::Explore, hosts, vcpus).run(&body);
    }
    world(1, Pace::Project, hosts, vcpus).run(&body);
}

fn failure_of(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it fails");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn processes_run_and_exit_with_their_threads() {
    in_both(2, 1, |w| {
        let count = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&count);
        let one = w.process(0, "one", move || {
            let more = Arc::clone(&theirs);
            rt::spawn("left behind", || rt::sleep(Nanos::from_secs(1000)));
            rt::spawn("joined", move || _ = more.fetch_add(1, Ordering::SeqCst))
                .join()
                .expect("no panic");
        });
        let two = w.process(1, "two", || panic!("on purpose"));
        assert_eq!(one.join(), Exit::Returned);
        assert_eq!(two.join(), Exit::Panicked("on purpose".into()));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(rt::now() < Nanos::from_secs(100));
        assert!(!one.is_running());
    });
}

#[test]
fn a_process_that_ends_itself_is_killed_and_says_why() {
    in_both(1, 2, |w| {
        let count = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&count);
        let process = w.process(0, "doomed", move || {
            let more = Arc::clone(&theirs);
            rt::spawn("other", move || {
                rt::sleep(Nanos::from_secs(1));
                more.fetch_add(1, Ordering::SeqCst);
            });
            rt::spawn("half changed", || {
                fault::end_process(Error::Invalid("pages are half changed".into()))
            });
            rt::sleep(Nanos::from_secs(2));
        });
        assert_eq!(process.join(), Exit::Killed);
        rt::sleep(Nanos::from_secs(3));
        let ended = fault::ended();
        assert!(matches!(&ended[..], [Error::Invalid(why)] if why == "pages are half changed"));
        assert_eq!(count.load(Ordering::SeqCst), 0, "another thread went on");
    });
}

#[test]
fn a_killed_process_never_goes_on() {
    struct Loud(Arc<AtomicU64>);
    impl Drop for Loud {
        fn drop(&mut self) {
            self.0.fetch_add(1 << 32, Ordering::SeqCst);
        }
    }
    in_both(1, 2, |w| {
        let count = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&count);
        let process = w.process(0, "busy", move || {
            let endless = move |count: Arc<AtomicU64>| {
                let _loud = Loud(Arc::clone(&count));
                loop {
                    count.fetch_add(1, Ordering::SeqCst);
                    rt::spend(Nanos(100));
                }
            };
            let more = Arc::clone(&theirs);
            rt::spawn("second", move || endless(more));
            endless(theirs);
        });
        rt::sleep(Nanos::from_micros(100));
        process.kill();
        let then = count.load(Ordering::SeqCst);
        assert!(then > 10);
        rt::sleep(Nanos::from_micros(100));
        assert_eq!(
            count.load(Ordering::SeqCst),
            then,
            "no thread went on, no destructor ran"
        );
        assert_eq!(process.join(), Exit::Killed);
    });
}

#[test]
fn killing_oneself_and_threads_not_yet_begun() {
    in_both(1, 1, |w| {
        let inner = w.clone();
        let process = w.process(0, "falls on its host", move || {
            rt::spawn("unborn", || panic!("never begins, or never goes on"));
            inner.lose_host(0);
            unreachable!("lost");
        });
        assert_eq!(process.join(), Exit::Killed);
        let again = w.process(0, "again", || ());
        assert_eq!(again.join(), Exit::Returned);
    });
}

#[test]
fn file_locks_end_with_their_process_and_unsynced_bytes_with_their_host() {
    let open = || fs::open("/f", OpenOptions::CREATE).expect("opened");
    in_both(1, 2, |w| {
        let holder = w.process(0, "holder", move || {
            let file = open();
            assert!(file.lock_exclusive().expect("asked"));
            file.write_at(b"synced", 0).expect("written");
            file.sync_data().expect("synced");
            fs::sync_dir("/").expect("synced");
            file.write_at(&[1; 1 << 16], 512).expect("written");
            rt::sleep(Nanos::from_secs(1));
        });
        rt::sleep(Nanos::from_millis(500));
        let other = w.process(0, "other", move || assert!(!open().lock_exclusive().expect("asked")));
        assert_eq!(other.join(), Exit::Returned);
        holder.kill();
        let other = w.process(0, "other", move || {
            let file = open();
            assert!(file.lock_exclusive().expect("asked"), "killed processes hold no locks");
            assert_eq!(file.len().expect("known"), 512 + (1 << 16), "what was written stays");
        });
        assert_eq!(other.join(), Exit::Returned);
        w.lose_host(0);
        let other = w.process(0, "other", move || {
            let mut bytes = [0; 6];
            open().read_exact_at(&mut bytes, 0).expect("synced");
            assert_eq!(&bytes, b"synced");
        });
        assert_eq!(other.join(), Exit::Returned);
    });
}

#[test]
fn a_paused_process_stands_still_and_others_of_its_host_go_on() {
    let world = World::new(3, Pace::Explore, Topology::hosts(1, 2)).expect("a possible topology");
    world.run(|w| {
        let ticks = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let start = |n: usize| {
            let ticks = Arc::clone(&ticks);
            w.process(0, "ticker", move || {
                // Two threads of each: all of them stand.
                let more = Arc::clone(&ticks);
                rt::spawn("more", move || tick(&more[n]));
                tick(&ticks[n]);
            })
        };
        let (one, _other) = (start(0), start(1));
        rt::sleep(Nanos::from_millis(1));
        one.pause(Nanos::from_millis(10));
        let of = |n: usize| ticks[n].load(Ordering::SeqCst);
        let before = (of(0), of(1));
        rt::sleep(Nanos::from_millis(5));
        assert_eq!(of(0), before.0, "the paused one stands");
        assert!(of(1) > before.1, "the other does not");
        while of(0) == before.0 {
            rt::sleep(Nanos::from_millis(10));
        }
        one.pause(Nanos::from_secs(1000));
        one.kill();
        assert!(!one.is_running(), "a paused one is killed all the same");
    });
}

fn tick(ticks: &AtomicU64) {
    loop {
        ticks.fetch_add(1, Ordering::SeqCst);
        rt::sleep(Nanos::from_micros(10));
    }
}

#[test]
fn a_paused_host_stands_still() {
    in_both(2, 2, |w| {
        let ticks = Arc::new(AtomicU64::new(0));
        for host in 0..2 {
            let ticks = Arc::clone(&ticks);
            w.process(host, "ticker", move || {
                loop {
                    ticks.fetch_add(1 << (32 * host), Ordering::SeqCst);
                    rt::sleep(Nanos::from_micros(10));
                }
            });
        }
        rt::sleep(Nanos::from_millis(1));
        w.pause(0, Nanos::from_millis(10));
        let before = ticks.load(Ordering::SeqCst);
        rt::sleep(Nanos::from_millis(5));
        let after = ticks.load(Ordering::SeqCst);
        assert!(after as u32 <= before as u32 + 1, "host 0 stands");
        assert!(after >> 32 > before >> 32, "host 1 does not");
        while ticks.load(Ordering::SeqCst) as u32 == after as u32 {
            rt::sleep(Nanos::from_millis(10));
        }
    });
}

#[test]
fn wall_clocks_step_and_monotonic_ones_do_not() {
    in_both(1, 1, |w| {
        let inner = w.clone();
        let process = w.process(0, "looks", move || {
            let (wall, now) = (rt::wall_micros(), rt::now());
            inner.step_clock(0, -5_000_000);
            assert!(rt::wall_micros() < wall);
            assert!(rt::now() >= now);
        });
        assert_eq!(process.join(), Exit::Returned);
    });
}

#[test]
fn the_first_world_deadlocks_and_names_the_circle() {
    let text = failure_of(|| {
        world(1, Pace::Project, 2, 1).run(|w| {
            let locks = Arc::new((Mutex::new(()), Mutex::new(())));
            let theirs = Arc::clone(&locks);
            let one = w.process(0, "one", move || {
                let first = theirs.0.lock();
                rt::sleep(Nanos(10_000));
                drop((theirs.1.lock(), first));
            });
            w.process(1, "two", move || {
                let second = locks.1.lock();
                rt::sleep(Nanos(10_000));
                drop((locks.0.lock(), second));
            });
            one.join();
        });
    });
    assert!(text.starts_with("deadlock"), "{text}");
    assert!(text.contains("\"one\" of host \"host0\" waits on word"), "{text}");
    assert!(text.contains("held by thread 2 \"two\" of host \"host1\""), "{text}");
    assert!(text.contains("in cenote_base::rt::"), "{text}");
}

#[test]
fn tickers_do_not_hide_a_deadlock() {
    let text = failure_of(|| {
        world(1, Pace::Project, 1, 1).run(|w| {
            let ticker = w.process(0, "ticker", || {
                loop {
                    rt::sleep(Nanos::from_millis(100));
                }
            });
            ticker.join();
        });
    });
    assert!(text.starts_with("livelock"), "{text}");
}

/// Work of one microsecond, a hundred times, in each of `threads` threads on `vcpus` vCPUs: the time it takes.
fn time_to_work(threads: usize, vcpus: u32) -> u64 {
    let outcome = world(1, Pace::Project, 1, vcpus).run(|w| {
        let work = || {
            for _ in 0..100 {
                rt::spend(Nanos::from_micros(1));
                rt::preempt();
            }
        };
        let process = w.process(0, "worker", move || {
            let all: Vec<_> = (0..threads).map(|i| rt::spawn(&format!("t{i}"), work)).collect();
            all.into_iter().for_each(|t| t.join().expect("no panic"));
        });
        process.join();
    });
    outcome.time.as_micros()
}

#[test]
fn threads_share_vcpus() {
    let (alone, both, queued) = (time_to_work(1, 4), time_to_work(4, 4), time_to_work(8, 2));
    assert!((100..120).contains(&alone), "{alone}");
    assert!((100..120).contains(&both), "{both}");
    assert!((400..430).contains(&queued), "{queued}");
}

#[test]
fn a_slice_ends_for_waiting_threads() {
    let outcome = world(1, Pace::Project, 1, 1).run(|w| {
        let process = w.process(0, "spins", || {
            let set = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&set);
            let setter = rt::spawn("setter", move || theirs.store(1, Ordering::SeqCst));
            while set.load(Ordering::SeqCst) == 0 {
                rt::spend(Nanos(100));
            }
            setter.join().expect("no panic");
        });
        process.join();
    });
    assert!(outcome.time >= Nanos::from_millis(3), "a slice: {}", outcome.time);
    assert!(outcome.time < Nanos::from_millis(4), "and no more: {}", outcome.time);
}

#[test]
fn same_seed_same_projection() {
    let once = |seed, pace| {
        world(seed, pace, 3, 2).run(|w| {
            let lock = Arc::new(Mutex::new(0));
            let processes: Vec<_> = (0..3)
                .map(|host| {
                    let lock = Arc::clone(&lock);
                    w.process(host, "p", move || {
                        let work = move |lock: Arc<Mutex<u64>>| {
                            for _ in 0..50 {
                                rt::spend(Nanos(rt::random() % 5000));
                                *lock.lock() += 1;
                            }
                        };
                        let threads: Vec<_> = (0..4)
                            .map(|_| {
                                let lock = Arc::clone(&lock);
                                rt::spawn("t", move || work(lock))
                            })
                            .collect();
                        threads.into_iter().for_each(|t| t.join().expect("no panic"));
                    })
                })
                .collect();
            processes.iter().for_each(|p| _ = p.join());
            assert_eq!(*lock.lock(), 600);
            rt::now()
        })
    };
    for pace in [Pace::Explore, Pace::Project] {
        let mut digests = Vec::new();
        for seed in 0..5 {
            let first = once(seed, pace);
            assert_eq!(first, once(seed, pace));
            digests.push(first.digest);
        }
        digests.dedup();
        assert_eq!(digests.len(), 5, "seeds differ");
    }
}

#[test]
fn many_vcpus_take_little_memory() {
    let hosts = 12;
    let outcome = world(1, Pace::Project, hosts, 16).run(|w| {
        let done = Arc::new(AtomicU64::new(0));
        let processes: Vec<_> = (0..hosts)
            .map(|host| {
                let done = Arc::clone(&done);
                w.process(host, "instance", move || {
                    let threads: Vec<_> = (0..48)
                        .map(|i| {
                            let done = Arc::clone(&done);
                            rt::spawn(&format!("session {i}"), move || {
                                for _ in 0..20 {
                                    rt::spend(Nanos::from_micros(5));
                                    rt::sleep(Nanos::from_micros(5));
                                }
                                done.fetch_add(1, Ordering::SeqCst);
                            })
                        })
                        .collect();
                    threads.into_iter().for_each(|t| t.join().expect("no panic"));
                })
            })
            .collect();
        processes.iter().for_each(|p| _ = p.join());
        done.load(Ordering::SeqCst)
    });
    assert_eq!(outcome.value, 576);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("there");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 512 << 10, "576 threads took {kib} KiB at their peak");
}

#[test]
fn a_trace_shows_the_last_steps() {
    let world = world(3, Pace::Explore, 2, 1).with_trace(50);
    world.run(|w| {
        let process = w.process(1, "p", || cenote_sim::trace::add(|| "was here".into()));
        process.join();
    });
    let trace = world.trace();
    assert!(!trace.is_empty() && trace.len() <= 50);
    let here = trace.iter().find(|e| e.what == "was here").expect("kept");
    assert_eq!((&*here.host, &*here.name), ("host1", "p"));
    assert!(here.to_string().contains("host1"));
}

#[test]
fn impossible_topologies_are_refused() {
    let mut twice = Topology::hosts(2, 1);
    twice.hosts[1].name = "host0".into();
    let mut odd = Topology::hosts(1, 1);
    odd.hosts[0].cache.ways = 7;
    for (topology, named) in [
        (Topology::default(), "hosts: 0; there may be 1 to"),
        (Topology::hosts(1, 0), "vcpus: 0; it may be 1 to"),
        (twice, "two are named \"host0\""),
        (odd, "cache: "),
    ] {
        let error = World::new(1, Pace::Explore, topology)
            .map(|_| ())
            .expect_err("impossible");
        assert!(error.to_string().contains(named), "{error}");
    }
    assert_eq!(HostSpec::new("a", 1).vcpus, 1);
}

/// Two hosts' clocks go apart, and a sleep is as long as its host's clock says; what the network carries takes the
/// world's time, whichever thread looks.
#[test]
fn clocks_of_hosts_drift() {
    let mut topology = Topology::hosts(2, 1);
    (topology.hosts[0].drift, topology.hosts[1].drift) = (10_000, -10_000);
    for seed in cenote_sim::seeds(5) {
        let world = World::new(seed, Pace::Explore, topology.clone()).expect("possible");
        world.run(|w| {
            for (host, least, most) in [(0, 9_900, 9_902), (1, 10_101, 10_102)] {
                let process = w.process(host, "sleeper", move || {
                    let (begun, true_begun) = (rt::now(), clock::now());
                    rt::sleep(Nanos::from_secs(10));
                    let (slept, took) = (rt::now().since(begun), clock::now().since(true_begun));
                    assert!(slept >= Nanos::from_secs(10), "{slept}");
                    let millis = took.raw() / 1_000_000;
                    assert!((least..=most).contains(&millis), "host {host}: {took}");
                });
                assert_eq!(process.join(), Exit::Returned);
            }
        });
    }
}

#[test]
fn no_clock_drifts_by_more_than_a_tenth() {
    let mut topology = Topology::hosts(1, 1);
    topology.hosts[0].drift = 200_000;
    let refused = World::new(1, Pace::Explore, topology)
        .err()
        .expect("impossible")
        .to_string();
    assert!(refused.contains("drift: 200000"), "{refused}");
}
