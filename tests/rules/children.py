# SPDX-License-Identifier: Apache-2.0
"""Work that may end its process: a child does one task after the other, and where it dies, another goes on behind that task."""
import os, pickle, signal


def work_from(work, tasks, first, seconds, write):
    for k in range(first, len(tasks)):
        signal.alarm(seconds)
        try:
            result = work(tasks[k])
        except Exception as e:
            result = "%s: %s" % (type(e).__name__, " ".join(str(e).split())[:300])
        pickle.dump((k, result), write)
        write.flush()


def results_of(work, tasks, seconds):
    """What work(task) returns for each task: a text that says so, where it raises, ends the process or takes more seconds."""
    results, first = [None] * len(tasks), 0
    while first < len(tasks):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library says as it ends the process
            with os.fdopen(writer, "wb") as write:
                work_from(work, tasks, first, seconds, write)
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
