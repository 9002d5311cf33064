#!/usr/bin/env bash
# What a mirror on another machine costs a database that writes much: sysbench on a mirrored database and on one without
# a mirror, in turns, on this machine.
#   scripts/mirror_cost.sh OUT
# Two memory nodes over libfabric's tcp on loopback. The mirrored database does not see the directory of the second one
# (a mount namespace of its own, which takes root), so its mirror is written by one-sided verbs, as on two machines. The
# other database has a region in the first one and `--survive host`, which a mirror implies. Table and logs lie in OUT.
# Environment: SECONDS_EACH (10), ROUNDS (3), ROWS (100000), THREADS (4), MEMORY (512MiB), CENOTE (the program).
# Three minutes on 2 cores. Nothing else should run.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: scripts/mirror_cost.sh OUT"}
trap "exit 130" INT TERM
mkdir -p "$out"
out=$(cd "$out" && pwd)
cenote=${CENOTE:-${CARGO_TARGET_DIR:-target}/release/cenote}
memory=${MEMORY:-512MiB}
rounds=${ROUNDS:-3}
sysbench_shape=(--tables=2 --table-size="${ROWS:-100000}" --threads="${THREADS:-4}")
work=$(mktemp -d)
shm=$(mktemp -d /dev/shm/cenote-mirror-cost.XXXXXX)
started=()

finish() {
    local i
    # The last started first: databases before nodes, nodes before the manager.
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        kill -TERM "${started[i]}" 2>/dev/null
        for _ in $(seq 100); do kill -0 "${started[i]}" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "${started[i]}" 2>/dev/null
    done
    rm -rf "$work" "$shm"
}
trap finish EXIT

give_up() { echo "mirror_cost: $1" >&2; [ -n "${2:-}" ] && tail -n 20 "$2" >&2; exit 1; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Until a log has a line.
wait_for() {
    for _ in $(seq 600); do grep -q -- "$2" "$1" && return; sleep 0.1; done
    give_up "'$2' does not come" "$1"
}

[ -x "$cenote" ] || give_up "$cenote is not built"
command -v sysbench >/dev/null || give_up "sysbench is not installed"
unshare -m true 2>/dev/null || give_up "skipped: no right to make a mount namespace (unshare -m)"

port=$(free_port)
pool=(--manager "127.0.0.1:$port")
mkdir "$work/manager" "$work/mirrored" "$work/plain" "$shm/first" "$shm/second"
"$cenote" manager --dir "$work/manager" --listen "127.0.0.1:$port" >"$out/manager.log" 2>&1 &
started+=($!)
for node in first second; do
    "$cenote" memory --pod "$node" --size "$((2 * $(numfmt --from=iec-i --suffix=B "$memory" | tr -d B) / 1048576 + 64))MiB" \
        --region "$shm/$node" --rdma "tcp;ofi_rxm" "${pool[@]}" >"$out/$node.log" 2>&1 &
    started+=($!)
done

# A database of memory in the first node's pod. Prints nothing; its port is in `ready`'s line.
database=(--listen 127.0.0.1:0 --memory pool "${pool[@]}" --pod first --memory-size "$memory")
for _ in $(seq 100); do
    "$cenote" pool status "${pool[@]}" 2>/dev/null | grep -q second && break
    sleep 0.1
done
# shellcheck disable=SC2016
unshare -m --propagation private sh -c 'mount -t tmpfs none "$0" && exec "$@"' "$shm/second" \
    "$cenote" run --data "$work/mirrored" --mirror "${database[@]}" >"$out/mirrored.log" 2>&1 &
started+=($!)
"$cenote" run --data "$work/plain" --survive host "${database[@]}" >"$out/plain.log" 2>&1 &
started+=($!)

# sysbench on a database: transactions a second.
rate() {
    local name=$1 workload=$2 port
    port=$(grep '^ready' "$out/$name.log" | grep -oE '[0-9]+$')
    sysbench "$workload" --db-driver=pgsql --pgsql-host=127.0.0.1 --pgsql-port="$port" --pgsql-user=cenote --pgsql-db=cenote \
        "${sysbench_shape[@]}" "${@:3}" >"$work/said" 2>&1 || { cat "$work/said" >>"$out/sysbench.log"; give_up "sysbench $workload on $name" "$work/said"; }
    cat "$work/said" >>"$out/sysbench.log"
    awk '/transactions:/ {print substr($3, 2)}' "$work/said"
}

for name in plain mirrored; do
    wait_for "$out/$name.log" '^ready'
    rate "$name" oltp_write_only prepare
done
wait_for "$out/mirrored.log" 'is mirrored in pod second'
: >"$out/rates.txt"
for ((round = 0; round < rounds; round++)); do
    for workload in oltp_write_only oltp_read_write; do
        # Each goes first in turn.
        order=(plain mirrored)
        [ $((round % 2)) = 1 ] && order=(mirrored plain)
        for name in "${order[@]}"; do
            found=$(rate "$name" "$workload" --time="${SECONDS_EACH:-10}" --report-interval=0 run) || exit 1
            echo "$workload $round $name $found" >>"$out/rates.txt"
        done
    done
done
"$cenote" pool status "${pool[@]}" >"$out/status.txt"
grep -q 'mirror of .*whole' "$out/status.txt" || give_up "the mirror is not whole in the end" "$out/status.txt"

python3 - "$out/rates.txt" <<'END' | tee "$out/mirror_cost.txt"
import statistics, sys
rates = {}
for line in open(sys.argv[1]):
    workload, _, name, rate = line.split()
    rates.setdefault(workload, {}).setdefault(name, []).append(float(rate))
print(f"{'transactions a second, medians':32} {'no mirror':>10} {'mirror':>10} {'cost':>6}   of the rounds")
for workload, found in rates.items():
    costs = [1 - m / max(p, 1e-9) for p, m in zip(found["plain"], found["mirrored"])]
    plain, mirrored = (statistics.median(found[name]) for name in ("plain", "mirrored"))
    each = " ".join(f"{cost:.0%}" for cost in costs)
    print(f"{workload:32} {plain:>10,.0f} {mirrored:>10,.0f} {statistics.median(costs):>6.0%}   {each}")

END
