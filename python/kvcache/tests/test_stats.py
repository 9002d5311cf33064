"""What the adapters say of their store."""

import os
import tempfile
import unittest

from cenote_kvcache.lmcache import Connector
from cenote_pool import Store


class Stats(unittest.TestCase):
    def test_an_adapter_tells_what_was_hit_missed_and_put(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "store")
            connector = Connector(path=path, size=64 << 20)
            try:
                store: Store = connector._store
                room = bytearray(3)
                store.put(["a"], [b"one"])
                store.get_into(["a", "none"], [room, bytearray(3)])
                told = connector.stats()
                names = ("hits_total", "misses_total", "puts_total", "evictions_total", "items")
                self.assertEqual([told[name] for name in names], [1, 1, 1, 0, 1])
                self.assertGreater(told["used_bytes"], 0)
            finally:
                connector.close()


if __name__ == "__main__":
    unittest.main()
