#!/usr/bin/env python3
"""Measures the house: function lengths, asserts, unsafe, import circles, names, documented errors.

    scripts/style.py            the table
    scripts/style.py circles    which files import each other in a circle
    scripts/style.py modules    which modules of a crate may import which, as scripts/modules.txt says it
    scripts/style.py check      which modules, circles, function lengths and names break a rule; the house test runs it
    scripts/style.py names      types whose names hold a word that docs/glossary.md replaces
    scripts/style.py errors     public functions that can fail and do not say how
    scripts/style.py long       the longest functions, and how many lines are longer than 120 columns
    scripts/style.py asserts    asserts a thousand lines, by crate
    scripts/style.py draw SEED  twenty asserts at random, each to be put to the test by a mutation of what it guards
    scripts/style.py prose      lines of comments, texts and pages with a riddle's subject ("whoever") or a private word

Rust is read as text: comments and literals are blanked out, braces are matched. Macros that make functions are not
expanded.
"""

import collections
import pathlib
import random
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = ["base", "fabric", "libfabric", "pool", "space", "kv", "fs", "store", "storage", "storage-node", "buffer",
        "engine"]
COLUMNS = 120
FUNCTION_LINES = 80
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:x..|u\{[^}]*\}|.)|[^\'\\])\'', re.S)
FUNCTION = re.compile(r"\bfn\s+(\w+)")
TYPE = re.compile(r"\b(?:struct|enum|trait|union|type)\s+([A-Z]\w*)")
ASSERT = re.compile(r"\b(?:debug_)?assert(?:_eq|_ne)?!|\bconst _: \(\) = assert")
KNOWN_PAIRS = re.compile("InFlight|ReadAhead")
RIDDLE = re.compile(
    r"\b(?:nobody|somebody|anybody|everybody|whoever|whose wish|(?<!-)wish(?:es)?|whereabouts|strangers?|strange"
    r"|stuck|awake|patien(?:ce|t)|tend(?:s|ed)?|guests?|(?<!read.)(?<!write.)ahead(?! of)|two minds|hunts?|troubles?"
    r"|(?<!users )(?<!user )(?<!people )(?<!reader )(?<!readers )(?<!engineers )(?<!person )(?<!operator )who)\b", re.I)
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def blanked(text):
    """The text with comments and literals blanked out: the same length, the same lines."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def closing(code, start):
    """Behind the bracket that closes the one at `start`."""
    pairs, depth = {"{": 1, "}": -1}, 0
    for at in range(start, len(code)):
        depth += pairs.get(code[at], 0)
        if depth == 0:
            return at + 1
    return len(code)


class File:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()
        self.code = blanked(self.text)
        parts = path.relative_to(ROOT).parts
        self.crate = parts[1]
        self.is_test = "tests" in parts[2:] or path.stem in ("tests", "contract", "testing") or "benches" in parts
        self.production = "" if self.is_test else self.without_tests()
        self.module = module_of(parts)

    def without_tests(self):
        """The code without what is compiled for tests alone."""
        code = self.code
        tests = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?(mod|fn|impl)\b[^{;]*([{;])")
        for match in reversed(list(tests.finditer(code))):
            end = closing(code, match.end() - 1) if match.group(2) == "{" else match.end()
            code = code[:match.start()] + re.sub(r"[^\n]", " ", code[match.start():end]) + code[end:]
        return code

    def functions(self):
        """(name, offset, lines) of each function that has a body."""
        for match in FUNCTION.finditer(self.code):
            depth, at = 0, match.end()
            while at < len(self.code) and not (depth == 0 and self.code[at] in "{;"):
                depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(self.code[at], 0)
                at += 1
            if at < len(self.code) and self.code[at] == "{":
                end = closing(self.code, at)
                yield match.group(1), match.start(), self.code.count("\n", match.start(), end) + 1


def module_of(parts):
    """The module that a file under `src` is, as a tuple of names; `None` for other files."""
    if len(parts) < 4 or parts[2] != "src":
        return None
    names = list(parts[3:-1]) + [parts[-1][:-3]]
    return tuple(name for name in names if name not in ("mod", "lib", "main"))


def use_trees(code):
    """The paths of all `use` declarations: (exported, path)."""
    for match in re.finditer(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", code):
        for path in flattened(re.sub(r"\s+", " ", match.group(2)).strip()):
            yield bool(match.group(1)), path


def flattened(tree):
    """`a::{b, c::d}` as [[a, b], [a, c, d]]."""
    if "{" not in tree:
        return [[part for part in re.sub(r" as \w+", "", tree).replace(" ", "").split("::") if part]]
    head, _, rest = tree.partition("{")
    body, items, depth, item = rest[:rest.rindex("}")], [], 0, ""
    for letter in body:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += letter
    prefix = [part for part in head.replace(" ", "").split("::") if part]
    return [prefix + path for item in items + [item] if item.strip() for path in flattened(item.strip())]


class Imports:
    """Which file imports which, within a crate. A name that a module passes on counts for the file that has it."""

    def __init__(self, files):
        self.by_module = {(f.crate, f.module): f for f in files if f.module is not None and not f.is_test}
        self.exports = collections.defaultdict(dict)
        for (crate, module), file in self.by_module.items():
            for exported, path in use_trees(file.production):
                target = self.absolute(crate, module, path) if exported else None
                if target:
                    self.exports[crate, module][target[-1]] = target
        self.edges = {f: self.of(f) for f in self.by_module.values()}

    def absolute(self, crate, module, path):
        path = list(path)
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return list(module) + path[1:]
        base = list(module)
        while path and path[0] == "super":
            path, base = path[1:], base[:-1]
            if path and path[0] != "super":
                return base + path
        return list(module) + path if path and (crate, (*module, path[0])) in self.by_module else None

    def file(self, crate, path, hops=8):
        for length in range(len(path), -1, -1):
            found = self.by_module.get((crate, tuple(path[:length])))
            if found is None:
                continue
            passed = self.exports[crate, tuple(path[:length])].get(path[length]) if length < len(path) else None
            if passed and hops and passed != list(path):
                return self.file(crate, passed + list(path[length + 1:]), hops - 1)
            return found
        return None

    def of(self, file):
        paths = [path for exported, path in use_trees(file.production) if not exported]
        uses = re.sub(r"\buse\s+[^;]+;", "", file.production)
        paths += [match.group().split("::") for match in PATH.finditer(uses)]
        targets = (self.absolute(file.crate, file.module, path) for path in paths)
        found = {self.file(file.crate, target) for target in targets if target}
        return found - {file, None}

    def circles(self):
        return circles(self.edges)

    def of_modules(self, crate):
        """Which top module of a crate imports which; the crate's root and its programs are left out."""
        graph = {module[0]: set() for of, module in self.by_module if of == crate and module and module[0] != "bin"}
        for file, targets in self.edges.items():
            if file.crate == crate and file.module and file.module[0] in graph:
                graph[file.module[0]] |= {t.module[0] for t in targets if t.module and t.module[0] in graph}
        return {module: targets - {module} for module, targets in graph.items()}


