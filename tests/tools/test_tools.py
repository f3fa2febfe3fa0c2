# SPDX-License-Identifier: Apache-2.0
"""Tests the tools that other tests rely on: the test runner must count correctly, and lint must find violations."""
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import harness

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def load(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), os.path.join(ROOT, "tools", name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def check(name, got, want):
    harness.check(name, got == want, "got %r, want %r" % (got, want))


def counted(result, stdout, stderr="", code=0):
    passed, bad, skipped, _ = summary.count({"result": result, "stdout": stdout, "stderr": stderr, "returncode": code})
    return passed, len(bad), len(skipped)


def violations(path, text):
    """The violations that lint reports for one file."""
    lint.violations.clear()
    lint.print = lambda *_: None
    lint.check_includes(path, text)
    lint.check_head(path, text)
    lint.check_calls(path, text)
    return len(lint.violations)


def links(user, name, owner, kind="T"):
    """The violations that lint reports if the file `user` uses a symbol that the file `owner` defines."""
    lint.violations.clear()
    lint.print = lambda *_: None
    listing = "b/user.c.o:                 U %s\nb/owner.c.o:0000000000000010 %s %s\nb/owner.c.o:0000000000000040 t helper\n" % (name, kind,
                                                                                                                                 name)
    lint.check_links({"b/user.c.o": user, "b/owner.c.o": owner}, listing)
    return len(lint.violations)


def unknown_codes(text):
    """Unknown diagnostic codes in a text, if io-open is the only known one."""
    lint.violations.clear()
    lint.print = lambda *_: None
    lint.check_codes("src/wire/x.c", text, {"io_open"})
    return len(lint.violations)


def clang_refuses(*texts):
    """The errors that lint's clang reports for these files, parsed in one process."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, "%d.c" % i) for i in range(len(texts))]
        for path, text in zip(paths, texts):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        lint.BUILD = folder
        return re.findall(r"(\d\.c):\d+:\d+: error", lint.ask_clang(["-Wall", "-Werror", "-std=c11", "-O0"], paths))


sys.dont_write_bytecode = True
sys.argv = sys.argv[:1]
summary, lint = load("test-summary"), load("lint")
HEAD = "// SPDX-License-Identifier: Apache-2.0\n"

check("counts TAP", counted("OK", "1..2\nok 1 - a\nok 2 - b\n"), (2, 0, 0))
check("counts lines of scripts", counted("FAIL", "ok a\nnot ok b: why\n", code=1), (1, 1, 0))
check("counts a program without lines once", counted("OK", "fine\n"), (1, 0, 0))
check("a program that dies adds a failed case", counted("FAIL", "ok 1 - a\n", code=-11), (1, 1, 0))
check("a time-out adds a failed case", counted("TIMEOUT", "ok 1 - a\n"), (1, 1, 0))
check("a skipped case is not passed", counted("OK", "ok a # SKIP no engine\nok b\n"), (1, 0, 1))
check("a skipped program is one", counted("SKIP", "no MPI here\n", code=77), (0, 0, 1))
check("a failed line counts whatever the exit code", counted("OK", "not ok a\n"), (0, 1, 0))
check("other words are no cases", counted("OK", "okay\nnot okay\nbook 3\n"), (1, 0, 0))

BUILD = {
    "tests": [{"name": "wire test_read", "cmd": ["/b/wire_read"], "depends": ["read@exe"], "suite": ["tessera"]},
              {"name": "plan test_joint", "cmd": ["/b/joint"], "depends": ["joint@exe", "ucx@sha"], "suite": ["tessera"]},
              {"name": "plan test_joint_blocks", "cmd": ["/b/blocks"], "depends": [], "suite": ["tessera:plan", "tessera:long"]}, {
                  "name": "e2e spine", "cmd": ["/s/tests/run-script", "/b/tessera"], "depends": ["tessera@exe"],
                  "suite": ["tessera:e2e", "tessera:waits"]
              }], "targets": [{"id": "read@exe", "filename": ["/b/wire_read"]}, {"id": "joint@exe", "filename": ["/b/tests/joint"]},
                              {"id": "ucx@sha", "filename": ["/b/libucx.so"]}, {"id": "tessera@exe", "filename": ["/b/tessera"]}]
}
summary.described = lambda build, what: BUILD[what]
names = lambda tests: [t["name"] for t in tests]
chosen = lambda *words: names(summary.chosen("/b", *words))
check("scripts are not compiled", chosen("--compiled", None, []), ["wire test_read", "plan test_joint"])
check("names may be left out", chosen("--compiled", "plan|test_read", []), ["wire test_read"])
check("long tests run alone", [chosen(None, None, ["plan"]), chosen("--long", None, [])], [["plan test_joint"], ["plan test_joint_blocks"]])
check("a name is a test", names(summary.selected(BUILD["tests"], ["plan test_joint"])), ["plan test_joint"])
check("a part of a name is all tests that begin with it", names(summary.selected(BUILD["tests"], ["plan", "e2e s"])),
      ["plan test_joint", "plan test_joint_blocks", "e2e spine"])
check("what waits comes last", [(names(tests), n) for tests, n in summary.groups(BUILD["tests"][2:], 2)], [(["plan test_joint_blocks"], 3),
                                                                                                           (["e2e spine"], 6)])
check("targets are programs and what they open", summary.targets("/b", summary.chosen("/b", "--targets", "wire", [])),
      ["libucx.so", "tests/joint"])
check("what begins first is named first",
      summary.in_order([{"name": "a", "priority": 0}, {"name": "z", "priority": 10}, {"name": "b", "priority": 0}]), ["z", "a", "b"])
check("no folder in memory where there is no place for it", summary.memory_folder("/nowhere"), None)
with tempfile.TemporaryDirectory() as place:
    saved, summary.SPACE_NEEDED = summary.SPACE_NEEDED, 1 << 62
    check("no folder in memory without space", (summary.memory_folder(place), os.listdir(place)), (None, []))
    summary.SPACE_NEEDED = 0
    made = summary.memory_folder(place)
    check("a folder in memory is empty", (os.listdir(made), [os.path.join(place, name) for name in os.listdir(place)]), ([], [made]))
    summary.SPACE_NEEDED = saved
LEAK = "\nERROR: LeakSanitizer: detected memory leaks\n" + 99 * "    #0 f\n"
check("leaks do not hide the reason", summary.excerpt("why\n" + LEAK)[0], "why")
outcomes = {"steady": "OK", "broken": "FAIL"}
summary.run = lambda build, tests, *_: [{"name": "tessera / " + t["name"], "result": outcomes[t["name"]], "duration": 0} for t in tests]
summary.print = lambda *_, **__: None
check("what passes alone is unsteady", summary.repeated("/b", [{"name": name} for name in outcomes], [], 1, None), ["steady"])


def harness_ends(body, case=""):
    """Runs a script with this list of cases. Returns its exit code and the case lines."""
    script = (
        "import harness\ndef good(_): pass\ndef bad(_): assert 0\ndef skipped(_): return 'no engine'\ndef nothing(_): return"
        " False\nharness.run([%s])\nharness.finish()" % body
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                           env={**os.environ, "CASE": case, "PYTHONPATH": os.path.join(ROOT, "tests")})
    return ended.returncode, [line for line in ended.stdout.splitlines() if line[0] != "#"]


check("harness: a case passes", harness_ends("good, skipped, nothing"), (0, ["ok good", "ok skipped # SKIP no engine"]))
check("harness: a case fails", harness_ends("good, skipped, bad"), (1, ["ok good", "ok skipped # SKIP no engine", "not ok bad"]))
check("harness: all are skipped", harness_ends("skipped, nothing"), (77, ["ok skipped # SKIP no engine"]))
check("harness: there is nothing to test", harness_ends("nothing"), (1, []))
check("harness: CASE selects", (harness_ends("good, bad", "go*"), harness_ends("good", "none")), ((0, ["ok good"]), (0, [])))
check("words of the command line", summary.arguments(["b", "--compiled", "--without=plan", "a"]), ("b", "--compiled", "plan", ["a"]))

check("lint: codes that there are", unknown_codes("// DIAG_io_open, error[io-open]; DIAG_COUNT and DIAG_##id are no codes\n"), 0)
check("lint: a code that there is not", unknown_codes("// DIAG_io_opened <-> warning[io-opened]\n"), 2)
if shutil.which("clang"):
    OWN_PRINTF = "#include <stdio.h>\n#define printf(...) fprintf(stdout, __VA_ARGS__)\n"  # fortified, printf is a macro already
    check("lint: clang accepts", clang_refuses("int f;\n", OWN_PRINTF.replace("#def", "#undef printf\n#def")), [])
    check("lint: clang refuses fortified code", clang_refuses("int f;\n", OWN_PRINTF), ["1.c"])
else:
    harness.skip("lint: clang", "no clang")
check("lint: a clean file", violations("src/wire/x.c", HEAD + '#include "base/base.h"\nint f(int);\n'), 0)
check("lint: a later module", violations("src/wire/x.c", HEAD + '#include "ir/ir.h"\n'), 1)
check("lint: a commented include", violations("src/wire/x.c", HEAD + '// #include "ir/ir.h"\n'), 0)
check("lint: another module's private header", violations("src/ir/x.c", HEAD + '#include "base/internal.h"\n'), 1)
check("lint: serde sees wire", violations("src/ir/serde/read.c", HEAD + '#include "wire/wire.h"\n'), 0)
check("lint: the rest of ir does not", violations("src/ir/graph.c", HEAD + '#include "wire/wire.h"\n'), 1)
check("lint: the command sees the public header only", violations("src/cli/x.c", HEAD + '#include "base/base.h"\n'), 1)
check("lint: links what the table allows", links("src/runtime/x.c", "tsr__layout_piece", "src/tile/y.c"), 0)
check("lint: links a module beside the table", links("src/topology/x.c", "tsr__layout_piece", "src/tile/y.c"), 1)
check("lint: links a table of that module", links("src/topology/x.c", "tsr__tile_rows", "src/tile/y.c", "R"), 1)
check("lint: links its own module", links("src/tile/x.c", "tsr__layout_piece", "src/tile/y.c"), 0)
check("lint: serde links wire", links("src/ir/serde/read.c", "tsr__wire_int", "src/wire/y.c"), 0)
check("lint: the rest of ir links no wire", links("src/ir/graph.c", "tsr__wire_int", "src/wire/y.c"), 1)
check("lint: public names are for modules above", links("src/genai/x.c", "tsr_model_load", "src/ir/y.c"), 0)
check("lint: public names are not for modules below", links("src/ir/x.c", "tsr_job_open", "src/runtime/y.c"), 1)
check("lint: the command links public names only", links("src/cli/x.c", "tsr__alloc", "src/base/y.c"), 1)
check("lint: what is gone links nothing", links(None, "tsr__layout_piece", "src/tile/y.c"), 0)
check("lint: a pass links those before it", links("src/partition/emit/x.c", "tsr__item_of", "src/partition/facts/y.c"), 0)
check("lint: a pass links no later one", links("src/partition/facts/x.c", "tsr__part_ints", "src/partition/emit/y.c"), 1)
check("lint: a pass does not link what is on top", links("src/partition/weights/x.c", "tsr__parts_build", "src/partition/y.c"), 1)
check("lint: what is on top links every pass", links("src/partition/x.c", "tsr__emit_step", "src/partition/emit/y.c"), 0)
check("lint: a pass includes no later one", violations("src/partition/steps/x.c", HEAD + '#include "partition/emit/emit.h"\n'), 1)
check("lint: a pass includes the module's own header", violations("src/partition/facts/x.c", HEAD + '#include "partition/partition.h"\n'),
      0)
check("lint: a folder that is no pass", violations("src/partition/other/x.c", HEAD), 1)
check("lint: folders of a module without passes", links("src/ops/x.c", "tsr__a", "src/ops/plugin/y.c"), 0)
check("lint: no SPDX line", violations("src/wire/x.c", "int f(int);\n"), 1)
check("lint: a banned function", violations("src/cli/x.c", HEAD + "void f(void) { strcpy(a, b); }\n"), 1)
check("lint: its name in a text or comment", violations("src/cli/x.c", HEAD + '// strcpy(a)\nconst char *t = "strcpy(a)";\n'), 0)
check("lint: printing in the library", violations("src/wire/x.c", HEAD + 'void f(void) { printf("x"); }\n'), 1)
check("lint: printing in the command", violations("src/cli/x.c", HEAD + 'void f(void) { printf("x"); }\n'), 0)
check("lint: the environment in transport", violations("src/transport/x.c", HEAD + 'int f(void) { return !getenv("A"); }\n'), 0)


def held(checks, *arguments):
    lint.violations.clear()
    checks(*arguments)
    return len(lint.violations)


def untested(tests):
    """Number of diagnostics without a test, if io-open is the only one and `tests` is the text of the tests."""
    text_of, files, codes = lint.text_of, lint.files, lint.codes
    lint.text_of, lint.files, lint.codes = lambda path: tests, lambda *_, **k: ["x"], lambda: ["io_open"]
    count = held(lint.check_findings)
    lint.text_of, lint.files, lint.codes = text_of, files, codes
    return count


check("lint: findings that a test names", [untested(t) for t in ("DIAG_io_open", "(io_open)", "error[io-open]", "io-open.")], [0] * 4)
check("lint: findings that none names", [untested(t) for t in ("DIAG_io_opened", "an-io-open", "io-open-late", "xio_open")], [1] * 4)
CALLED = {
    "src/x.h": "int tsr__a(int);\nint tsr__b(int);\n", "src/x.c": "int tsr__a(int i)\n{\n}\nint tsr__b(int i)\n{\n}\n",
    "src/y.c": "int y(void)\n{\n    return tsr__a(1); // tsr__b\n}\n"
}
for text, want in (("good('--no-pin')", 0), ("run(no_pin=True)", 0), ("good('--no-pins')", 1), ("", 1)):
    check("lint: an option in a test with %r" % text, held(lint.check_options, "src/cli/x.c", '    {"--no-pin", NULL, "text"},\n', text),
          want)
check("lint: a function that is never called", held(lint.check_unused, CALLED), 1)
check("lint: a comment on no parameter", held(lint.check_comments, "src/x.h",
                                              "// Room at r->at, or false.\nbool f(struct rope *rope);\n\n"), 1)
check("lint: a comment on a parameter",
      held(lint.check_comments, "src/x.h", "// Room at r->at, or false; r NULL: none.\nbool f(struct rope *r);\n\n"), 0)
LONG = HEAD + "static int f(int a)\n{\n" + "    a++;\n" * 69 + "    return a;\n}\n"
check("lint: length of a function", [(n, name) for n, name, _ in lint.functions("x.c", LONG)], [(72, "f")])


def text_of(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def bill():
    """The bill of materials of a release with one file."""
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/tessera-1.tar.xz", "wb") as f:
            f.write(b"x")
        made = subprocess.run([sys.executable, os.path.join(ROOT, "tools/sbom"), folder], capture_output=True, text=True, check=True,
                              env={**os.environ, "SOURCE_DATE_EPOCH": "86400"}).stdout
    return json.loads(made)


VERSION = re.search(r"^  version: '([^']+)'", text_of("meson.build"), re.M).group(1)
check("release: the header has the version", ".".join(re.findall(r"#define TSR_VERSION_\w+ (\d+)", text_of("include/tessera.h"))), VERSION)
check("release: the man page has it", re.search(r"tessera ([\d.]+)\"", text_of("docs/tessera.1")).group(1), VERSION)
check("release: the changelog has it", "\n## %s (" % VERSION in text_of("CHANGELOG.md"), True)
check("release: the recipes have it",
      [VERSION in text_of("packaging", name) for name in ("conda/meta.yaml", "default.nix", "Dockerfile.cuda")], [True] * 3)


def asked_of_owner(maintainer, contact, urls):
    """The files that tools/owner asks the owner to fill in."""
    with tempfile.TemporaryDirectory() as folder:
        for name, line in (("MAINTAINERS", maintainer), ("SECURITY_CONTACTS", contact), ("pyproject.toml", urls)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write("# a comment\n%s\n" % line)
        listed = subprocess.run([os.path.join(ROOT, "tools/owner"), folder], capture_output=True, text=True, check=True).stdout
    return [line.split(": ")[1] for line in listed.splitlines()]


check("owner: all is missing", asked_of_owner("A <a@tessera.invalid> (all)", "# none", '# urls = { Repository = "https://..." }'),
      ["MAINTAINERS", "SECURITY_CONTACTS", "pyproject.toml"])
check("owner: nothing is missing", asked_of_owner("A <a@b.org> (all)", "A <a@b.org>", 'urls = { Repository = "https://b.org" }'), [])
BILL = bill()
check("sbom: the file and its digest", [(f["fileName"], f["checksums"][1]["checksumValue"][:8]) for f in BILL["files"]],
      [("./tessera-1.tar.xz", "2d711642")])
check("sbom: version and time", (BILL["packages"][0]["versionInfo"], BILL["creationInfo"]["created"]), (VERSION, "1970-01-02T00:00:00Z"))
harness.finish()
