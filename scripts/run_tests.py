#!/usr/bin/env python3
"""Runs the workspace's tests, several test binaries at a time: most of those of the pool wait for leases, and cargo
runs one binary after the other.

  scripts/run_tests.py [CARGO OPTION ...]     builds with `cargo test --no-run OPTION ...`, then runs what was built

1. cargo builds, and names each test binary with its package.
2. JOBS binaries run at a time, the slowest first, and the doctests among them. Each has its package's directory, as
   under cargo, and a process group of its own. Its output is kept whole and printed when it ends.
3. Tests that assert how long something takes run afterwards, one after the other (TIMED).
4. A binary that crashes, does not end in time, or says nothing of its result counts as a test that failed.

CENOTE_TEST_JOBS is the number of binaries at a time, 3 unless it is set: each has as many threads as there are cores,
and tests are written for a busy machine, but not for any load.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

JOBS = int(os.environ.get("CENOTE_TEST_JOBS", "3"))
# A binary that hangs ends here. The slowest have taken more than 900 s on two slow cores, and 1800 where these stood
# still for a minute at a time.
SECONDS_MAX = 2700

RESULT = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed", re.MULTILINE)

# Those that took longest, longest first. Others come after them; a name that is not there any more does no harm.
SLOWEST = [
    "bench/reproduce", "sql/core", "sim/worlds", "libfabric/contract", "pool/lib", "cenote/it",
    "bench/kills", "pool/fencing", "pool/hosts", "engine/engine", "doctests", "pool/members", "pool/failover",
    "bench/lib", "pool/mirrors", "storage/lib", "pool/pods", "buffer/pool", "pool/remote_mirrors", "bench/pool",
]

# Tests that fail where something takes too long, by binary: the other tests of the machine would count.
TIMED = {
    "cenote/it": ["database::a_new_database_starts_at_once"],
    "sql/analytics": ["canceled_queries_end"],
    "storage/lib": ["pages::tests::opening_reads_places_at_once_and_few_copies"],
}


class Binary:
    """A test binary, or the doctests: what is run, where, under which name."""

    def __init__(self, name, command, directory, variables):
        self.name = name
        self.command = command
        self.directory = directory
        self.variables = variables
        self.tests_min = 0
        self.wall = self.processor = 0.0
        self.failures = []

    def with_arguments(self, name, *arguments):
        return Binary(name, [*self.command, *arguments], self.directory, self.variables)

    def untimed(self):
        """Without the tests that run alone."""
        skips = (word for test in TIMED.get(self.name, []) for word in ("--skip", test))
        return self.with_arguments(self.name, "--exact", *skips)

    def timed(self):
        tests = TIMED[self.name]
        timed = self.with_arguments(f"{self.name} (timed)", "--exact", "--test-threads=1", *tests)
        timed.tests_min = len(tests)
        return timed

    def rank(self):
        return SLOWEST.index(self.name) if self.name in SLOWEST else len(SLOWEST)


def build(options):
    """Builds all test binaries, and returns them."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cargo:
        found = [binary for line in cargo.stdout if (binary := binary_of(line))]
    if cargo.returncode != 0:
        sys.exit("the tests do not build")
    return found


def binary_of(line):
    """The test binary that a line of cargo's messages names, if it does."""
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
        return None
    directory = pathlib.Path(message["manifest_path"]).parent
    kind, target = message["target"]["kind"][0], message["target"]["name"]
    name = target if kind == "test" else "main" if kind == "bin" else "lib"
    return Binary(
        f"{directory.name}/{name}", [message["executable"]], directory, {"CARGO_MANIFEST_DIR": str(directory)}
    )


def doctests(options):
    return Binary("doctests", ["cargo", "test", "--doc", "--no-fail-fast", *options], pathlib.Path.cwd(), {})


