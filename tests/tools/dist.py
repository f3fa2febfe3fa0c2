# SPDX-License-Identifier: Apache-2.0
"""Uses the results of `make dist` like a recipient: dist.py DIST ROOT. Part of `make distcheck`, which is long.

The files: digests, the tarball (built again: the same bytes; with TWICE=1 everything is built again), the bill of materials, the release
notes. The wheel: auditwheel, and an empty environment in which it generates tokens and runs an EPContext model with ranks as processes
(needs a package index). The Debian packages: lintian, and for every release in $DEBIAN an empty system in which they are installed and run
`make demo` (needs root, debootstrap and a mirror). Packages of this machine's release are those of DIST; for another release they are built
from the tarball, in a separate empty system."""
import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import harness
from debian import ENV, HOUR_S, Debian, run, why_not

DIST, ROOT = map(os.path.abspath, sys.argv[1:3])
FOLDER = ROOT + "/tests/folders/genai_tiny"
PACKAGES = ("libtessera1", "libtessera-dev", "tessera", "tessera-plugins", "python3-tessera-onnx")
CONTEXT = r'''
import glob, os, sys, numpy as np, onnxruntime as ort, tessera
model = tessera.load(sys.argv[1] + "/tests/models/bert_tiny/model.onnx")
plan = model.plan(2, dims={"batch": 2, "seq": 9})
model.partition(sys.argv[2] + "/context", layout="context", transport="shm")
ort.register_execution_provider_library("tessera", os.path.join(os.path.dirname(tessera.__file__), "lib", "libtessera_ep.so"))
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "TesseraExecutionProvider"], {"strict": "1"})
session = ort.InferenceSession(sys.argv[2] + "/context/model.onnx", options)
feeds = {i.name: np.ones((2, 9), {"tensor(int64)": "i8", "tensor(int32)": "i4"}.get(i.type, "f4")) for i in session.get_inputs()}
whole = ort.InferenceSession(sys.argv[1] + "/tests/models/bert_tiny/model.onnx").run(None, feeds)[0]
print("apart by", float(np.abs(session.run(None, feeds)[0] - whole).max() / np.abs(whole).max()))
'''


def only(pattern, folder=DIST):
    found = glob.glob(os.path.join(folder, pattern))
    assert len(found) == 1, (pattern, found)
    return found[0]


def text_of(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def version():
    return re.search(r"^  version: '([^']+)'", text_of("meson.build"), re.M).group(1)


# ---- the files

def one_version(_):
    number = version()
    numbers = re.findall(r"#define TSR_VERSION_\w+ (\d+)", text_of("include/tessera.h"))
    assert ".".join(numbers) == number, numbers
    assert "tessera %s\"" % number in text_of("docs/tessera.1"), "docs/tessera.1"
    assert "\n## %s " % number in text_of("CHANGELOG.md") or "\n## %s\n" % number in text_of("CHANGELOG.md"), "CHANGELOG.md"
    assert "tessera-onnx-hosts==%s\"" % number in text_of("pyproject.toml"), "pyproject.toml"
    for pattern in ("tessera-%s.tar.xz", "tessera_onnx-%s-*.whl", "tessera_onnx_hosts-%s-*.whl", "tessera-%s.spdx.json",
                    "libtessera1_%s-1_*.deb"):
        only(pattern % number)


def digests(_):
    run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=DIST)
    listed = {line.split()[1] for line in open(DIST + "/SHA256SUMS", encoding="utf-8")}
    there = set(os.listdir(DIST)) - {"SHA256SUMS"}
    assert listed == there, listed ^ there


def the_tarball(d):
    path = only("tessera-*.tar.xz")
    with tarfile.open(path) as tar:
        names = {name.split("/", 1)[-1] for name in tar.getnames()}
    assert {"README.md", "LICENSE", "NOTICE", "meson.build", "pyproject.toml", "include/tessera.h", "src/libtessera.c"} <= names, len(names)
    run([ROOT + "/tools/dist", d + "/again", "tarball"])
    assert open(path, "rb").read() == open(only("*.tar.xz", d + "/again"), "rb").read(), "another tarball of the same commit differs"


