# SPDX-License-Identifier: Apache-2.0
"""Tests predicted costs of plans: predefined topologies against published measurements, mixtures of experts, caches, collectives, `tessera
advise`.

usage: costs.py TESSERA"""
import json, os, random, subprocess, sys

import harness
from onnx import TensorProto, helper, save

TESSERA = sys.argv[1]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HALF = TensorProto.FLOAT16
STATES = ["--state", "past_k=present_k", "--state", "past_v=present_v"]


def call(*words):
    q = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, timeout=harness.HANG_S)
    return q.returncode, q.stdout, q.stderr


def document(*words):
    rc, out, err = call(*words, "--json")
    assert rc == 0, (rc, out[-300:], err[-300:])
    return json.loads(out)


def weight(name, *dims):
    t = TensorProto(name=name, data_type=HALF, dims=dims, data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="none.bin")
    return t


def write(path, nodes, inputs, outputs, weights):
    info = lambda pair: helper.make_tensor_value_info(pair[0], pair[2] if len(pair) > 2 else HALF, pair[1])
    graph = helper.make_graph(nodes, "g", [info(i) for i in inputs], [info(o) for o in outputs], weights)
    save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21),
                                                                helper.make_opsetid("com.microsoft", 1)]), path)
    return path


def experts(folder, fusion):
    """Writes a MoE with 8 experts of 1024 x 4096; each token uses 2. fusion 0: three separate layers."""
    rows = 4096 * (2 if fusion else 1)
    weights = [weight("w1", 8, rows, 1024), weight("w2", 8, 1024, 4096)] + ([] if fusion else [weight("w3", 8, 4096, 1024)])
    attributes = {"k": 2, "activation_type": "swiglu" if fusion else "silu", **({"swiglu_fusion": fusion} if fusion else {})}
    node = helper.make_node("MoE", ["x", "r", "w1", "", "w2", ""] + ([] if fusion else ["w3"]), ["y"], name="moe", domain="com.microsoft",
                            **attributes)
    return write("%s/moe%d.onnx" % (folder, fusion), [node], [("x", ["batch", 1024]), ("r", ["batch", 8])], [("y", ["batch", 1024])],
                 weights)


def attention(folder, present=4096):
    """Writes one GroupQueryAttention with caches of 4,096 tokens."""
    node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "lengths", "total"], ["y", "present_k", "present_v"],
                            name="attention", domain="com.microsoft", num_heads=32, kv_num_heads=8)
    cache = lambda word, n: [("%s_%s" % (word, kv), ["batch", 8, n, 128]) for kv in "kv"]
    inputs = [("q", ["batch", 1, 4096]), ("k", ["batch", 1, 1024]), ("v", ["batch", 1, 1024]), *cache("past", 4096),
              ("lengths", ["batch"], TensorProto.INT32), ("total", [1], TensorProto.INT32)]
    return write(folder + "/attention.onnx", [node], inputs, [("y", ["batch", 1, 4096]), *cache("present", present)], [])


def predicted(model, devices, batch, *more):
    return document("plan", model, "--devices", devices, "--dim", "batch=%d" % batch, *more)


# tools/published compares predicted times with the measurements in docs/published.md.
def published_measurements(folder):
    q = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "published"), TESSERA,
         os.path.join(ROOT, "docs", "published.md")], capture_output=True, text=True, timeout=10 * harness.HANG_S)
    assert q.returncode == 0, q.stdout[-1500:] + q.stderr[-500:]


def fused_experts_count_both_halves(folder):
    apart = predicted(experts(folder, 0), "h200:1", 8)["milliseconds"]
    for fusion in (1, 2):
        fused = predicted(experts(folder, fusion), "h200:1", 8)["milliseconds"]
        assert abs(fused / apart - 1) < 0.1, (fusion, fused, apart)


def tokens_read_the_experts_that_they_use(folder):
    one, many = (predicted(experts(folder, 0), "h200:1", n)["milliseconds"] for n in (1, 64))
    assert 0.2 < one / many < 0.35, (one, many)  # 2 of 8


