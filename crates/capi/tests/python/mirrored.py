"""A mirrored space whose memory node is lost: what was acknowledged is there, and goes on. Argument: the manager's
address."""

import sys
import time
from typing import Any, Callable

from cenote_pool import BusyError, FullError, InvalidError, LostError, Space, TimedOutError

MANAGER = sys.argv[1]
MIB = 1 << 20


def again(call: Callable[..., Any], *arguments: Any) -> Any:
    """Tries again while the part is away: an operator has yet to say that it is lost."""
    until = time.monotonic() + 150
    while True:
        try:
            return call(*arguments)
        except (LostError, TimedOutError, BusyError):
            if time.monotonic() > until:
                raise


def fails(kind: type, *arguments: Any, **options: Any) -> None:
    try:
        Space.make(*arguments, MANAGER, mirrored=True, **options)
    except kind:
        return
    raise AssertionError(f"{arguments} is made")


fails(FullError, "python", 1 << 50)
fails(InvalidError, "python", 32 * MIB, pods=[])
Space.make("python", 32 * MIB, MANAGER, pods=["pod-0"], mirrored=True)
fails(InvalidError, "python", 32 * MIB)
with Space.connect("python", MANAGER) as space, space.session() as session:
    objects = [session.alloc(3000) for _ in range(60)]
    for n, address in enumerate(objects):
        space.write(address, bytes([n]) * 3000)
    space.root = objects[7]
    print("written", flush=True)
    sys.stdin.readline()
    for n, address in enumerate(objects):
        assert again(space.read, address, 3000) == bytes([n]) * 3000, n
    assert again(lambda: space.root) == objects[7]
    more = again(session.alloc, 3000)
    again(space.write, more, b"more")
    assert space.read(more, 4) == b"more"
print("all there", flush=True)
