# SPDX-License-Identifier: Apache-2.0
"""test_mpi_end.py FAMILY PROGRAM: ranks that have ended wait for one that has much to do still; where one is stopped the job fails and
says so by its code. Without MPI_Finalize launchers kill the ranks that are left, and MPICH's takes a 0 of one for the job's."""
import os
import shutil
import signal
import subprocess
import sys

LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}


def run(launcher, program, word):
    """Exit code and text; a stopped rank that is left is the launcher's to kill, and ours if it did not."""
    env = {**os.environ, "OMPI_MCA_plm": "isolated"}
    p = subprocess.Popen([*launcher, "-n", "3", program, word], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True)
    try:
        said = p.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        return None, p.communicate()[0]
    return p.returncode, said


def main(family, program):
    launcher = LAUNCHERS[family]
    if not shutil.which(launcher[0]):
        print("skipped: no %s" % launcher[0])
        return 77
    code, said = run(launcher, program, "late")
    late = code == 0 and "rank 0 has ended" in said
    print("%s - %s: ranks wait for one that is late (exit %s) %s" % ("ok" if late else "not ok", family, code, "" if late else said))
    code, said = run(launcher, program, "stopped")
    stopped = code not in (0, None)
    print("%s - %s: a stopped rank fails the job (exit %s) %s" % ("ok" if stopped else "not ok", family, code, "" if stopped else said))
    return 0 if late and stopped else 1


sys.exit(main(*sys.argv[1:]))
