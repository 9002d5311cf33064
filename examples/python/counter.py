"""A counter that outlives its processes: ``counter.py FILE [N]`` makes it in FILE, or finds it there, and counts to N
by four threads.

With ``CENOTE_MANAGER=127.0.0.1:5440`` in the environment FILE is the name of a space of that pool, and many may count
at the same time.
"""

import os
import sys
import threading

from cenote_pool import InvalidError, Space


def opened(path: str) -> Space:
    """What is in the file, or a space made there; or the pool's space of that name."""
    manager = os.environ.get("CENOTE_MANAGER")
    if manager:
        return Space.connect(path, manager, size=16 << 20)
    try:
        return Space.create(path, 16 << 20)
    except InvalidError:
        return Space.open(path)


def main(path: str, turns: int = 1000) -> None:
    with opened(path) as space, space.session() as session:
        if not space.root:
            space.root = session.alloc(8)
        counter = space.root

        def count() -> None:
            for _ in range(turns):
                space.fetch_add(counter)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(space.load(counter))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
