# SPDX-License-Identifier: Apache-2.0
"""Checks facts that the documents state about the source: test_documents.py

Files that they name exist, and so do names in these files. A neighbour in CONTRIBUTING.md is in the file where the change begins.
ARCHITECTURE.md lists the modules of tools/lint in their order, has true line counts and is short. The man page has every environment
variable of the command. C programs in the documents compile.
"""
import fnmatch
import glob
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
ENDINGS = (".c", ".h", ".def")
EXAMPLES = ("app.c", "onnxruntime_c_api.h")  # files of other projects
FOLDERS = "src|tests|tools|bench|fuzz|examples|include|docs|python|packaging|schemas|conformance"
MAX_LINES, MAX_COLUMNS = 150, 120  # of ARCHITECTURE.md
TOLERANCE = 0.25  # of a line count, since documents do not follow every commit
MAX_NEIGHBOURS = 25  # files that have the neighbour of a change
failed = 0


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def check(name, wrong):
    """Print one case; `wrong` lists statements of the document that do not match the source."""
    global failed
    failed += bool(wrong)
    print("not ok %s: %s" % (name, "; ".join(map(str, wrong))) if wrong else "ok %s" % name)


def documents():
    return sorted(glob.glob("*.md") + glob.glob("docs/*.md") + glob.glob("examples/**/*.md", recursive=True))


def exists(name, sources):
    """True for a path from the root or from src/, with or without a star, or the name of a source file in any folder."""
    if "/" in name:
        return bool(glob.glob(name) or glob.glob("src/" + name))
    return any(fnmatch.fnmatch(source, name) for source in sources)


def missing_files():
    """Files such as `src/x.c`, `emit/x.c` and `x.c` in any document that do not exist."""
    sources = {
        os.path.basename(path) for folder in FOLDERS.split("|") for path in glob.glob(folder + "/**/*.*", recursive=True)
        if path.endswith(ENDINGS)
    }
    for page in documents():
        text = text_of(page)
        for name in re.findall(r"`((?:%s)/[\w./*-]+)`" % FOLDERS, text) + re.findall(r"`([\w/*-]+\.(?:c|h|def))`", text):
            if "NAME" not in name and name not in EXAMPLES and not exists(name, sources):
                yield "%s names %s" % (page, name)


def has_name(where, name):
    """True if a file has the word, or a folder has the file or, in one of its files, the word."""
    if os.path.isdir(where):
        return os.path.exists(os.path.join(where, name)) or any(
            has_name(path, name) for path in glob.glob(where + "/**/*.[ch]", recursive=True))
    return bool(re.search(r"\b%s\b" % re.escape(name), text_of(where)))


def missing_names():
    """Names such as `f` in `src/x.c` and `x.c` in `src/y` that are not there; the changelog may name removed ones."""
    for page in documents():
        if page == "CHANGELOG.md":
            continue
        for names, where in re.findall(r"((?:`[\w .]+`(?:, | and ))*`[\w .]+`) in `((?:%s)/[\w./-]+)`" % FOLDERS, text_of(page)):
            for name in re.findall(r"`([^`]+)`", names):
                if "NAME" not in name + where and os.path.exists(where) and not has_name(where, name):
                    yield "%s: no %s in %s" % (page, name, where)


def begins(cell):
    """Files of a cell such as "`src/x.c`, `f` in `src/y.c`" and "`x.c` and `z.c` in `src/y`"; NAME matches any text."""
    for name in re.findall(r"`([\w./-]+)`", cell):
        name = name.replace("NAME", "*")
        for path in glob.glob(name) or glob.glob("src/" + name) or (glob.glob("src/**/" + name, recursive=True) if "." in name else []):
            yield from glob.glob(path + "/**/*.*", recursive=True) if os.path.isdir(path) else [path]


def wrong_neighbours(page):
    """A neighbour of each row must be in a file where the change begins, and in few enough files to read their list."""
    paths = [path for folder in FOLDERS.split("|") for path in glob.glob(folder + "/**/*.*", recursive=True)
             if path.endswith(ENDINGS + (".py", ".md", ".json", ".build", ".js")) and not path.startswith("tests/api/baseline")]
    texts = {path: text_of(path) for path in paths}
    for change, begin, neighbours, _ in rows(page, "Where does a change belong?"):
        found = {name: {path for path, text in texts.items() if re.search(name, text)} for name in re.findall(r"`([^`]+)`", neighbours)}
        if found and not set().union(*found.values()) & set(begins(begin)):
            yield "%s: git grep -l %s finds no file in which the change begins" % (change, neighbours)
        for name, files in found.items():
            if not 1 <= len(files) <= MAX_NEIGHBOURS:
                yield "%s: %s is in %d files" % (change, name, len(files))


def lint_table():
    """MAY_INCLUDE of tools/lint: the modules, lowest first."""
    loader = importlib.machinery.SourceFileLoader("lint", "tools/lint")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", loader))
    loader.exec_module(module)
    return list(module.MAY_INCLUDE)


