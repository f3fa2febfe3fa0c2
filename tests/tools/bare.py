# SPDX-License-Identifier: Apache-2.0
"""Tries the wheels on bare Debian systems: bare.py ROOT. A long test, `make bare`; needs root, debootstrap, a mirror and a package index.

One system builds the wheels with what `make wheel` installs. Two systems with nothing but pip, in connected network namespaces, do what
docs/two_machines.md says, word for word. WHEELS=FOLDER: use these wheels, build none. RELEASE=trixie: another Debian."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import debian
import harness
from genai_folders import templated_folder

ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, ROOT + "/tests/runtime")
from namespaces import Hosts  # noqa: E402

RELEASE = os.environ.get("RELEASE", "bookworm")
WHEELS = os.environ.get("WHEELS")
BERT = ROOT + "/tests/models/bert_tiny"
START_S = 60
ASK = """
import json, sys, time, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}).encode()
for _ in range(600):
    try:
        asked = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"})
        print(json.load(urllib.request.urlopen(asked, timeout=60))["usage"]["completion_tokens"])
        break
    except OSError:
        time.sleep(0.1)
"""


class Bare:
    """The systems, made when they are first needed."""

    def __init__(self):
        self.folders = tempfile.TemporaryDirectory(prefix="tessera-bare-", dir=os.environ.get("DEBIAN_ROOTS", "/var/tmp"))
        self.first = self.wheels = None

    def system(self, name):
        if not self.first:
            self.first = debian.Debian(RELEASE, self.folders.name + "/first")
            self.first.reach_package_index()
        return self.first.copy(os.path.join(self.folders.name, name))


BARE = Bare()


def copy_wheels(system):
    for name in os.listdir(BARE.wheels):
        shutil.copy(os.path.join(BARE.wheels, name), system.root + "/root")


def builds_the_wheels(_):
    """`make wheel` needs a compiler, zlib and jansson; UCX and MPI only for the second wheel."""
    BARE.wheels = WHEELS
    if debian.why_not() or WHEELS:
        return debian.why_not() or "uses the wheels in " + WHEELS
    system = BARE.system("build")
    system.apt("make")
    debian.run(["git", "clone", "-q", ROOT, system.root + "/tessera"])
    said = system.run("make -C /tessera wheel")
    assert "libucx-dev" in said and len(os.listdir(system.root + "/tessera/dist")) == 1, said
    there = system.run("dpkg-query -W -f '${Package} '").split()
    assert "gcc" in there and not {"meson", "g++", "libcmocka-dev", "libucx-dev", "cmake"} & set(there), there
    system.apt("libucx-dev", "libopenmpi-dev", "libmpich-dev")
    system.run("make -C /tessera wheel")
    BARE.wheels = system.root + "/tessera/dist"
    assert len(os.listdir(BARE.wheels)) == 2, os.listdir(BARE.wheels)
    for name in sorted(os.listdir(BARE.wheels)):
        print("# %s: %.1f MB" % (name, os.path.getsize(os.path.join(BARE.wheels, name)) / 1e6))


def commands(heading):
    """Returns the commands below a heading of the page."""
    with open(ROOT + "/docs/two_machines.md", encoding="utf-8") as f:
        return re.search(r"\n## [^\n]*%s.*?\n```\n(.*?)```" % heading, f.read(), re.S).group(1)


class Machine:
    """A system in a network namespace, with the wheels of the page."""

    def __init__(self, system, host):
        self.system, self.host = system, host

    def words(self, script, **how):
        return self.system.words(". /root/tessera-env/bin/activate; cd /root; " + script, self.host, **how)

    def run(self, script, typed=None):
        p = subprocess.run(self.words(script), input=typed, capture_output=True, text=True, timeout=debian.HOUR_S,
                           env=self.system.environment())
        assert p.returncode == 0, (script, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
        return p.stdout

    def start(self, script):
        return subprocess.Popen(self.words("exec " + script, signal="TERM"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=self.system.environment())


def machines(hosts):
    """Installs the wheels on both, as the page says. The names are those of the page, a and b."""
    one = BARE.system("a")
    one.apt("python3-venv")
    copy_wheels(one)
    said = one.run("cd /root; " + commands("On both machines"))
    assert re.search("^UCX +ok", said, re.M) and re.search("^Python packages +ok", said, re.M), said
    shutil.copytree(BERT, one.root + "/root/bert")
    templated_folder(one.root + "/root/folder", "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with open(one.root + "/etc/hosts", "w", encoding="utf-8") as f:
        f.writelines(["127.0.0.1 localhost\n"] + ["%s %s\n" % pair for pair in zip(hosts.addresses, "ab")])
    other = one.copy(BARE.folders.name + "/b")
    one, other = Machine(one, hosts.words(0)), Machine(other, hosts.words(1))
    secret = commands("A secret").replace("scp secret b:", "")
    one.run(secret)
    shutil.copy(one.system.root + "/root/secret", other.system.root + "/root/secret")
    return one, other


def stop(started):
    started.kill()
    return started.communicate(timeout=harness.HANG_S)[0]


def until(started, text):
    said = ""
    for line in started.stdout:
        said += line
        if text in line:
            return
    raise AssertionError(said)


def check(name, call):
    """Counts a step of the page as a case of its own."""
    try:
        harness.check(name, call() is not False)
    except (AssertionError, subprocess.TimeoutExpired) as e:
        harness.check(name, False, e)


def on_two_machines(one, hosts):
    generate, chat, serve, verify = [
        line.replace("FOLDER", "folder").replace("model.onnx", "bert/model.onnx") for line in commands("On machine a").splitlines()
    ]

    def generates():
        before = hosts.received(0)
        tokens = one.run(generate)
        assert tokens.split("\n")[0] == one.run("tessera generate folder --devices 2 --ids 1,7,11").split("\n")[0], tokens
        assert hosts.received(0) > before + 1000, "nothing came from the other machine"

    def verifies():
        assert "PASS" in one.run(verify + " --inputs bert/test_data_set_0")

    def chats():
        assert one.run(chat + " --max-tokens 8", typed="Hello\n").strip()

    def serves():
        with open(one.system.root + "/root/ask.py", "w", encoding="utf-8") as f:
            f.write(ASK)
        server = one.start(serve)
        try:
            assert one.run("python3 ask.py").strip() == "8"
        finally:
            print(re.sub("^", "# ", stop(server), flags=re.M))

    def in_python():
        line = commands("On machine a: the model.*?In Python, ").splitlines()[0].replace("model.onnx", "bert/model.onnx")
        assert "(2, 2)" in one.run("""python3 -c 'import numpy, tessera
