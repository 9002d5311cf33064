"""What the documentation shows is so."""

import doctest
import os
import unittest

import cenote_pool
import cenote_pool.address


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str) -> unittest.TestSuite:
    readme = os.path.join(os.path.dirname(os.path.dirname(__file__)), "README.md")
    tests.addTests(doctest.DocTestSuite(cenote_pool))
    tests.addTests(doctest.DocTestSuite(cenote_pool.address))
    tests.addTests(doctest.DocFileSuite(readme, module_relative=False))
    return tests
