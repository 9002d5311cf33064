"""Key-value caches of inference servers in a store of the Cenote pool.

The store lies in memory that all hosts of a pod share. Any process puts and gets blocks there by key; what one engine has computed, every other one
finds, also after the first was killed.

========== =========================================== ==========================================================
server     class                                       how it is named to the server
========== =========================================== ==========================================================
LMCache    :class:`cenote_kvcache.lmcache.Connector`   ``{"type": "native_plugin", "module_path": "cenote_kvcache.lmcache", "class_name": "Connector"}``
vLLM       ``cenote_kvcache.vllm.CenoteTier``          ``{"type": "CenoteTier", "module_path": "cenote_kvcache.vllm"}`` in ``secondary_tiers``
SGLang     ``cenote_kvcache.sglang.CenoteStorage``     ``--hicache-storage-backend dynamic`` with ``module_path`` and ``class_name``
========== =========================================== ==========================================================

The adapters of vLLM and SGLang import those projects; this module and LMCache's adapter import ``cenote_pool`` alone.
"""

from ._connect import StoreOptions, connect

__all__ = ["StoreOptions", "connect"]