def recurrent(folder, op, steps, batch, hidden, directions=1, layout=0):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    shape = [batch, steps, hidden] if layout else [steps, batch, hidden]
    out = [batch, steps, directions, hidden] if layout else [steps, directions, batch, hidden]
    node = helper.make_node(op, ["x", "w", "r"], ["y"], name="cell", hidden_size=hidden, layout=layout,
                            direction="bidirectional" if directions == 2 else "forward")
    return write(folder + "/recurrent.onnx", [node], [("x", shape)], [("y", out)],
                 [weight(k, directions, gates * hidden, hidden) for k in "wr"])


def recurrent_nodes_take_every_step(folder):
    """Each step reads the recurrent weights again, or takes at least a kernel. A batch shares what a step reads."""
    time = lambda *words, devices="h100:1": document("plan", recurrent(folder, *words), "--devices", devices)["milliseconds"]
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = gates * 2048 * 2048 * 2
        one, many = time(op, 512, 1, 2048), time(op, 512, 16, 2048)
        assert one > 511 * weights / 3.35e12 * 1e3 and one < 2 * 512 * weights / 2e12 * 1e3, (op, one)
        assert many < 1.5 * one, (op, one, many)
        assert time(op, 512, 16, 2048, devices="h100:4") > 0.6 * many, op  # a sharded batch still takes every step
        small = time(op, 1000, 1, 16)
        assert small > 1000 * 1.6e-3, (op, small)  # docs/published.md: the smallest kernel
        assert 1.8 < time(op, 1000, 1, 16, 2) / small < 2.2, op
        # on a CPU a small step is no kernel, and weights in the cache are faster than those in memory
        assert 0.4 < time(op, 2000, 1, 16, devices="cpu:1") < 4, op
        cached, far = time(op, 512, 1, 256, devices="cpu:1") / 256**2, time(op, 512, 1, 4096, devices="cpu:1") / 4096**2
        assert 1.5 < far / cached < 3 or op == "RNN", (op, cached, far)
    assert abs(time("LSTM", 512, 4, 1024, 1, 1) / time("LSTM", 512, 4, 1024, 1, 0) - 1) < 0.01  # batch first


def packed(folder, rows, level):
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], name="packed", domain="com.microsoft", K=2048, N=2048, bits=4,
                            block_size=32, accuracy_level=level)
    words = weight("w", 2048, 64, 16)
    words.data_type = TensorProto.UINT8
    scales = weight("s", 2048 * 64)
    scales.data_type = TensorProto.FLOAT
    return write(folder + "/packed.onnx", [node], [("x", [rows, 2048], TensorProto.FLOAT)], [("y", [rows, 2048], TensorProto.FLOAT)],
                 [words, scales])


def cpus_unpack_the_weights_of_several_rows(folder):
    """ONNX Runtime: 4 rows take 3 to 4 times 1 row, unless accuracy_level 4 lets it multiply integers. Many rows share the unpacking."""
    time = {(level, rows, d): document("plan", packed(folder, rows, level), "--devices", d)["milliseconds"] for level in (0, 4)
            for rows in (1, 4, 64) for d in ("cpu:1", "h100:1")}
    assert 2.5 < time[0, 4, "cpu:1"] / time[0, 1, "cpu:1"] < 4.5, time
    assert time[4, 1, "cpu:1"] < 0.6 * time[0, 1, "cpu:1"] and time[4, 4, "cpu:1"] < 0.4 * time[0, 4, "cpu:1"], time
    assert time[0, 64, "cpu:1"] < 1.4 * time[4, 64, "cpu:1"], time
    assert time[0, 4, "h100:1"] == time[4, 4, "h100:1"] < 1.2 * time[0, 1, "h100:1"], time


