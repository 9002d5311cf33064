"""LMCache's own adapter of native plugins drives the connector."""

from __future__ import annotations

import os
import select
import unittest
from typing import Any, List

from . import pool, wheels


class Notifier:
    """What LMCache's platform module gives: an eventfd."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def notify(self) -> None:
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


class Bitmap:
    """As LMCache's native one, as far as its adapter uses it."""

    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, at: int) -> None:
        self.bits[at] = True

    def test(self, at: int) -> bool:
        return self.bits[at]


class Object:
    """A memory object of LMCache, as far as an adapter looks at it."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.byte_array = memoryview(self.data)


class Contract(unittest.TestCase):
    adapter: Any

    @classmethod
    def setUpClass(cls) -> None:
        place = wheels.fetched("lmcache", pool.wheels())
        wheels.sys.path.insert(0, place)
        wheels.package_without_its_start("lmcache", place)
        wheels.package_without_its_start("lmcache.v1.platform", place, create_event_notifier=Notifier)
        # The one of the wheel needs torch's libraries.
        wheels.module("lmcache.lmcache_native", Bitmap=Bitmap)
        wheels.module("lmcache.logging", init_logger=lambda name: wheels.Anything())
        wheels.stand_in()
        from lmcache.v1.distributed.api import ObjectKey
        from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin

        cls.key = staticmethod(lambda at: ObjectKey(chunk_hash=bytes([at]) * 16, model_name="m", kv_rank=0))
        config = plugin.NativePluginL2AdapterConfig.from_dict(
            {
                "module_path": "cenote_kvcache.lmcache",
                "class_name": "Connector",
                "adapter_params": pool.options("lmcache"),
            }
        )
        cls.adapter = plugin._create_native_plugin_l2_adapter(config)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.adapter.close()

    def wait(self, fd: int) -> None:
        self.assertTrue(select.select([fd], [], [], 30)[0], "nothing was done within 30 s")
        os.eventfd_read(fd)

    def load(self, keys: List[Any], sizes: List[int]) -> Any:
        objects = [Object(bytes(size)) for size in sizes]
        task = self.adapter.submit_load_task(keys, objects)
        self.wait(self.adapter.get_load_event_fd())
        return self.adapter.query_load_result(task), [bytes(object.data) for object in objects]

    def store(self, keys: List[Any], data: List[bytes]) -> bool:
        task = self.adapter.submit_store_task(keys, [Object(part) for part in data])
        self.wait(self.adapter.get_store_event_fd())
        return bool(self.adapter.pop_completed_store_tasks()[task].is_successful())

    def test_what_was_stored_is_found_and_loaded(self) -> None:
        keys = [self.key(at) for at in range(1, 5)]
        data = [bytes([at]) * 70_000 for at in range(1, 4)]
        self.assertTrue(self.store(keys[:3], data))
        self.assertTrue(self.store(keys[:3], data), "what is there already counts as stored")
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        self.wait(self.adapter.get_lookup_and_lock_event_fd())
        found = self.adapter.query_lookup_and_lock_result(task)
        self.assertEqual([found.test(at) for at in range(4)], [True, True, True, False])
        loaded, got = self.load(keys, [70_000] * 4)
        self.assertEqual([loaded.test(at) for at in range(4)], [True, True, True, False])
        self.assertEqual(got[:3], data)

    def test_an_object_of_another_length_is_not_loaded(self) -> None:
        key = self.key(9)
        self.assertTrue(self.store([key], [b"x" * 1000]))
        self.assertFalse(self.load([key], [999])[0].test(0))
        self.assertFalse(self.load([key], [1001])[0].test(0))

    def test_what_is_deleted_is_gone(self) -> None:
        key = self.key(10)
        self.assertTrue(self.store([key], [b"x" * 1000]))
        self.adapter.delete([key])
        self.assertFalse(self.load([key], [1000])[0].test(0))


class Lookups(unittest.TestCase):
    def test_any_number_of_them_hold_nothing(self) -> None:
        # A process pins 1,536 values at once; a server that looks up and never loads would have used them up.
        from cenote_kvcache.lmcache import Connector

        connector = Connector(**pool.options("lookups"))
        self.addCleanup(connector.close)
        connector.submit_batch_set(["key"], [memoryview(b"x" * 1000)])
        self.drained(connector)
        for _ in range(20):
            connector.submit_batch_exists(["key"] * 100)
            self.assertEqual(self.drained(connector), [True] * 100)

    def drained(self, connector: Any) -> List[bool]:
        self.assertTrue(select.select([connector.event_fd()], [], [], 30)[0], "nothing was done within 30 s")
        ((_, is_done, wrong, results),) = connector.drain_completions()
        self.assertTrue(is_done, wrong)
        return list(results)
