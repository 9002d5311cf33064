#!/usr/bin/env python3
"""Makes wheels of the Python packages that need no compiler, and nothing from the network.

  scripts/wheel.py LIBRARY OUT     cenote_pool with the shared library inside, and cenote_kvcache, in the directory OUT

A wheel is an archive of modules, and of what describes them (PyPI, "binary distribution format"). That of cenote_pool is
for Linux with the C library, and the processor, that LIBRARY asks for: a tag manylinux_X_Y_PROCESSOR, PEP 600. So a
library that is to run on older systems is built on one. The same input gives the same bytes.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# 1980: what an archive can say at least.
TIME = (1980, 1, 1, 0, 0, 0)
# Versions of symbols in the library's string table, each of which the C library has to have.
GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)")
ELF = b"\x7fELF"


def project(folder):
    """Name, version and so on, as `pyproject.toml` gives them: lines `key = "text"` or `key = [texts]` of `[project]`."""
    text = (folder / "pyproject.toml").read_text()
    section = text.split("[project]", 1)[1].split("\n[", 1)[0]
    words = dict(re.findall(r'^([a-z-]+) = "(.*)"$', section, re.MULTILINE))
    lists = {key: re.findall(r'"([^"]*)"', rest) for key, rest in re.findall(r"^([a-z-]+) = \[(.*)\]$", section, re.MULTILINE)}
    return {**words, **lists}


def metadata(about, readme):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {about['name']}",
        f"Version: {about['version']}",
        f"Summary: {about['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {about['requires-python']}",
        *(f"Requires-Dist: {name}" for name in about.get("dependencies", [])),
        *(f"Classifier: {text}" for text in about.get("classifiers", [])),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + readme


def tag_of(library):
    """For which Python, C library and processor a package with this library is."""
    if not library.startswith(ELF):
        sys.exit("the library is no ELF file: wheels are made on Linux alone")
    versions = [(int(major), int(minor)) for major, minor in GLIBC.findall(library)]
    if not versions:
        sys.exit("the library names no version of the GNU C library")
    major, minor = max(versions)
    return f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"


def modules(package):
    """The files of a package, by their names in the wheel."""
    files = [*package.glob("*.py"), package / "py.typed"]
    return {f"{package.name}/{file.name}": file.read_bytes() for file in sorted(files)}


def write(out, about, tag, files):
    """Writes a wheel: the modules, then what describes them, then checksums of all."""
    name = about["name"].replace("-", "_")
    info = f"{name}-{about['version']}.dist-info"
    is_pure = str(tag.endswith("-any")).lower()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: cenote\nRoot-Is-Purelib: {is_pure}\nTag: {tag}\n".encode()
    lines = [f"{path},sha256={checksum(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = out / f"{name}-{about['version']}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (0o100755 if ".so" in path else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(wheel)


def checksum(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make(out, folder, package, tag="py3-none-any", more=None):
    about = project(folder)
    name = f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    described = {f"{name}/METADATA": metadata(about, (folder / "README.md").read_text()).encode()}
    write(out, about, tag, {**modules(folder / package), **(more or {}), **described})


def main(library, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    content = pathlib.Path(library).read_bytes()
    header = (ROOT / "crates/capi/include/cenote_pool.h").read_text()
    abi = re.search(r"^#define CENOTE_POOL_ABI (\d+)$", header, re.MULTILINE).group(1)
    inside = {f"cenote_pool/libcenote_pool.so.{abi}": content}
    make(out, ROOT / "python", "cenote_pool", tag_of(content), inside)
    make(out, ROOT / "python/kvcache", "cenote_kvcache")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