def everything_twice(d):
    if not os.environ.get("TWICE"):
        return "only with TWICE=1: everything is built again"
    shutil.rmtree(ROOT + "/build-dist", ignore_errors=True)
    run([ROOT + "/tools/dist", d + "/again"], timeout=HOUR_S)
    first, again = (dict(reversed(line.split()) for line in open(f + "/SHA256SUMS", encoding="utf-8")) for f in (DIST, d + "/again"))
    assert first == again, sorted(name for name in {**first, **again} if first.get(name) != again.get(name))


def bill_of_materials(_):
    with open(only("*.spdx.json"), encoding="utf-8") as f:
        bill = json.load(f)
    assert bill["spdxVersion"] == "SPDX-2.3" and bill["packages"][0]["versionInfo"] == version()
    listed = {one["fileName"][2:]: {c["algorithm"]: c["checksumValue"] for c in one["checksums"]}["SHA256"] for one in bill["files"]}
    there = {os.path.basename(path) for kind in ("*.whl", "*.deb", "*.tar.xz") for path in glob.glob(os.path.join(DIST, kind))}
    assert set(listed) == there, set(listed) ^ there
    for name, digest in listed.items():
        assert hashlib.sha256(open(os.path.join(DIST, name), "rb").read()).hexdigest() == digest, name
    ids = {one["SPDXID"] for one in bill["packages"] + bill["files"]} | {"SPDXRef-DOCUMENT"}
    for one in bill["relationships"]:
        assert {one["spdxElementId"], one["relatedSpdxElement"]} <= ids, one


def release_notes(_):
    notes = open(DIST + "/release-notes.md", encoding="utf-8").read()
    assert notes.startswith("## " + version()) and len(notes) > 500 and notes.count("\n## ") == 0, notes[:200]


# ---- the wheel

def accepted_by_auditwheel(_):
    program = ROOT + "/.deps/auditwheel/bin/auditwheel"
    if not os.path.exists(program):
        return "no auditwheel (tools/setup release)"
    wheel = only("tessera_onnx-*.whl")
    tag = re.search(r"manylinux_\w+?_(x86_64|aarch64)", wheel).group(0)
    said = " ".join(run([program, "show", wheel]).split())
    assert 'platform tag: "%s"' % tag in said, said


def contents_of_the_wheel(_):
    with zipfile.ZipFile(only("tessera_onnx-*.whl")) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for name in ("tessera/lib/libtessera_ep.so", "tessera/lib/tessera-ranks", "tessera/lib/tessera", "tessera/__main__.py",
                 "tessera/schemas/plan.json", "tessera/licenses/jansson.txt"):
        assert name in names, name
    assert any(name.endswith("/licenses/LICENSE") for name in names) and any(name.endswith("/licenses/NOTICE") for name in names), names
    assert not [name for name in names if "mpi" in name or "ucx" in name], "plug-ins, which belong to the other wheel"
    for field in ("Author: ", "License-Expression: Apache-2.0", "Classifier: ", "Keywords: ", "Provides-Extra: cpu", "Provides-Extra: gpu"):
        assert field in metadata, field
    assert not re.search(r"\]\((?!https?://|#)", metadata), "a relative link, which a package index cannot follow"


def contents_of_the_wheel_for_hosts(_):
    with zipfile.ZipFile(only("tessera_onnx_hosts-*.whl")) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for name in ("libtessera_ucx.so", "libtessera_mpi_openmpi.so", "libtessera_mpi_mpich.so", "ucx/libucp.so.0", "ucx/ucx/libuct_ib.so.0"):
        assert "tessera/lib/" + name in names, name
    assert {"ucx.txt", "numactl.txt", "LGPL-2.1.txt"} <= {os.path.basename(name) for name in names if "/licenses/" in name}, names
    assert "Requires-Dist: tessera-onnx==%s\n" % version() in metadata, metadata


