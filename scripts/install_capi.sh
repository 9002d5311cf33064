#!/usr/bin/env bash
# Lays out the pool's C interface for its users: scripts/install_capi.sh LIBRARY PREFIX
#   PREFIX/include/cenote_pool.h, PREFIX/lib/libcenote_pool.so.N with its link, PREFIX/lib/pkgconfig/cenote_pool.pc
set -euo pipefail
library=$1
mkdir -p "$2/include" "$2/lib/pkgconfig"
prefix=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
header=crates/capi/include/cenote_pool.h
abi=$(awk '/^#define CENOTE_POOL_ABI/ {print $3}' "$header")
version=$(awk -F'"' '/^version/ {print $2; exit}' Cargo.toml)

install -m 644 "$header" "$prefix/include/"
install -m 755 "$library" "$prefix/lib/libcenote_pool.so.$abi"
ln -sf "libcenote_pool.so.$abi" "$prefix/lib/libcenote_pool.so"
cat >"$prefix/lib/pkgconfig/cenote_pool.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: cenote_pool
Description: Spaces of the Cenote memory pool: heaps that many processes share
Version: $version
Libs: -L\${libdir} -lcenote_pool
Cflags: -I\${includedir}
END
