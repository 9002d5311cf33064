"""Spaces as a program uses them, and as it must not."""

import array
import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any, Callable, List, Type

import cenote_pool
from cenote_pool import (
    NULL,
    Address,
    BusyError,
    Error,
    FullError,
    InvalidError,
    IoError,
    Lifetime,
    LostError,
    MismatchError,
    OutOfBoundsError,
    Session,
    Space,
)

MIB = 1 << 20


class WithSpace(unittest.TestCase):
    space: Space
    session: Session

    def setUp(self) -> None:
        self.space = Space.private(32 * MIB)
        self.session = self.space.session()
        self.addCleanup(self.space.close)
        self.addCleanup(self.session.close)

    def fails(self, kind: Type[Error], words: str, call: Callable[..., Any], *arguments: Any) -> None:
        with self.assertRaisesRegex(kind, words) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.status, kind.status)


class Access(WithSpace):
    def test_bytes_come_back(self) -> None:
        a = self.session.alloc(100)
        self.assertIsInstance(a, Address)
        self.assertGreaterEqual(self.space.size_of(a), 100)
        self.assertEqual(self.space.read(a, 100), bytes(100))
        self.space.write(a + 1, b"hello\0there")
        self.assertEqual(self.space.read(a, 12), b"\0hello\0there")
        self.assertEqual(self.space.read(a, 0), b"")
        self.space.write(a, b"")

    def test_any_buffer_is_written_and_read_into(self) -> None:
        a, text = self.session.alloc(64), b"0123456789"
        numbers = array.array("I", range(4))
        views = (memoryview(text)[2:5], memoryview(bytearray(text))[1:], memoryview(numbers))
        for data in (text, bytearray(text), numbers, *views):
            self.space.write(a, data)
            wanted = bytes(data)
            self.assertEqual(self.space.read(a, len(wanted)), wanted)
            into = bytearray(len(wanted))
            self.space.read_into(a, into)
            self.assertEqual(into, wanted)
        back = array.array("I", [9] * 4)
        self.space.read_into(a, back)
        self.assertEqual(back, numbers)
        large = bytearray(10)
        self.space.write(a, text)
        self.space.read_into(a + 4, memoryview(large)[2:5])
        self.assertEqual(large, b"\0\x00456\0\0\0\0\0")
        self.space.read_into(a, bytearray())

    def test_what_is_no_memory_to_write_or_read_is_said(self) -> None:
        a = self.session.alloc(64)
        views = [memoryview(b"nor do their views"), memoryview(bytearray(10))[::2]]
        into: List[Any] = [b"bytes do not change", *views, "text", 7]
        for buffer in into:
            with self.subTest(buffer), self.assertRaises((TypeError, BufferError, ValueError)):
                self.space.read_into(a, buffer)
        data: List[Any] = ["text", 7, None, memoryview(bytearray(10))[::2]]
        for what in data:
            with self.subTest(what), self.assertRaises((TypeError, BufferError)):
                self.space.write(a, what)
        self.assertEqual(self.space.read(a, 64), bytes(64))
        self.assertRaises(ValueError, self.space.read, a, -1)

    def test_a_length_is_the_memorys_own(self) -> None:
        # The story: a class derived from bytearray said another length, and the library wrote that much behind its
        # memory.
        class Bytes(bytes):
            def __len__(self) -> int:
                return 1 << 20

        class ByteArray(bytearray):
            def __len__(self) -> int:
                return 1 << 20

        a = self.session.alloc(4 << 20)
        buffer = ByteArray(b"123")
        self.space.write(a, b"abcdef")
        self.space.read_into(a, buffer)
        self.space.read_many_into([(a, buffer)])
        self.assertEqual(bytes(memoryview(buffer)), b"abc")
        for data in (Bytes(b"ghi"), ByteArray(b"ghi")):
            self.space.write(a + 6, b"123456")
            self.space.write(a + 6, data)
            self.assertEqual(self.space.read(a, 12), b"abcdefghi456")
            self.space.write_many([(a, data)])
            self.assertEqual(self.space.read(a, 6), b"ghidef")
            self.space.write(a, b"abcdef")

    def test_a_buffer_is_let_go(self) -> None:
        a, data = self.session.alloc(64), bytearray(b"grows")
        view = memoryview(data).toreadonly()
        self.space.write(a, view)
        self.space.read_into(a, data)
        view.release()
        data.extend(b" later")
        self.fails(OutOfBoundsError, "", self.space.write, a, bytes(5000))

    def test_large_objects(self) -> None:
        size = 5 * MIB
        a, data = self.session.alloc(size), os.urandom(size)
        self.space.write(a, data)
        self.assertEqual(self.space.read(a, size), data)
        self.assertEqual(self.space.read(a + (2 * MIB - 3), 6), data[2 * MIB - 3 : 2 * MIB + 3])
        self.session.free(a)
        self.fails(InvalidError, "no object", self.space.read, a, 1)

    def test_words(self) -> None:
        a = self.session.alloc(64)
        self.space.store(a, 5)
        self.assertEqual(self.space.compare_and_swap(a, 5, 6), 5)
        self.assertEqual(self.space.compare_and_swap(a, 5, 7), 6)
        self.assertEqual(self.space.fetch_add(a), 6)
        self.assertEqual(self.space.fetch_add(a, -7), 7)
        self.assertEqual(self.space.load(a), 0)
        self.space.store(a, (1 << 64) - 1)
        self.assertEqual(self.space.fetch_add(a, 1), (1 << 64) - 1)
        self.assertEqual(self.space.load(a), 0)
        self.fails(InvalidError, "multiple of 8", self.space.load, a + 4)

    def test_many_at_once(self) -> None:
        addresses = [self.session.alloc(64) for _ in range(100)]
        self.space.write_many((a, b"%03d" % n) for n, a in enumerate(addresses))
        self.assertEqual(self.space.read_many((a, 3) for a in addresses), [b"%03d" % n for n in range(100)])
        into = [bytearray(3) for _ in addresses]
        self.space.read_many_into(zip(addresses, into))
        self.assertEqual(into[99], b"099")
        self.assertEqual(self.space.read_many([]), [])
        self.session.free(addresses[50])
        self.fails(InvalidError, "freed", self.space.write_many, [(a, b"new") for a in addresses])
        self.assertEqual(self.space.read_many([(addresses[49], 3), (addresses[51], 3)]), [b"new", b"051"])

    def test_addresses_that_are_none(self) -> None:
        a = self.session.alloc(64)
        self.fails(OutOfBoundsError, "65 bytes", self.space.read, a, 65)
        self.fails(InvalidError, "inside", self.space.free, a + 8)
        self.session.free(a)
        self.fails(InvalidError, "freed", self.space.free, a)
        for address in (NULL, a, Address((1 << 64) - 1), 12345):
            calls: List[Callable[[], object]] = [
                lambda: self.space.read(address, 8),
                lambda: self.space.write(address, b"x"),
                lambda: self.space.load(address - address % 8),
                lambda: self.space.free(address),
                lambda: self.space.size_of(address),
                lambda: self.space.read_many([(address, 1)]),
            ]
            for call in calls[:2] + calls[3:]:
                self.fails(InvalidError, "", call)
        for number in (-1, 1 << 64, int(a) + (1 << 64)):
            for method in (self.space.load, self.space.free, self.space.size_of):
                self.fails(InvalidError, "64 bits", method, number)
            self.fails(InvalidError, "64 bits", self.space.read, number, 1)
            self.fails(InvalidError, "64 bits", self.space.write, number, b"x")
            self.fails(InvalidError, "64 bits", self.space.write_many, [(number, b"x")])
        self.assertTrue(issubclass(InvalidError, ValueError) and issubclass(OutOfBoundsError, IndexError))


