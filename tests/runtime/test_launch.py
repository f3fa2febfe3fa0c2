# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera launch` with local ranks and ranks behind a substitute for ssh: output lines, exit codes, secrets; no process may
remain."""
import signal
import time

from parts import *

TESSERA = os.path.abspath(os.path.join(BUILD, "tessera"))
HAS_UCX = os.path.exists(os.path.join(BUILD, "libtessera_ucx.so"))
SEVERAL = subprocess.run(["unshare", "-u", "hostname", "elsewhere"], capture_output=True).returncode == 0


def stand_in(d):
    """A remote shell that runs on this host: in another folder, with few variables and, if allowed, another host name. It records its
    arguments."""
    path = d + "/rsh"
    enter = 'exec env -i PATH="$PATH" TESSERA_ORT="$TESSERA_ORT" TESSERA_PLUGINS="$TESSERA_PLUGINS" sh -c "$2"'
    with open(path, "w") as f:
        f.write('#!/bin/sh\necho "$*" >>%s/words\ncd /\n' % d)
        f.write("exec unshare -u sh -c 'hostname \"at-$1\"; %s' sh \"$1\" \"$2\"\n" % enter if SEVERAL else "set -- \"$1\" \"$2\"\n%s\n" %
                enter)
    os.chmod(path, 0o755)
    return path


def launch(d, hosts, command, *options, timeout=harness.HANG_S, env=None):
    return subprocess.run([TESSERA, "launch", "--hosts", hosts, *options, "--", *command], capture_output=True, text=True, timeout=timeout,
                          cwd=d, env={
                              **without_ranks(), "TESSERA_RSH": stand_in(d), "TESSERA_ORT": engine(),
                              "TESSERA_PLUGINS": os.path.abspath(BUILD), **(env or {})
                          })


def wait_until(condition):
    """Wait for something that must happen soon."""
    until = time.time() + harness.HANG_S
    while not condition():
        assert time.time() < until, "waited %d s" % harness.HANG_S
        time.sleep(0.02)


def all_end(pids):
    wait_until(lambda: not any(os.path.exists("/proc/" + pid) for pid in pids))


SAY = (
    'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR in $PWD"; echo "it is" >&2; [ ${#TESSERA_SECRET} -ge 64 ]'
    ' && echo "has a secret"'
)


@case
def ranks_know_their_places(d):
    """Local and remote ranks get variables, folder and secret; output lines have the rank's number and are not split."""
    q = launch(d, "localhost:2,127.0.0.2:1,127.0.0.3", ["sh", "-c", SAY])
    lines = sorted(q.stdout.splitlines())
    assert q.returncode == 0 and len(lines) == 8 and sorted(q.stderr.splitlines()) == ["[%d] it is" % r
                                                                                       for r in range(4)], (q.stdout, q.stderr)
    for rank, local, of in ((0, 0, 2), (1, 1, 2), (2, 0, 1), (3, 0, 1)):
        line = next(l for l in lines if l.startswith("[%d] %d of 4, %d of %d at " % (rank, rank, local, of)))
        assert os.path.realpath(line.split(" in ")[1]) == os.path.realpath(d), line
        assert "[%d] has a secret" % rank in lines, lines
    assert not any("localhost" in l for l in lines)  # the others must reach rank 0 by another name
    q = launch(d, "localhost", ["sh", "-c", SAY], "--no-prefix")
    assert q.returncode == 0 and q.stdout.startswith("0 of 1, 0 of 1 at 127.0.0.1"), q.stdout


@case
def this_host_by_its_address(d):
    """Ranks at an address of this host are started directly; others get an address of rank 0, not a name that they may not know."""
    at = lambda q: sorted({l.split(" at ")[1].split()[0] for l in q.stdout.splitlines() if " at " in l})
    q = launch(d, "127.0.0.1:1,127.0.0.2:1", ["sh", "-c", SAY])
    assert q.returncode == 0 and at(q) == ["127.0.0.1"], (q.stdout, q.stderr)
    q = launch(d, "localhost:1,127.0.0.2:1", ["sh", "-c", SAY], "--address", "node.example")
    assert q.returncode == 0 and at(q) == ["node.example"], (q.stdout, q.stderr)
    q = launch(d, "localhost:1,127.0.0.2:1", ["sh", "-c", 'echo "at $MASTER_ADDR over $TESSERA_INTERFACE"'], "--interface", "lo")
    assert q.returncode == 0 and at(q) == ["127.0.0.1"] and q.stdout.count("over lo") == 2, (q.stdout, q.stderr)
    own = own_address()
    if not own:
        return "this host has no address but its loopback"
    os.remove(d + "/words")
    q = launch(d, own + ":2", ["sh", "-c", SAY])
    assert q.returncode == 0 and at(q) == ["127.0.0.1"] and not os.path.exists(d + "/words"), (q.stdout, q.stderr)
    q = launch(d, own + ":1,127.0.0.2:1", ["sh", "-c", SAY])
    assert q.returncode == 0 and at(q) == [own] and open(d + "/words").read().startswith("127.0.0.2 "), (q.stdout, q.stderr)


@case
def words_of_ssh(d):
    """A program called ssh gets "--" before the host. A carriage return at the end of its output lines is removed."""
    with open(d + "/ssh", "w") as f:
        f.write('#!/bin/sh\nread secret\nprintf "told: %s %s %s\\r\\n" "$1" "$2" "$3" >&2\n')
    os.chmod(d + "/ssh", 0o755)
    q = launch(d, "127.0.0.2", ["true"], "--rsh", d + "/ssh -x")
    assert q.returncode == 0 and q.stderr == "[0] told: -x -- 127.0.0.2\n", (q.stdout, q.stderr)


