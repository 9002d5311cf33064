"""LMCache: a connector for its ``native_plugin`` L2 adapter (LMCache 0.5).

::

    {"type": "native_plugin", "module_path": "cenote_kvcache.lmcache", "class_name": "Connector",
     "adapter_params": {"store": "kvcache", "manager": "127.0.0.1:5440"}}

Requests are submitted without waiting; the store's threads copy, and ``event_fd`` becomes readable when something is
done. Objects are immutable: a key that is there already counts as stored. An object is loaded if it has exactly the
length of the buffer that was given for it.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ._connect import StoreOptions, connect, no_more
from ._results import is_found, is_stored
from ._stats import stats

#: Of one request: its number, whether it was done, what was wrong, and a result a key.
Completion = Tuple[int, bool, str, List[bool]]
#: From the store's results to whether the request was done, and a result a key.
Judge = Callable[[Sequence[int]], Tuple[bool, List[bool]]]


def _all_stored(results: Sequence[int]) -> Tuple[bool, List[bool]]:
    """A store that failed for one key is stored again whole: what is there already costs a look."""
    stored = [is_stored(result) for result in results]
    return all(stored), stored


def _found(results: Sequence[int]) -> Tuple[bool, List[bool]]:
    """A key that is not there is an answer, and no failure of the request."""
    return True, [is_found(result) for result in results]


def _loaded(sizes: Sequence[int]) -> Judge:
    """An object of another length is none that this server has stored."""
    return lambda results: (True, [result == size for result, size in zip(results, sizes)])


class Connector:
    """What LMCache calls a native client. Any thread may call any method."""

    def __init__(self, **options: Any) -> None:
        store, rest = StoreOptions.split(options)
        no_more(rest)
        self._store = connect(store)
        self._judges: Dict[int, Judge] = {}
        self._lock = threading.Lock()

    def event_fd(self) -> int:
        """Readable while completions wait."""
        return self._store.event_fd()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Fills each buffer with the object of its key."""
        judge = _loaded([view.nbytes for view in memoryviews])
        return self._submitted(judge, lambda: self._store.submit_get(keys, memoryviews))

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Stores each buffer under its key. The buffers stay as they are until that is done."""
        return self._submitted(_all_stored, lambda: self._store.submit_put(keys, memoryviews))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Which keys are there. None is pinned: a load of one that was evicted meanwhile is not done, and the server
        computes it anew."""
        return self._submitted(_found, lambda: self._store.submit_exists(keys))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes what is there."""
        return self._submitted(_found, lambda: self._store.submit_remove(keys))

    def drain_completions(self) -> List[Completion]:
        """What was done since the last call."""
        with self._lock:
            done = [(number, self._judges.pop(number), results) for number, results in self._store.drain()]
        return [(number, *_worded(*judge(results))) for number, judge, results in done]

    def stats(self) -> Dict[str, int]:
        """What the store's metrics say, by name: hits, misses, puts, bytes, evictions. Of all processes."""
        return stats(self._store)

    def close(self) -> None:
        """Waits for what is under way, and leaves the store as it is."""
        self._store.close()

    def _submitted(self, judge: Judge, submit: Callable[[], int]) -> int:
        # Under the lock: else a completion might be drained before its judge is known.
        with self._lock:
            number = submit()
            self._judges[number] = judge
        return number


def _worded(is_done: bool, results: List[bool]) -> Tuple[bool, str, List[bool]]:
    failed = results.count(False)
    return is_done, "" if is_done else f"{failed} of {len(results)} objects were not stored", results
