# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and delays ranks at random times, on every transport: nemesis.py TESSERA [KEY=VALUE ...]

COUNT      events on each transport (default 1000)      SEED     random seed (default 1)
TRANSPORT  threads, shm, env, ucx, openmpi, openmpi-messages, mpich, mpich-messages, workers (ranks in a worker on another address),
           cable (between two network namespaces, whose link is cut); several with commas (default: all that this machine allows)
MINUTES    time limit for all transports together       JOBS     runs that compute at a time (default 2); runs that only wait come on top
TIMEOUT    seconds after which ranks give up a silent rank (default 4); use less on an idle machine

SIGTERM or Ctrl-C: abandons the current runs and prints the counts of the others.

Each run is `tessera run` or `tessera bench` of a partition. It must give the right result, or end within its deadline with a clear error.
Afterwards no process, shared memory or temporary folder of it may remain. Exit 1 if any run violates this.
"""
import collections
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import machine

import harness

WORDS = [w for w in sys.argv[1:] if "=" not in w]
GIVEN = dict(w.split("=", 1) for w in sys.argv[1:] if "=" in w)
COUNT, SEED, JOBS = int(GIVEN.get("COUNT", 1000)), int(GIVEN.get("SEED", 1)), int(GIVEN.get("JOBS", 2))
MINUTES = float(GIVEN.get("MINUTES", 0))

TIMEOUT_S = float(GIVEN.get("TIMEOUT", 4))  # --timeout of every run: a rank that is stopped for longer is given up
DEADLINE_S = 20.0   # a run must end within this time after the last event, even on a busy machine
STARTING_S = 60.0   # additional time if ranks wait for each other to start (MPI, plain variables): they may start at different times
LONG_ENOUGH_S = 60  # of a complete run, including the start of the engine
IDLE = 0.02         # share of a processor: a run that needs less only waits, and another may start (MPICH's ranks wait at full load)
WAITING = 12        # times JOBS: maximum number of runs at a time, including those that wait
DELAY_S = TIMEOUT_S * 3 / 8  # a rank that is stopped for less than the timeout must not be given up
LOOK_S = 0.25       # interval between two checks whether a run only waits
PEER, ENGINE = 6, 7
DONE = 0
STOPPED = threading.Event()  # the user has asked to end


class GivenUp(Exception):
    """The user has asked to end during a run."""


class Event:
    """An event for one process of a run, `after` seconds from its start (from the launcher's start if that is the target)."""

    def __init__(self, dice, transport, ranks, span_s):
        kinds = ["delay"] if transport == "threads" else ["kill", "kill", "stop", "late", "late", "delay", "delay", "term", "all-delay"]
        self.kind, self.after = dice.choice(kinds), dice.random() * span_s
        self.rank, self.for_s = dice.randrange(ranks), 0.05 + dice.random() * DELAY_S
        if self.kind == "late":  # it continues after the others have given it up
            self.for_s += TIMEOUT_S * 1.5
        self.launcher = self.kind in ("kill", "term") and dice.random() < 0.15  # the target is the process that started the ranks

    def __str__(self):
        return "%s of %s after %.2f s" % (self.kind, "the launcher" if self.launcher else "rank %d" % self.rank, self.after)


class Span:
    """The time range of a run in which the event falls. It adapts to the machine: shorter if a run ended before its event, a little longer
    otherwise. So about one run of six ends before its event, and events also fall near the end of runs."""

    def __init__(self, seconds):
        self.seconds = seconds

    def learn(self, struck):
        self.seconds = min(4.0, max(0.1, self.seconds * (1.01 if struck else 0.95)))


class Run:
    """One run of one transport with one event, and its result."""

    def __init__(self, nemesis, transport, dice, spans):
        self.nemesis, self.transport = nemesis, transport
        self.ranks = dice.choice((2, 3, 4))
        self.bench = dice.random() < 0.4
        self.span = spans[self.bench]
        self.event = Event(dice, transport, self.ranks, self.span.seconds)
        self.folder = tempfile.mkdtemp(prefix="tessera-nemesis-")
        self.number = dice.randrange(10000, 60000)
        self.target = None  # process that the event struck
        self.ended, self.hung = {}, False  # exit codes; whether only the launcher did not end
        self.out = os.path.join(self.folder, "out.npz")
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.temporary)

    def words(self):
        parts = os.path.join(self.nemesis.inputs, "parts%d" % self.ranks)
        what = ["bench", parts, "--seconds", "1"] if self.bench else ["run", parts, "--outputs", self.out]
        return [
            self.nemesis.tessera, *what, "--inputs", self.nemesis.inputs + "/in", "--timeout",
            str(TIMEOUT_S), "--threads", "1", "--no-pin", *machine.transport_words(self.transport)
        ]

    def start(self):
        """Start one process, or one per rank if there is no launcher."""
        env = {**self.nemesis.env, "TMPDIR": self.temporary}
        how = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if self.transport not in machine.STARTED_BY_US:
            launcher = machine.launcher(self.transport, self.ranks)
            return [subprocess.Popen([*launcher, *self.words()], env=env, start_new_session=True, **how)]
        started, port = [], machine.free_port() if self.transport == "ucx" else "%d%d" % (os.getpid(), self.number)
        for rank in range(self.ranks):
            own = {**env, "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "localhost",
                   "MASTER_PORT": str(port)}
            started.append(subprocess.Popen(self.words(), env=own, start_new_session=True, **how))
        return started

    def victims(self):
        """Processes of the ranks, in any order; for threads, the one process."""
        first = self.started[0].pid
        if self.transport in machine.STARTED_BY_US:
            return [p.pid for p in self.started]
        if self.transport == "threads":
            return [first]
        return [pid for pid in machine.below(first) if machine.is_tessera(pid)]

    def wait_for_ranks(self):
        """Wait until there is a rank as a target: a launcher may need longer than the ranks."""
        until = time.time() + STARTING_S
        while not self.event.launcher and not self.victims() and machine.is_running(self.started[0].pid) and time.time() < until:
            time.sleep(0.02)

    def strike(self):
        """Perform the event; false if no rank was left."""
        victims = self.victims()
        target = self.started[0].pid if self.event.launcher else (victims[self.event.rank % len(victims)] if victims else None)
        if target is None or not machine.is_running(target):
            return False
        self.target = target
        if self.event.kind in ("kill", "term"):
            machine.send(target, signal.SIGKILL if self.event.kind == "kill" else signal.SIGTERM)
        elif self.event.kind == "stop":
            machine.send(target, signal.SIGSTOP)
        elif self.event.kind == "late":
            machine.send(target, signal.SIGSTOP)
            threading.Timer(self.event.for_s, self.wake, (target,)).start()
        else:
            together = victims if self.event.kind == "all-delay" else [target]
            for pid in together:
                machine.send(pid, signal.SIGSTOP)
            time.sleep(self.event.for_s)
            for pid in together:
                machine.send(pid, signal.SIGCONT)
        return True

    def wake(self, pid):
        if pid in self.processes():  # not another process that has its number now
            machine.send(pid, signal.SIGCONT)

    def wait(self, seconds):
        """Exit codes and output; None for a process that did not end in time. Another call waits only for those."""
        until = time.time() + seconds
        for p in self.started:
            if p.pid in self.ended:
                continue
            while p.pid not in self.ended:
                try:
                    said = p.communicate(timeout=max(0.1, min(1.0, until - time.time())))[0].decode(errors="replace")
                    self.ended[p.pid] = p.returncode, said
                except subprocess.TimeoutExpired:
                    if STOPPED.is_set():
                        raise GivenUp
                    if time.time() > until:
                        break
        ends = [self.ended.get(p.pid, (None, "")) for p in self.started]
        return [code for code, _ in ends], "\n".join(said for _, said in ends)

    def wait_for_all(self, seconds):
        """Like wait. If the only remaining ranks are those that we stopped, no rank waits for them: they continue and must end too. A
        launcher that does not end although no rank is left is killed; that is not a failure of the ranks."""
        codes, text = self.wait(seconds)
        ranks = [pid for pid in self.processes() if machine.is_tessera(pid)]
        if None in codes and ranks and all(map(machine.is_stopped, ranks)):
            for pid in ranks:
                machine.send(pid, signal.SIGCONT)
            codes, text = self.wait(DEADLINE_S + STARTING_S)  # a rank that was stopped at its start may now wait for others
            ranks = [pid for pid in self.processes() if machine.is_tessera(pid)]
        if None in codes and not ranks and machine.launcher(self.transport, self.ranks):
            self.hung = True
            machine.send(self.started[0].pid, signal.SIGKILL)
            codes, text = self.wait(DEADLINE_S)
        return codes, text

    def let_next_start(self, turn):
        """Release the semaphore when this run has ended, or when it waits for a deadline and needs no processor."""
        used, since = None, 0.0
        while any(machine.is_running(p.pid) for p in self.started):
            now, at = machine.seconds_used(self.processes()), time.time()
            if used is not None and now - used < IDLE * (at - since):
                break
            used, since = now, at
            time.sleep(LOOK_S)
        turn.release()

    def deadline(self):
        waits = self.transport not in ("threads", "shm") and self.event.kind in ("stop", "kill", "term")
        late_s = self.event.for_s if self.event.kind == "late" else 0
        return DEADLINE_S + late_s + (1.0 if self.bench else 0) + (STARTING_S if waits else 0)

    def processes(self):
        """All processes of this run, recognized by the temporary folder in their environment."""
        return machine.with_environment(b"TMPDIR=" + self.temporary.encode())

    def verdict(self, turn):
        """Like compared_run; None for a run that was abandoned."""
        try:
            return self.compared_run(turn)
        except GivenUp:
            for pid in self.processes():
                machine.send(pid, signal.SIGKILL)
            self.clean()
            return None, ""

    def compared_run(self, turn):
        """(result: none, survived, told, hung or short; reason). Holds the semaphore `turn`, and releases it as soon as other runs may
        compute."""
        try:
            self.started = self.start()
            self.wait_for_ranks()
            time.sleep(self.event.after)
            struck = self.strike()
            self.span.learn(struck)
        except BaseException:
            turn.release()
            raise
        threading.Thread(target=self.let_next_start, args=(turn,), daemon=True).start()
        codes, text = self.wait_for_all(self.deadline() if struck else LONG_ENOUGH_S)
        wrong = self.judge(struck, codes, text)
        wrong += self.left_behind(struck)
        self.clean()
        if wrong:
            return "short", "%s, %d ranks, %s, %s: %s; exit %s, said %s" % (self.transport, self.ranks, "bench" if self.bench else "run",
                                                                            self.event, "; ".join(wrong), codes, text.strip()[-600:])
        if self.hung:
            return "hung", ""
        if not struck:
            return "none", ""
        return ("survived" if set(codes) == {DONE} else "told"), ""

    def judge(self, struck, codes, text):
        """List of errors in how the run ended; empty: none."""
        if None in codes:
            return ["does not end"]
        good = all(c == DONE for c in codes)
        harmless = not struck or self.event.kind in ("delay", "all-delay")
        if harmless and not good:
            return ["a delay of %.2f s is taken for a failure" % self.event.for_s if struck else "fails without an event"]
        if struck and self.event.launcher and machine.launcher(self.transport, self.ranks) and not os.path.exists(self.out):
            return []  # the launcher's own code: MPICH returns 0 if SIGTERM comes before it has started a rank
        if good and not self.bench and not self.nemesis.is_right(self.out, self.ranks):
            return ["wrong result"]
        if os.path.exists(self.out) and not self.nemesis.is_right(self.out, self.ranks):
            return ["an output that is not whole or not right"]
        if machine.left_early(text) and not self.bench and not os.path.exists(self.out):
            return ["a rank ends well without the result"]
        if good or self.hung:
            return []
        if self.transport in machine.STARTED_BY_US and struck and all(c == DONE for rank, c in enumerate(codes) if rank != self.event.rank):
            return []  # it died after the others had received everything; the output is right (checked above)
        said = "error[" in text or self.event.launcher or machine.of_launcher(self.transport, text)
        known = {PEER, ENGINE, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM}
        unknown = [c for c in codes if c not in known and not machine.is_launchers_code(self.transport, c, text) and c != DONE]
        return ([] if said or self.event.kind == "term" or self.all_struck() else ["no clear error"]) + (["exit code %s" %
                                                                                                          unknown] if unknown else [])

    def all_struck(self):
        return self.transport == "threads"

    def left_behind(self, struck):
        """Errors for processes, temporary files and shared memory that remain after the run."""
        wrong = []
        until = time.time() + 3.0
        while self.processes() and time.time() < until:
            time.sleep(0.05)
        left = self.processes()
        for pid in left:
            wrong.append("orphan: %s" % machine.describe(pid))
            machine.send(pid, signal.SIGKILL)
        remains = set(os.listdir(self.temporary)) - machine.OF_OTHERS
        remains = {name for name in remains if not machine.is_launchers_file(name)}
        killed = struck and self.event.kind == "kill"  # a killed process cannot clean up; the next one does
        if remains and not killed:
            wrong.append("temporary files: %s" % sorted(remains))
        return wrong

    def clean(self):
        for p in self.started:
            if p.poll() is None:
                p.kill()
                p.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerRun(Run):
    """A session with ranks in a worker. The event strikes a process of one side. The worker goes on, or ends with all that it started."""
    hosts = None  # network namespaces of this and of the other side; None: two addresses of the loopback interface

    def here_and_there(self):
        return ("127.0.0.1", "127.0.0.2"), ([], [])

    def start(self):
        (here, there), (self.around, other_side) = self.here_and_there()
        self.name, self.port, self.cache = there, machine.free_port(), self.folder + "/cache"
        with open(self.folder + "/secret", "w") as f:
            f.write("a secret of this run alone\n")
        self.more = ["--hosts", "%s:1,%s:%d" % (here, there, self.ranks - 1), "--port", str(self.port), "--secret-file",
                     self.folder + "/secret"]
        self.log = open(self.folder + "/worker.log", "w+")
        self.worker = subprocess.Popen([*other_side, self.nemesis.tessera, "worker", "--listen", "%s:%d" % (there, self.port),
                                        "--secret-file", self.folder + "/secret", "--cache", self.cache], start_new_session=True,
                                       env={**self.nemesis.env, "TMPDIR": self.temporary}, stdin=subprocess.DEVNULL, stdout=self.log,
                                       stderr=subprocess.STDOUT)
        until = time.time() + STARTING_S
        while "waits" not in self.said() and self.worker.poll() is None and time.time() < until:
            time.sleep(0.02)
        return [self.session(self.words())]

    def said(self):
        with open(self.folder + "/worker.log") as f:
            return f.read()

    def session(self, words):
        return subprocess.Popen([*self.around, *words, *self.more], env={**self.nemesis.env, "TMPDIR": self.temporary},
                                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def victims(self):
        there = machine.below(self.worker.pid)
        every = (self.started[0].pid, self.worker.pid, *there, *machine.below(self.started[0].pid))
        return [pid for pid in every if machine.is_running(pid)]

    def processes(self):
        mine = b"%s:%d" % (self.name.encode(), self.port)  # worker processes hide their environment
        return sorted({*super().processes(), *machine.with_word(mine)})

    def wait_for_all(self, seconds):
        """A session that is stopped itself continues after the worker has given it up."""
        if self.event.kind == "stop" and self.target not in self.worker_processes:
            self.wait(TIMEOUT_S * 2)
            machine.send(self.target, signal.SIGCONT)
        return self.wait(seconds)

    def strike(self):
        self.worker_processes = {self.worker.pid, *machine.below(self.worker.pid)}
        return super().strike()

    def judge(self, struck, codes, text):
        if struck and self.event.kind in ("kill", "term") and self.target == self.started[0].pid:
            return []  # the session itself
        wrong = super().judge(struck, codes, text)
        if not wrong and struck and self.target in self.worker_processes and codes != [DONE] and self.name not in text:
            wrong = ["the error does not name the host"]
        return wrong

    def left_behind(self, struck):
        wrong = self.worker_goes_on(struck)
        self.worker.terminate()
        try:
            self.worker.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            wrong.append("the worker does not end")
            self.worker.kill()
            self.worker.wait()
        if os.path.isdir(self.cache) and any(len(name) != 64 for name in os.listdir(self.cache)):
            wrong.append("files in the cache: %s" % os.listdir(self.cache))
        return wrong + super().left_behind(struck)

    def worker_goes_on(self, struck):
        """Errors of a worker that was not killed and does not run another session rightly."""
        if struck and self.target == self.worker.pid and self.event.kind in ("kill", "term"):
            return []
        for pid in (self.worker.pid, *machine.below(self.worker.pid)):
            machine.send(pid, signal.SIGCONT)
        until = time.time() + DEADLINE_S + TIMEOUT_S * 2
        while machine.below(self.worker.pid) and time.time() < until:
            time.sleep(0.05)
        if machine.below(self.worker.pid) or self.worker.poll() is not None:
            return ["the worker %s; it said %s" % ("keeps the session" if self.worker.poll() is None else "has ended", self.said()[-300:])]
        again = os.path.join(self.folder, "again.npz")
        words = ["run", "%s/parts%d" % (self.nemesis.inputs, self.ranks), "--inputs", self.nemesis.inputs + "/in", "--outputs", again]
        session = self.session([self.nemesis.tessera, *words, "--threads", "1", "--no-pin"])
        try:
            text = session.communicate(timeout=LONG_ENOUGH_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            session.kill()
            text = "no answer" + session.communicate()[0].decode(errors="replace")
        right = session.returncode == DONE and self.nemesis.is_right(again, self.ranks)
        return [] if right else ["the next session fails: exit %s, %s" % (session.returncode, text.strip()[-300:])]

    def clean(self):
        for pid in self.processes():
            machine.send(pid, signal.SIGKILL)
        self.worker.wait()
        self.log.close()
        super().clean()


class CableRun(WorkerRun):
    """The same between two network namespaces. The event cuts their link, for good or for a moment; it is mended for the next session."""

    def here_and_there(self):
        self.hosts = machine.namespaces.Hosts(self.number)
        self.hosts.__enter__()
        return self.hosts.addresses, (self.hosts.words(0), self.hosts.words(1))

    def strike(self):
        self.target, self.worker_processes = self.worker.pid, {self.worker.pid}
        if not machine.is_running(self.started[0].pid):
            return False
        self.hosts.cut()
        if self.event.kind in ("delay", "all-delay"):
            time.sleep(self.event.for_s)
            self.hosts.mend()
        self.event.kind, self.event.launcher = "cut", False
        return True

    def judge(self, struck, codes, text):
        here = "no usable network" in text  # found by the session's own rank: its interface is down, whatever the worker does
        return [] if struck and here and codes != [DONE] else super().judge(struck, codes, text)

    def worker_goes_on(self, struck):
        self.hosts.mend()
        return super().worker_goes_on(struck)

    def clean(self):
        super().clean()
        self.hosts.__exit__()


RUNS = {"workers": WorkerRun, "cable": CableRun}  # others: Run


class Nemesis:
    def __init__(self, tessera, folder):
        self.tessera, self.inputs, self.env = os.path.abspath(tessera), folder, machine.environment()
        self.right = machine.make_inputs(self.tessera, folder, self.env)

    def is_right(self, path, ranks):
        return machine.same_tensors(path, self.right[ranks])


def events_of(counts):
    return sum(n for verdict, n in counts.items() if verdict != "none")


def rounds(nemesis, transport, until):
    """Runs of one transport until COUNT events have happened: counts by result, and the failures."""
    dice, counts, short, lock = random.Random("%s %d" % (transport, SEED)), collections.Counter(), [], threading.Lock()
    turn, began, spans = threading.Semaphore(JOBS), time.time(), {False: Span(0.6), True: Span(1.2)}

    def worker():
        while True:
            turn.acquire()
            with lock:
                if events_of(counts) >= COUNT or time.time() > until or STOPPED.is_set():
                    turn.release()
                    return
                run = RUNS.get(transport, Run)(nemesis, transport, dice, spans)
            verdict, why = run.verdict(turn)
            if verdict is None:
                return
            with lock:
                counts[verdict] += 1
                happened = events_of(counts)
                if verdict != "none" and happened % 100 == 0:
                    print("# %s: %d events, %d short, %.0f s" % (transport, happened, counts["short"], time.time() - began), flush=True)
                if why:
                    short.append(why)
                    print("SHORT %s" % why, flush=True)
    at_a_time = min(WAITING * JOBS, COUNT)  # more would only add events
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        working = [pool.submit(worker) for _ in range(at_a_time)]
        while concurrent.futures.wait(working, timeout=1.0).not_done:
            pass  # wakes up for signals: one that another thread received does not interrupt this one
        for done in working:
            done.result()
    return counts, short


def main():
    wanted = GIVEN.get("TRANSPORT", "").split(",") if GIVEN.get("TRANSPORT") else machine.TRANSPORTS
    until = time.time() + 60 * MINUTES if MINUTES else float("inf")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOPPED.set())
    before, bad, events = machine.segments(), 0, 0
    folder = tempfile.mkdtemp(prefix="tessera-nemesis-in-")
    try:
        nemesis = Nemesis(WORDS[0], folder)
        for transport in wanted:
            why = machine.lacks(transport, os.path.dirname(os.path.abspath(WORDS[0])))
            if why:
                print("%-17s left out: %s" % (transport, why))
                continue
            began = time.time()
            counts, short = rounds(nemesis, transport, until)
            happened = events_of(counts)
            events, bad = events + happened, bad + len(short)
            print(
                "%-17s %5d events: %d survived with the right result, %d told, %d short%s; %d runs were over before; %.0f s" %
                (transport, happened, counts["survived"], counts["told"], len(short),
                 ", %d where the launcher alone hung" % counts["hung"] if counts["hung"] else "", counts["none"], time.time() - began),
                flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    patience = time.time() + 10  # other programs on this machine have such segments for moments
    while machine.segments() - before and time.time() < patience:
        time.sleep(0.1)
    lost = len(machine.segments() - before)
    print("%d events: %d fell short (lost, wrong or orphans), %d shared memory segments left (seed %d)" % (events, bad, lost, SEED))
    harness.check("nemesis", not bad and not lost and events)
    harness.finish()


if __name__ == "__main__":
    main()