class Sessions(WithSpace):
    def test_objects_of_a_session_go_with_it(self) -> None:
        with self.space.session() as session:
            stays, goes = session.alloc(64), session.alloc(64, Lifetime.SESSION)
            self.assertIs(session.space, self.space)
        self.assertTrue(session.closed)
        self.space.load(stays)
        self.fails(InvalidError, "no object", self.space.load, goes)
        self.fails(InvalidError, "the session was closed", session.alloc, 64)
        session.close()

    def test_what_cannot_be_allocated(self) -> None:
        self.fails(FullError, "", self.session.alloc, 1 << 40)
        for size in (0, -1, 1 << 64):
            self.fails(InvalidError, "one byte", self.session.alloc, size)
        self.fails(InvalidError, "lifetime", self.session.alloc, 64, 2)

    def test_statistics_and_audit(self) -> None:
        a = self.session.alloc(64)
        self.assertEqual(self.space.root, NULL)
        self.space.root = a
        self.assertEqual(self.space.root, a)
        self.assertIsInstance(self.space.root, Address)
        stats = self.space.stats()
        self.assertEqual((stats.parts, stats.objects, stats.bytes, stats.broken), (1, 1, 64, 0))
        self.assertEqual(stats, self.space.stats(1))
        self.assertEqual(stats.extents, stats.free + stats.slabs + stats.in_runs + stats.retired)
        for part in (2, -1, 256, 257):
            self.fails(InvalidError, "no part", self.space.stats, part)
        self.assertEqual(self.space.audit(), [])
        self.assertIn("extents", repr(self.space))


