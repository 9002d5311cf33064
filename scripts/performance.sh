#!/usr/bin/env bash
# The tables of docs/performance.md, from one run: Cenote and PostgreSQL in turns on this machine.
#   scripts/performance.sh OUT [PART ...]    parts, all unless named:
#     tpcc         TPC-C, 4 and 10 warehouses over TCP, 4 over Unix sockets
#     peers        sysbench's five and TATP
#     connections  pgbench: selects of 1 to 900 clients, TPC-B, one hot row
#     shapes       statements of many shapes
#     tpch         TPC-H at SCALE (1): loading, indexes, 22 queries, answers compared
#     writes       bytes written under a working set of five times the memory
#     engine       rollback, check, an old snapshot, COPY and index in process
# Some twenty minutes on 2 cores. Nothing else should run. Figures, plots and logs lie in OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: scripts/performance.sh OUT [PART ...]"}
shift
trap "exit 130" INT TERM
parts=" ${*:-tpcc peers connections shapes tpch writes engine} "
mkdir -p "$out"
out=$(cd "$out" && pwd)
target=${CARGO_TARGET_DIR:-target}
bench=$target/release/cenote-bench
work=$(mktemp -d)
chmod 755 "$work"
region=/dev/shm/cenote-performance-$$
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
servers=()

finish() {
    for pid in "${servers[@]}"; do kill -TERM "$pid" 2>/dev/null; done
    for pid in "${servers[@]}"; do
        for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$work" "$region"
}
trap finish EXIT

wanted() { [[ $parts == *" $1 "* ]]; }
begin() { echo; echo "== $1 ($(date +%T))"; }
# An array and not a function: the server itself is the child then, which a signal reaches.
as_postgres=()
[ "$(id -u)" = 0 ] && as_postgres=(setpriv --reuid=postgres --regid=postgres --clear-groups)

# Both servers, tuned as `cenote-bench peers` does; queries of many rows get 64 MiB a sort.
start_servers() {
    [ "${#servers[@]}" -gt 0 ] && return
    "$target/release/cenote" run --data "$work/cenote" --listen 127.0.0.1:0 --memory-size 1GiB --region "$region" >"$work/log" 2>&1 &
    servers+=($!)
    cenote_pid=$!
    for _ in $(seq 200); do grep -q '^ready' "$work/log" && break; sleep 0.05; done
    cenote_port=$(grep '^ready' "$work/log" | grep -oE '[0-9]+$') || { cat "$work/log"; exit 1; }
    mkdir "$work/pg"
    [ "$(id -u)" = 0 ] && chown postgres "$work/pg"
    # LIKE by an index is for this locale alone.
    "${as_postgres[@]}" "$bin/initdb" -A trust -U postgres --locale=C -E UTF8 -D "$work/pg" >"$work/initdb" 2>&1 || { cat "$work/initdb"; exit 1; }
    pg_port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "${as_postgres[@]}" "$bin/postgres" -D "$work/pg" -c port="$pg_port" -c listen_addresses=127.0.0.1 -c unix_socket_directories="$work/pg" \
        -c shared_buffers=1GB -c max_wal_size=4GB -c work_mem=64MB -c jit=off -c max_parallel_workers_per_gather=0 \
        -c max_connections=1000 >"$work/pg.log" 2>&1 &
    servers+=($!)
    pg_pid=$!
    for _ in $(seq 200); do "$bin/pg_isready" -q -h 127.0.0.1 -p "$pg_port" && break; sleep 0.05; done
    cenote_url=postgres://cenote@127.0.0.1:$cenote_port/cenote
    pg_url=postgres://postgres@127.0.0.1:$pg_port/postgres
}

# pgbench on a URL: transactions a second.
tps() {
    local url=$1
    shift
    pgbench -n -M prepared -T "${SECONDS_EACH:-5}" "$@" "$url" 2>>"$out/pgbench.log" | awk '/^tps/ {found = $3} END {print found + 0}'
}

