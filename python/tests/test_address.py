"""Addresses need no library."""

import pickle
import unittest

from cenote_pool import NULL, Address


class Addresses(unittest.TestCase):
    def test_it_reads_as_it_prints(self) -> None:
        a = Address.parse("2.17+4096@3")
        self.assertEqual((a.part, a.slot, a.offset, a.generation), (2, 17, 4096, 3))
        self.assertEqual((str(a), repr(a), f"{a}"), ("2.17+4096@3", "Address('2.17+4096@3')", "2.17+4096@3"))
        self.assertEqual(Address.parse("255.131071+2097151@262143"), (1 << 64) - 1)
        self.assertEqual((Address.parse("null"), str(NULL), bool(NULL)), (NULL, "null", False))
        self.assertEqual(pickle.loads(pickle.dumps(a)), a)
        self.assertIs(type(pickle.loads(pickle.dumps(a))), Address)

    def test_what_is_no_address_is_said(self) -> None:
        beyond = ("256.0+0@1", "1.131072+0@1", "1.0+2097152@1", "1.0+0@262144")
        for text in ("", "1", "1.2+3", "1.-1+0@1", "1.0+0@1 ", "١.0+0@1", *beyond):
            with self.subTest(text), self.assertRaises(ValueError):
                Address.parse(text)
        for number in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                Address(number)

    def test_it_walks_through_the_extents_of_its_part_and_no_further(self) -> None:
        a = Address.parse("1.7+2097151@9")
        self.assertEqual(str(a + 1), "1.8+0@9")
        self.assertEqual((a + 1) - 1, a)
        self.assertEqual((1 + a).offset_from(a), 1)
        self.assertIs(type(a + 1), Address)
        last, first = Address.parse("1.131071+2097151@9"), Address.parse("1.0+5@9")
        for walk in (lambda: last + 1, lambda: first - 6, lambda: NULL - 1):
            self.assertRaises(OverflowError, walk)
        for other in ("2.0+5@9", "1.0+5@8", "1.8+0@9"):
            self.assertRaises(ValueError, a.offset_from, Address.parse(other))
        self.assertRaises(TypeError, lambda: a + a)
        self.assertRaises(TypeError, lambda: a - a)
