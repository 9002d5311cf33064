#!/usr/bin/env bash
# Installs what building, testing and the demonstration need on Debian or Ubuntu. Run again, it does nothing.
#   scripts/setup.sh build    a C compiler, python3, protoc, certificates, a Rust toolchain; libfabric's headers for RDMA,
#                             if there are any
#   scripts/setup.sh test     also what the tests use: psql, pgbench, a PostgreSQL server, sysbench, psycopg, asyncpg,
#                             redis-cli, fusermount3, sqlite3, git, openssl, ip, nsenter, etcd
set -euo pipefail

RUST_MINIMUM=1.94

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else echo "error: installing needs root: run '$*' yourself, then again" >&2; exit 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || { echo "error: no apt-get here: install these yourself: $*" >&2; exit 1; }
    echo "installing $* ..."
    as_root apt-get update -q >/dev/null || echo "warning: the package lists could not be refreshed" >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

has_libfabric() {
    echo '#include <rdma/fabric.h>' |
        cc ${CENOTE_LIBFABRIC_INCLUDE:+-I"$CENOTE_LIBFABRIC_INCLUDE"} $(pkg-config --cflags libfabric 2>/dev/null) -E - >/dev/null 2>&1
}

# Optional: without it the program builds, and says at run time that RDMA is not there. So nothing here may fail, and it is
# tried once.
install_libfabric() {
    tried="${XDG_CACHE_HOME:-$HOME/.cache}/cenote/no-libfabric"
    [ ! -e "$tried" ] || return 0
    ( command -v apt-get >/dev/null && apt_install libfabric-dev ) && return 0
    mkdir -p "${tried%/*}" && touch "$tried"
    echo "note: libfabric-dev could not be installed: building without RDMA (remove $tried to have it tried again)" >&2
}

rust_is_new_enough() {
    command -v cargo >/dev/null || return 1
    have=$(cargo --version | awk '{print $2}')
    [ "$(printf '%s\n' "$RUST_MINIMUM" "$have" | sort -V | head -n 1)" = "$RUST_MINIMUM" ]
}

install_rust() {
    echo "installing Rust ($RUST_MINIMUM or later is needed) ..."
    if ! command -v rustup >/dev/null && ! { apt-cache show rustup >/dev/null 2>&1 && apt_install rustup; }; then
        command -v curl >/dev/null || apt_install curl ca-certificates
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c clippy -c rustfmt
    fi
    export PATH="$HOME/.cargo/bin:$PATH"
    rustup toolchain install stable --profile minimal -c clippy -c rustfmt
    rustup default stable
    rust_is_new_enough || { echo "error: cargo is still older than $RUST_MINIMUM; see https://rustup.rs" >&2; exit 1; }
}

export PATH="$HOME/.cargo/bin:$PATH"
packages=()
command -v cc >/dev/null || packages+=(build-essential)
command -v python3 >/dev/null || packages+=(python3)
command -v protoc >/dev/null || packages+=(protobuf-compiler)
# What an archive in a bucket is checked against.
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
if [ "${1:-build}" = test ]; then
    command -v psql >/dev/null || packages+=(postgresql-client)
    command -v pgbench >/dev/null || packages+=(postgresql-contrib)
    command -v sysbench >/dev/null || packages+=(sysbench)
    command -v fusermount3 >/dev/null || packages+=(fuse3)
    # Hosts of tests: namespaces with links between them.
    command -v ip >/dev/null || packages+=(iproute2)
    command -v nsenter >/dev/null || packages+=(util-linux)
    { ls /usr/lib/postgresql/*/bin/initdb || command -v initdb; } >/dev/null 2>&1 || packages+=(postgresql)
    command -v sqlite3 >/dev/null || packages+=(sqlite3)
    command -v git >/dev/null || packages+=(git)
    command -v openssl >/dev/null || packages+=(openssl)
    command -v redis-benchmark >/dev/null || packages+=(redis-tools)
    { [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import psycopg, asyncpg' 2>/dev/null; } ||
        packages+=(python3 python3-psycopg python3-asyncpg)
fi
[ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
# Not everywhere; tests that want it say so and are passed over without it.
if [ "${1:-build}" = test ] && ! command -v etcd >/dev/null && apt-cache show etcd-server >/dev/null 2>&1; then
    apt_install etcd-server || echo "etcd could not be installed: tests that want it are passed over"
fi
has_libfabric || install_libfabric
rust_is_new_enough || install_rust
if [ "${1:-build}" = test ] && ! cargo clippy --version >/dev/null 2>&1; then
    rustup component add clippy rustfmt
fi
