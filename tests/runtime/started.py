# SPDX-License-Identifier: Apache-2.0
"""Starts N ranks of a command with plain environment variables, as torchrun does: started.py N [HOSTS] -- COMMAND ...

With HOSTS the ranks seem to be on that number of hosts, by different host names. Exits with the first code that is not 0."""
import os
import socket
import subprocess
import sys
import time



def is_stopped(p):
    """True if the process is stopped, so that it cannot end."""
    try:
        with open("/proc/%d/stat" % p.pid) as f:
            return f.read().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


cut = sys.argv.index("--")
count, hosts, command = int(sys.argv[1]), int(sys.argv[2]) if cut > 2 else 1, sys.argv[cut + 1:]
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
ranks = []
for rank in reversed(range(count)):  # the other ranks wait for rank 0
    env = {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": str(port)
    }
    words = command
    if hosts > 1:
        words = ["unshare", "-u", "sh", "-c", 'hostname host%d && exec "$@"' % (rank * hosts // count), "sh", *command]
    ranks.append(subprocess.Popen(words, env=env))
code, until = 0, None
while any(p.poll() is None for p in ranks):
    code = code or next((p.returncode for p in ranks if p.returncode), 0)
    until = until or (time.time() + 10 if code else None)
    left = [p for p in ranks if p.poll() is None]
    if code and left and all(map(is_stopped, left)):  # no running rank waits for them any more
        for p in left:
            p.kill()
    elif until and time.time() > until:  # ranks that did not notice
        for p in ranks:
            p.kill()
        print("started: some rank did not end by itself", file=sys.stderr)
    time.sleep(0.02)
code = code or next((p.returncode for p in ranks if p.returncode), 0)
sys.exit(code if code >= 0 else 128 - code)