%s
feeds = {"input_ids": numpy.ones((2, 9), "i8"), "attention_mask": numpy.ones((2, 9), "i8"), "token_type_ids": numpy.zeros((2, 9), "i8")}
print(session.run(None, feeds)[0].shape)'""" % line)

    for step in (generates, verifies, chats, serves, in_python):
        check("two machines: " + step.__name__, step)


def two_machines(_):
    if debian.why_not() or not BARE.wheels:
        return debian.why_not() or "no wheels"
    with Hosts() as hosts:
        one, other = machines(hosts)
        worker = other.start(commands("On machine b"))
        try:
            until(worker, "waits for sessions")
            on_two_machines(one, hosts)
        finally:
            said = stop(worker)
        assert said.count("has ended") >= 4, said
    with_mpi(one.system)


def with_mpi(system):
    """The plug-ins of the wheel use the MPI of the system."""
    system.apt("openmpi-bin", "mpich")
    run = "%s -n 2 tessera run bert/model.onnx --devices 2 --inputs bert/test_data_set_0 --outputs out.npz"
    for launcher in ("mpirun.openmpi --allow-run-as-root --oversubscribe", "mpirun.mpich"):
        check(launcher.split()[0], lambda: "logits" in system.run(". /root/tessera-env/bin/activate; cd /root; " + run % launcher))


harness.run([builds_the_wheels, two_machines])
harness.finish()
