# SPDX-License-Identifier: Apache-2.0
"""Runs one command with one fault and checks the result: the output is completely old or completely new, the exit code is right, there is
one clear error message, and no temporary file, process or crash."""
import collections
import errno
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import time

KINDS = "memory map open read write sync rename make remove close stat resize lock start".split()
OLD = b"this was here before\n"
HANG_S = 60
OF_THE_ENGINE = {".ses"}  # a file that ONNX Runtime leaves in TMPDIR
TEMPORARY = ".tessera-"  # prefix of files that are being written
READ, WRITE, PEER, ENGINE = 3, 8, 6, 7

# Failures of each kind of call, and the allowed exit codes besides 0 with the right result. A command that runs models may also report a
# failed rank (6) or a failed engine (7).
Fault = collections.namedtuple("Fault", "kind how always codes")
E = lambda name: str(getattr(errno, name))
FAULTS = [
    Fault("memory", E("ENOMEM"), False, {READ}),
    Fault("memory", E("ENOMEM"), True, {READ}),
    Fault("map", E("ENOMEM"), False, {READ}),
    Fault("map", E("ENOMEM"), True, {READ}),
    Fault("open", E("EMFILE"), False, {READ, WRITE}),
    Fault("open", E("EIO"), True, {READ, WRITE}),
    Fault("read", E("EIO"), False, {READ, WRITE}),
    Fault("read", E("EINTR"), False, {READ, WRITE}),
    Fault("read", "short", False, set()),
    Fault("write", E("ENOSPC"), False, {WRITE}),
    Fault("write", E("ENOSPC"), True, {WRITE}),
    Fault("write", E("EIO"), False, {WRITE}),
    Fault("write", E("EINTR"), False, set()),
    Fault("write", "short", False, set()),
    Fault("write", "torn", False, set()),
    Fault("sync", E("EIO"), False, {WRITE}),
    Fault("rename", E("EIO"), False, {WRITE}),
    Fault("rename", E("ENOSPC"), True, {WRITE}),
    Fault("make", E("ENOSPC"), False, {WRITE}),
    Fault("remove", E("EBUSY"), False, {WRITE}),
    Fault("close", E("EIO"), False, {WRITE}),
    Fault("stat", E("EIO"), False, {READ, WRITE}),
    Fault("stat", E("EACCES"), True, {READ, WRITE}),
    Fault("resize", E("ENOSPC"), False, {READ, WRITE}),
    Fault("lock", E("ENOLCK"), True, set()),
    Fault("start", E("EAGAIN"), False, {READ}),
    Fault("any", "kill", False, set()),
]
DIES = {"kill", "torn"}  # the process is killed at the fault
# Files that could not be removed, or listed for removal, remain; the next run removes them.
LEAVES = {("remove", E("EBUSY")), ("open", E("EIO"))}


def name_of(fault):
    how = fault.how if not fault.how.isdigit() else errno.errorcode[int(fault.how)]
    return "%s %s%s" % (fault.kind, how, " from there on" if fault.always else "")


def class_of(fault):
    """The class of a fault: memory, I/O or kill."""
    if fault.how in DIES:
        return "kill"
    return "memory" if fault.kind in ("memory", "map") else "I/O"


def digest(path):
    """Digest of a file, or of a folder with its file names, without files that are being written; None: it does not exist."""
    if not os.path.lexists(path):
        return None
    total = hashlib.sha256()
    if os.path.isdir(path):
        for at, folders, files in sorted(os.walk(path)):
            folders.sort()
            for name in sorted(n for n in files if not n.startswith(TEMPORARY)):
                full = os.path.join(at, name)
                total.update(os.path.relpath(full, path).encode() + b"\0" + digest(full).encode())
        return total.hexdigest()
    with open(path, "rb") as f:
        total.update(f.read())
    return total.hexdigest()


def json_keys(path):
    try:
        with open(path, encoding="utf-8") as f:
            document = json.load(f)
        return sorted(document) if isinstance(document, dict) else "list"
    except (OSError, ValueError):
        return None