def circles(edges):
    """Sets of nodes of a graph that reach each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []
    for root in edges:
        work = [(root, iter(edges[root]))] if root not in index else []
        while work:
            node, targets = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            following = next(targets, None)
            if following is not None:
                if following not in index:
                    work.append((following, iter(edges[following])))
                elif following in stack:
                    low[node] = min(low[node], index[following])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                circle = stack[stack.index(node):]
                del stack[stack.index(node):]
                found += [circle] if len(circle) > 1 else []
    return found


def floors(graph):
    """The modules of a graph from the lowest to the highest, those on one floor together; a circle is `a+b+c`."""
    height, whole = {}, {module: (module,) for module in graph}
    for circle in circles(graph):
        whole |= {module: tuple(sorted(circle)) for module in circle}

    def of(module):
        group = whole[module]
        if group not in height:
            below = {t for m in group for t in graph[m]} - set(group)
            height[group] = 1 + max((of(t) for t in below), default=-1)
        return height[group]

    lines = collections.defaultdict(set)
    for module in graph:
        lines[of(module)].add("+".join(whole[module]))
    return [sorted(lines[n]) for n in sorted(lines)]


def replaced_words():
    """The words that the glossary replaces: its last column."""
    glossary = ROOT / "docs/glossary.md"
    rows = re.findall(r"^\|[^\n]*\|$", glossary.read_text(), re.M) if glossary.exists() else []
    cells = [row.strip("|").split("|")[-1] for row in rows]
    return sorted({word for cell in cells for word in re.findall(r"`(\w+)`", cell)})


def odd_names(files):
    words = {word.lower() for word in replaced_words()}
    for file in files:
        for match in TYPE.finditer(file.code):
            name = KNOWN_PAIRS.sub("", match.group(1))
            parts = {part.lower() for part in re.findall(r"[A-Z][a-z0-9]*", name)}
            if parts & words:
                yield file, match.group(1)


def fallible(files):
    """Public functions that return a `Result`: (file, name, whether their documentation has a part on errors)."""
    above = r"((?:^[ \t]*(?:///[^\n]*|#\[[^\n]*)\n)*)"
    declared = re.compile(above + r"^[ \t]*pub (?:const |async |unsafe )*fn (\w+)([^{;]*)[{;]", re.M)
    for file in files:
        if file.is_test or not file.module:
            continue
        for match in declared.finditer(file.text):
            if re.search(r"\)\s*->\s*(?:io::|fmt::|std::\w+::)*Result\b[^()]*(?:\([^()]*\)[^()]*)*$", match.group(3)):
                yield file, match.group(2), "# Errors" in match.group(1)


def table(files):
    lines = sorted(count for f in files for _, _, count in f.functions())
    core = [f for f in files if f.crate in CORE and not f.is_test]
    asserts = sum(len(ASSERT.findall(f.production)) for f in core)
    core_lines = sum(1 for f in core for line in f.production.splitlines() if line.strip())
    imports = Imports(files)
    in_circles = sum(len(circle) for circle in imports.circles())
    types = sum(len(TYPE.findall(f.code)) for f in files)
    said = [has for _, _, has in fallible(files)]
    long = sum(len(line) > COLUMNS for f in files for line in f.text.splitlines())
    median, most = statistics.median(lines), lines[len(lines) * 9 // 10]
    yield "function lines, median / p90 / max", f"{median:.0f} / {most} / {lines[-1]}"
    yield f"functions over {FUNCTION_LINES} lines", sum(count > FUNCTION_LINES for count in lines)
    yield "asserts a thousand lines, base to engine", f"{1000 * asserts / core_lines:.1f}"
    yield "files with unsafe blocks", sum(bool(re.search(r"\bunsafe\s*(?:\{|fn|impl)", f.code)) for f in files)
    yield "files in import circles", f"{in_circles} of {len(imports.edges)}"
    yield "types with a word that the glossary replaces", f"{len(list(odd_names(files)))} of {types}"
    yield "fallible public functions with # Errors", f"{sum(said)} of {len(said)}"
    yield f"lines over {COLUMNS} columns", long
    yield "lines of prose with a riddle's subject", sum(1 for _ in riddles(files))


def asserts_by_crate(files):
    """(crate, asserts, lines that are not empty) of production files."""
    for crate in CORE:
        core = [f for f in files if f.crate == crate and not f.is_test]
        lines = sum(1 for f in core for line in f.production.splitlines() if line.strip())
        yield crate, sum(len(ASSERT.findall(f.production)) for f in core), lines


def drawn_asserts(files, seed):
    """Twenty (path, line number, line) of production asserts from base to engine, drawn by `seed`."""
    found = []
    for file in files:
        if file.crate in CORE and not file.is_test:
            lines = file.text.splitlines()
            for number, line in enumerate(file.production.splitlines(), 1):
                if ASSERT.search(line):
                    found.append((file.path, number, " ".join(text.strip() for text in lines[number - 1:number + 3])))
    return random.Random(seed).sample(found, 20)


def riddles(files):
    """(path, line number, line) of comments, literals and pages that hold a word of `RIDDLE`."""
    for file in files:
        rest = "".join(a if a == "\n" or a != b else " " for a, b in zip(file.text, file.code))
        for number, (line, whole) in enumerate(zip(rest.splitlines(), file.text.splitlines()), 1):
            if RIDDLE.search(line):
                yield file.path, number, whole.strip()
    for page in [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md"))]:
        if page.name == "glossary.md":
            continue
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if RIDDLE.search(line):
                yield page, number, line.strip()


RULES = ROOT / "scripts/modules.txt"


def rules():
    """What scripts/modules.txt says: floors by crate, and sets of files that may import each other."""
    crates, allowed, crate = {}, [], None
    for line in RULES.read_text().splitlines():
        words = line.split("#")[0].split()
        if line.startswith("circle "):
            allowed.append(set(words[1:]))
        elif words and not line.startswith(" "):
            crate = crates.setdefault(words[0], [])
        elif words:
            crate.append(words)
    return crates, allowed


def module_errors(imports, crates):
    for crate in sorted({of for of, _ in imports.by_module}):
        lines = enumerate(crates.get(crate, []))
        place = {m: (height, word) for height, line in lines for word in line for m in word.split("+")}
        for module, targets in imports.of_modules(crate).items():
            if module not in place:
                yield f"{crate}::{module} has no floor in {RULES.name}"
                continue
            height, word = place[module]
            for target in targets:
                if target in place and place[target][0] >= height and place[target][1] != word:
                    yield f"{crate}::{module} imports {crate}::{target}, which does not lie below it ({RULES.name})"


def circle_errors(imports, allowed):
    for circle in imports.circles():
        names = {str(f.path.relative_to(ROOT / "crates")) for f in circle}
        if not any(names <= few for few in allowed):
            yield f"these files import each other in a circle: {' '.join(sorted(names))}"


def broken(files):
    """Every rule that is broken, in a line each."""
    crates, allowed = rules()
    imports = Imports(files)
    yield from module_errors(imports, crates)
    yield from circle_errors(imports, allowed)
    for file in files:
        where = file.path.relative_to(ROOT)
        for name, _, lines in file.functions():
            if lines > FUNCTION_LINES:
                yield f"{where}: {name} has {lines} lines, more than {FUNCTION_LINES}"
    for file, name in odd_names(files):
        yield f"{file.path.relative_to(ROOT)}: {name} holds a word that docs/glossary.md replaces"


def main():
    files = [File(path) for path in sorted(ROOT.glob("crates/*/**/*.rs"))]
    wanted = sys.argv[1] if len(sys.argv) > 1 else "table"
    if wanted == "check":
        wrong = sorted(broken(files))
        sys.exit("\n".join(wrong) if wrong else None)
    if wanted == "table":
        for what, value in table(files):
            print(f"{what:<46} {value}")
    elif wanted == "circles":
        for circle in sorted(Imports(files).circles(), key=len, reverse=True):
            print(len(circle), *sorted(str(f.path.relative_to(ROOT / "crates")) for f in circle), sep="\n  ")
    elif wanted == "modules":
        imports = Imports(files)
        for crate in sorted({f.crate for f in files}):
            print(crate, *(" ".join(floor) for floor in floors(imports.of_modules(crate))), sep="\n    ")
    elif wanted == "names":
        for file, name in odd_names(files):
            print(f"{name:<24} {file.path.relative_to(ROOT)}")
    elif wanted == "errors":
        for file, name, has in fallible(files):
            if not has:
                print(f"{name:<32} {file.path.relative_to(ROOT)}")
    elif wanted == "long":
        longest = sorted(((n, name, f) for f in files for name, _, n in f.functions()), key=lambda t: -t[0])
        for count, name, file in longest[:30]:
            print(f"{count:>5} {name:<32} {file.path.relative_to(ROOT)}")
    elif wanted == "asserts":
        for crate, asserts, lines in asserts_by_crate(files):
            print(f"{crate:<12} {asserts:>5} {lines:>7} {1000 * asserts / lines:>6.1f}")
    elif wanted == "draw":
        for path, number, line in drawn_asserts(files, int(sys.argv[2])):
            print(f"{path.relative_to(ROOT)}:{number}: {line}")
    elif wanted == "prose":
        for path, number, line in riddles(files):
            print(f"{path.relative_to(ROOT)}:{number}: {line}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