def a_cache_that_is_updated_in_place_counts_once(folder):
    model, size = attention(folder), 2 * 8 * 4096 * 128 * 2
    kept = [predicted(model, "h200:1", n, *STATES)["memory"][0] for n in (1, 9)]
    assert 0.99 * size < (kept[1] - kept[0]) / 8 < 1.05 * size, kept
    given = [predicted(model, "h200:1", n)["memory"][0] for n in (1, 9)]  # without --state the caller holds both
    assert (given[1] - given[0]) / 8 > 1.9 * size, given


def a_cache_that_grows_counts_twice(folder):
    model, size = attention(folder, 4097), 2 * 8 * 4096 * 128 * 2
    grows = [predicted(model, "h200:1", n, *STATES)["memory"][0] for n in (1, 9)]
    assert (grows[1] - grows[0]) / 8 > 1.9 * size, grows


def plan_and_simulation_count_the_same_caches(folder):
    out = folder + "/planned.onnx"
    plan = predicted(attention(folder), "h200:2", 16, *STATES, "-o", out)
    timeline = document("simulate", out)["timeline"]
    for planned, device in zip(plan["memory"], timeline):
        assert abs(device["memory"] / planned - 1) < 0.05, (planned, device["memory"])


def collectives_have_a_start(folder):
    times = {box: document("topology", "show", box)["collectives_us"] for box in ("h100:8", "hosts:2xh100:8")}
    assert 6 <= times["h100:8"]["AllReduce"]["1024"] <= 40, times
    assert 20 <= times["hosts:2xh100:8"]["AllReduce"]["1024"] <= 120, times
    assert times["h100:8"]["AllReduce"]["67108864"] > times["h100:8"]["AllReduce"]["1048576"]
    text = call("topology", "show", "h100:8", "--json")[1]
    open(folder + "/t.json", "w").write(text)  # the printed topology can be read again without a warning
    rc, _, err = call("topology", "show", folder + "/t.json")
    assert rc == 0 and not err, err


def stages_share_links(folder):
    """Two stages on a line of 4 devices share the middle link for their reductions. The period must not be shorter than the busiest link's
    time."""
    matrix = lambda name: helper.make_tensor(name, TensorProto.FLOAT, [512, 512], b"\0" * (4 << 18), raw=True)
    nodes = [
        helper.make_node(*words, name=name)
        for words, name in ((("MatMul", ["x", "w"], ["h"]), "a"), (("Relu", ["h"], ["r"]), "b"), (("MatMul", ["r", "v"], ["y"]), "c"))
    ]
    write(folder + "/m.onnx", nodes, [("x", [512, 512], TensorProto.FLOAT)], [("y", [512, 512], TensorProto.FLOAT)],
          [matrix("w"), matrix("v")])
    links = [{"from": i, "to": i + 1, "both": True, "latency": 1e-6, "bandwidth": 1e9} for i in range(3)]
    json.dump({"devices": [{"memory": 10**10, "flops": 1e15, "bandwidth": 1e14}] * 4, "links": links}, open(folder + "/line.json", "w"))
    periods = {}
    for first, second in (("0,2", "1,3"), ("0,1", "2,3")):
        rc, _, err = call("annotate", folder + "/m.onnx", "--config", "c:4", "--shard", "a:w={2,1:%s}" % first, "--stage", "a=0", "--shard",
                          "b:h={1,1:0}", "--stage", "b=0", "--shard", "c:v={2,1:%s}" % second, "--stage", "c=1", "-o", folder + "/o.onnx")
        assert rc == 0, err
        doc = document("simulate", folder + "/o.onnx", "--devices", folder + "/line.json", "--requests", 8)
        busiest = max(link["seconds"] for link in doc["links"])
        assert doc["period_s"] > 0.99 * busiest, (doc["period_s"], busiest)
        periods[first] = doc["period_s"]
    assert periods["0,2"] > 1.4 * periods["0,1"], periods


