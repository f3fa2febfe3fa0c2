# SPDX-License-Identifier: Apache-2.0
"""Runs tasks that may crash: a child process runs them one after the other; if it dies, a new child continues with the next task."""
import os, pickle, signal


def work_from(work, tasks, first, seconds, cpu_seconds, write):
    for k in range(first, len(tasks)):
        signal.alarm(seconds)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            result = work(tasks[k])
        except Exception as e:
            result = "%s: %s" % (type(e).__name__, " ".join(str(e).split())[:300])
        pickle.dump((k, result), write)
        write.flush()


def results_of(work, tasks, seconds, cpu_seconds=0):
    """The result of work(task) for each task; a text with the reason if it raises, crashes or exceeds `seconds`, or `cpu_seconds` of
    CPU time (0: no limit)."""
    results, first = [None] * len(tasks), 0
    while first < len(tasks):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide messages of a library that aborts
            with os.fdopen(writer, "wb") as write:
                work_from(work, tasks, first, seconds, cpu_seconds, write)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as read:
            while True:
                try:
                    first, result = pickle.load(read)
                except EOFError:
                    break
                results[first] = result
                first += 1
        _, status = os.waitpid(child, 0)
        if first < len(tasks):
            results[first] = "the process ended (%d)" % status
            first += 1
    return results
