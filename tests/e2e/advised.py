# SPDX-License-Identifier: Apache-2.0
"""What must hold for every answer of `tessera advise`, on decoders of two layers: more users or requests never need fewer machines, a
larger limit or more memory never needs more, machines are counted exactly, and what a row promises is within the limits.

usage: advised.py TESSERA DECODER (examples/python/decoder.py)"""
import json, math, os, subprocess, sys

import onnx

import harness

TESSERA, DECODER = (os.path.abspath(path) for path in sys.argv[1:3])
STATES = ("--state", "*.past_k=*.present_k", "--state", "*.past_v=*.present_v")
PROMPTS = ("--prefill", "8b-float16-prompts.onnx")
GIB = 1 << 30


def models(d):
    subprocess.run([sys.executable, DECODER, "8b", "float16", "2"], cwd=d, check=True)


def advise(d, *words, past=4096, model="8b-float16-tokens.onnx", exits=(0, 4)):
    """Returns the row of the only machine."""
    code, out, err = harness.call(TESSERA, "advise", model, *words, "--dim", "past=%d" % past, *STATES, "--json", cwd=d)
    assert code in exits, (words, code, err)
    return json.loads(out)["rows"][0]


def never_fewer(counts):
    """None: no machine serves them."""
    known = [math.inf if c is None else c for c in counts]
    return known == sorted(known)


