# SPDX-License-Identifier: Apache-2.0
"""Runs each fuzz harness without the fuzzer on a sample of the seeds that fuzz/seeds.py writes: seeds.py FOLDER HARNESS..., where FOLDER
has the programs fuzz_replay_HARNESS."""
import glob
import os
import subprocess
import sys
import tempfile

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = 60  # of each harness in `make test`


def replays(_, program, inputs):
    run = subprocess.run([program, *inputs], capture_output=True, text=True, timeout=harness.HANG_S)
    assert run.returncode == 0, "%d inputs: exit code %d\n%s" % (len(inputs), run.returncode, run.stderr)


def main(folder, names):
    with tempfile.TemporaryDirectory(prefix="tessera-test-") as seeds:
        subprocess.run([sys.executable, os.path.join(HERE, "../../fuzz/seeds.py"), seeds], check=True, stdout=subprocess.DEVNULL)
        for name in names:
            inputs = harness.sample(sorted(glob.glob("%s/%s/*" % (seeds, name))), SEEDS)
            harness.run([(name, replays, os.path.join(folder, "fuzz_replay_" + name), inputs or [os.devnull])])
    sources = {os.path.basename(path)[:-2] for path in glob.glob(os.path.join(HERE, "../../fuzz/*.c"))}
    harness.check("every harness is run", set(names) == sources, set(names) ^ sources)


main(sys.argv[1], sys.argv[2:])
harness.finish()