def the_wheel(d):
    wheel = only("tessera_onnx-*.whl")
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$", wheel), wheel
    run([sys.executable, "-m", "venv", d + "/v"])
    python = d + "/v/bin/python"
    run([python, "-m", "pip", "-q", "install", wheel], cwd=d)
    p = subprocess.run([python, "-c", "import tessera; tessera.InferenceSession('x')"], capture_output=True, text=True, env=ENV, cwd=d)
    assert p.returncode and "pip install 'tessera-onnx[cpu]'" in p.stderr.strip().splitlines()[-1], p.stderr
    run([python, "-m", "pip", "-q", "install", wheel + "[cpu]", "tokenizers"], cwd=d)
    assert run([python, "-m", "tessera", "--version"], cwd=d) == "tessera %s\n" % version()
    assert "PASS" in run([d + "/v/bin/tessera", "demo"], cwd=d)
    tokens = run([d + "/v/bin/tessera", "generate", FOLDER, "--devices", "2", "--ids", "1,7,11", "--max-tokens", "8"], cwd=d).split()
    assert len(tokens) == 8, tokens
    said = run([python, "-c", "import sys, tessera; print(*tessera.generate(sys.argv[1], [1, 7, 11], devices=2, max_tokens=8))", FOLDER],
               cwd=d).split()
    assert said == tokens, (said, tokens)
    apart = float(run([python, "-c", CONTEXT, ROOT, d], cwd=d).split()[-1])
    assert apart < 5e-5, apart


# ---- the Debian packages

def contents_of_the_packages(_):
    listed = {name: run(["dpkg-deb", "-c", only(name + "_*.deb")]) for name in PACKAGES}
    for package, name in (("tessera", "/bin/tessera\n"), ("tessera", "/tessera/libtessera_ops.so\n"),
                          ("tessera", "/tessera/libtessera_ep.so\n"), ("tessera", "/tessera/tessera-ranks\n"),
                          ("tessera", "/man1/tessera.1.gz\n"), ("libtessera1", "/libtessera.so.1 -> "), ("libtessera-dev",
                                                                                                         "/include/tessera.h\n"),
                          ("libtessera-dev", "/include/tessera_graph.h\n"), ("libtessera-dev", "/libtessera.a\n"), ("libtessera-dev",
                                                                                                                    "/tessera.pc\n"),
                          ("tessera-plugins", "/libtessera_mpi_openmpi.so\n"), ("tessera-plugins", "/libtessera_mpi_mpich.so\n"),
                          ("tessera-plugins", "/libtessera_ucx.so\n"), ("python3-tessera-onnx", "/dist-packages/tessera/_api.py\n")):
        assert name in listed[package] + "\n", (package, name)


def no_run_path(d):
    for name in PACKAGES:
        run(["dpkg-deb", "-x", only(name + "_*.deb"), d + "/" + name])
    programs = [
        p for p in glob.glob(d + "/**/*", recursive=True)
        if os.path.isfile(p) and not os.path.islink(p) and open(p, "rb").read(4) == b"\x7fELF"
    ]
    assert len(programs) >= 7, programs
    for path in programs:
        assert not re.search(r"RPATH|RUNPATH", run(["readelf", "-d", path])), path


def accepted_by_lintian(_):
    if not shutil.which("lintian"):
        return "no lintian (tools/setup release)"
    words = ["lintian", "--fail-on", "error", "--allow-root", *(only(name + "_*.deb") for name in PACKAGES)]
    p = subprocess.run(words, capture_output=True, text=True, timeout=600)
    print("".join("# %s\n" % line for line in p.stdout.splitlines()), end="")
    assert p.returncode == 0, p.stdout + p.stderr


