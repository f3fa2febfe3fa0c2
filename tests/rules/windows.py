#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the window arithmetic of rules: poolings and convolutions of one dimension, all small sizes, kernels, strides, dilations, pads,
automatic pads and rounding modes. Each is sharded in 2, 3 and 4 parts and compared with the unsharded run in ONNX Runtime, as in prove.py
but with many more numbers. Cases that the engine rejects unsharded are skipped.

Usage: windows.py PRINT_RULE [all]    (without `all` every 67th case, and every 7th with automatic pads)
"""
import functools, itertools, json, os, subprocess, sys, tempfile
import onnx
import prove

import harness

SIZES, KERNELS, STRIDES, DILATIONS = range(1, 10), range(1, 5), range(1, 5), range(1, 4)
POOLS = {"AveragePool": [dict(count_include_pad=k) for k in (0, 1)], "MaxPool": [{}], "LpPool": [dict(p=1), dict(p=2)]}


def pads_of(reach):
    """All paddings: automatic ones, and every pair of numbers smaller than the window."""
    yield from (dict(auto_pad=way) for way in ("SAME_UPPER", "SAME_LOWER", "VALID"))
    for before, after in itertools.product(range(min(reach, 4)), repeat=2):
        yield dict(pads=[before, after])


def attributes_of(op):
    """All attributes of one operator, in a fixed order."""
    for kernel, stride, dilation in itertools.product(KERNELS, STRIDES, DILATIONS):
        for pad in pads_of(dilation * (kernel - 1) + 1):
            base = dict(pad, kernel_shape=[kernel], strides=[stride], dilations=[dilation])
            if op == "Conv":
                yield base
                continue
            for ceil, own in itertools.product((0, 1), POOLS[op]):
                yield dict(base, ceil_mode=ceil, **own)


def job_of(op, attributes, size):
    inputs = [prove.floats(1, 2, size)] + ([prove.floats(3, 2, attributes["kernel_shape"][0])] if op == "Conv" else [])
    return op, 22, "", prove.case(*inputs, attributes=attributes)


def chosen(everything):
    """A sample (all cases take minutes), denser where this arithmetic was wrong in the past (SAME, a kernel smaller than its stride)."""
    for op in list(POOLS) + ["Conv"]:
        for i, (attributes, size) in enumerate(itertools.product(attributes_of(op), SIZES)):
            automatic = "SAME" in attributes.get("auto_pad", "") and attributes["kernel_shape"] <= attributes["strides"]
            if everything or i % 67 == 0 or (automatic and i % 7 == 0):
                yield job_of(op, attributes, size)


def flat():
    """Poolings of two dimensions; in the first one the kernel may be longer than the padded input, which ONNX Runtime accepts."""
    for op, height, end, stride, ceil in itertools.product(POOLS, range(1, 4), range(2), (1, 3, 4), (0, 1)):
        for own in POOLS[op]:
            attributes = dict(kernel_shape=[3, 3], pads=[0, 1, end, 1], strides=[stride, 1], ceil_mode=ceil, **own)
            yield op, 22, "", prove.case(prove.floats(1, 2, height, 6), attributes=attributes)


def rules_of(printer, jobs):
    rules = []
    with tempfile.TemporaryDirectory() as d:
        for start in range(0, len(jobs), 1000):
            files = []
            for i, (op, since, domain, c) in enumerate(jobs[start:start + 1000]):
                files.append(os.path.join(d, "%d.onnx" % i))
                onnx.save(prove.node_model(op, since, c, True, domain), files[-1])
            lines = subprocess.run([printer] + files, check=True, capture_output=True, text=True).stdout.splitlines()
            rules += [json.loads(line) for line in lines]
    return rules


@functools.lru_cache(maxsize=None)
def machine_of(text, make=prove.Machine):
    return make(onnx.ModelProto.FromString(text))


def engine_runs(job):
    op, since, domain, c = job
    try:
        machine = machine_of(prove.node_model(op, since, c, False, domain).SerializeToString())
        return not machine.reference and machine(c["inputs"])[0].size > 0
    except Exception:
        return False


def main(printer, everything):
    prove.Machine = lambda model: machine_of(model.SerializeToString())  # sizes are symbolic in the models, so that few sessions are needed
    jobs = [job for job in itertools.chain(chosen(everything), flat()) if engine_runs(job)]
    cut, proved, bad = 0, 0, []
    for job, rule in zip(jobs, rules_of(printer, jobs)):
        n, wrong = prove.prove_case(*job, rule)
        proved += n
        cut += any(f["kind"] == "par" for w in rule["windows"] for f in [rule["factors"][w["factor"]]])
        if wrong:
            bad.append("%s of %d elements, %s: %s" % (job[0], job[3]["inputs"][0].shape[2], job[3]["attributes"], wrong))
    harness.check("shards of windows", not bad, "\n".join(bad))
    harness.check("a fifth of the windows can be sharded", cut >= len(jobs) / 5, cut)
    print("# %d nodes, %d of them with windows that are sharded, %d shardings proved" % (len(jobs), cut, proved))
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1], harness.ALL)
