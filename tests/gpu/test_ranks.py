#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the command line with a library that replaces the CUDA driver and NCCL (tests/gpu/standin*): every form of --devices, every method
of communication, threads and processes, GPUs mixed with the host; rejected arguments and their messages."""
import functools, json, os, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

import harness

BUILD, STANDIN = sys.argv[1], sys.argv[2]
ROOT = os.getcwd()
BERT = ROOT + "/tests/models/bert_tiny"
case = harness.check


def call(*words, **more):
    env = {**os.environ, "TESSERA_CUDA": STANDIN, "TESSERA_NCCL": STANDIN, **more}
    p = subprocess.run([BUILD + "/tessera", *words], capture_output=True, text=True, env=env, timeout=170)
    return p.returncode, p.stdout, p.stderr


def verify(devices, *more, **env):
    return call("verify", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", devices, "--json", *more, **env)


def passes(name, devices, *more, **env):
    rc, out, err = verify(devices, *more, **env)
    doc = json.loads(out) if out else {}
    case(name, rc == 0 and doc.get("ok") and doc.get("recorded"), "exit %d %s" % (rc, err))


work = tempfile.TemporaryDirectory()


@functools.lru_cache(None)
def sharded(devices):
    """Write a random sharding of the model for these devices; returns its path."""
    model = work.name + "/%s.onnx" % devices.replace(",", "-").replace(":", "")
    call("annotate", BERT + "/model.onnx", "--config", "c:%d=%s" % (devices.count(",") + 1, devices), "--random", "3", "-o", model)
    return model


@functools.lru_cache(None)
def facts(devices, *more, launcher=()):
    """Run the sharded model once; returns the data of each rank."""
    env = {
        **os.environ, "TESSERA_CUDA": STANDIN, "TESSERA_NCCL": STANDIN, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"
    }
    words = [*launcher, BUILD + "/tessera", "run", sharded(devices), "--inputs", BERT + "/test_data_set_0", "--json", *more]
    p = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)
    return json.loads(p.stdout)["ranks"] if p.returncode == 0 else p.stderr


# The stand-in's NCCL connects threads only: between processes no rank ever joins. This case takes 4 s, so it runs in parallel to the
# others.
sharded("CUDA:0,CUDA:1")
waiting = ThreadPoolExecutor(1).submit(facts, "CUDA:0,CUDA:1", "--transport", "shm", "--timeout", "1")
passes("two GPUs", "cuda:2")
SHARDINGS = "2" if harness.ALL else "1"
passes("one GPU for two ranks, random shardings", "cuda:2@0", "--random", SHARDINGS)
passes("a list", "CUDA:0,CUDA:0,CPU", "--random", SHARDINGS)
passes("processes", "cuda:2@0", "--random", "1", "--transport", "shm")
passes("the CPU as reference", "cuda:2", "--reference", "cpu")
for way in ("own", "nccl", "host"):
    passes("way " + way, "cuda:3@0", "--random", SHARDINGS, "--seed", "4", "--gpu-way", way, STANDIN_LAG="30")
passes("a device without a name", "2", "--map-device", "CPU=CUDA:0", "--random", "1")


# Compare the device of each rank and the communication methods of its groups.
def told(name, ranks, providers, ways):
    ok = isinstance(ranks, list) and [r["device"] for r in ranks] == providers and all(r["provider"] == "CPU" and r["threads"] >= 1
                                                                                       for r in ranks)
    seen = {w["way"] for r in ranks for w in r["groups"]} if ok else None
    case("facts: " + name, ok and seen == ways and all(r["memory"] > 1000 for r in ranks), ranks)


def limits(name, ranks, wanted):
    case("limit: " + name, isinstance(ranks, list) and [r["memory_limit"] for r in ranks] == wanted, ranks)


# The stand-in reports 6 GiB free on each GPU. A sixteenth of a rank's share, at most 512 MiB, is reserved for libraries.
SHARE = (6 << 30) // 2
limits("a GPU for each", facts("CUDA:0,CUDA:1"), [(6 << 30) - (6 << 30) // 16] * 2)
limits("two share one", facts("CUDA:0,CUDA:0"), [SHARE - SHARE // 16] * 2)
limits("two processes share one", facts("CUDA:0,CUDA:0", "--transport", "shm"), [SHARE - SHARE // 16] * 2)
limits("one on the host", facts("CUDA:0,CPU"), [(6 << 30) - (6 << 30) // 16, None])
limits("the user's", facts("CUDA:0,CPU", "--gpu-memory", "1GiB"), [1 << 30, None])
CARD, CARDS = ["CUDA:0", "CUDA:0"], ["CUDA:0", "CUDA:1"]
told("threads on the host", facts("CPU,CPU"), ["CPU", "CPU"], {"threads"})
told("processes on the host", facts("CPU,CPU", "--transport", "shm"), ["CPU", "CPU"], {"shm"})
told("one GPU", facts("CUDA:0,CUDA:0"), CARD, {"own"})
told("one GPU, processes", facts("CUDA:0,CUDA:0", "--transport", "shm"), CARD, {"ipc"})
told("one GPU, through the host", facts("CUDA:0,CUDA:0", "--gpu-way", "host"), CARD, {"host"})
told("two GPUs", facts("CUDA:0,CUDA:1"), CARDS, {"nccl"})
told("a GPU and the host", facts("CUDA:0,CPU"), ["CUDA:0", "CPU"], {"host"})
said = waiting.result()
case("a communicator that does not come about is given up", "connected within 4 s" in said and "--gpu-way" in said, said)
mpirun = shutil.which("mpirun")
if mpirun:
    launcher = (mpirun, "--oversubscribe", "-n", "2")
    told("MPI on one host", facts("CPU,CPU", launcher=launcher), ["CPU", "CPU"], {"shm"})
    told("MPI alone", facts("CPU,CPU", "--transport", "mpi", launcher=launcher), ["CPU", "CPU"], {"mpi"})
else:
    print("ok facts: MPI # SKIP no mpirun")
rc, out, err = call("run", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", "2", "--json")
ranks = json.loads(out)["ranks"] if rc == 0 else []
case("planned and measured memory agree", len(ranks) == 2 and all(abs(r["memory"] / r["planned_memory"] - 1) < 0.06 for r in ranks), ranks)
rc, out, err = call("run", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", "2", "--verbose")
case("--verbose says what the ranks are", rc == 0 and "rank 1: CPU (CPU), " in out and "threads with ranks 0+1" in out, out + err)

# Measurements on GPUs: free memory, rates per type, links between GPUs; the result is a topology to plan for.
MEASURED = work.name + "/measured.json"
for devices, more in harness.sample((("CUDA:0,CPU", ("--transport", "shm")), ("cuda:2@0", ())), 1, 1):
    rc, out, err = call("topology", "measure", "--devices", devices, "--seconds", "0.05", "-o", MEASURED, *more)
    doc = json.load(open(MEASURED)) if rc == 0 else {"devices": [{}]}
    first = doc["devices"][0]
    rates = {"int8", "tf32", "float16"} if devices == "cuda:2@0" else {"int8"}
    case(
        "measure %s %s" % (devices, " ".join(more)),
        first.get("name") == "CUDA:0" and rates <= set(first["rates"]) and first["memory"] == (SHARE if rates > {"int8"} else 2 * SHARE)
        and first["flops"] > 0 and len(doc["links"]) == 2 and len(doc["collectives"]) > 0, "exit %d %s %s" % (rc, err, first))
rc, out, err = call("run", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", MEASURED, "--json")
case("a plan for what was measured", rc == 0 and [r["device"] for r in json.loads(out)["ranks"]] == ["CUDA:0", "CUDA:0"],
     "exit %d %s" % (rc, err))
rc, out, err = call("topology", "measure", "--devices", "cuda:2@7", "--seconds", "0.2")
case("measure a GPU that is not there", rc == 7 and "GPUs 0 to 1" in err, "exit %d %s" % (rc, err))

# Generation on several devices must give the tokens of one CPU.
FOLDER = ROOT + "/tests/folders/genai_tiny"
alone = call("generate", FOLDER, "--ids", "1,7,11", "--max-tokens", "12")[1]
for devices in ("cuda:2@0", "CUDA:0,CPU", "cuda:1", "ring:2"):
    rc, out, err = call("generate", FOLDER, "--ids", "1,7,11", "--max-tokens", "12", "--devices", devices)
    case("generate on " + devices, rc == 0 and len(alone.split()) == 12 and out == alone, "exit %d %s %s" % (rc, out, err))
rc, out, err = call("generate", FOLDER, "--ids", "1,7,11", "--devices", "cuda:9")
case("generate on more GPUs than there are", rc == 7 and "GPUs 0 to 1" in err, "exit %d %s" % (rc, err))
rc, out, err = call("generate", FOLDER, "--ids", "1,7,11", "--devices", "many")
case("generate on no topology", rc == 2 and "topology" in err, "exit %d %s" % (rc, err))
rc, out, err = call("bench", FOLDER, "--devices", "cuda:2@0", "--seconds", "0.1", "--max-tokens", "4", "--prompt-tokens", "5", "--json")
shm = call("bench", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", "cuda:2@0", "--transport", "shm", "--seconds",
           "0.3", "--json")
case("bench of processes, and of the unsharded model on their GPU", shm[0] == 0 and json.loads(shm[1])["unsharded_ms"],
     "exit %d %s" % (shm[0], shm[2]))
case("bench of a folder on GPUs", rc == 0 and json.loads(out)["devices"] == 2, "exit %d %s" % (rc, err))

rc, out, err = verify("cuda:3")
case("more GPUs than there are", rc == 7 and "GPUs 0 to 1" in err and "cuda:2@0" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", TESSERA_CUDA="/nowhere/libcuda.so")
case("no driver", rc == 7 and "0 GPUs" in err and "/nowhere/libcuda.so" in err and "cuda:2@0" not in err and "cpu:2" in err,
     "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:none")
case("no number", rc == 2, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2@0", "--gpu-way", "smoke")
case("a way that does not exist", rc == 2 and "smoke" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2@0", STANDIN_FAIL="cuDevicePrimaryCtxRetain:3")
case("a GPU that cannot be opened names its rank", rc == 7 and "out of memory" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", STANDIN_FREE="100000")
case("free memory is the plan's limit, which --memory cannot raise", rc == 4 and "use devices with" in err and "--memory" not in err,
     "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", "--memory", "100KB")
case("a limit that is too small", rc == 4 and "(--memory " in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", STANDIN_CARDS="1")
case("one GPU", rc == 7 and "this machine has 1 GPU: GPU 0" in err and "cuda:2@0" in err, "exit %d %s" % (rc, err))
rc, out, err = call("run", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", "2", "--map-device", "CPU=CUDA:9")
case("a rank on a GPU that is not there", rc == 7 and "GPU 9 of rank 0 cannot be opened: " in err, "exit %d %s" % (rc, err))
rc, out, err = call("doctor")
case("doctor lists GPUs", "GPU 1: Stand-in 1, 8.0 GiB, 6.0 GiB free; NCCL 2.30.7" in out, out)
rc, out, err = call("topology", "show", "cuda:2@1")
case("topology show", rc == 0 and "CUDA:1" in out, "exit %d %s %s" % (rc, out, err))
rc, out, err = call("topology", "show", "cuda:2@0", "--json")
times = json.loads(out)["collectives_us"] if rc == 0 else {}
case("an all-gather on one GPU takes longer than an all-reduce", rc == 0 and times["AllGather"]["1024"] > times["AllReduce"]["1024"],
     "exit %d %s %s" % (rc, times, err))
rc, out, err = call("topology", "show", "CUDA:0,CUDA:1", "--json")
times = json.loads(out)["collectives_us"] if rc == 0 else {}
case("on two GPUs the links decide", rc == 0 and times["AllGather"]["1024"] <= times["AllReduce"]["1024"],
     "exit %d %s %s" % (rc, times, err))
harness.finish()
