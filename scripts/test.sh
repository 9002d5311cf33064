#!/usr/bin/env bash
# All tests, in the order in which they fail fastest. The last line counts them.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

step() {
    local name=$1 began=$SECONDS
    shift
    echo "== $name"
    if "$@" 2>&1 | tee -a "$log"; then
        echo "== $name: ok ($((SECONDS - began)) s)"
    else
        echo "== $name: FAILED ($((SECONDS - began)) s)"
        failed=$((failed + 1))
    fi
}

step "formatting" cargo fmt --all --check
step "clippy" cargo clippy --release --workspace --all-targets --quiet -- -D warnings
step "build" cargo build --release --workspace
step "tests" scripts/run_tests.py --release --workspace
step "clients" scripts/clients.sh

passed=$(awk '/^test result:/ {n += $4} /^clients: [0-9]+ passed/ {n += $2} END {print n + 0}' "$log")
broken=$(awk '/^test result:/ {n += $6} /^clients: [0-9]+ passed/ {n += $4} END {print n + 0}' "$log")
if [ "$failed" -gt 0 ] && [ "$broken" -eq 0 ]; then broken=$failed; fi
echo "$passed passed, $broken failed"
[ "$failed" -eq 0 ] && [ "$broken" -eq 0 ] && [ "$passed" -gt 0 ]
