"""vLLM: a secondary tier of its tiering offload (vLLM 0.33, ``vllm.v1.kv_offload.tiering``).

::

    "kv_connector_extra_config": {
      "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240, "secondary_tiers": [
        {"type": "CenoteTier", "module_path": "cenote_kvcache.vllm", "store": "kvcache", "manager": "127.0.0.1:5440"}]}

The store's threads copy straight from and to the primary tier's memory. The scheduler's thread submits and collects,
and never waits. Engines with the same model, layout and block size share what they store: a block's key is what names
its file in vLLM's own tier of files.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ._connect import StoreOptions, connect, no_more
from ._results import is_stored
from ._stats import stats

if TYPE_CHECKING:
    from cenote_pool import Store
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

#: How long ``drain_jobs`` sleeps before it looks again, in milliseconds.
LOOK_AGAIN = 100


@dataclass
class _Job:
    job: int
    keys: List[OffloadKey]
    is_load: bool
    began: float


class _Lookup(AsyncLookupManager):
    """Asks for the keys of one scheduler step at once, in a thread of its own. What is evicted before it is loaded is a
    load that failed."""

    def __init__(self, tier: "CenoteTier") -> None:
        super().__init__(tier_type=tier.tier_type)
        self._tier = tier

    def batch_lookup(self, keys: List[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        found, _ = self._tier.store.exists(self._tier.names(keys))
        return found


class CenoteTier(SecondaryTierManager):
    """Blocks of the primary tier in a store of the pool."""

    medium = Medium.CPU

    def __init__(
        self,
        offloading_spec: "OffloadingSpec",
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: "Optional[BackpressureDetector]" = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        which, rest = StoreOptions.split(options)
        no_more(rest)
        self._memory = primary_kv_view.cast("B")
        self._mapper = FileMapper.from_offloading_spec(
            root_dir="vllm",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self._jobs: Dict[int, _Job] = {}
        self._finished: List[JobResult] = []
        self.store: "Store" = connect(which)
        self._lookups = _Lookup(self)

    def names(self, keys: Sequence[OffloadKey]) -> List[str]:
        """The store's keys: model, layout and group are in them."""
        return [self._mapper.get_file_name(key) for key in keys]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        names, blocks = self._transfer(job_metadata)
        self._begun(self.store.submit_put(names, blocks), job_metadata, is_load=False)

    def submit_load(self, job_metadata: TransferJob) -> None:
        names, blocks = self._transfer(job_metadata)
        self._begun(self.store.submit_get(names, blocks), job_metadata, is_load=True)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._collect()
        finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    def drain_jobs(self) -> None:
        poll = select.poll()
        poll.register(self.store.event_fd(), select.POLLIN)
        while self._jobs:
            poll.poll(LOOK_AGAIN)
            self._collect()

    def stats(self) -> Dict[str, int]:
        """What the store's metrics say, by name: hits, misses, puts, bytes, evictions. Of all processes."""
        return stats(self.store)

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self.drain_jobs()
        self.store.close()

    def _transfer(self, job: TransferJob) -> Tuple[List[str], List[memoryview]]:
        size = self.block_size_bytes
        starts = [int(chunk) * size for chunk in job.chunk_ids]
        return self.names(list(job.keys)), [self._memory[start : start + size] for start in starts]

    def _begun(self, number: int, job: TransferJob, is_load: bool) -> None:
        self._jobs[number] = _Job(job.job_id, list(job.keys), is_load, time.monotonic())

    def _collect(self) -> None:
        for number, results in self.store.drain():
            self._finished.append(self._result(self._jobs.pop(number), results))

    def _result(self, job: _Job, results: Sequence[int]) -> JobResult:
        size = self.block_size_bytes
        done = [result == size if job.is_load else is_stored(result) for result in results]
        kept = tuple(key for key, is_done in zip(job.keys, done) if is_done)
        if job.is_load:
            # Else the scheduler would ask for the same load again and again.
            self._lookups.mark_miss([key for key, is_done in zip(job.keys, done) if not is_done])
        return JobResult(
            job_id=job.job,
            success=len(kept) == len(job.keys),
            successful_keys=kept if job.is_load and kept and len(kept) < len(job.keys) else None,
            transfer_time=time.monotonic() - job.began,
            transfer_bytes=len(kept) * size,
        )