class Closing(WithSpace):
    def test_a_closed_space_is_one(self) -> None:
        with Space.private(8 * MIB) as space, space.session() as session:
            a = session.alloc(64)
        self.assertTrue(space.closed and session.closed)
        self.assertEqual(repr(space), "<closed Space>")
        calls: List[Callable[[], Any]] = [lambda: space.load(a), lambda: space.read(a, 1), lambda: space.root]
        for call in (*calls, lambda: space.session(), space.stats):
            self.fails(InvalidError, "the space was closed", call)
        space.close()

    def test_a_session_outlives_its_space(self) -> None:
        space = Space.private(8 * MIB)
        with space.session() as session:
            space.close()
            session.alloc(64)

    def test_what_nobody_refers_to_is_closed(self) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = os.path.join(directory, "heap")
            space = Space.create(path, 8 * MIB)
            session = space.session()
            self.fails(BusyError, "", Space.open, path)
            del space, session
            gc.collect()
            Space.open(path).close()

    def test_an_exception_does_not_keep_it_open(self) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = os.path.join(directory, "heap")
            try:
                with Space.create(path, 8 * MIB) as space:
                    space.read(NULL, 1)
            except InvalidError:
                Space.open(path).close()

    def test_threads_that_are_in_it_while_it_is_closed(self) -> None:
        for _ in range(20):
            space = Space.private(32 * MIB)
            with space.session() as session:
                a = session.alloc(4 * MIB)
            ended: List[str] = []

            def work() -> None:
                into = bytearray(4 * MIB)
                try:
                    while True:
                        space.read_into(a, into)
                        space.load(a)
                        space.read(a, 64)
                except InvalidError as error:
                    ended.append(str(error))

            workers = [threading.Thread(target=work) for _ in range(3)]
            for worker in workers:
                worker.start()
            space.close()
            for worker in workers:
                worker.join()
            self.assertEqual(ended, ["the space was closed"] * 3)


class Threads(WithSpace):
    def test_they_share_a_space_and_a_session(self) -> None:
        counter = self.session.alloc(64)
        failures: List[object] = []

        def work() -> None:
            try:
                for n in range(500):
                    a = self.session.alloc(64 + n)
                    self.space.fetch_add(counter)
                    self.space.store(a, n)
                    if self.space.load(a) != n:
                        failures.append(n)
                    self.session.free(a)
            except Exception as error:
                failures.append(error)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual((failures, self.space.load(counter)), ([], 2000))


