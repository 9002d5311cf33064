"""The store: batches, buffers, what is submitted, what lies in place."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any, Dict, List
from unittest import mock

from cenote_pool import _library
from cenote_pool import FAILED, MISSING, FullError, InvalidError, Space, Store


class InOneProcess(unittest.TestCase):
    def setUp(self) -> None:
        self.space = Space.private(96 << 20)
        self.store = Store.of(self.space)

    def tearDown(self) -> None:
        self.store.close()
        self.space.close()

    def drained(self, ids: List[int]) -> Dict[int, List[int]]:
        done: Dict[int, List[int]] = {}
        while not done.keys() >= set(ids):
            self.assertTrue(select.select([self.store.event_fd()], [], [], 100)[0], "no batch is done")
            done.update(self.store.drain())
        return done

    def test_the_first_writer_wins_unless_it_is_replaced(self) -> None:
        self.assertEqual(self.store.put(["a", b"b"], [b"one", bytearray(b"two")]), [1, 1])
        self.assertEqual(self.store.put(["a"], [b"three"]), [0])
        room = bytearray(5)
        self.assertEqual(self.store.get_into(["a"], [room]), [3])
        self.assertEqual(bytes(room), b"one\0\0")
        self.assertEqual(self.store.put(["a"], [memoryview(b"three")], replace=True), [1])
        self.assertEqual(self.store.get_into(["a", "c"], [room, bytearray()]), [5, MISSING])
        self.assertEqual(bytes(room), b"three")
        self.assertEqual(self.store.remove(["a", "c"]), [True, False])
        self.assertEqual(self.store.exists(["b", "a", "b"]), ([True, False, True], 1))

    def test_what_fails_is_its_keys_result_alone(self) -> None:
        put = self.store.put(["", "k", "x" * 5000], [b"v"] * 3)
        self.assertEqual(put, [FAILED - InvalidError.status, 1, FAILED - InvalidError.status])
        self.assertLess(self.store.get_into(["k"], [bytearray()])[0], FAILED)
        with self.assertRaises(TypeError):
            self.store.get_into(["k"], [b"read only"])
        with self.assertRaises(InvalidError):
            self.store.put(["k"], [])
        # This space has one part.
        self.assertEqual(self.store.put(["l"], [b"v"], replicas=1), [FAILED - InvalidError.status])
        with self.assertRaises(FullError):
            self.store.alloc("big", 500 << 20)

    def test_batches_are_submitted_and_told_of(self) -> None:
        keys, values = [f"key {n}" for n in range(300)], [bytes([n % 256]) * 3000 for n in range(300)]
        first = self.store.submit_put(keys, values)
        self.assertEqual(self.drained([first])[first], [1] * 300)
        rooms = [bytearray(3000) for _ in keys]
        ids = [self.store.submit_get(keys, rooms), self.store.submit_exists(["key 1", "none"], pin=True)]
        done = self.drained(ids)
        self.assertEqual((done[ids[0]], done[ids[1]]), ([3000] * 300, [1, 0]))
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual(self.store.usage()["pins"], 1)
        self.store.unpin(["key 1"])
        self.assertEqual(self.store.usage()["pins"], 0)
        last = self.store.submit_remove(keys)
        self.assertEqual(self.drained([last])[last], [1] * 300)

    def test_an_interrupt_after_a_submission_leaves_its_buffers_kept(self) -> None:
        submit = _library.waiting.cenote_store_submit

        def interrupted(*arguments: Any) -> int:
            self.assertEqual(submit(*arguments), 0)
            raise KeyboardInterrupt

        batches = self.store._handle.kept  # type: ignore[union-attr]
        with mock.patch.object(_library.waiting, "cenote_store_submit", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                self.store.submit_get(["a"], [bytearray(10)])
        self.assertEqual(len(batches), 1, "the library may still write to it")
        with mock.patch.object(_library.waiting, "cenote_store_submit", lambda *arguments: InvalidError.status):
            with self.assertRaises(InvalidError):
                self.store.submit_get(["a"], [bytearray(10)])
        self.assertEqual(len(batches), 1, "what was refused is not kept")

    def test_pins_keep_what_would_be_evicted(self) -> None:
        self.store.set_bound(2 << 20)
        self.store.put(["pinned"], [b"p" * 1000])
        self.assertEqual(self.store.exists(["pinned"], pin=True), ([True], 1))
        for n in range(1000):
            self.assertEqual(self.store.put([f"{n}"], [b"v" * 10_000]), [1])
        self.assertEqual(self.store.exists(["pinned"]), ([True], 1))
        usage = self.store.usage()
        self.assertLessEqual(usage["used"], 2 << 20)
        self.assertGreater(usage["evicted"], 700)

    def test_what_is_evicted_goes_to_files_and_is_counted(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self.store.spill_to(directory, 1 << 24)
            with self.assertRaises(InvalidError):
                self.store.spill_to(directory, 1 << 24)
            self.store.set_bound(1 << 20)
            for n in range(40):
                self.assertEqual(self.store.put([f"key {n}"], [bytes([n]) * 100_000]), [1])
                self.store.flush_spilled(100)
            rooms = [bytearray(100_000) for _ in range(40)]
            self.assertEqual(self.store.get_into([f"key {n}" for n in range(40)], rooms), [100_000] * 40)
            self.assertEqual(rooms, [bytearray([n]) * 100_000 for n in range(40)])
            lines = self.store.metrics().splitlines()
            for line in ["# TYPE cenote_store_hits_total counter", "cenote_store_hits_total 40", "cenote_store_sessions 1"]:
                self.assertIn(line, lines)
            self.store.close()

    def test_values_are_used_in_place(self) -> None:
        value = os.urandom(5 << 19)
        with self.store.alloc("k", len(value)) as room:
            at = 0
            for piece in room.pieces:
                piece[:] = value[at : at + len(piece)]
                at += len(piece)
            self.assertEqual(self.store.exists(["k"]), ([False], 0))
            self.assertTrue(room.publish())
        borrow = self.store.borrow("k")
        assert borrow is not None
        with borrow:
            self.assertEqual(b"".join(borrow.pieces), value)
            self.assertTrue(all(piece.readonly for piece in borrow.pieces))
        self.assertTrue(borrow.held)
        self.assertIsNone(self.store.borrow("none"))
        with self.store.alloc("dropped", 10):
            pass
        self.assertEqual(self.store.exists(["dropped"]), ([False], 0))

    def test_threads_use_it_at_once_and_a_closed_one_is_refused(self) -> None:
        failures: List[Any] = []

        def work(n: int) -> None:
            try:
                for step in range(200):
                    key, room = f"{n} {step}", bytearray(2000)
                    assert self.store.put([key], [bytes([n]) * 2000]) == [1]
                    assert self.store.get_into([key], [room]) == [2000] and room == bytes([n]) * 2000
            except BaseException as error:  # told by the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.store.submit_put(["late"], [b"v" * 100_000])
        self.store.close()
        with self.assertRaises(InvalidError):
            self.store.put(["k"], [b"v"])


class Killed(unittest.TestCase):
    """A process that keeps the store's file is killed without a word: what it had put is there for the next one."""

    CODE = """
import sys, os, signal
from cenote_pool import Store
store = Store.open(sys.argv[1], size=64 << 20)
keys = [f"key {n}" for n in range(2000)]
assert store.put(keys, [key.encode() * 20 for key in keys]) == [1] * 2000
os.kill(os.getpid(), signal.SIGKILL)
"""

    def test_the_cache_is_warm_after_a_kill(self) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = os.path.join(directory, "store")
            ended = subprocess.run([sys.executable, "-c", self.CODE, path], timeout=200)
            self.assertEqual(ended.returncode, -signal.SIGKILL)
            with Store.open(path, create=False) as store:
                keys = [f"key {n}" for n in range(2000)]
                rooms = [bytearray(len(key) * 20) for key in keys]
                self.assertEqual(store.get_into(keys, rooms), [len(room) for room in rooms])
                self.assertEqual([bytes(room) for room in rooms], [key.encode() * 20 for key in keys])
                self.assertEqual(store.put(["after"], [b"value"]), [1])


class InAFile(unittest.TestCase):
    def test_it_is_there_when_it_is_opened_again(self) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = os.path.join(directory, "store")
            with Store.open(path, size=32 << 20) as store:
                self.assertEqual(store.put(["k"], [b"value"]), [1])
            with Store.open(path, create=False) as store:
                room = bytearray(5)
                self.assertEqual(store.get_into(["k"], [room]), [5])
                self.assertEqual(bytes(room), b"value")