@case
def addresses_of_ipv6(d):
    """IPv6 addresses are written in brackets, since they contain colons; the remote shell and the ranks get them without."""
    q = launch(d, "[fd00::2]:2,[::1],[fd00::3]", ["sh", "-c", SAY])
    places = sorted(l.split(" in ")[0] for l in q.stdout.splitlines() if " of 4" in l)
    assert q.returncode == 0 and places == [
        "[%d] %d of 4, %d of %d at fd00::2" % (r, r, l, n) for r, l, n in ((0, 0, 2), (1, 1, 2), (2, 0, 1), (3, 0, 1))
    ], (q.stdout, q.stderr)


@case
def the_secret_is_in_no_argument(d):
    # The secret must reach the ranks, but not the command line of the remote shell, where other users could see it.
    q = launch(d, "127.0.0.2:2", ["sh", "-c", 'echo "secret $TESSERA_SECRET"; tr "\\0" " " </proc/self/cmdline'],
               env={"TESSERA_SECRET": "twelve words of gold"})
    assert q.returncode == 0 and q.stdout.count("secret twelve words of gold") == 2, (q.stdout, q.stderr)
    assert "gold" not in open(d + "/words").read()


@case
def words_arrive_as_they_are(d):
    # Special characters in arguments must reach local and remote commands unchanged.
    words = ["a b", "it's", '"$HOME"', "x;y", "*", "--", "-n", "\\"]
    for host in ("localhost", "127.0.0.2"):
        q = launch(d, host, ["printf", "%s\\n", *words], "--no-prefix")
        assert q.returncode == 0 and q.stdout.splitlines() == words, (host, q.stdout, q.stderr)


@case
def one_partition_on_two_hosts(d):
    """The complete sequence: partition, launch, and the same bits as with threads. One host uses shared memory, two use UCX."""
    _, parts, x = mlp(4, rows=50)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
    for hosts in ("localhost:4", "127.0.0.2:2,127.0.0.3:2"):
        if hosts != "localhost:4" and not HAS_UCX:
            return "no UCX for several hosts"
        q = launch(d, hosts, [TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1", "--verbose"])
        way = "shm" if hosts == "localhost:4" else "ucx"
        assert q.returncode == 0 and "[0] y " in q.stdout and way + " with ranks 0+1+2+3" in q.stdout, (hosts, q.stdout, q.stderr)
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want, hosts
        os.remove(d + "/out.npz")


@case
def one_failure_ends_all(d):
    """The exit code is that of the first failed rank. The others are ended, local and remote, after a delay of some seconds."""
    q = launch(d, "localhost:1,127.0.0.2:2", ["sh", "-c", '[ $RANK = 1 ] && exit 5; echo $$ >%s/pid$RANK; exec sleep 977' % d])
    assert q.returncode == 5 and "rank 1 on 127.0.0.2 ended with code 5" in q.stderr, (q.returncode, q.stderr)
    all_end([open(d + "/pid%d" % r).read().strip() for r in (0, 2)])


@case
def a_rank_that_is_killed(d):
    # The exit code is that of the killed rank, and the other rank reports it.
    if not HAS_UCX:
        return "no UCX"
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    words = "%s run %s %s/in.npz %s/out.npz engine=%s plugins=%s times=2" % (os.path.abspath(TOOL), p, d, d, engine(),
                                                                             os.path.abspath(BUILD))
    q = launch(d, "127.0.0.2,127.0.0.3",
               ["sh", "-c", "[ $RANK = 1 ] && exec %s transport=ucx kill=2; exec %s transport=ucx" % (words, words)], "--port",
               str(free_port()))
    assert q.returncode == 128 + signal.SIGKILL and "rank 1 died" in q.stdout + q.stderr, (q.returncode, q.stdout, q.stderr)


@case
def the_launcher_goes_away(d):
    """The launcher is interrupted or killed: no rank may remain."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        env = {**os.environ, "TESSERA_RSH": stand_in(d)}
        q = subprocess.Popen([
            TESSERA, "launch", "--hosts", "localhost,127.0.0.2", "--", "sh", "-c",
            "echo $$ >%s/pid$RANK.new; mv %s/pid$RANK.new %s/pid$RANK; exec sleep 977" % (d, d, d)
        ], env=env, cwd=d, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: all(os.path.exists(d + "/pid%d" % r) for r in range(2)))
        pids = [open(d + "/pid%d" % r).read().strip() for r in range(2)]
        q.send_signal(sign)
        q.wait(harness.HANG_S)
        all_end(pids)
        for r in range(2):
            os.remove(d + "/pid%d" % r)


@case
def wrong_use(d):
    # Invalid host lists, missing commands and a missing remote shell must be errors.
    for hosts in ("", "a:0", "a:x", ":3", "a,,b", "::1", "fd00::2:4", "[::1", "[]:2", "[::1]2", "-oProxyCommand=x", "a,-E/x:2", "[-x]:1"):
        q = subprocess.run([TESSERA, "launch", "--hosts=" + hosts, "--", "true"], capture_output=True, text=True, timeout=harness.HANG_S)
        assert q.returncode == 2 and "--hosts needs" in q.stderr, (hosts, q.stderr)
    q = launch(d, "localhost", ["no-such-command-at-all"])
    assert q.returncode == 127 and "no-such-command-at-all" in q.stderr, q.stderr
    q = launch(d, "elsewhere", ["true"], "--rsh", "no-such-shell -x")
    assert q.returncode == 127 and "no-such-shell" in q.stderr, q.stderr
    q = subprocess.run([TESSERA, "launch", "--", "true"], capture_output=True, text=True)
    assert q.returncode == 2 and "--hosts" in q.stderr, q.stderr


main()
