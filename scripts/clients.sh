#!/usr/bin/env bash
# Real clients, unmodified, on a server of their own: psql, pgbench, sysbench, psycopg, asyncpg; redis-cli and
# redis-benchmark. The last line counts them.
set -uo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/cenote
work=$(mktemp -d)
region=/dev/shm/cenote-clients-$$
passed=0 failed=0

"$program" run --data "$work/data" --listen 127.0.0.1:0 --memory-size 256MiB --region "$region" >"$work/out" 2>"$work/err" &
server=$!
kv=
finish() {
    kill -TERM "$server" $kv 2>/dev/null
    local pid
    for pid in "$server" $kv; do
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    done
    kill -KILL "$server" $kv 2>/dev/null
    rm -rf "$work" "$region" "$region-kv" "$region-node"*
}
trap finish EXIT

for _ in $(seq 200); do grep -q '^ready' "$work/out" && break; sleep 0.05; done
port=$(grep -ohE '127\.0\.0\.1:[0-9]+' "$work/out" | head -n 1 | cut -d: -f2)
[ -n "$port" ] || { echo "the server did not start:"; cat "$work/out" "$work/err"; echo "clients: 0 passed, 1 failed"; exit 1; }

check() {
    local name=$1
    shift
    if timeout 120 "$@" >"$work/log" 2>&1; then
        echo "client $name ... ok"
        passed=$((passed + 1))
    else
        echo "client $name ... FAILED"
        tail -n 15 "$work/log"
        failed=$((failed + 1))
    fi
}

export PGHOST=127.0.0.1 PGPORT=$port PGUSER=cenote PGDATABASE=cenote PGCONNECT_TIMEOUT=10
python=/usr/bin/python3
"$python" -c 'import psycopg' 2>/dev/null || python=python3

psql_script() { psql -X -v ON_ERROR_STOP=1 -f scripts/clients/session.sql; }
sysbench_run() {
    local common=(--db-driver=pgsql --pgsql-host=127.0.0.1 --pgsql-port="$port" --pgsql-user=cenote --pgsql-db=cenote --tables=2 --table-size=2000)
    sysbench oltp_read_write "${common[@]}" --threads=2 prepare || return 1
    local workload
    for workload in oltp_point_select oltp_read_only oltp_read_write oltp_update_non_index oltp_update_index oltp_write_only oltp_delete oltp_insert; do
        sysbench "$workload" "${common[@]}" --threads=4 --time=2 run || return 1
    done
    sysbench oltp_read_write "${common[@]}" cleanup
}
pgbench_run() {
    pgbench -i -s 1 -q && pgbench -c 4 -T 2 -M simple && pgbench -c 4 -T 2 -M extended && pgbench -c 4 -T 2 -M prepared && pgbench -c 2 -T 1 -S
}
export -f psql_script sysbench_run pgbench_run
export port

check "psql" bash -c psql_script
check "psycopg" "$python" scripts/clients/psycopg_session.py
check "asyncpg" "$python" scripts/clients/asyncpg_session.py
check "sysbench" bash -c sysbench_run
check "pgbench" bash -c pgbench_run
check "cenote check, online" "$program" check --data "$work/data"

if command -v redis-cli redis-benchmark >/dev/null; then
    "$program" kv --listen 127.0.0.1:0 --memory-size 256MiB --region "$region-kv" >"$work/kv" 2>&1 &
    kv=$!
    for _ in $(seq 200); do grep -q '^ready' "$work/kv" && break; sleep 0.05; done
    kv_port=$(grep '^ready' "$work/kv" | grep -oE '[0-9]+$')
    export kv_port
    redis_cli_run() {
        [ "$(redis-cli -p "$kv_port" set greeting hello)" = OK ] && [ "$(redis-cli -3 -p "$kv_port" get greeting)" = hello ] &&
            [ "$(printf 'multi\nincr n\nincr n\nexec\n' | redis-cli -p "$kv_port" | tail -n 1)" = 2 ] &&
            [ "$(redis-cli -p "$kv_port" --scan | sort | head -n 1)" = greeting ]
    }
    redis_benchmark_run() { redis-benchmark -p "$kv_port" -n 20000 -P 16 -r 10000 -q -t set,get,incr,hset,mset,ping_inline,ping_mbulk; }
    export -f redis_cli_run redis_benchmark_run
    check "redis-cli" bash -c redis_cli_run
    check "redis-benchmark" bash -c redis_benchmark_run

    # Two servers on the table that all share.
    pool=$work/pool
    mkdir "$pool"
    "$program" manager --listen 127.0.0.1:0 --dir "$pool/manager" >"$work/manager" 2>&1 &
    kv="$kv $!"
    for _ in $(seq 200); do grep -q '^ready' "$work/manager" && break; sleep 0.05; done
    manager=$(grep '^ready' "$work/manager" | grep -oE '127\.0\.0\.1:[0-9]+$')
    "$program" memory --pod rack --size 192MiB --manager "$manager" --region "$region-node" >"$work/node" 2>&1 &
    kv="$kv $!"
    for _ in $(seq 200); do grep -q '^ready' "$work/node" && break; sleep 0.05; done
    for n in 1 2; do
        "$program" kv --memory pool --manager "$manager" --space cache --memory-size 128MiB --listen 127.0.0.1:0 >"$work/kv$n" 2>&1 &
        kv="$kv $!"
        for _ in $(seq 200); do grep -q '^ready' "$work/kv$n" && break; sleep 0.05; done
    done
    one=$(grep '^ready' "$work/kv1" | grep -oE '[0-9]+$') two=$(grep '^ready' "$work/kv2" | grep -oE '[0-9]+$')
    export one two
    shared_run() {
        redis-benchmark -p "$one" -n 20000 -P 16 -r 10000 -q -t set,get,incr,mset || return 1
        redis-benchmark -p "$two" -n 20000 -P 16 -r 10000 -q -t get,incr || return 1
        [ "$(redis-cli -p "$one" set greeting hello)" = OK ] && [ "$(redis-cli -3 -p "$two" get greeting)" = hello ] &&
            [ "$(redis-cli -p "$two" --scan --pattern 'greet*')" = greeting ]
    }
    export -f shared_run
    check "redis-cli, redis-benchmark: two servers, one table" bash -c shared_run
fi

echo "clients: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
