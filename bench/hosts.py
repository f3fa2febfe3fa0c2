#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hosts - ranks on several hosts, which are network namespaces with links of a given delay and rate (bench/link.c). Needs root.

    hosts [--layers N] [--vocabulary N] [--tokens N] [--rounds N] [--link US,MBIT ...] [--counts 1,2,4] [--cores N]
          [--distributed-llama PROGRAM] [--llama-cpp FOLDER] [--json]

1. All-reduces: small ones between 2 and 4 hosts compared with the round trip of a byte, 64 MiB of 2 x 4 ranks with messages only.
2. Tokens per second of a random 4-bit decoder (default: the sizes of Qwen3-0.6B) on 1, 2 and 4 hosts, of Tessera and of the peers that
   are given: the program `dllama`, and the folder with `llama-bench` and `ggml-rpc-server` or `rpc-server`. Nothing is downloaded.
   All sides run in turn. Figures are medians of the rounds; the table also has the least and the greatest.

Prints one line per figure: name, ours, peer, ratio, goal, ok or short; then the second part as a table. With --json it prints the second
part only, one JSON object for each number of hosts and link: the tokens per second of all rounds."""
import argparse, contextlib, json, os, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

ROOT = os.getcwd()  # tools/bench starts it in the root of the project
HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(BUILD, "python"), ROOT + "/tests/genai", ROOT + "/bench"]
PROMPT = 128
LINKS = ["300,1000", "50,10000"]
LIMIT_S = 300


class Network:
    """Hosts on one link. Each has its own cores, if there are enough; the link has the others."""

    def __init__(self, hosts, delay_us, mbit, cores):
        mine = sorted(os.sched_getaffinity(0))
        self.cores = [[mine[(k * cores + i) % len(mine)] for i in range(cores)] for k in range(hosts)]
        rest = [str(core) for core in mine if not any(core in own for own in self.cores)]
        pinned = ["taskset", "-c", ",".join(rest)] if len(rest) > 1 else []
        self.link = subprocess.Popen([*pinned, HERE + "/link", str(hosts), str(delay_us), str(mbit)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        lines = [self.link.stdout.readline().split() for _ in range(hosts)]
        if not all(lines):
            sys.exit("bench: no network namespaces")
        self.addresses, self.pids = zip(*lines)
        self.started = []

    def words(self, k):
        return ["nsenter", "--target", self.pids[k], "--net", "--uts", "--mount", "--wd=" + ROOT, "taskset", "-c",
                ",".join(map(str, self.cores[k]))]

    def start(self, k, *command, **how):
        # A session of its own would not have the priority of this one (sched_autogroup).
        process = subprocess.Popen([*self.words(k), *map(str, command)], process_group=0, stdin=subprocess.DEVNULL, **how)
        self.started.append(process)
        return process

    def call(self, k, *command):
        done = subprocess.run([*self.words(k), *map(str, command)], capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            sys.exit("bench: %s failed: %s" % (command[0], (done.stdout + done.stderr)[-3000:]))
        return done.stdout

    def listens(self, k, port):
        """Waits until a server of that host accepts connections."""
        probe = "import socket; socket.create_connection(('%s', %d), 1)" % (self.addresses[k], port)
        for _ in range(100):
            if subprocess.run([*self.words(k), sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.1)
        sys.exit("bench: nothing listens at %s port %d" % (self.addresses[k], port))

    def end_started(self):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_started()
        self.link.stdin.close()
        self.link.wait()


def say(name, ours, peer, ratio, goal, ok):
    print("%-62s %14s %14s %8s  %-8s %s" % ("hosts: " + name, ours, peer, "%.2f" % ratio, goal, "ok" if ok else "short"), flush=True)


def text_of(link):
    delay, mbit = link
    return "%g Gbit/s, %g ms" % (mbit / 1000, delay / 1000)


# ---- all-reduces --------------------------------------------------------------------------------


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def all_reduce(network, ranks, method, *sizes):
    """Median microseconds by size, with that many ranks on each host."""
    hosts = ",".join("%s:%d" % (address, ranks) for address in network.addresses)
    words = lambda rank: [HERE + "/hosts_peer", "rank", rank, hosts, port, method, *sizes]
    port = free_port()
    for rank in range(1, ranks * len(network.addresses)):
        network.start(rank // ranks, *words(rank))
    lines = network.call(0, *words(0)).split("\n")
    network.end_started()
    return {int(line.split()[0]): float(line.split()[1]) for line in lines if line}


def compare_small(link, cores, rounds, hosts):
    """All-reduces of a decode step, in which each host sends its tensor to all others, against the round trip of a byte."""
    with Network(hosts, *link, cores) as network:
        network.start(1, HERE + "/hosts_peer", "echo", network.addresses[1], stdout=subprocess.DEVNULL)
        network.listens(1, 5999)
        trip = min(float(network.call(0, HERE + "/hosts_peer", "trip", network.addresses[1], 1).split()[2]) for _ in range(rounds))
        network.end_started()
        found = [all_reduce(network, 1, "hosts", 4096, 16384) for _ in range(rounds)]
    for size in found[0]:
        us = min(times[size] for times in found)
        say("%d KiB, %d hosts, %s, against a round trip" % (size >> 10, hosts, text_of(link)), "%.0f us" % us, "%.0f us" % trip,
            us / trip, "<=1.3x", us <= 1.3 * trip)


def compare_large(link, cores, rounds):
    large = 64 << 20
    with Network(2, *link, cores) as network:
        ours, flat = (min(all_reduce(network, 4, method, large)[large] for _ in range(rounds)) for method in ("hosts", "messages"))
    say("64 MiB, 2 x 4, %s, against messages" % text_of(link), "%.0f ms" % (ours / 1e3), "%.0f ms" % (flat / 1e3), flat / ours, ">=1x",
        ours <= flat)


def compare_collectives(link, cores, rounds):
    for hosts in (2, 4):
        if hosts == 2 or hosts * cores <= len(os.sched_getaffinity(0)):  # ranks that share a core show nothing of the link
            compare_small(link, cores, rounds, hosts)
    compare_large(link, cores, rounds)


# ---- decoders -----------------------------------------------------------------------------------


def measure(folder, tokens, threads, hosts, secret):
    """Prints tokens per second of the prompt and of the tokens after the first. Runs on the first host."""
    import numpy as np
    import onnxruntime_genai as genai
    import tessera
    if hosts:
        model = tessera.Generator(folder, hosts=hosts, secret_file=secret, threads=threads).model
    else:
        config = genai.Config(folder)
        config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}' % threads)
        model = genai.Model(config)
    best = [0, 0]
    for _ in range(2):  # the first pass warms up
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=PROMPT + tokens, min_length=PROMPT + tokens, do_sample=False)
        generator = genai.Generator(model, parameters)
        began = time.perf_counter()
        generator.append_tokens(np.array([[3 + i % 90 for i in range(PROMPT)]], np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(tokens - 1):
            generator.generate_next_token()
        speeds = PROMPT / (first - began), (tokens - 1) / (time.perf_counter() - first)
        best = list(map(max, best, speeds))
    print("speeds %f %f" % tuple(best))


class Tessera:
    name = "Tessera"

    def __init__(self, folder, shape, options):
        from hosts_models import write_onnx
        self.folder, self.tokens, self.cores, self.place = write_onnx(folder + "/onnx", shape), options.tokens, options.cores, folder
        with open(folder + "/secret", "w") as f:
            f.write("the secret of a benchmark\n")

    def run(self, network):
        hosts = "" if len(network.addresses) == 1 else ",".join(address + ":1" for address in network.addresses)
        for k in range(1, len(network.addresses)):
            network.start(k, BUILD + "/tessera", "worker", "--listen", network.addresses[k], "--secret-file", self.place + "/secret",
                          "--cache", "%s/cache%d" % (self.place, k), stdout=subprocess.DEVNULL)
            network.listens(k, 29500)
        out = network.call(0, sys.executable, __file__, "measure", self.folder, self.tokens, self.cores, hosts, self.place + "/secret")
        return tuple(map(float, re.search(r"speeds (\S+) (\S+)", out).groups()))


class DistributedLlama:
    name = "distributed-llama"

    def __init__(self, folder, shape, options):
        from hosts_models import write_distributed_llama
        self.program, self.tokens, self.cores = os.path.abspath(options.distributed_llama), options.tokens, options.cores
        self.model, self.tokenizer = folder + "/model.m", folder + "/tokenizer.t"
        write_distributed_llama(self.model, self.tokenizer, shape)

    def run(self, network):
        for k in range(1, len(network.addresses)):
            network.start(k, self.program, "worker", "--port", 9999, "--nthreads", self.cores, stdout=subprocess.DEVNULL)
        time.sleep(1)  # a probe would be taken for a session
        workers = [address + ":9999" for address in network.addresses[1:]]
        out = network.call(0, self.program, "inference", "--model", self.model, "--tokenizer", self.tokenizer, "--buffer-float-type", "q80",
                           "--prompt", "a" * PROMPT, "--steps", PROMPT + self.tokens, "--nthreads", self.cores, "--temperature", 0,
                           *(["--workers", *workers] if workers else []))
        return tuple(float(speed) for speed in re.findall(r"tokens/s: (\S+)", out))


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, folder, shape, options):
        from hosts_models import write_gguf
        self.folder, self.tokens, self.cores, self.layers = os.path.abspath(options.llama_cpp), options.tokens, options.cores, shape.layers
        self.server = next(path for path in (self.folder + "/" + name for name in ("ggml-rpc-server", "rpc-server"))
                           if os.path.exists(path))
        self.model = folder + "/model.gguf"
        write_gguf(self.model, shape)

    def run(self, network):
        n = len(network.addresses)
        for k in range(1, n):
            network.start(k, self.server, "-H", network.addresses[k], "-p", 50052, "-t", self.cores, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
            network.listens(k, 50052)
        servers = ",".join(address + ":50052" for address in network.addresses[1:])
        # The first host computes its share of the layers, the servers the others.
        elsewhere = ["--rpc", servers, "-ngl", self.layers * (n - 1) // n] if servers else []
        out = network.call(0, self.folder + "/llama-bench", "-m", self.model, "-p", PROMPT, "-n", self.tokens, "-t", self.cores, "-r", 2,
                           "-o", "json", *elsewhere)
        return tuple(entry["avg_ts"] for entry in json.loads(out[out.index("["):]))


def compare_decoders(folder, shape, options):
    sides = [Tessera(folder, shape, options)]
    for kind, given, what in ((DistributedLlama, options.distributed_llama, "--distributed-llama PROGRAM"),
                              (LlamaCpp, options.llama_cpp, "--llama-cpp FOLDER")):
        if given:
            sides.append(kind(folder, shape, options))
        elif not options.json:
            print("hosts: %s is not measured: give %s" % (kind.name, what))
    speeds = {}
    for link in options.link:
        for n in options.counts:
            if n == 1 and link != options.link[0]:
                continue  # a single host does not use its link
            rounds = {side.name: [] for side in sides}
            for _ in range(options.rounds):
                for side in sides:
                    with Network(n, *link, options.cores) as network:
                        rounds[side.name].append(side.run(network))
            speeds[None if n == 1 else link, n] = {name: list(zip(*of)) for name, of in rounds.items()}
            if options.json:
                steps = {name: dict(zip(("prefill", "decode"), zip(*of))) for name, of in rounds.items()}
                print(json.dumps({"hosts": n, "link": text_of(link) if n > 1 else "", "tokens_per_s": steps}), flush=True)
                continue
            for k, what in enumerate(("prefill", "decode")):
                for side in sides[1:]:
                    ours, peer = (statistics.median(row[k] for row in rounds[name]) for name in ("Tessera", side.name))
                    goal = 2 if side.name == "distributed-llama" and n > 1 else 1
                    say("%s, %d hosts%s, against %s" % (what, n, ", " + text_of(link) if n > 1 else "", side.name), "%.1f/s" % ours,
                        "%.1f/s" % peer, ours / peer, ">=%gx" % goal, ours >= goal * peer)
    if not options.json:
        print_table(speeds, sides)


def print_table(speeds, sides):
    print("\n| link | hosts | " + " | ".join("%s, prefill | decode" % side.name for side in sides) + " |")
    print("|---|---|" + "---|---|" * len(sides))
    for (link, n), of in speeds.items():
        cells = ["%.1f (%.1f to %.1f)" % (statistics.median(row), min(row), max(row)) for side in sides for row in of[side.name]]
        print("| %s | %d | %s |" % (text_of(link) if link else "", n, " | ".join(cells)))


def read_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    spare = max(2, len(os.sched_getaffinity(0))) - 2
    pair = lambda s: tuple(map(float, s.split(",")))
    p.add_argument("--layers", type=int, default=28)
    p.add_argument("--vocabulary", type=int, default=151936)
    p.add_argument("--tokens", type=int, default=64, help="tokens after the prompt of %d" % PROMPT)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--link", type=pair, action="append", metavar="US,MBIT", help="delay and rate; default: " + " and ".join(LINKS))
    p.add_argument("--counts", type=lambda s: list(map(int, s.split(","))), default=[1, 2, 4], help="numbers of hosts")
    p.add_argument("--cores", type=int, default=max(1, spare // 4), help="cores of each host")
    p.add_argument("--only", choices=("collectives", "decoders"), help="one of the two parts")
    p.add_argument("--json", action="store_true", help="print the tokens per second as JSON")
    p.add_argument("--distributed-llama", metavar="PROGRAM")
    p.add_argument("--llama-cpp", metavar="FOLDER")
    options = p.parse_args()
    options.link = options.link or list(map(pair, LINKS))
    return options


def main():
    options = read_options()
    if os.geteuid() != 0 or not shutil.which("nsenter") or not os.path.exists("/dev/net/tun"):
        print("hosts: not measured: needs root, nsenter and /dev/net/tun")
        return
    if not os.path.exists(BUILD + "/libtessera_ucx.so"):
        print("hosts: not measured: no plug-in for UCX in this build")
        return
    os.environ.update(TESSERA_LIBRARY=BUILD + "/libtessera.so", TESSERA_PLUGINS=BUILD)
    for link in options.link if options.only != "decoders" and not options.json else []:
        compare_collectives(link, options.cores, options.rounds)
    if options.only == "collectives":
        return
    try:
        import onnxruntime_genai  # noqa: F401
    except ImportError:
        print("hosts: decoders are not measured: no onnxruntime-genai")
        return
    from hosts_models import Shape
    shape = Shape(options.layers, options.vocabulary)
    if not options.json:
        print("hosts: decoder of %.2f billion parameters, %d cores per host" % (shape.parameters() / 1e9, options.cores))
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        compare_decoders(folder, shape, options)


if sys.argv[1:2] == ["measure"]:
    measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
else:
    main()