def rows(page, heading):
    """Cells of the first table below a heading, without its two head lines."""
    lines = page.split("\n## " + heading + "\n", 1)[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def wrong_modules(page):
    """The table must have the modules of tools/lint in the same order, and src/ must have no others."""
    listed = [row[0].strip("`") for row in rows(page, "Modules")]
    known = lint_table()
    folders = {os.path.basename(os.path.dirname(path)) for path in glob.glob("src/*/")}
    if sorted(listed) != sorted(known):
        yield "lists %s, tools/lint has %s" % (sorted(set(listed) - set(known)), sorted(set(known) - set(listed)))
    elif listed != known:
        yield "has another order than tools/lint: %s" % next(a for a, b in zip(listed, known) if a != b)
    if set(listed) != folders:
        yield "src/ has %s" % sorted(folders ^ set(listed))


def lines_of(where):
    paths = [where] if os.path.isfile(where) else glob.glob(where) + glob.glob(where + "/**/*.[ch]", recursive=True)
    return sum(text_of(path).count("\n") for path in paths if os.path.isfile(path))


def wrong_counts(page):
    for part, where, said, *_ in rows(page, "Own or borrowed"):
        real = lines_of(where.strip("`"))
        if abs(int(said.replace(",", "")) - real) > TOLERANCE * real:
            yield "%s has %d lines, not %s" % (part, real, said)


def wrong_size(page):
    lines = page.splitlines()
    if len(lines) > MAX_LINES:
        yield "%d lines, at most %d" % (len(lines), MAX_LINES)
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield "line %d has %d columns" % (number, len(line))


def undocumented_variables():
    manual = text_of("tools/man")
    for path in glob.glob("src/**/*.c", recursive=True):
        for name in re.findall(r'getenv\("(TESSERA_\w+)"', text_of(path)):
            if name not in manual:
                yield "%s of %s" % (name, path)


def broken_programs():
    """Complete programs (with a main) that do not compile against the public headers."""
    for page in documents():
        for code in re.findall(r"^```c\n(.*?)^```", text_of(page), flags=re.M | re.S):
            if "int main(" not in code:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
                f.write(code)
                f.flush()
                ended = subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-Iinclude", f.name], capture_output=True,
                                       text=True)
            if ended.returncode:
                yield "%s: %s" % (page, ended.stderr.strip()[:300])


def missing_functions():
    """Each `tsr_x` in a document must be declared in an installed header; CONTRIBUTING.md may also name those of the command,
    the changelog removed ones."""
    installed = text_of("include/tessera.h") + text_of("include/tessera_graph.h")
    for page in documents():
        if page == "CHANGELOG.md":
            continue
        headers = installed + text_of("include/tessera_cli.h") if page == "CONTRIBUTING.md" else installed
        for name in sorted(set(re.findall(r"\btsr_[a-z]\w*[a-z0-9]\b", text_of(page))) - {"tsr_noun_verb"}):
            if not re.search(r"\b%s" % name, headers):
                yield "%s names %s" % (page, name)


def wrong_proof():
    """README.md and docs/proof.md must show the same output of `make proof`, with the sizes of bench/proof.py."""
    sys.path.insert(0, "bench")
    import proof
    _, hidden, _, layers = proof.SIZES["large"]
    weights = 4 * 12 * hidden**2 * layers  # float32; a layer has 12 matrices of hidden x hidden
    limit = int(proof.SHARE * weights) + proof.AddressSpace.base
    head = "%s of float32 weights; limit of each environment: %s " % (proof.gigabytes(weights), proof.gigabytes(limit))
    shown = [
        re.findall(r"^```\n(\S+ GB of float32 weights.*?)^```", text_of(page), flags=re.M | re.S) for page in ("README.md", "docs/proof.md")
    ]
    if shown[0][:1] != shown[1][:1] or not shown[0]:
        yield "README.md and docs/proof.md show different tables"
    elif not shown[0][0].startswith(head):
        yield "the table does not begin with %r" % head


def main():
    os.chdir(ROOT)
    page = text_of("ARCHITECTURE.md")
    check("files that documents name exist", list(missing_files()))
    check("names that documents place in a file are there", list(missing_names()))
    check("CONTRIBUTING.md names a neighbour of each change", list(wrong_neighbours(text_of("CONTRIBUTING.md"))))
    check("ARCHITECTURE.md lists the modules", list(wrong_modules(page)))
    check("ARCHITECTURE.md has true line counts", list(wrong_counts(page)))
    check("ARCHITECTURE.md is short", list(wrong_size(page)))
    check("the man page has all environment variables", list(undocumented_variables()))
    check("functions that documents name are public", list(missing_functions()))
    check("programs in documents compile", list(broken_programs()))
    check("documents show the output of make proof", list(wrong_proof()))
    sys.exit(1 if failed else 0)


main()
