"""SGLang's own factory makes the storage backend, and its calls go over a host pool of the test."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any, List, Tuple

from . import pool, wheels

PAGE = 4
BUFFER = 50_000
PAGES = 8


class Tensor:
    """Bytes with the part of a tensor's interface that a backend uses."""

    def __init__(self, data: bytes) -> None:
        self.data = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.data)

    def numel(self) -> int:
        return len(self.data)

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> "Tensor":
        return self


class HostPool:
    """Keys and values of pages, apart from each other, as SGLang's page-first layout has them."""

    page_size = PAGE
    layout = "page_first"

    def __init__(self) -> None:
        self.memory = (ctypes.c_ubyte * (2 * PAGES * BUFFER))()

    def get_page_buffer_meta(self, indices: Any) -> Tuple[List[int], List[int]]:
        pointers = []
        for token in list(indices)[::PAGE]:
            places = [half * PAGES + int(token) // PAGE for half in (0, 1)]
            pointers += [ctypes.addressof(self.memory) + place * BUFFER for place in places]
        return pointers, [BUFFER] * len(pointers)

    def page(self, at: int) -> bytes:
        places = [(half * PAGES + at) * BUFFER for half in (0, 1)]
        return b"".join(bytes(self.memory[place : place + BUFFER]) for place in places)

    def fill(self, at: int, byte: int) -> None:
        for half in (0, 1):
            start = (half * PAGES + at) * BUFFER
            self.memory[start : start + BUFFER] = bytes([byte + half]) * BUFFER


def tokens(*pages: int) -> List[int]:
    return [page * PAGE + at for page in pages for at in range(PAGE)]


class Contract(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        place = wheels.fetched("sglang", pool.wheels())
        wheels.sys.path.insert(0, place)
        for package in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
            wheels.package_without_its_start(package, place)
        wheels.module("torch", arange=range)
        wheels.stand_in()
        from sglang.srt.mem_cache import hicache_storage
        from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

        cls.module, cls.factory = hicache_storage, StorageBackendFactory  # type: ignore[attr-defined]

    def backend(self, name: str, **extra: Any) -> Any:
        how = {"backend_name": "cenote", "module_path": "cenote_kvcache.sglang", "class_name": "CenoteStorage"}
        config = self.module.HiCacheStorageConfig(
            0, 1, 0, 1, 0, 1, False, False, True, "org/model", extra_config={**how, **extra, **pool.options(name)}
        )
        backend = self.factory.create_backend("dynamic", config, None)
        self.addCleanup(backend.close)
        return backend

    def test_pages_go_straight_from_and_to_the_host_pool(self) -> None:
        backend, host = self.backend("sglang-v1", interface_v1=1), HostPool()
        backend.register_mem_pool_host(host)
        host.fill(0, 10)
        host.fill(1, 20)
        self.assertEqual(backend.batch_set_v1(["a", "b"], tokens(0, 1)), [True, True])
        self.assertEqual(backend.batch_set_v1(["a", "b"], tokens(0, 1)), [True, True])
        self.assertEqual(backend.batch_exists(["a", "b", "c", "a"]), 2)
        self.assertEqual(backend.batch_get_v1(["b", "c", "a"], tokens(4, 5, 6)), [True, False, True])
        self.assertEqual(host.page(4), host.page(1))
        self.assertEqual(host.page(6), host.page(0))

    def test_pages_as_tensors(self) -> None:
        backend = self.backend("sglang-tensors")
        backend.register_mem_pool_host(HostPool())
        self.assertTrue(backend.batch_set(["a", "b"], [Tensor(b"1" * 100), Tensor(b"2" * 100)]))
        place = Tensor(bytes(100))
        self.assertIs(backend.get("b", place), place)
        self.assertEqual(bytes(place.data), b"2" * 100)
        self.assertIsNone(backend.get("b", Tensor(bytes(99))))
        self.assertEqual([backend.exists(key) for key in "abc"], [True, True, False])

    def test_a_second_pool_shortens_the_prefix(self) -> None:
        backend, host, states = self.backend("sglang-v2", interface_v1=1), HostPool(), HostPool()
        backend.register_mem_pool_host(host)
        names, transfer, policy = self.module.PoolName, self.module.PoolTransfer, self.module.PoolHitPolicy
        backend.register_mem_host_pool_v2(states, names.MAMBA)
        keys = ["a", "b", "c"]
        backend.batch_set_v1(keys, tokens(0, 1, 2))
        states.fill(0, 7)
        stored = backend.batch_set_v2([transfer(names.MAMBA, host_indices=tokens(0), keys=["b"])])
        self.assertEqual(stored, {names.MAMBA: [True]})
        last = [transfer(names.MAMBA, keys=["?"], hit_policy=policy.TRAILING_PAGES)]
        self.assertEqual(backend.batch_exists_v2(keys, last).kv_hit_pages, 2)
        every = [transfer(names.MAMBA, keys=keys, hit_policy=policy.ALL_PAGES)]
        self.assertEqual(backend.batch_exists_v2(keys, every).kv_hit_pages, 0)
        got = backend.batch_get_v2([transfer(names.MAMBA, host_indices=tokens(3), keys=["b"])])
        self.assertEqual(got, {names.MAMBA: [True]})
        self.assertEqual(states.page(3), states.page(0))