def advice_is_the_largest_batch_within_the_limit(folder):
    model = attention(folder)
    doc = document("advise", model, "--boxes", "l4:1,h200:1,h200:2", "--slo", "tpot=1ms", *STATES)
    best = doc["best"]
    assert best == doc["rows"][0] and len(doc["rows"]) == 3
    for row in doc["rows"]:
        assert row["batch"] > 1 and 0 < row["milliseconds"] <= 1, row
        again = predicted(model, row["devices"], row["batch"], *STATES)
        assert abs(again["milliseconds"] / row["milliseconds"] - 1) < 0.01 and again["memory"] == row["memory"], (again["milliseconds"],
                                                                                                                  row)
        more = predicted(model, row["devices"], 2 * row["batch"], *STATES)
        assert more["milliseconds"] > 1, more["milliseconds"]
        assert abs(row["tokens_per_second"] - row["batch"] * 1e3 / row["milliseconds"]) < 1e-6 * row["tokens_per_second"]
    rates = [row["tokens_per_second_per_device"] for row in doc["rows"]]
    assert rates == sorted(rates, reverse=True), rates


def prices_decide(folder):
    model = attention(folder)
    order = {}
    for name, prices in (("cheap", '{"h200": 100, "l4:1": 0.01}'), ("dear", "h200 0.01\nl4 100\n")):
        open(folder + "/prices", "w").write(prices)
        doc = document("advise", model, "--boxes", "l4:1,h200:1", "--slo", "tpot=1ms", "--prices", folder + "/prices", *STATES)
        order[name] = [row["devices"] for row in doc["rows"]]
        assert all(row["tokens_per_dollar"] > 0 for row in doc["rows"]), doc["rows"]
    assert order == {"cheap": ["l4:1", "h200:1"], "dear": ["h200:1", "l4:1"]}, order


def machines_that_cannot_are_listed(folder):
    slow = ["advise", attention(folder), "--boxes", "t4:1", "--slo", "tpot=1us", *STATES]
    rc, out, err = call(*slow, "--json")
    doc = json.loads(out)
    assert rc == 4 and doc["best"] is None and doc["rows"][0]["reason"] == "too slow", (rc, doc)
    assert "too slow: %.2f ms for one request" % doc["rows"][0]["milliseconds"] in call(*slow)[1], doc
    large = ["advise", attention(folder), "--boxes", "t4:1", "--memory", "1MB", "--slo", "tpot=1s", *STATES]
    rc, out, err = call(*large, "--json")
    doc = json.loads(out)
    assert rc == 4 and doc["rows"][0]["reason"] == "does not fit" and doc["rows"][0]["needs_bytes"] > 1e6, (rc, doc)
    text = call(*large)[1]
    assert "does not fit: needs " in text and " per device" in text, text


def the_first_token_has_a_limit(folder):
    model, prompt = attention(folder), folder + "/prompt.onnx"
    write(prompt, [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], [("x", ["batch", "seq", 8192])],
          [("y", ["batch", "seq", 8192])], [weight("w", 8192, 8192)])
    words = ["advise", model, "--boxes", "h200:1", *STATES, "--prefill", prompt, "--prefill-dim", "seq=4096"]
    row = document(*words, "--slo", "tpot=1ms,ttft=1s")["best"]
    assert 0.1 < row["ttft_milliseconds"] < 1000, row
    rc, out, err = call(*words, "--slo", "tpot=1ms,ttft=10us", "--json")
    assert rc == 4 and json.loads(out)["rows"][0]["reason"] == "the first token is too slow", out


