# SPDX-License-Identifier: Apache-2.0
"""Tests bench/proof.py (`make proof`) in its small version without network namespaces, and the steps of bench/proof_gpu.py on CPU ranks.

usage: proof.py TESSERA MODELS"""
import argparse
import os
import sys

import harness

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import proof

TESSERA, MODELS = map(os.path.abspath, sys.argv[1:3])
BUILD = os.path.dirname(TESSERA)
OPTIONS = argparse.Namespace(build=BUILD, size="small", limit_by=None, no_hosts=True)


def small_version(folder):
    """The unsharded model must run out of memory. Two ranks with the same limit each must return the right result."""
    out = harness.good(sys.executable, "-B", ROOT + "/bench/proof.py", BUILD, "small", "--folder", folder, "--no-hosts")
    table = out[out.rindex("GB of float32 weights"):].splitlines()
    rows = {tuple(line.split("  ")[0].split(", ")): line for line in table if " GB  " in line}
    limited = [line for line in table if line.startswith("ONNX Runtime, unsharded") and "none" not in line]
    assert len(limited) == 1 and (" ended at " in limited[0] or " killed at " in limited[0]), out
    assert "difference" in rows[("2 ranks on one host",)], out
    assert "is effective" in out and "skipped: two hosts: --no-hosts" in out and not os.listdir(folder), out


def ranks_leave_address_space(folder):
    """Heaps in shared memory must fit a limit on address space. Without regard to the limit they would be 16 GiB, 2 GiB or missing."""
    bert = MODELS + "/bert_tiny"
    sizes = ["--dim", "batch=2", "--dim", "seq=9"]
    harness.good(TESSERA, "partition", bert + "/model.onnx", "--devices", "2", *sizes, "-o", folder + "/parts")
    command = [TESSERA, "run", folder + "/parts", "--inputs", bert + "/test_data_set_0", "--threads", "1", "--meet", folder + "/meet"]
    for limit in (512 << 20, 2100 << 20, 16500 << 20):
        limits = [proof.AddressSpace(limit) for _ in range(2)]
        ran = proof.run(limits, [[*command, "--rank", str(k), "--ranks", "2"] for k in range(2)], harness.environment())
        assert [r.code for r in ran] == [0, 0], (limit, [r.text for r in ran])


def unsharded_model_without_memory(folder):
    """The error must say that memory is missing and what to do."""
    harness.good(sys.executable, ROOT + "/tools/block", folder, 4, 1024, 8, 6)
    ran, = proof.run([proof.AddressSpace(300 << 20)], [[TESSERA, "run", folder + "/model.onnx", "--threads", "1"]], harness.environment())
    for part in ("error[rank-memory]: ONNX Runtime ran out of memory while the model was loaded", "--devices 2"):
        assert ran.code == 7 and part in ran.text, (ran.code, ran.text)


def probe_detects_a_limit_without_effect(folder):
    work = proof.Proof(OPTIONS, folder)
    work.limit_bytes = 128 << 20
    work.probe()
    work.limit_kind = proof.Unlimited
    try:
        work.probe()
    except proof.Failed as error:
        assert "not effective" in str(error), error
    else:
        raise AssertionError("a probe without a limit passes")


def a_wrong_result_fails(folder):
    import numpy as np
    work = proof.Proof(OPTIONS, folder)
    np.save(folder + "/reference.npy", np.ones(4, "f4"))
    np.savez(folder + "/same.npz", y=np.ones(4, "f4"))
    assert work.difference("same.npz") == "difference 0.0e+00"
    for name, values in (("wrong", [1, 1, 1, 1.001]), ("nan", [1, 1, 1, np.nan])):
        np.savez("%s/%s.npz" % (folder, name), y=np.array(values, "f4"))
        try:
            work.difference(name + ".npz")
        except proof.Failed as error:
            assert "differs from the reference" in str(error), error
        else:
            raise AssertionError("%s passes" % name)


def control_group_kills(folder):
    """The kernel must kill a program that uses more memory than its control group allows."""
    problem = proof.group_problem()
    if problem:
        return problem
    fill = "b = bytearray(%d)\nfor i in range(0, len(b), 4096): b[i] = 1" % (256 << 20)
    ran, = proof.run([proof.Group(64 << 20)], [[sys.executable, "-c", fill]], dict(os.environ))
    assert ran.code == -9 and "killed by the kernel" in ran.out_of_memory() and 32 << 20 < ran.counted <= 64 << 20, (ran.code, ran.counted)


def steps_of_the_gpu_version(folder):
    words = [sys.executable, "-B", ROOT + "/bench/proof_gpu.py", BUILD, folder + "/f", "--devices", "cpu:2", "--seconds", "0.1"]
    small = ["--size", "16,256,4,4", "--limit", "8MB"]
    out = harness.good(*words, *small, "make", "one")
    assert "ok one" in out and "error[plan-infeasible]" in out, out
    out = harness.good(*words, *small, "two", "table")
    assert "ok table" in out and "difference" in out and not os.path.exists(folder + "/f/two"), out
    code, out, _ = harness.call(*words, *small[:2], "--limit", "80MB", "one")
    assert code == 1 and "expected error[plan-infeasible]" in out, out


harness.run([small_version, ranks_leave_address_space, unsharded_model_without_memory, probe_detects_a_limit_without_effect,
             a_wrong_result_fails, control_group_kills, steps_of_the_gpu_version])
harness.finish()