class Slot:
    """Working folder of one thread: outputs, temporary files and the page of counts."""

    def __init__(self, folder, inputs, program, shim, env):
        self.inputs, self.program, self.env = inputs, program, env
        self.out, self.temporary, self.page = (os.path.join(folder, name) for name in ("out", "tmp", "page"))
        os.makedirs(self.temporary)
        self.env = {**env, "TMPDIR": self.temporary, "TORTURE_STATE": self.page}
        self.shim = shim

    def reset(self, case):
        """Restore the outputs to those of an earlier run."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        for name in case.outputs:
            if not case.has_old(name):
                continue
            path = os.path.join(self.out, name)
            if case.starts:
                shutil.copytree(os.path.join(self.inputs, case.starts), path)
                continue
            if case.folder(name):
                os.makedirs(path)
                path = os.path.join(path, "old")
            with open(path, "wb") as f:
                f.write(OLD)

    def call(self, case, **torture):
        """(exit code, stderr, remaining processes); torture: kind, at, how, always."""
        with open(self.page, "wb") as f:
            f.write(bytes(4096))
        # libjansson crashes if its memory fails; src/base/json_load.c prevents that.
        modules = "program:libtessera" if case.engine else "program:libtessera:libz:libc.so"
        env = {**self.env, "LD_PRELOAD": self.shim, "TORTURE_MODULES": modules}
        env.update({"TORTURE_" + k.upper(): str(v) for k, v in torture.items()})
        words = [w.replace("{in}", self.inputs).replace("{out}", self.out) for w in case.words]
        p = subprocess.Popen([case.program or self.program, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, start_new_session=True)
        try:
            _, err = p.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            return "hangs", p.communicate()[1].decode(errors="replace"), []
        return p.returncode, err.decode(errors="replace"), end_group(p.pid)

    def counts(self):
        """Number of calls of each kind, of any kind, and of those that failed on purpose."""
        with open(self.page, "rb") as f:
            numbers = struct.unpack("<%dQ" % (len(KINDS) + 3), f.read(8 * (len(KINDS) + 3)))
        return dict(zip(KINDS + ["any", "struck", "fd"], numbers))

    def states(self, case, reference):
        """State of each output: old, new, none or half."""
        found = {}
        for name, how in case.outputs.items():
            path = os.path.join(self.out, name)
            now = digest(path)
            if now == reference["old"][name]:
                found[name] = "old"
            elif now is None:
                found[name] = "none"
            else:
                whole = now == reference["new"][name] if how == "exact" else json_keys(path) == reference["keys"][name]
                found[name] = "new" if whole else "half"
        return found

    def remains(self, case):
        """Files that are neither outputs nor existed before."""
        inside = [
            name for output in case.outputs if case.starts for name in os.listdir(os.path.join(self.out, output))
            if name.startswith(TEMPORARY)
        ]
        return inside + sorted(set(os.listdir(self.out)) - set(case.outputs)) + sorted(set(os.listdir(self.temporary)) - OF_THE_ENGINE)

    def refer(self, case):
        """The outputs of the command without a fault, and its number of calls of each kind."""
        self.reset(case)
        old = {name: digest(os.path.join(self.out, name)) for name in case.outputs}
        code, err, _ = self.call(case, at=0)
        new = {name: digest(os.path.join(self.out, name)) for name in case.outputs}
        keys = {name: json_keys(os.path.join(self.out, name)) for name in case.outputs}
        if code != 0 or None in new.values() or self.remains(case):
            raise RuntimeError("%s does not work without a fault: exit %s, %s %s %s" % (case.name, code, new, self.remains(case), err))
        return {"old": old, "new": new, "keys": keys, "counts": self.counts()}


def is_running(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def group_of(number):
    """Running processes of a process group."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getpgid(int(entry)) == number and is_running(int(entry)):
                found.append(int(entry))
        except OSError:
            pass
    return found


def end_group(number, patience_s=2.0):
    """Processes that the command left: they get some time to end, then they are listed and killed."""
    until = time.time() + patience_s
    try:
        os.killpg(number, 0)
    except OSError:
        return []
    while group_of(number) and time.time() < until:
        time.sleep(0.02)
    left = group_of(number)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def said_well(fault, err):
    """True if there is one error, or one and a consequence of it, and it mentions memory if memory failed."""
    errors = err.count("error[") + err.count("error: ") + err.count("usage: ")
    return errors in (1, 2) and (fault.kind != "memory" or "memory" in err)


def judge_code(case, fault, code, err, counts):
    """List of errors in the exit code or the message; empty: none."""
    codes = set(fault.codes) | ({PEER, ENGINE} if case.engine and fault.codes else set())
    if fault.how in DIES:
        return [] if code in (-signal.SIGKILL, 0) or (case.engine and code in (PEER, WRITE, READ)) else ["wrong code %s" % code]
    if code == "hangs":
        return ["hangs"]
    if code < 0:
        return ["crash by signal %d" % -code]
    if code == 0:
        return []
    told_on_stderr = counts["fd"] - 1 == 2 or fault.always
    if code not in codes | case.also:
        return ["wrong code %d" % code]
    if not said_well(fault, err) and not told_on_stderr:
        return ["no clear message"]
    return []


def run_again(slot, case, reference):
    """Run the same command again without a fault, over the remains of the failed run: it must succeed and remove them."""
    for name in case.outputs:
        if not case.has_old(name):  # an existing folder is not replaced without --force
            shutil.rmtree(os.path.join(slot.out, name), ignore_errors=True)
    code, err, _ = slot.call(case, at=0)
    if code != 0:
        return ["the next run fails: exit %s, %s" % (code, err[-300:])]
    wrong = ["the next run makes another %s" % name for name, state in slot.states(case, reference).items() if state != "new"]
    return wrong + (["the next run leaves %s" % slot.remains(case)] if slot.remains(case) else [])


def trial(slot, case, reference, fault, at):
    """(mistakes, exit code, stderr) of one run; mistakes is None if the fault did not happen."""
    slot.reset(case)
    code, err, left = slot.call(case, kind=fault.kind, at=at, how=fault.how, always=int(fault.always))
    counts = slot.counts()
    if not counts["struck"]:
        return None, code, err
    wrong = judge_code(case, fault, code, err, counts)
    states = slot.states(case, reference)
    wrong += ["half-written %s" % name for name, state in states.items() if state == "half"]
    wrong += ["lost %s" % name for name, state in states.items() if state == "none"]
    wrong += ["said done, but %s is %s" % (name, state) for name, state in states.items() if code == 0 and state in ("old", "none")]
    wrong += ["orphan"] if left else []
    ended_itself = isinstance(code, int) and code >= 0
    if not ended_itself or fault.how in DIES or (fault.kind, fault.how) in LEAVES:
        wrong += run_again(slot, case, reference)
    elif slot.remains(case):
        wrong.append("leaves %s" % slot.remains(case))
    if slot.remains(case):
        clean(slot)
    return wrong, code, err


def clean(slot):
    shutil.rmtree(slot.temporary, ignore_errors=True)
    os.makedirs(slot.temporary)
