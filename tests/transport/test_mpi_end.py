# SPDX-License-Identifier: Apache-2.0
"""Tests the end of MPI jobs: ranks that are done wait for a late one, and a stopped rank fails the job. Without MPI_Finalize, launchers
kill the remaining ranks, and MPICH's launcher returns the exit code 0 of one rank for the job.

usage: test_mpi_end.py FAMILY PROGRAM"""
import os
import shutil
import signal
import subprocess
import sys

import harness

LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}


def run(launcher, program, ranks, word):
    """Run a job: (exit code, output). The launcher should kill a stopped rank; otherwise this function does."""
    env = {**os.environ, "OMPI_MCA_plm": "isolated"}
    p = subprocess.Popen([*launcher, "-n", str(ranks), program, word], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
                         start_new_session=True)
    try:
        said = p.communicate(timeout=harness.HANG_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        return None, p.communicate()[0]
    return p.returncode, said


def late_rank(_, launcher, program):
    """A rank must wait for a late one. MPI waits actively, so there is only one that waits."""
    code, said = run(launcher, program, 2, "late")
    assert code == 0 and "rank 0 has ended" in said, (code, said)


def stopped_rank(_, launcher, program):
    """A stopped rank must fail the job."""
    code, said = run(launcher, program, 3, "stopped")
    assert code not in (0, None), (code, said)


family, program = sys.argv[1:3]
if not shutil.which(LAUNCHERS[family][0]):
    print("skipped: no %s" % LAUNCHERS[family][0])
    sys.exit(77)
harness.run([late_rank, stopped_rank], LAUNCHERS[family], program)
harness.finish()
