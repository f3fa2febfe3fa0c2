# SPDX-License-Identifier: Apache-2.0
"""Lets memory, I/O and processes (SIGKILL) fail at every point of every command that writes: torture.py TESSERA SHIM CARELESS [KEY=VALUE
...]

POINTS  number of fault points per kind of fault and command, sampled evenly; a third of it for commands that run models (default: every
point) SAMPLE  1: only one of the commands that run models
JOBS    commands at a time (default 2)    ONLY  commands by the start of their names    KIND  kinds of calls by the start of their names

SIGTERM or Ctrl-C: starts no more points and prints the counts so far.

Faster if TMPDIR is in memory (/dev/shm), since it mostly waits for the disk. Prints counts at the end. Exit 1 if any output was lost or
incomplete, any file or process remained, or any command crashed or ended with a wrong code.
"""
import collections
import concurrent.futures
import glob
import os
import shutil
import signal
import sys
import tempfile
import time

import onnxruntime

import cases
import trial

import harness

WORDS = [w for w in sys.argv[1:] if "=" not in w]
GIVEN = dict(w.split("=", 1) for w in sys.argv[1:] if "=" in w)
POINTS, JOBS = int(GIVEN.get("POINTS", 0)), int(GIVEN.get("JOBS", 2))
SLOWEST_S = 1.0  # commands that take longer get few points
SHOWN = 3  # failures printed per kind of mistake


def evenly(total, most):
    """At most `most` of the numbers 1 .. total, including the first and the last."""
    if total <= most:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / (most - 1)) for i in range(most)})


def most_points(case, took_s):
    if not POINTS:
        return sys.maxsize
    if took_s > SLOWEST_S:
        return max(POINTS // 20, 2)
    return max(POINTS // 3, 2) if case.engine else max(POINTS, 2)


def told(tried):
    """A line with the number of points of a tally."""
    return "%d points: memory %d, I/O %d, kills %d" % (sum(tried.values()), tried["memory"], tried["I/O"], tried["kill"])


class Tally:
    """Number of points that were tried, and the mistakes."""

    def __init__(self):
        self.tried, self.wrong = collections.Counter(), collections.defaultdict(list)

    def add(self, case, fault, at, verdict):
        wrong, code, err = verdict
        if wrong is None:
            return
        self.tried[trial.class_of(fault)] += 1
        for what in wrong:
            self.wrong[case.name, trial.name_of(fault), what.split("tessera-")[0].split(": exit")[0]].append((at, code, err.strip()[-400:]))

    def count(self, *starts):
        return sum(len(places) for (_, _, what), places in self.wrong.items() if what.startswith(starts))

    def show(self):
        for (case, fault, what), places in sorted(self.wrong.items()):
            print("WRONG %s, %s: %s, at %s" % (case, fault, what, ", ".join(str(at) for at, _, _ in places[:20])))
            for at, code, err in places[:SHOWN]:
                print("    at %d: exit %s: %s" % (at, code, err.replace("\n", "\n        ")))
        print(
            "%s: %d lost, %d half-written, %d wrong codes or messages, %d crashes, %d hangs, %d left behind, %d orphans, %d next runs"
            " failed"
            % (
                told(self.tried),
                self.count("lost", "said done"),
                self.count("half-written"),
                self.count("wrong code", "no clear"),
                self.count("crash"),
                self.count("hangs"),
                self.count("leaves"),
                self.count("orphan"),
                self.count("the next run"),
            )
        )


class Torture:
    def __init__(self, folder, program, shim):
        engine = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi/libonnxruntime.so.*"))
        keep = {k: os.environ[k] for k in ("PATH", "HOME", "TESSERA_ORT") if k in os.environ}
        self.env = {"LC_ALL": "C", **({"TESSERA_ORT": engine[0]} if engine else {}), **keep}
        self.inputs = os.path.join(folder, "in")
        os.makedirs(self.inputs)
        self.slots = [trial.Slot(os.path.join(folder, "slot%d" % i), self.inputs, program, shim, self.env) for i in range(JOBS)]
        self.free = list(self.slots)

    def in_a_slot(self, work):
        slot = self.free.pop()
        try:
            return work(slot)
        finally:
            self.free.append(slot)

    def run_case(self, pool, case, faults, tally):
        """Try all faults of one command."""
        began = time.time()
        try:
            reference = self.in_a_slot(lambda slot: slot.refer(case))
        except RuntimeError as e:
            tally.wrong[case.name, "no fault", "wrong code"].append((0, 0, str(e)))
            return
        most = most_points(case, time.time() - began)
        points = [(fault, at) for fault in faults for at in evenly(reference["counts"][fault.kind], most)]
        one = lambda point: self.in_a_slot(lambda slot: trial.trial(slot, case, reference, *point))
        before, tried = sum(map(len, tally.wrong.values())), tally.tried.copy()
        verdicts = map(one, points) if case.alone else pool.map(one, points)
        for (fault, at), verdict in zip(points, verdicts):
            tally.add(case, fault, at, verdict)
        found = sum(map(len, tally.wrong.values())) - before
        print("%-18s %s, %.1f s%s" % (case.name, told(tally.tried - tried), time.time() - began, ", %d wrong" % found if found else ""),
              flush=True)


def careless_cases(program):
    """Commands whose mistakes must be found: {case with that mode: the expected text}."""
    return {
        cases.Case("careless-" + mode, mode + " {out}/o.bin", {"o.bin": cases.EXACT}, program=program): what
        for mode, what in (("torn", "half-written"), ("deaf", "said done"), ("trusting", "crash"), ("messy", "leaves"),
                           ("mute", "no clear"), ("liar", "wrong code"))
    }


def self_test(torture, pool, program):
    """Every mistake of the careless commands must be found; otherwise the torture test does not work."""
    blind = []
    for case, what in careless_cases(program).items():
        tally = Tally()
        torture.run_case(pool, case, trial.FAULTS, tally)
        if not tally.count(what):
            blind.append("%s of %s" % (what, case.name))
    return blind


def main():
    program, shim, careless = map(os.path.abspath, WORDS[:3])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tally, folder, blind = Tally(), tempfile.mkdtemp(prefix="tessera-torture-"), []
    faults = [f for f in trial.FAULTS if f.kind.startswith(GIVEN.get("KIND", ""))]
    try:
        torture = Torture(folder, program, shim)
        cases.make_inputs(program, torture.inputs, {**os.environ, **torture.env})
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            if "ONLY" not in GIVEN:
                blind = self_test(torture, pool, careless)
            for case in cases.CASES:
                sampled = "SAMPLE" not in GIVEN or not case.engine or case.name == "run-shm"
                if sampled and case.name.startswith(GIVEN.get("ONLY", "")):
                    torture.run_case(pool, case, faults, tally)
    except KeyboardInterrupt:
        print("ended before all was tried")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for what in blind:
        print("WRONG the comparison did not find: %s" % what)
    tally.show()
    bad = bool(tally.wrong or blind or not sum(tally.tried.values()))
    harness.check("torture", not bad)
    harness.finish()


if __name__ == "__main__":
    main()