def counts_are_exact(d):
    """The number of machines is that of the largest batch, whatever the number of users."""
    models(d)
    box = ("--boxes", "h100:1", "--slo", "tpot=4ms")
    largest = 1
    while advise(d, *box, "--users", str(largest * 2))["count"] == 1:
        largest *= 2
    step = largest
    while step := step // 2:
        if advise(d, *box, "--users", str(largest + step))["count"] == 1:
            largest += step
    users = [1, 2, 3, 17, 24, 33, 47, 65, largest - 1, largest, largest + 1, 3 * largest // 2, 2 * largest, 2 * largest + 1, 10000]
    rows = {n: advise(d, *box, "--users", str(n)) for n in sorted(users)}
    for n, row in rows.items():
        assert row["count"] == -(-n // largest), (n, largest, row)
        assert row["batch"] == -(-n // row["count"]) and row["milliseconds"] <= 4, (n, row)
    without = advise(d, *box)["batch"]
    assert largest * 15 / 16 <= without <= largest, (without, largest)


def users_with_prompts(d):
    models(d)
    box = ("--boxes", "l40s:2", *PROMPTS, "--prefill-dim", "seq=2048", "--slo", "tpot=3ms,ttft=1s")
    counts = [advise(d, *box, "--users", str(n))["count"] for n in (1, 5, 17, 24, 32, 33, 50, 64, 65, 100, 200, 1000)]
    assert never_fewer(counts) and counts[0] == 1, counts


def larger_limits(d):
    """More time or memory never needs more machines, and never gives a smaller batch."""
    models(d)
    cases = {
        "tpot": [("--slo", "tpot=%gms,ttft=1s" % t) for t in (0.6, 0.8, 1, 1.5, 2, 3, 5, 8)],
        "ttft": [("--slo", "tpot=2ms,ttft=%gms" % t) for t in (1, 5, 8, 12, 20, 50, 100, 500)],
        "memory": [("--slo", "tpot=4ms,ttft=1s", "--memory", "%gGB" % m) for m in (2, 3, 4, 5, 6, 8, 12, 24)],
    }
    load = ("--load", "rate=300,answer=200,seq=1024", "--load", "rate=900,answer=50,seq=256")
    for name, limits in cases.items():
        batches = [advise(d, "--boxes", "h100:1", *limit)["batch"] for limit in limits]
        assert batches == sorted(batches), (name, batches)
        for more in (("--users", "500", "--prefill-dim", "seq=512"), load):
            counts = [advise(d, "--boxes", "h100:1", *limit, *PROMPTS, *more).get("count") for limit in limits]
            assert never_fewer(counts[::-1]) and counts[-1], (name, more, counts)


def loads(d):
    """More requests never need fewer machines. At the load, 95 of 100 requests are within both limits."""
    models(d)
    box = ("--boxes", "h100:1", *PROMPTS, "--slo", "tpot=2ms,ttft=50ms")
    rows = [advise(d, *box, "--load", "rate=%g,answer=100,seq=1024" % rate) for rate in (0.1, 1, 10, 50, 100, 200, 400, 1000)]
    assert never_fewer([row["count"] for row in rows]) and rows[0]["count"] == 1, rows
    for row in rows:
        assert row["ttft_95_milliseconds"] <= 50 and row["tpot_95_milliseconds"] <= 2, row
        assert len({row["requests_per_second"] for row in rows}) == 1, rows
    pools = ("--pools", "--load", "rate=1,answer=1,seq=64")
    assert "answers of several tokens" in harness.call(TESSERA, "advise", "8b-float16-tokens.onnx", *box, *pools, cwd=d)[2]


def memory_by_hand(d):
    """Weights and caches in 16 bits, and little else."""
    models(d)
    sizes = {t.name: 2 * math.prod(t.dims) for t in onnx.load(d + "/8b-float16-tokens.onnx", load_external_data=False).graph.initializer}
    for users, past in ((1, 1024), (8, 4096), (32, 8192)):
        row = advise(d, "--boxes", "h100:1", "--slo", "tpot=1s", "--users", str(users), past=past)
        bytes_ = sum(sizes.values()) + users * past * 2 * 2 * 8 * 128 * 2
        assert row["count"] == 1 and bytes_ < row["memory"][0] < 1.1 * bytes_ + GIB / 4, (users, past, bytes_, row["memory"])


def prompts_with_other_names(d):
    """The batch of the model that reads prompts may have another name than that of the other model, or a fixed size."""
    models(d)
    wanted = None
    for name in ("batch", "batch_size", "requests", 1):
        model = onnx.load(d + "/8b-float16-prompts.onnx", load_external_data=False)
        for value in [*model.graph.input, *model.graph.output]:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "batch" and name == 1:
                    dim.dim_value = 1
                elif dim.dim_param == "batch":
                    dim.dim_param = name
        onnx.save(model, d + "/prompts.onnx")
        prompts = ("--prefill", "prompts.onnx", "--prefill-dim", "seq=2048")
        row = advise(d, "--boxes", "h100:1", "--slo", "tpot=5ms,ttft=1s", "--users", "8", *prompts)
        found = row["batch"], round(row["ttft_milliseconds"], 3)
        wanted = wanted or found
        assert found == wanted, (name, found, wanted)


def prices(d):
    """The cheapest comes first; a machine without a price comes after those with one; prices that fit no machine are reported."""
    models(d)
    with open(d + "/prices.json", "w", encoding="utf-8") as file:
        json.dump({"h100": 3, "l40s:2": 1.5}, file)
    words = ("--boxes", "4090:1,h100:1,l40s:2,{2, [[1],[0]]}", "--slo", "tpot=1s", "--users", "64", "--dim", "past=1024", *STATES)
    rows = json.loads(harness.good(TESSERA, "advise", "8b-float16-tokens.onnx", *words, "--prices", "prices.json", "--json", cwd=d))["rows"]
    paid = [row["dollars_per_hour_of_all"] for row in rows if "dollars_per_hour" in row]
    assert len(paid) == 2 and paid == sorted(paid) and "dollars_per_hour" in rows[1], rows
    assert {row["devices"] for row in rows} == {"4090:1", "h100:1", "l40s:2", "{2, [[1],[0]]}"}, rows
    with open(d + "/prices.json", "w", encoding="utf-8") as file:
        json.dump({"H100": 3}, file)
    code, _, err = harness.call(TESSERA, "advise", "8b-float16-tokens.onnx", *words, "--prices", "prices.json", cwd=d)
    assert code == 0 and "no machine has a price" in err, (code, err)


def assumed_sizes(d):
    """Sizes that nobody gave are named, with the option that sets them."""
    models(d)
    words = ("--boxes", "h100:1", "--slo", "tpot=1s", "--max-batch", "2", *STATES, *PROMPTS)
    _, _, err = harness.call(TESSERA, "advise", "8b-float16-tokens.onnx", *words, cwd=d)
    assert "--dim past=N" in err and "--prefill-dim seq=N" in err and "batch" not in err, err
    code, _, err = harness.call(TESSERA, "advise", "8b-float16-tokens.onnx", *words, "--prefill-dim", "past=0", cwd=d)
    assert code == 2 and "'past=0'; give 1 for an empty cache" in err, (code, err)


harness.run([counts_are_exact, users_with_prompts, larger_limits, loads, memory_by_hand, prompts_with_other_names, prices, assumed_sizes])
harness.finish()
