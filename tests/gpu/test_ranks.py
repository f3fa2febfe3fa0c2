#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command with a library in place of CUDA's driver and NCCL (tests/gpu/standin*): every form of --devices, every way to
communicate, threads and processes, mixed with the host; what is refused, and what is said."""
import json, os, subprocess, sys

BUILD, STANDIN = sys.argv[1], sys.argv[2]
ROOT = os.getcwd()
BERT = ROOT + "/tests/models/bert_tiny"
failed = 0


def call(*words, **more):
    env = {**os.environ, "TESSERA_CUDA": STANDIN, "TESSERA_NCCL": STANDIN, **more}
    p = subprocess.run([BUILD + "/tessera", *words], capture_output=True, text=True, env=env, timeout=170)
    return p.returncode, p.stdout, p.stderr


def case(name, ok, why=""):
    global failed
    print("%s %s" % ("ok" if ok else "not ok", name), flush=True)
    if not ok:
        failed += 1
        print("# " + str(why).replace("\n", "\n# "))


def verify(devices, *more, **env):
    return call("verify", BERT + "/model.onnx", "--inputs", BERT + "/test_data_set_0", "--devices", devices, "--json", *more, **env)


def passes(name, devices, *more, **env):
    rc, out, err = verify(devices, *more, **env)
    doc = json.loads(out) if out else {}
    case(name, rc == 0 and doc.get("ok") and doc.get("recorded"), "exit %d %s" % (rc, err))


passes("two GPUs", "cuda:2")
passes("one GPU for two ranks, random shardings", "cuda:2@0", "--random", "2")
passes("a list", "CUDA:0,CUDA:0,CPU", "--random", "2")
passes("processes", "cuda:2@0", "--random", "1", "--transport", "shm")
passes("the CPU as reference", "cuda:2", "--reference", "cpu")
for way in ("own", "nccl", "host"):
    passes("way " + way, "cuda:3@0", "--random", "2", "--seed", "4", "--gpu-way", way, STANDIN_LAG="30")
passes("a device without a name", "2", "--map-device", "CPU=CUDA:0", "--random", "1")

rc, out, err = verify("cuda:3")
case("more GPUs than there are", rc == 7 and "GPUs 0 to 1" in err and "cuda:2@0" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", TESSERA_CUDA="/nowhere/libcuda.so")
case("no driver", rc == 7 and "0 GPUs" in err and "/nowhere/libcuda.so" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:none")
case("no number", rc == 2, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2@0", "--gpu-way", "smoke")
case("a way that does not exist", rc == 2 and "smoke" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2@0", STANDIN_FAIL="cuDevicePrimaryCtxRetain:3")
case("a GPU that cannot be opened names its rank", rc == 7 and "out of memory" in err, "exit %d %s" % (rc, err))
rc, out, err = verify("cuda:2", STANDIN_FREE="100000")
case("free memory is the plan's limit", rc == 4, "exit %d %s" % (rc, err))
rc, out, err = call("doctor")
case("doctor lists GPUs", "GPU 1: Stand-in 1, 8.0 GiB, 6.0 GiB free; NCCL 2.30.7" in out, out)
rc, out, err = call("topology", "show", "cuda:2@1")
case("topology show", rc == 0 and "CUDA:1" in out, "exit %d %s %s" % (rc, out, err))
sys.exit(failed > 0)