def start(binary, output):
    return subprocess.Popen(
        binary.command,
        cwd=binary.directory,
        env={**os.environ, **binary.variables},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def follow(binary, child, running):
    """Sees a binary to its end, or to its time's end. Its output is a file: what it leaves behind may hold a pipe open
    for longer than it lives."""
    began = time.monotonic()
    clock = threading.Timer(SECONDS_MAX, lambda: os.killpg(child.pid, signal.SIGKILL))
    clock.start()
    # Its number is its own until it is waited for: no other process is killed in its place.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    clock.cancel()
    clock.join()
    # What it has left of its group, such as servers of a failed test.
    os.killpg(child.pid, signal.SIGKILL)
    running.discard(child)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    binary.wall = time.monotonic() - began
    binary.processor = usage.ru_utime + usage.ru_stime
    return child.returncode


def judge(binary, code, text):
    """Notes what failed. A line counts a binary that has not told of a failure itself."""
    binary.failures = re.findall(r"^test (.*) \.\.\. FAILED$", text, re.MULTILINE)
    results = [tuple(map(int, found)) for found in RESULT.findall(text)]
    passed, failed = (sum(counts) for counts in zip((0, 0), *results))
    if results and (failed > 0 or code == 0 and passed >= binary.tests_min):
        # Output of another process may stand in the line that names a test.
        if failed > len(binary.failures):
            binary.failures.append(f"{failed} tests, exit code {code}")
        return ""
    end = f"it ended with signal {-code}" if code < 0 else f"it ended with exit code {code}, {passed} tests passed"
    late = f", after {SECONDS_MAX} s" if binary.wall >= SECONDS_MAX else ""
    binary.failures.append(end + late)
    return f"test result: FAILED. 0 passed; 1 failed; {binary.name}: {end}{late}\n"


class Runner:
    """Takes binaries from a list, on as many threads as run at a time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = set()
        self.is_stopped = False
        self.done = []

    def all(self, binaries, jobs):
        self.waiting = list(reversed(binaries))
        threads = [threading.Thread(target=self.work, daemon=True) for _ in range(min(jobs, len(binaries)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for binary in set(binaries) - set(self.done):
            binary.failures.append("it was not run")
            self.done.append(binary)

    def work(self):
        while True:
            with self.lock:
                if not self.waiting:
                    return
                binary = self.waiting.pop()
            with tempfile.TemporaryFile() as output:
                with self.lock:
                    # None starts that a stop does not see.
                    if self.is_stopped:
                        return
                    child = start(binary, output)
                    self.running.add(child)
                code = follow(binary, child, self.running)
                output.seek(0)
                text = output.read().decode(errors="replace")
            with self.lock:
                self.done.append(binary)
                verdict = judge(binary, code, text)
                self.tell(binary, text.rstrip("\n") + "\n" + verdict)

    def tell(self, binary, text):
        state = "FAILED" if binary.failures else "ok"
        print(f"-- {binary.name}: {state}, {binary.wall:.1f} s ({binary.processor:.1f} s of a processor)")
        print(text.rstrip("\n"), flush=True)

    def stop(self):
        with self.lock:
            self.is_stopped = True
            running = list(self.running)
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def summary(done):
    """The slowest binaries, then what failed."""
    slowest = sorted(done, key=lambda binary: -binary.wall)[:15]
    print("\n-- the slowest, s: " + ", ".join(f"{binary.name} {binary.wall:.0f}" for binary in slowest))
    for binary in done:
        for failure in binary.failures:
            print(f"-- failed: {binary.name}: {failure}")
    return not any(binary.failures for binary in done)


def main():
    options = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    built = build(options)
    runner = Runner()
    try:
        runner.all(sorted([*map(Binary.untimed, built), doctests(options)], key=Binary.rank), JOBS)
        runner.all([binary.timed() for binary in built if binary.name in TIMED], 1)
    except KeyboardInterrupt:
        runner.stop()
        sys.exit(130)
    sys.exit(0 if summary(runner.done) else 1)


if __name__ == "__main__":
    main()