class Files(WithSpace):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "heap")

    def python(self, code: str) -> int:
        package = os.path.dirname(os.path.dirname(cenote_pool.__file__))
        environment = dict(os.environ, PYTHONPATH=package)
        command = [sys.executable, "-c", code, self.path]
        return subprocess.run(command, env=environment, check=False, timeout=None).returncode

    def test_what_another_process_left_is_there(self) -> None:
        made = """
import os, sys
from cenote_pool import Lifetime, Space
space = Space.create(sys.argv[1], 8 << 20)
session = space.session()
a, lost = session.alloc(64), session.alloc(64, Lifetime.SESSION)
space.write(a, b"kept")
space.store(a + 8, lost)
space.root = a
os.kill(os.getpid(), 9)
"""
        self.assertEqual(self.python(made), -9)
        with Space.open(self.path) as space:
            self.assertEqual(space.read(space.root, 4), b"kept")
            self.fails(InvalidError, "no object", space.load, space.load(space.root + 8))
            self.assertEqual((space.stats().objects, space.audit()), (1, []))
            self.assertEqual(self.python("import sys, cenote_pool\ncenote_pool.Space.open(sys.argv[1])"), 1)

    def test_a_child_leaves_its_parents_alone(self) -> None:
        with Space.create(self.path, 8 * MIB) as space, space.session() as session:
            a = session.alloc(64, Lifetime.SESSION)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    self.fails(InvalidError, "forked", space.load, a)
                    self.fails(InvalidError, "forked", session.alloc, 64)
                    session.close()
                    space.close()
                    code = 0
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(space.load(a), 0)

    def test_files_that_are_none(self) -> None:
        self.fails(IoError, self.path, Space.open, self.path)
        with open(self.path, "wb") as file:
            file.write(os.urandom(64 << 10))
        self.fails(InvalidError, "holds something", Space.create, self.path)
        self.assertRaises((MismatchError, cenote_pool.CorruptError), Space.open, self.path)
        for size in (-1, 1 << 64, 5):
            self.fails(InvalidError, "", Space.create, self.path + "-2", size)
        self.fails(InvalidError, "empty", Space.open, "")
        self.fails(InvalidError, "no file", Space.open, "a\0b")


class Locks(WithSpace):
    def test_locks_are_held_by_one_writer_or_some_readers(self) -> None:
        with Space.private(16 << 20) as space, space.session() as one:
            other = space.session()
            lock = one.new_lock()
            with one.lock(lock) as held:
                self.assertFalse(held.owner_died)
                self.assertRaises(cenote_pool.TimedOutError, other.lock, lock, timeout=0)
            with one.lock(lock, write=False), other.lock(lock, write=False, timeout=1.0):
                self.assertRaises(cenote_pool.TimedOutError, space.session().lock, lock, timeout=0.001)
            other.lock(lock)
            other.close()
            held = one.lock(lock, write=False)
            self.assertTrue(held.owner_died)
            held.unlock()
            self.fails(InvalidError, "", held.unlock)
            self.fails(InvalidError, "", one.lock, 0)
            one.free(lock)

    def test_what_a_lock_protects_is_read_and_written_under_it(self) -> None:
        with Space.private(16 << 20) as space, space.session() as session:
            lock, a = session.new_lock(), session.alloc(64)
            with session.lock(lock) as held:
                held.write(a, b"hello")
                held.write(a + 5, bytearray(b" you"))
                held.sync()
                self.assertEqual(held.read(a, 9), b"hello you")
            with session.lock(lock, write=False) as held:
                self.assertEqual(held.read(a + 6, 3), b"you")
                self.fails(InvalidError, "to write", held.write, a, b"x")
                self.fails(InvalidError, "to write", held.sync)
            self.fails(InvalidError, "hold", held.read, a, 1)
            self.fails(InvalidError, "64 bits", held.read, 1 << 64, 1)
            space.limit_cache(1 << 20)
            self.fails(InvalidError, "bytes", space.limit_cache, -1)
            self.assertEqual(space.cache_stats, cenote_pool.CacheStats(0, 0, 0, 0, 0, 0), "all of it is near")


    def test_a_lock_that_is_left_broken_is_taken_over(self) -> None:
        lock, other = self.session.new_lock(), self.space.session()
        with self.session.lock(lock) as held:
            held.leave_broken()
        for _ in range(2):
            with other.lock(lock, write=False, timeout=0) as held:
                self.assertTrue(held.owner_died)
                self.assertRaises(cenote_pool.TimedOutError, self.session.lock, lock, write=False, timeout=0)
                held.leave_broken()
                self.fails(InvalidError, "hold", held.leave_broken)
        other.lock(lock).unlock()
        for _ in range(2):
            with self.session.lock(lock, write=False) as held:
                self.assertFalse(held.owner_died)
                held.leave_broken()
        with self.session.lock(lock) as held:
            self.assertFalse(held.owner_died, "readers leave nothing behind")
            held.unlock()

    def test_any_time_to_wait_is_one(self) -> None:
        lock = self.session.new_lock()
        for timeout in (None, float("inf"), 1e300, -1.0, -float("inf"), 0):
            self.session.lock(lock, timeout=timeout).unlock()
        with self.assertRaisesRegex(InvalidError, "nan"):
            self.session.lock(lock, timeout=float("nan"))


