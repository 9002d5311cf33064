"""What an access costs through Python: ``speed.py [OBJECTS]`` reads objects of 64 bytes in random order, in memory of
this process."""

import random
import statistics
import sys
import time
from typing import Callable, Dict, List

from cenote_pool import Address, Space

ACCESSES = 20_000
ROUNDS = 7


def measured(space: Space, objects: List[Address]) -> Dict[str, float]:
    buffer, data = bytearray(64), bytes(64)

    def many(at: List[Address]) -> None:
        for n in range(0, len(at), 64):
            space.read_many([(a, 64) for a in at[n : n + 64]])

    def each(step: Callable[[Address], object]) -> Callable[[List[Address]], None]:
        def all_of(at: List[Address]) -> None:
            for a in at:
                step(a)

        return all_of

    kinds: Dict[str, Callable[[List[Address]], None]] = {
        "(an empty step)": each(lambda a: None),
        "read": each(lambda a: space.read(a, 64)),
        "read_into": each(lambda a: space.read_into(a, buffer)),
        "read_many, 64 at once": many,
        "write": each(lambda a: space.write(a, data)),
        "load": each(space.load),
        "fetch_add": each(space.fetch_add),
    }
    times: Dict[str, List[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            at = random.choices(objects, k=ACCESSES)
            began = time.perf_counter_ns()
            run(at)
            times[name].append((time.perf_counter_ns() - began) / ACCESSES)
    return {name: statistics.median(some) for name, some in times.items()}


def main(n: int = 100_000) -> None:
    with Space.private(n * 65 + (16 << 20)) as space, space.session() as session:
        objects = [session.alloc(64) for _ in range(n)]
        print(f"{n} objects of 64 bytes; ns an access, median of {ROUNDS} rounds")
        for name, ns in measured(space, objects).items():
            print(f"{name:<24}{ns:7.0f} ns")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