def download_onnxruntime(system, folder):
    """Download wheels of ONNX Runtime for the Python of that system, with the pip of this one."""
    number = system.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    run([sys.executable, "-m", "pip", "-q", "download", "-d", folder, "--only-binary=:all:", "--python-version", number, "onnxruntime"])


DEMO = r'''
export VIRTUAL_ENV=/ort
tessera demo
tessera verify /models/bert_tiny/model.onnx --devices 4 --inputs /models/bert_tiny/test_data_set_0
tessera doctor
printf '#include <tessera.h>\n#include <stdio.h>\nint main(void) { puts(tsr_version()); return 0; }\n' >/user.c
cc /user.c -o /user $(pkg-config --cflags --libs tessera) && /user
cc /user.c -o /user-static -static $(pkg-config --static --cflags --libs tessera) && /user-static
/ort/bin/python -c 'import numpy, tessera
feeds = {"input_ids": numpy.ones((2, 9), "i8"), "attention_mask": numpy.ones((2, 9), "i8"), "token_type_ids": numpy.zeros((2, 9), "i8")}
print("python", tessera.InferenceSession("/models/bert_tiny/model.onnx", devices=2).run(None, feeds)[0].shape)'
MPI=$(command -v mpirun.openmpi)
$MPI --allow-run-as-root --oversubscribe -n 2 tessera run /models/bert_tiny/model.onnx --devices 2 --outputs /out.npz
test -s /out.npz && echo mpirun ok
'''


def this_release():
    found = re.search(r"^VERSION_CODENAME=(\w+)", open("/etc/os-release", encoding="utf-8").read(), re.M)
    return found and found.group(1)


def build_packages(release, folder):
    """Build the packages of another release from the tarball, in an empty system. Returns the folder of the packages."""
    build = Debian(release, folder)
    control = text_of("packaging/debian/control").split("Build-Depends:")[1].split("\nStandards")[0]
    build.apt("build-essential", "fakeroot", *re.findall(r"^\s*([a-z0-9.+-]+)", control.replace("debhelper-compat", "debhelper"), re.M))
    shutil.copy(only("tessera-*.tar.xz"), build.root + "/tessera.tar.xz")
    build.run("mkdir /tree; tar -C /tree --strip-components=1 -xf /tessera.tar.xz; /tree/tools/deb /out /tessera.tar.xz")
    return build.root + "/out"


def use_packages(d, release):
    if why_not():
        return why_not()
    with contextlib.ExitStack() as stack:
        folders = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tessera-debian-", dir=os.environ.get("DEBIAN_ROOTS", "/var/tmp")))
            for _ in range(2)
        ]
        packages = DIST if release == this_release() else build_packages(release, folders[0])
        clean = Debian(release, folders[1])
        for name in PACKAGES:
            shutil.copy(only(name + "_*.deb", packages), clean.root + "/")
        clean.apt("gcc", "libc6-dev", "pkg-config", "openmpi-bin", "python3-venv", "/*.deb")
        shutil.copytree(ROOT + "/tests/models", clean.root + "/models")
        download_onnxruntime(clean, clean.root + "/wheels")
        clean.run("python3 -m venv --system-site-packages /ort; /ort/bin/pip -q install --no-index --find-links /wheels onnxruntime")
        said = clean.run(DEMO)
        assert said.count("PASS") == 2 and said.splitlines().count(version()) == 2 and "python (2, 2)" in said and "mpirun ok" in said, said
        clean.run("apt-get -qq -y purge libtessera1")
        assert not glob.glob(clean.root + "/usr/**/*tessera*", recursive=True), "something is left"


harness.run([
    one_version, digests, the_tarball, everything_twice, bill_of_materials, release_notes, accepted_by_auditwheel, contents_of_the_wheel,
    contents_of_the_wheel_for_hosts, the_wheel, contents_of_the_packages, no_run_path, accepted_by_lintian
])
harness.run([("use_packages " + release, use_packages, release) for release in os.environ.get("DEBIAN", "").split()])
harness.finish()