class Pool(WithSpace):
    def test_a_pool_that_is_not_there_is_said(self) -> None:
        self.fails(LostError, "127.0.0.1:1", Space.connect, "heap", "127.0.0.1:1")
        self.fails(InvalidError, "zero", Space.connect, "a\0b", "127.0.0.1:1")
        self.fails(InvalidError, "zero", lambda: Space.connect("heap", "127.0.0.1:1", secret="a\0b"))
        self.fails(InvalidError, "bytes", lambda: Space.connect("heap", "127.0.0.1:1", size=-1))
        self.fails(LostError, "127.0.0.1:1", Space.grow, "heap", 8 * MIB, "127.0.0.1:1")
        self.fails(LostError, "127.0.0.1:1", Space.drop, "heap", "127.0.0.1:1")
        for size in (-1, 1 << 64):
            self.fails(InvalidError, "bytes", Space.grow, "heap", size, "127.0.0.1:1")
        self.fails(InvalidError, "zero", Space.drop, "a\0b", "127.0.0.1:1")
        self.fails(InvalidError, "several", lambda: Space.grow("heap", 1, "127.0.0.1:1", pods="rack1"))
        self.fails(InvalidError, "of 0 pods", lambda: Space.grow("heap", 1, "127.0.0.1:1", pods=[]))
        self.fails(LostError, "127.0.0.1:1", lambda: Space.make("heap", 8 * MIB, "127.0.0.1:1", mirrored=True))
        self.fails(InvalidError, "bytes", Space.make, "heap", -1, "127.0.0.1:1")
        self.fails(InvalidError, "several", lambda: Space.make("heap", 1, "127.0.0.1:1", pods="rack1"))


class Library(unittest.TestCase):
    def test_a_library_that_is_not_there_is_said(self) -> None:
        package = os.path.dirname(os.path.dirname(cenote_pool.__file__))
        environment = dict(os.environ, PYTHONPATH=package, CENOTE_POOL_LIBRARY="/nowhere/libcenote_pool.so")
        command = [sys.executable, "-c", "import cenote_pool"]
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(tried.returncode, 1)
        for words in ("LibraryNotFound", "/nowhere/libcenote_pool.so", "CENOTE_POOL_LIBRARY", "make capi"):
            self.assertIn(words, tried.stderr)

    def test_versions(self) -> None:
        self.assertRegex(cenote_pool.version(), r"\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
