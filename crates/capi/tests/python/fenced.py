"""A member of another pod: it takes a lock, writes what that protects, and says so. When it is told to go on it has been
fenced: each of its accesses has to be refused. Arguments: the manager's address, the lock, words."""

import sys
from typing import Any, Callable

from cenote_pool import Address, RevokedError, Space

TRIES = 30
wrong = 0


def judge(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    global wrong
    try:
        found: Any = call(*arguments, **options)
    except RevokedError:
        return
    except Exception as error:
        found = repr(error)
    print(f"{call.__name__}: {found}", file=sys.stderr)
    wrong += 1


lock, *words = (Address.parse(text) for text in sys.argv[2:])
space = Space.connect("shared", sys.argv[1], pod="nowhere")
session = space.session()
held = session.lock(lock)
for word in words:
    space.store(word, 1)
    held.write(word, b"2")
print("locked", flush=True)
sys.stdin.readline()
for _ in range(TRIES):
    for word in words:
        judge(space.store, word, 666)
        judge(space.fetch_add, word, 1)
        judge(space.compare_and_swap, word, 7, 666)
        judge(space.write, word, b"666")
        judge(space.load, word)
        judge(space.read, word, 8)
judge(held.sync)
judge(held.unlock)
judge(session.lock, lock, timeout=0.001)
judge(session.alloc, 64)
print(f"wrong: {wrong}", flush=True)
