"""Where an object lies: a number that means the same in every process that uses the space.

::

    63          46 45      38 37           21 20                     0
   +--------------+----------+---------------+------------------------+
   | generation   | part     | slot          | offset in the extent   |
   +--------------+----------+---------------+------------------------+
"""

from __future__ import annotations

import re

OFFSET_BITS = 21
SLOT_BITS = 17
PART_BITS = 8
GENERATION_BITS = 18
PLACE_MASK = (1 << (OFFSET_BITS + SLOT_BITS)) - 1

_TEXT = re.compile(r"(\d+)\.(\d+)\+(\d+)@(\d+)", re.ASCII)


class Address(int):
    """An object's address, or that of a byte in it. An ``int`` of 64 bits, to be kept anywhere.

    >>> a = Address.parse("2.17+4096@3")
    >>> a + 5
    Address('2.17+4101@3')
    >>> (a + 5).offset_from(a)
    5
    >>> a.part, a.slot, a.offset, a.generation
    (2, 17, 4096, 3)
    >>> bool(NULL), str(NULL)
    (False, 'null')
    """

    __slots__ = ()

    def __new__(cls, number: int = 0) -> Address:
        """From its number, which may be any of 64 bits: what it means is checked when it is used."""
        if not 0 <= number < 1 << 64:
            raise ValueError(f"{number} has more than 64 bits: it is no address")
        return super().__new__(cls, number)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads what ``str`` gives: ``part.slot+offset@generation``, or ``null``."""
        if text == "null":
            return cls(0)
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no address: part.slot+offset@generation is one")
        number = 0
        part, slot, offset, generation = (int(digits) for digits in found.groups())
        high = (("generation", generation, GENERATION_BITS), ("part", part, PART_BITS))
        low = (("slot", slot, SLOT_BITS), ("offset", offset, OFFSET_BITS))
        for name, value, bits in high + low:
            if value >> bits:
                raise ValueError(f"{name} {value} of an address has more than {bits} bits")
            number = number << bits | value
        return cls(number)

    @property
    def part(self) -> int:
        """The part of the space: its memory on one memory node."""
        return int(self) >> (OFFSET_BITS + SLOT_BITS) & ((1 << PART_BITS) - 1)

    @property
    def slot(self) -> int:
        """The extent's number in its part."""
        return int(self) >> OFFSET_BITS & ((1 << SLOT_BITS) - 1)

    @property
    def offset(self) -> int:
        """Bytes from the extent's start."""
        return int(self) & ((1 << OFFSET_BITS) - 1)

    @property
    def generation(self) -> int:
        """How often the extent had been handed out when the object was allocated."""
        return int(self) >> (OFFSET_BITS + SLOT_BITS + PART_BITS)

    def __add__(self, n: int) -> Address:
        """The address ``n`` bytes further on. Whether it is still in the object is checked when it is used."""
        if isinstance(n, Address):
            raise TypeError("addresses are not added to each other")
        if not 0 <= (int(self) & PLACE_MASK) + n <= PLACE_MASK:
            raise OverflowError(f"no part reaches {n} bytes on from {self}")
        return Address(int(self) + n)

    __radd__ = __add__

    def __sub__(self, n: int) -> Address:
        """The address ``n`` bytes before. (How far two lie apart says :meth:`offset_from`.)"""
        if isinstance(n, Address):
            raise TypeError("use offset_from: it says whether they are of one part")
        return self + -n

    def offset_from(self, start: Address) -> int:
        """How many bytes it lies behind ``start``. ``ValueError`` if it lies before, or in another part or
        generation."""
        if int(self) & ~PLACE_MASK != int(start) & ~PLACE_MASK or self < start:
            raise ValueError(f"{self} does not lie behind {start}")
        return int(self) - int(start)

    def __str__(self) -> str:
        return f"{self.part}.{self.slot}+{self.offset}@{self.generation}" if self else "null"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


#: No object's.
NULL = Address(0)
