# make demo   shows what Cenote does: kills the server under load, then its host, restarts it, checks that nothing is lost
# make run    the server in the foreground
# make test   all tests
SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Built once for all checkouts, and outside of them, so that a fresh clone need not build DataFusion again.
export CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cenote/target
BIN := $(CARGO_TARGET_DIR)/release

.PHONY: demo run up test build capi wheel bench performance figures setup setup-test clean

demo: build
	$(BIN)/cenote-bench demo --out demo-out

run: build
	$(BIN)/cenote run

up: build
	$(BIN)/cenote up

test: setup-test
	scripts/test.sh

build: setup
	@echo "building (the first time takes some 15 minutes on 2 cores) ..."
	cargo build --release --workspace

# The pool's library for C and Python, with its header, in PREFIX.
capi: PREFIX ?= capi-out
capi: setup
	cargo build --release -p cenote-capi
	scripts/install_capi.sh $(CARGO_TARGET_DIR)/release/libcenote_capi.so $(PREFIX)

# Wheels of the Python packages, which need no compiler, in wheels-out.
wheel: setup
	cargo build --release -p cenote-capi
	scripts/wheel.py $(CARGO_TARGET_DIR)/release/libcenote_capi.so wheels-out

bench: build
	$(BIN)/cenote-bench peers --out peers-out

# The tables of docs/performance.md: some twenty minutes, in which nothing else should run.
performance: build setup-test
	scripts/performance.sh performance-out

# The papers' figures in docs/, run anew by the simulator where the code that they measure has changed.
COMMIT = $(shell git describe --always --dirty --abbrev=12)
figures: build
	$(BIN)/cenote-bench reproduce polarcxlmem --if-stale --commit $(COMMIT) --out docs/figures/polarcxlmem
	sed 's#](fig#](figures/polarcxlmem/fig#' docs/figures/polarcxlmem/README.md > docs/reproduce-polarcxlmem.md
	$(BIN)/cenote-bench reproduce rcmp --if-stale --commit $(COMMIT) --out docs/figures/rcmp
	sed -E 's#\]\(([a-z]+\.svg)\)#](figures/rcmp/\1)#' docs/figures/rcmp/README.md > docs/reproduce-rcmp.md
	$(BIN)/cenote-bench reproduce serverless --if-stale --commit $(COMMIT) --out docs/figures/serverless
	sed 's#](fig#](figures/serverless/fig#' docs/figures/serverless/README.md > docs/reproduce-serverless.md

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

clean:
	rm -rf demo-out peers-out performance-out capi-out wheels-out cenote-data

# The adapters for inference servers under those servers' own classes, out of their wheels (400 MB are fetched; CENOTE_WHEELS keeps them).
.PHONY: kvcache-contract
kvcache-contract: setup
	cargo build --release -p cenote-capi
	CENOTE_POOL_LIBRARY=$(CARGO_TARGET_DIR)/release/libcenote_capi.so PYTHONPATH=python:python/kvcache \
	  sh -ec 'for server in lmcache vllm sglang; do echo "== $$server"; python3 -m unittest contract.test_$$server; done'
