"""A linked list that outlives its processes: ``list.py FILE [TEXT...]`` puts each TEXT at the front of the list in
FILE, and prints all of it.

It is the list of ``examples/c/list.c``: the root leads to a word, the first element's address; an element is the next
one's address, the text's length, the text. Each of the two reads what the other has written, also at the same time:
with ``CENOTE_MANAGER=127.0.0.1:5440`` in the environment FILE is the name of a space of that pool.
"""

import os
import struct
import sys
from typing import Iterator

from cenote_pool import Address, InvalidError, Session, Space

HEAD = struct.Struct("=QQ")


def opened(path: str) -> Space:
    """What is in the file, or a space made there; or the pool's space of that name."""
    manager = os.environ.get("CENOTE_MANAGER")
    if manager:
        return Space.connect(path, manager, size=16 << 20)
    try:
        return Space.create(path, 16 << 20)
    except InvalidError:
        return Space.open(path)


def push(space: Space, session: Session, text: bytes) -> None:
    element = session.alloc(HEAD.size + len(text))
    found = space.load(space.root)
    while True:
        # It is whole before anything refers to it.
        following = found
        space.write(element, HEAD.pack(following, len(text)) + text)
        found = space.compare_and_swap(space.root, following, element)
        if found == following:
            return


def texts(space: Space) -> Iterator[bytes]:
    element = Address(space.load(space.root))
    while element:
        following, length = HEAD.unpack(space.read(element, HEAD.size))
        if length > space.size_of(element):
            raise ValueError(f"no list: an element at {element} has {length} bytes")
        yield space.read(element + HEAD.size, length)
        element = Address(following)


def main(path: str, *new: str) -> None:
    with opened(path) as space, space.session() as session:
        if not space.root:
            space.root = session.alloc(8)
        for text in new:
            push(space, session, text.encode())
        for found in texts(space):
            print(found.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