# Median of three rounds in turns, and the ratio.
in_turns() {
    local name=$1 ours=() theirs=()
    shift
    for _ in 1 2 3; do
        ours+=("$(tps "$cenote_url" "$@")")
        theirs+=("$(tps "$pg_url" "$@")")
    done
    python3 - "$name" "${ours[*]}" "${theirs[*]}" <<'END'
import statistics, sys
name, ours, theirs = sys.argv[1], *([float(x) for x in a.split()] for a in sys.argv[2:4])
ratios = [a / max(b, 1e-9) for a, b in zip(ours, theirs)]
print(f"{name:34} {statistics.median(ours):>9,.0f} {statistics.median(theirs):>9,.0f} {statistics.median(ratios):>6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
END
}

connections() {
    start_servers
    for url in "$cenote_url" "$pg_url"; do
        pgbench -i -s 10 -q "$url" >"$out/pgbench.log" 2>&1
        psql -X -q "$url" -c 'create table hot (id int primary key, n int); insert into hot values (1, 0), (2, 0)'
    done
    echo 'update hot set n = n + 1 where id = (select min(id) from hot);' >"$work/hot.sql"
    echo "pgbench, transactions a second        Cenote PostgreSQL  ratio"
    for clients in 1 2 32 128 900; do in_turns "-S, $clients clients" -S -c "$clients" -j 2; done
    in_turns "TPC-B, 4 clients" -c 4 -j 2
    in_turns "one row, by a subquery, 24 clients" -f "$work/hot.sql" -c 24 -j 2
}

tpch() {
    start_servers
    local scale=${SCALE:-1}
    "$bench" tpch --connect "$pg_url" --server-pid "$pg_pid" --scale "$scale" --load --indexes --load-only --out "$out/tpch-pg-load"
    "$bench" tpch --connect "$cenote_url" --server-pid "$cenote_pid" --scale "$scale" --load --indexes --load-only --out "$out/tpch-load"
    "$bench" tpch --connect "$pg_url" --server-pid "$pg_pid" --scale "$scale" --repetitions 1 --answers "$work/answers" --out "$out/tpch-pg"
    "$bench" tpch --connect "$cenote_url" --server-pid "$cenote_pid" --scale "$scale" --repetitions 1 --compare "$work/answers" --out "$out/tpch"
}

tpcc() {
    "$bench" peers --workloads tpcc --warehouses 4 --seconds 12 --rounds 3 --servers cenote,postgresql --out "$out/tpcc-4"
    "$bench" peers --workloads tpcc --warehouses 4 --seconds 12 --rounds 3 --servers cenote,postgresql --sockets unix --out "$out/tpcc-4-unix"
    "$bench" peers --workloads tpcc --warehouses 10 --seconds 12 --rounds 3 --servers cenote,postgresql --out "$out/tpcc-10"
    rm -rf "$out"/tpcc-*/data-*
}

engine() {
    local test
    for test in large_rollback check_of_many old_snapshot; do
        cargo test --release --quiet -p cenote-engine --test engine "$test" -- --ignored --nocapture
    done
    CENOTE_LINES=500000 cargo test --release --quiet --workspace --test core copy_cost -- --ignored --nocapture
}

if wanted tpcc; then begin "TPC-C"; tpcc 2>&1 | tee "$out/tpcc.txt"; fi
if wanted peers; then
    begin "sysbench and TATP"
    "$bench" peers --workloads oltp_point_select,oltp_read_only,oltp_read_write,oltp_update_non_index,oltp_write_only,tatp \
        --rows 100000 --seconds 5 --rounds 3 --servers cenote,postgresql --out "$out/peers" 2>&1 | tee "$out/peers.txt"
    rm -rf "$out"/peers/data-*
fi
if wanted engine; then begin "engine, in process"; engine 2>&1 | tee "$out/engine.txt"; fi
if wanted writes; then
    begin "bytes written"
    "$bench" writes --memory 16 --updates 8000 --clients 4 --out "$out/writes" 2>&1 | tee "$out/writes.txt"
    rm -rf "$out"/writes/data-*
fi
wanted connections || wanted shapes || wanted tpch && start_servers
if wanted connections; then begin "connections"; connections 2>&1 | tee "$out/connections.txt"; fi
if wanted shapes; then
    begin "shapes"
    "$bench" shapes --connect "$cenote_url" --against "$pg_url" --rounds 3 --out "$out/shapes" 2>&1 | tee "$out/shapes.txt"
fi
if wanted tpch; then begin "TPC-H"; tpch 2>&1 | tee "$out/tpch.txt"; fi
