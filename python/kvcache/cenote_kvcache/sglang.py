"""SGLang: a storage backend of its hierarchical cache (SGLang 0.5, ``--hicache-storage-backend dynamic``).

::

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "cenote", "module_path": "cenote_kvcache.sglang", "class_name": "CenoteStorage",
      "interface_v1": 1, "store": "kvcache", "manager": "127.0.0.1:5440"}'

With ``interface_v1`` pages are copied straight from and to the host pool's memory; without it SGLang hands in one
tensor a page. A page is stored as one object a buffer (keys and values lie apart in the host pool), so a page is there
when all of its buffers are.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from ._connect import StoreOptions, connect, no_more
from ._results import is_stored
from ._stats import stats

#: What SGLang itself reads of the extra configuration.
OF_THE_SERVER = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
)


@functools.lru_cache(maxsize=None)
def _bytes_type(size: int) -> Any:
    # ctypes never frees an array type: one for each size, not one for each call.
    return ctypes.c_ubyte * size


def _memory(pointer: int, size: int) -> memoryview:
    return memoryview(_bytes_type(size).from_address(pointer)).cast("B")


def _flat(tensor: Any) -> memoryview:
    """The bytes of a tensor in host memory.

    Raises: ``ValueError`` if they do not lie side by side.
    """
    if not tensor.is_contiguous():
        raise ValueError("a page's tensor is not contiguous")
    return _memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class CenoteStorage(HiCacheStorage):
    """Pages of the host pool in a store of the memory pool."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Optional[Dict[str, Any]] = None) -> None:
        extra = dict(storage_config.extra_config or {})
        self._is_by_buffers = bool(extra.get("interface_v1", 0))
        which, rest = StoreOptions.split({name: value for name, value in extra.items() if name not in OF_THE_SERVER})
        no_more(rest)
        self._suffixes = _suffixes(storage_config)
        self._store = connect(which)

    # A tensor a page.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        places = [_flat(tensor) for tensor in target_locations]
        results = self._store.get_into([self._name(key) for key in keys], places)
        loaded = [result == place.nbytes for result, place in zip(results, places)]
        return [tensor if is_loaded else None for tensor, is_loaded in zip(target_locations, loaded)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        # The copies live until the store has the bytes.
        flat = [value.contiguous() for value in values]
        results = self._store.put([self._name(key) for key in keys], [_flat(value) for value in flat])
        return all(is_stored(result) for result in results)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: List[str], extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        return _leading(self._are_there(keys, PoolName.KV))

    # Straight from and to the host pool.

    def batch_get_v1(
        self, keys: List[str], host_indices: Any, extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> List[bool]:
        return self._get(keys, host_indices, PoolName.KV)

    def batch_set_v1(
        self, keys: List[str], host_indices: Any, extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> List[bool]:
        return self._set(keys, host_indices, PoolName.KV)

    # Several pools of one model, always straight.

    def batch_get_v2(
        self, transfers: List[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> Dict[str, List[bool]]:
        return {each.name: self._get(each.keys or [], each.host_indices, each.name) for each in transfers}

    def batch_set_v2(
        self, transfers: List[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> Dict[str, List[bool]]:
        return {each.name: self._set(each.keys or [], each.host_indices, each.name) for each in transfers}

    def batch_exists_v2(
        self,
        keys: List[str],
        pool_transfers: Optional[List[PoolTransfer]] = None,
        extra_info: Optional[HiCacheStorageExtraInfo] = None,
    ) -> PoolTransferResult:
        pages = _leading(self._are_there(keys, PoolName.KV))
        hits: Dict[str, int] = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            lengths = _usable_prefixes(transfer, self._are_there(keys[:pages], transfer.name))
            if lengths:
                hits[transfer.name] = max(lengths)
            usable = [length for length in usable if length in lengths]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def clear(self) -> bool:
        """Other servers share the store: nothing is removed."""
        return False

    def stats(self) -> Dict[str, int]:
        """What the store's metrics say, by name: hits, misses, puts, bytes, evictions. Of all processes."""
        return stats(self._store)

    def close(self) -> None:
        """Waits for what is under way, and leaves the store as it is."""
        self._store.close()

    def _pool(self, name: str) -> Any:
        registered = getattr(self, "registered_pools", {})
        return registered[name] if name in registered else self.mem_pool_host

    def _name(self, key: str, pool: str = PoolName.KV) -> str:
        is_sharded = pool == PoolName.MAMBA or key.endswith(f".{PoolName.MAMBA.value}")
        return f"sglang/{key}.{pool}{self._suffixes[is_sharded]}"

    def _names(self, keys: Sequence[str], pool: str, buffers: int) -> List[str]:
        layout = getattr(self._pool(pool), "layout", "")
        return [f"{self._name(key, pool)}.{layout}/{at}" for key in keys for at in range(buffers)]

    def _buffers(self, host_indices: Any, pool: str) -> List[memoryview]:
        pointers, sizes = self._pool(pool).get_page_buffer_meta(host_indices)
        return [_memory(pointer, size) for pointer, size in zip(pointers, sizes)]

    def _get(self, keys: Sequence[str], host_indices: Any, pool: str) -> List[bool]:
        buffers = self._buffers(host_indices, pool)
        each = _each(buffers, keys)
        results = self._store.get_into(self._names(keys, pool, each), buffers)
        return _by_page([result == buffer.nbytes for result, buffer in zip(results, buffers)], each)

    def _set(self, keys: Sequence[str], host_indices: Any, pool: str) -> List[bool]:
        buffers = self._buffers(host_indices, pool)
        each = _each(buffers, keys)
        results = self._store.put(self._names(keys, pool, each), buffers)
        return _by_page([is_stored(result) for result in results], each)

    def _are_there(self, keys: Sequence[str], pool: str) -> List[bool]:
        if pool == PoolName.KV and not self._is_by_buffers and not hasattr(self, "registered_pools"):
            found, _ = self._store.exists([self._name(key, pool) for key in keys])
            return found
        each = self._buffers_a_page(pool)
        found, _ = self._store.exists(self._names(keys, pool, each))
        return _by_page(found, each)

    def _buffers_a_page(self, pool: str) -> int:
        host = self._pool(pool)
        return len(host.get_page_buffer_meta(torch.arange(host.page_size))[0])


def _suffixes(config: HiCacheStorageConfig) -> Tuple[str, str]:
    """What tells models, ranks and layouts apart: for what ranks share where they can, and for what each rank has of
    its own."""
    model = "-".join((config.model_name or "").split("/"))
    stage = f"_{config.pp_size}_{config.pp_rank}" if config.pp_size > 1 else ""
    if config.attn_cp_size > 1:
        stage += f"_cp{config.attn_cp_rank}_{config.attn_cp_size}"
    own = f"_{model}_{config.tp_rank}_{config.tp_size}{stage}"
    shared = f"_{model}{stage}" if config.is_mla_model else own
    shard = ""
    if config.dcp_size > 1:
        shard = f"_tp{config.tp_size}_dcp{config.dcp_rank}_{config.dcp_size}_page{config.logical_page_size}"
    return shared + shard, own + shard


def _leading(found: Sequence[bool]) -> int:
    return next((at for at, is_there in enumerate(found) if not is_there), len(found))


def _usable_prefixes(transfer: PoolTransfer, found: Sequence[bool]) -> Set[int]:
    """The lengths of a prefix of pages that this pool can serve.

    Raises: ``ValueError`` for a policy that is not known here.
    """
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, _leading(found) + 1))
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        last = max(1, len(transfer.keys or ()))
        return {length for length in range(1, len(found) + 1) if all(found[max(0, length - last) : length])}
    raise ValueError(f"a hit policy that is not supported: {transfer.hit_policy}")


def _each(buffers: Sequence[memoryview], keys: Sequence[str]) -> int:
    """How many buffers a page has.

    Raises: ``ValueError`` if the host pool gave another number of them than whole pages have.
    """
    if not keys or len(buffers) % len(keys):
        if not keys and not buffers:
            return 1
        raise ValueError(f"{len(buffers)} buffers for {len(keys)} pages")
    return len(buffers) // len(keys)


def _by_page(results: Sequence[bool], each: int) -> List[bool]:
    return [all(results[at : at + each]) for at in range(0, len(results), each)]
