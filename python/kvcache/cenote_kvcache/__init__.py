"""Key-value caches of inference servers in a store of the Cenote pool.

The store lies in memory that all hosts of a pod share. Any process puts and gets blocks there by key; what one engine
has computed, every other one finds, also after the first was killed.

========== =========================================== ============================================
server     class                                       how it is named to the server
========== =========================================== ============================================
LMCache    :class:`cenote_kvcache.lmcache.Connector`   an L2 adapter of the type ``native_plugin``
vLLM       ``cenote_kvcache.vllm.CenoteTier``          a tier of its ``secondary_tiers``
SGLang     ``cenote_kvcache.sglang.CenoteStorage``     ``--hicache-storage-backend dynamic``
========== =========================================== ============================================

Each takes ``module_path`` and the class's name besides; the modules say how.

The adapters of vLLM and SGLang import those projects; this module and LMCache's adapter import ``cenote_pool`` alone.
"""

from ._connect import StoreOptions, connect

__all__ = ["StoreOptions", "connect"]