def prompts_and_tokens_share_weights(folder):
    """advise --prefill: both models fit although two copies of the weights would not, and the times are those of one plan of both."""
    paths = []
    for name, shape in (("prompts", ["batch", 256]), ("tokens", ["batch", 1])):
        nodes, before = [], "x"
        for i in range(4):
            nodes.append(helper.make_node("MatMul", [before, "w%d" % i], ["y%d" % i], name="m%d" % i))
            before = "y%d" % i
        paths.append(write("%s/%s.onnx" % (folder, name), nodes, [("x", [*shape, 4096])], [(before, [*shape, 4096])],
                           [weight("w%d" % i, 4096, 4096) for i in range(4)]))
    prompts, tokens = paths
    memory = int(1.6 * 4 * 4096 * 4096 * 2 / 2)  # of each of two devices: 1.6 copies of the weights
    words = ["--memory", memory, "--time", 20]
    advised = document("advise", tokens, "--boxes", "h200:2", "--prefill", prompts, "--slo", "tpot=1s,ttft=1s", "--max-batch", 4,
                       *words)["best"]
    assert advised["batch"] == 4, advised
    plan = document("plan", prompts, "--devices", "h200:2", "--with", tokens, "--dim", "batch=1", "--with-dim", "batch=4",
                    "--steps", 256 // 4, *words)
    for key, part in (("ttft_milliseconds", plan["parts"][0]), ("milliseconds", plan["parts"][1])):
        assert abs(advised[key] / (part["cost"] / 1e9) - 1) < 0.01, (key, advised, plan["parts"])
    assert max(advised["memory"]) <= memory, advised


def machines_are_counted_for_users(folder):
    model = attention(folder)
    words = ["advise", model, "--boxes", "l4:1,h200:1,t4:1", "--slo", "tpot=1ms", *STATES]
    alone = {row["devices"]: row for row in document(*words)["rows"]}
    users = 3 * alone["h200:1"]["batch"] + 1
    open(folder + "/prices", "w").write("l4 0.7\nh200 3\nt4 0.5\n")
    doc = document(*words, "--users", users, "--prices", folder + "/prices")
    for row in doc["rows"]:
        assert 0 < row["count"] <= -(-users // alone[row["devices"]]["batch"]), (row, alone)
        assert row["batch"] == -(-users // row["count"]), row
        assert abs(row["dollars_per_hour_of_all"] - row["count"] * row["dollars_per_hour"]) < 1e-9, row
    costs = [row["dollars_per_hour_of_all"] for row in doc["rows"]]
    assert costs == sorted(costs) and doc["best"] == doc["rows"][0], costs
    assert {row["devices"]: row["basis"] for row in doc["rows"]} == {"l4:1": "data sheet", "h200:1": "published", "t4:1": "data sheet"}
    assert document("advise", model, "--boxes", "2", "--slo", "tpot=1s", "--max-batch", 1, *STATES)["best"]["basis"] == "assumed"


def prompt_model(folder):
    return write(folder + "/prompt.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], [("x", ["batch", "seq", 8192])],
                 [("y", ["batch", "seq", 8192])], [weight("w", 8192, 8192)])


def prompts_take_time_from_tokens(folder):
    """With B users each of whom has a prompt for every answer, a token takes its step and B / answer prompts."""
    words = ["advise", attention(folder), "--boxes", "h200:1", *STATES, "--prefill", prompt_model(folder),
             "--slo", "tpot=3ms", "--users", 20]
    for more, answer, together in (([], 256, 1), (["--answer", 50], 50, 1), (["--prefill-dim", "batch=4"], 256, 4)):
        row = document(*words, "--prefill-dim", "seq=2048", *more)["best"]
        token = row["milliseconds"] + row["batch"] * row["ttft_milliseconds"] / together / answer
        assert abs(row["token_milliseconds"] / token - 1) < 1e-6 and token <= 3, (row, token)
        assert abs(row["tokens_per_second"] / (row["batch"] * 1e3 / token) - 1) < 1e-6, row
        assert len(row["prefill_memory"]) == 1 and row["prefill_memory"][0] <= row["memory"][0], row


def served(kinds, prompts, step, slots, rate, requests=20000):
    """The queue of `advise --load` again, one token at a time. kinds: (rate, answer). Returns the times to the first token and per token
    within which 95 % of the requests stay."""
    draw, now, at, waiting, batch, done = random.Random(7), 0.0, 0.0, [], [], []
    arrivals = []
    for _ in range(requests):
        at += draw.expovariate(rate) * 1e3
        arrivals.append((at, draw.choices(range(len(kinds)), [k[0] for k in kinds])[0]))
    arrivals.reverse()
    while len(done) < requests:
        while arrivals and arrivals[-1][0] <= now:
            waiting.append(arrivals.pop())
        if waiting and len(batch) < slots:
            arrival, kind = waiting.pop(0)
            now += prompts[kind]
            batch.append({"arrival": arrival, "first": now, "left": kinds[kind][1] - 1, "tokens": kinds[kind][1] - 1})
        elif batch:
            now += step
            for request in batch:
                request["left"] -= 1
            done += [(r["first"] - r["arrival"], (now - r["first"]) / r["tokens"]) for r in batch if not r["left"]]
            batch = [r for r in batch if r["left"]]
        else:
            now = arrivals[-1][0]
    return [sorted(times)[int(0.95 * requests)] for times in zip(*done)]


def requests_wait_in_a_queue(folder):
    """advise --load: the times within which 95 % of the requests stay are those of another simulation, and the rate is the largest."""
    kinds = [(200, 20), (600, 5)]
    words = ["advise", attention(folder), "--boxes", "h200:1,l4:1", *STATES, "--prefill", prompt_model(folder), "--prefill-dim", "batch=1",
             "--slo", "tpot=1ms,ttft=20ms"]
    for (rate, answer), seq in zip(kinds, (2048, 512)):
        words += ["--load", "rate=%d,answer=%d,seq=%d" % (rate, answer, seq)]
    total, doc = sum(k[0] for k in kinds), document(*words)
    for row in doc["rows"]:
        queue = (kinds, row["prompt_milliseconds"], row["milliseconds"], row["batch"])
        assert row["prompt_milliseconds"][0] > 2 * row["prompt_milliseconds"][1] > 0, row
        assert row["count"] == -(-total // row["requests_per_second"]), row
        ttft, tpot = served(*queue, total / row["count"])
        assert abs(row["ttft_95_milliseconds"] / ttft - 1) < 0.15 and abs(row["tpot_95_milliseconds"] / tpot - 1) < 0.05, (row, ttft, tpot)
        assert row["ttft_95_milliseconds"] <= 20 and row["tpot_95_milliseconds"] <= 1, row
        ttft, tpot = served(*queue, 1.15 * row["requests_per_second"])
        assert ttft > 20 or tpot > 1, (row, ttft, tpot)
    text = call(*words)[1]
    assert "requests/s" in text and "ttft 95 %" in text and "published" in text, text
    pools = document(*words, "--pools")
    assert [row["role"] for row in pools["rows"]] == ["answers"] * 2 + ["prompts"] * 2, pools
    assert pools["best"]["role"] == "answers" and pools["best_for_prompts"]["role"] == "prompts", pools
    for row in pools["rows"]:  # no machine serves fewer requests when it has less to do
        both = next(r for r in doc["rows"] if r["devices"] == row["devices"])
        assert row["requests_per_second"] > both["requests_per_second"], (row, both)
    rc, out, err = call(*words, "--slo", "tpot=1ms,ttft=10us", "--json")
    assert rc == 4 and json.loads(out)["best"] is None, (rc, out)


def less_memory_takes_longer(folder):
    """plan --pareto: the first point is the plan without a memory limit, the last needs the least memory."""
    nodes, before = [], "x"
    for i in range(4):
        nodes.append(helper.make_node("MatMul", [before, "w%d" % i], ["y%d" % i], name="m%d" % i))
        before = "y%d" % i
    model = write(folder + "/chain.onnx", nodes, [("x", ["batch", 4096])], [(before, ["batch", 4096])],
                  [weight("w%d" % i, 4096, 4096) for i in range(4)])
    words = ["plan", model, "--devices", "h200:4", "--dim", "batch=4096"]
    points = document(*words, "--pareto")["pareto"]
    memory, ms = [p["memory"] for p in points], [p["milliseconds"] for p in points]
    assert len(points) > 2 and memory == sorted(memory, reverse=True) and ms == sorted(ms), points
    assert abs(document(*words)["milliseconds"] / ms[0] - 1) < 0.01, (points[0], ms[0])
    rc, out, err = call(*words, "--memory", int(memory[-1] * 0.8), "--json")
    assert rc == 4, (rc, out)
    assert call(*words, "--pareto", "-o", folder + "/o.onnx")[0] == 2


def plans_stay_within_the_memory_limit(folder):
    """Plans must count that every copy of a device group stores the full inputs, and that the first device stores all outputs."""
    nodes = [helper.make_node("MatMul", ["x%d" % k, "w%d" % k], ["x%d" % (k + 1)], name="m%d" % k) for k in range(4)]
    path = write(folder + "/products.onnx", nodes, [("x0", ["batch", 4096])], [("x4", ["batch", 4096])],
                 [weight("w%d" % k, 4096, 4096) for k in range(4)])
    for batch in (4096, 16384):
        for devices in ("h200:4", "h100:8", "hosts:2x2"):
            most = max(predicted(path, devices, batch)["memory"])
            for share in (0.9, 0.7, 0.5):
                limit = int(share * most)
                rc, out, err = call("plan", path, "--devices", devices, "--dim", "batch=%d" % batch, "--memory", limit, "--json")
                assert rc in (0, 4), (rc, err)
                assert rc == 4 or max(json.loads(out)["memory"]) <= limit, (batch, devices, limit, json.loads(out)["memory"])


def wrong_words_are_usage_errors(folder):
    model = attention(folder)
    bad = folder + "/bad"
    open(bad, "w").write("{\"h100\": \"much\"}")
    for words in (["--boxes", "h100:1"], ["--slo", "tpot=40ms"], ["--boxes", "h100:1", "--slo",
                                                                  "tpot=fast"], ["--boxes", "h100:1", "--slo",
                                                                                 "ttft=2s"], ["--boxes", "nobox:1", "--slo", "tpot=1ms"],
                  ["--boxes", "h100:1,", "--slo", "tpot=1ms"], ["--boxes", "h100:1", "--slo", "tpot=1ms", "--prices",
                                                                bad], ["--boxes", "h100:1", "--slo", "tpot=1ms", "--batch", "rows"],
                  ["--boxes", "h100:1", "--slo", "tpot=1ms", "--load", "rate=1,answer=9"],
                  ["--boxes", "h100:1", "--slo", "tpot=1ms", "--pools"],
                  *(["--boxes", "h100:1", "--slo", "tpot=1ms", "--prefill", prompt_model(folder), *more]
                    for more in (["--load", "rate=1"], ["--load", "rate=0,answer=9"], ["--load", "rate=1,answer=9,seq=0"],
                                 ["--load", "rate=1,answer=9", "--users", 2], ["--load", "rate=1,answer=9", "--answer", 2]))):
        rc, out, err = call("advise", model, *words, *STATES)
        assert rc == 2 and err, (words, rc, err)


harness.run([
    published_measurements, fused_experts_count_both_halves, tokens_read_the_experts_that_they_use, recurrent_nodes_take_every_step,
    cpus_unpack_the_weights_of_several_rows, a_cache_that_is_updated_in_place_counts_once, a_cache_that_grows_counts_twice,
    plan_and_simulation_count_the_same_caches, collectives_have_a_start, stages_share_links, advice_is_the_largest_batch_within_the_limit,
    prices_decide, machines_that_cannot_are_listed, the_first_token_has_a_limit, prompts_and_tokens_share_weights,
    machines_are_counted_for_users,
    prompts_take_time_from_tokens, requests_wait_in_a_queue, less_memory_takes_longer,
    plans_stay_within_the_memory_limit, wrong_words_are_usage_errors
])
harness.finish()
