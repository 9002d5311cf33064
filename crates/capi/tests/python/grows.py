"""A space of a pool grows while it is open, and is dropped. Argument: the manager's address."""

import sys
from typing import List

from cenote_pool import Address, BusyError, FullError, InvalidError, Session, Space

MANAGER = sys.argv[1]
MIB = 1 << 20


def filled(session: Session) -> List[Address]:
    """Objects until there is no room."""
    found = []
    while True:
        try:
            found.append(session.alloc(MIB))
        except FullError:
            return found


def fails(kind: type, words: str, call: object, *arguments: object, **options: object) -> None:
    try:
        call(*arguments, **options)  # type: ignore[operator]
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{call} does not fail")


fails(InvalidError, "python", Space.grow, "python", 8 * MIB, MANAGER)
fails(InvalidError, "python", Space.drop, "python", MANAGER)
fails(InvalidError, "nobody", Space.drop, "python", MANAGER, tenant="nobody")
with Space.connect("python", MANAGER, size=16 * MIB) as space, space.session() as session:
    before = filled(session)
    parts = space.stats().parts
    fails(FullError, "moon", Space.grow, "python", 8 * MIB, MANAGER, pods=["moon"])
    fails(FullError, "", Space.grow, "python", 1 << 50, MANAGER)
    fails(FullError, "", session.alloc, MIB)
    Space.grow("python", 16 * MIB, MANAGER, pods=["rack1"])
    more = filled(session)
    assert len(more) > 4 and space.stats().parts > parts, (len(before), len(more), space.stats())
    space.write(more[-1], b"new")
    assert space.read(more[-1], 3) == b"new"
    assert space.audit() == []
Space.drop("python", MANAGER)
while True:
    try:
        fails(InvalidError, "python", Space.connect, "python", MANAGER)
        break
    except BusyError:
        pass  # Until the memory nodes have let go of it.
with Space.connect("python", MANAGER, size=16 * MIB) as space:
    assert space.root == 0 and space.stats().objects == 0, "another one"
Space.drop("python", MANAGER)
print("grows: ok")
