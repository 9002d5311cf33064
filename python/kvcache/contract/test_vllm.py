"""vLLM's own base class and factory make the tier, and drive it as its manager does."""

from __future__ import annotations

import time
import types
import unittest
from typing import Any, Callable, List, Optional

from . import pool, wheels

BLOCK = 70_000
BLOCKS = 16


class Contract(unittest.TestCase):
    tier: Any

    @classmethod
    def setUpClass(cls) -> None:
        place = wheels.fetched("vllm", pool.wheels())
        wheels.sys.path.insert(0, place)
        for package in ("vllm", "vllm.v1"):
            wheels.package_without_its_start(package, place)
        offloading = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
        wheels.module(f"{offloading}.canonical_mapping")
        wheels.module("vllm.v1.kv_hints")
        wheels.module("vllm.logger", init_logger=lambda name: wheels.Anything())
        wheels.stand_in()
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.tiering import base as tiering
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        cls.base, cls.tiering = base, tiering  # type: ignore[attr-defined]
        cls.memory = bytearray(BLOCK * BLOCKS)  # type: ignore[attr-defined]
        view = memoryview(cls.memory).cast("B", (BLOCKS, BLOCK))  # type: ignore[attr-defined]
        cls.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "CenoteTier", "module_path": "cenote_kvcache.vllm", **pool.options("vllm")}, view, spec()
        )

    @classmethod
    def tearDownClass(cls) -> None:
        cls.tier.shutdown()

    def key(self, at: int) -> Any:
        return self.base.make_offload_key(bytes([at]) * 32, 0)

    def job(self, number: int, keys: List[int], blocks: List[int], is_promotion: bool) -> Any:
        offloaded = [self.key(at) for at in keys]
        return self.tiering.TransferJob(number, offloaded, blocks, is_promotion, self.request("job"))

    def request(self, name: str) -> Any:
        return self.base.ReqContext(req_id=name)

    def eventually(self, ask: Callable[[], Optional[Any]]) -> Any:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            answer = ask()
            if answer:
                return answer
            time.sleep(0.001)
        self.fail("nothing came within 30 s")

    def finished(self) -> Any:
        return self.eventually(lambda: list(self.tier.get_finished_jobs()))

    def fill(self, block: int, byte: int) -> None:
        self.memory[block * BLOCK : (block + 1) * BLOCK] = bytes([byte]) * BLOCK

    def looked_up(self, at: int, name: str) -> Any:
        retry, request = self.base.LookupResult.RETRY, self.request(name)

        def ask() -> Any:
            answer = self.tier.lookup(self.key(at), request)
            self.tier.on_schedule_end(self.base.ScheduleEndContext((), ()))
            return answer if answer is not retry else None

        answer = self.eventually(ask)
        self.tier.on_request_finished(request)
        return answer

    def test_a_block_goes_out_and_comes_back(self) -> None:
        for block in range(3):
            self.fill(block, block + 1)
        self.tier.submit_store(self.job(1, [1, 2, 3], [0, 1, 2], False))
        stored = self.finished()
        self.assertEqual([(job.job_id, job.success) for job in stored], [(1, True)])
        self.assertIs(self.looked_up(2, "a"), self.base.LookupResult.HIT)
        self.assertIs(self.looked_up(200, "b"), self.base.LookupResult.MISS)
        self.tier.submit_load(self.job(2, [3, 1], [8, 9], True))
        self.assertTrue(self.finished()[0].success)
        self.assertEqual(self.memory[8 * BLOCK : 9 * BLOCK], bytes([3]) * BLOCK)
        self.assertEqual(self.memory[9 * BLOCK : 10 * BLOCK], bytes([1]) * BLOCK)

    def test_a_load_of_which_a_part_is_there_names_that_part(self) -> None:
        self.tier.submit_store(self.job(3, [11], [0], False))
        self.finished()
        self.tier.submit_load(self.job(4, [11, 12], [8, 9], True))
        (result,) = self.finished()
        self.assertFalse(result.success)
        self.assertEqual(result.successful_keys, (self.key(11),))

    def test_drain_waits_for_all(self) -> None:
        self.tier.submit_store(self.job(5, [21, 22], [0, 1], False))
        self.tier.drain_jobs()
        self.assertFalse(self.tier.has_pending_work())
        self.assertEqual([job.job_id for job in self.tier.get_finished_jobs()], [5])


def spec() -> Any:
    """An offloading specification, as far as a tier reads it."""
    space = types.SimpleNamespace
    group = space(tokens_per_block=16, layer_names=("layers.0", "layers.1"))
    parallel = space(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)
    config = space(
        groups=(group,),
        parallel=parallel,
        model=space(name="org/model", dtype="bfloat16"),
        cache=space(tokens_per_hash=16, blocks_per_chunk=1),
        canonical_layout=False,
        kv_cache_layout=None,
        replicated_layout=False,
    )
    return space(config=config, blocks_per_chunk=1)
