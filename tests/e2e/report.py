# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera report`: the page must have a fixed frame, load nothing, and its document the numbers of plan and simulate. Names of a
model must not become markup. Needs no engine. With Chromium, the drawn text is tested, too (page.py tests how the page looks and behaves).

usage: report.py TESSERA MODELS"""
import base64, hashlib, html.parser, json, os, re, subprocess, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import browser, layers

import harness

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
EVIL = [
    '<script>alert(1)</script>', '"onmouseover="alert(1)', "'><img src=x onerror=alert(1)>", "</title></style></script>", "a&amp;b", "]]>",
    "bad\x7fname\tx"
]


def call(*words):
    return harness.call(TESSERA, *words)


def good(*words):
    return harness.good(TESSERA, *words)


class Page(html.parser.HTMLParser):
    """Parses the page. Its frame is fixed: everything else is in the document, which the script draws."""
    TAGS = {"html": 1, "head": 1, "meta": 3, "title": 1, "style": 1, "body": 1, "main": 1, "noscript": 1, "p": 1, "script": 2}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.title, self.scripts = [], {}, "", []
        self.feed(text)
        self.close()
        assert not self.open, "left open: %s" % self.open
        assert self.tags == self.TAGS, self.tags

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] == "title":
            self.title += data


def page(path):
    """Returns the document of a page and the parsed page."""
    text = open(path, encoding="utf-8").read()
    p = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    frame = text.replace(p.scripts[0], "")
    assert not re.search(r"@import|url\(", frame), "something is loaded from elsewhere"
    assert set(re.findall(r"https?://[^'\"]*", frame)) <= {"http://www.w3.org/2000/svg"}, "something is loaded from elsewhere"
    assert "innerHTML" not in p.scripts[1] and "document.write" not in p.scripts[1] and "eval(" not in p.scripts[1]
    digest = base64.b64encode(hashlib.sha256(p.scripts[1].encode()).digest()).decode()
    assert "script-src 'sha256-%s'" % digest in text and text.count("<script>") == 1, "the browser would not run the page's script"
    return json.loads(p.scripts[0]), p


def seen(path, *words, absent=()):
    """Checks the text of the drawn page, in which the words must occur in this order. Does nothing without Chromium."""
    if not chromium:
        return
    tab = browser.Tab(chromium, path, 1280)
    shown, errors = tab.run("document.body.innerText"), tab.errors()
    dead = tab.run("[...document.querySelectorAll('a')].filter(a => !document.getElementById(a.getAttribute('href').slice(1))).length")
    tab.close()
    assert not errors and not dead, (errors, dead)
    at = 0
    for word in words:
        found = shown.find(word, at)
        assert found >= 0, ("not shown, or too early: " + word, shown[:600])
        at = found + len(word)
    assert not [word for word in absent if word in shown], absent


# The page must have the numbers of plan and simulate: for a model, a model with a plan document, and a planned model.
def numbers(d):
    model = os.path.join(MODELS, "llama_tiny", "model.onnx")
    dims = ["--dim", "batch=8", "--dim", "seq=16"]
    plan = json.loads(good("plan", model, "--devices", "hosts:2x2", *dims, "-o", d + "/planned.onnx", "--plan", d + "/plan.json", "--json"))
    simulated = json.loads(good("simulate", d + "/planned.onnx", *dims, "--json"))
    ways = (["--devices", "hosts:2x2"], ["--plan", d + "/plan.json", "--devices", "hosts:2x2"])
    for source, words in [(model, w) for w in ways] + [(d + "/planned.onnx", [])]:
        good("report", source, *words, *dims, "-o", d + "/page.html")
        data, _ = page(d + "/page.html")
        for key in ("cost", "memory", "collectives", "nodes", "cut_nodes", "optimal", "milliseconds"):
            assert data["plan"][key] == plan[key], (words, key, data["plan"][key], plan[key])
        told = data["simulation"]
        assert told["seconds"] == simulated["seconds"], (words, told["seconds"], simulated["seconds"])
        assert [t["memory"] for t in told["timeline"]] == [t["memory"] for t in simulated["timeline"]]
        planned = onnx.load(d + "/planned.onnx").graph.node
        rows = {i: row for row in data["shardings"]["rows"] for i in row.get("indices", [row["index"]])}
        assert sorted(rows) == list(range(len(planned))) and {n.name for n in planned} == names(data)
        for i, node in enumerate(planned):
            count = sum(len(c.sharding_spec) for c in node.device_configurations)
            assert rows[i]["op"] == node.op_type and len(rows[i]["inputs"] + rows[i]["outputs"]) == count, (node.name, rows[i])
        assert [kind["count"]
                for kind in data["topology"]["link_kinds"]] == [4, 4] and len(data["topology"]["links"]) == 8, data["topology"]
        verdict(data, simulated, plan)
        tokens = [row["sharding"] for row in data["layers"]["rows"]]
        assert "replicated on 4, tokens over 4" in tokens, ("the plan is not shown in words", tokens)
        if source == model and "--plan" not in words:
            assert [(c["name"], c["reason"]) for c in data["plan"]["compared"]] == [(c["name"], c["reason"])
                                                                                    for c in plan["compared"] + plan["rejected"]]
        command = data["command"].replace("'", "")
        assert command.startswith("tessera report %s" % source), "the command is not shown"
        counts = ", ".join("%d %s" % (n, op) for op, n in plan["collectives"].items())
        seen(d + "/page.html", "Fits in memory", "times as fast as one device", "replicated on 4, tokens over 4", "Memory",
             "Where time goes", " in one run: %s." % counts, "4 links of", data["command"])
    documents(d, model, dims, data)


def names(data):
    """Returns the names of all nodes of the document."""
    found = set()
    for row in data["shardings"]["rows"]:
        if "members" not in row:
            found.add(row["name"])
            continue
        texts, numbers = row["members"]["texts"], row["members"]["numbers"]
        step = len(texts) - 1
        assert len(numbers) == step * row["count"] and len(row["indices"]) == row["count"], row
        for i in range(row["count"]):
            found.add("".join(text + (str(numbers[i * step + k]) if k < step else "") for k, text in enumerate(texts)))
    return found


def documents(d, model, dims, data):
    """--json without -o must print, and --format json must write, what the page has. The command is the only difference."""
    printed = json.loads(good("report", d + "/planned.onnx", *dims, "--json"))
    good("report", d + "/planned.onnx", *dims, "--format", "json", "-o", d + "/data.json")
    written = json.load(open(d + "/data.json"))
    for other in (printed, written):
        del other["command"]
        assert other == {key: value for key, value in data.items() if key != "command"}
    assert not os.path.exists("page.html")
    for words in ([], ["--json", "--format", "json"]):
        rc, _, err = call("report", d + "/planned.onnx", *words)
        assert rc == 2 and "-o" in err, (words, rc, err)


def verdict(data, simulated, plan):
    """Checks the summary of the page against the numbers of `simulate`."""
    told, devices = data["verdict"], len(simulated["timeline"])
    most = max(t["memory"] for t in simulated["timeline"])
    assert told["fits"] is True and told["memory"] == most and told["limit"] == 16 << 30, told
    assert abs(told["one_device_s"] /
               (plan["one_device"] / 1e12) - 1) < 0.05 and abs(told["faster"] - told["one_device_s"] / simulated["seconds"]) < 1e-6, told
    shares = told["shares"]
    assert abs(sum(shares.values()) - 1) < 1e-6 and told["bound"].replace(" ", "_") == max(shares, key=shares.get), told
    assert abs(shares["communication"] - sum(t["communication_s"] for t in simulated["timeline"]) / devices / simulated["seconds"]) < 1e-6
    assert data["communications"] == sum(plan["collectives"].values()) == len(simulated["communication"])
    assert data["link_bytes"] == sum(c["carried"] for c in simulated["communication"]) == sum(row["carried"]
                                                                                              for row in data["communication"]["rows"])
    assert sum(row.get("count", 1) for row in data["communication"]["rows"]) == data["communications"]


def explorer(d):
    """Node data for Model Explorer must have an entry for each node that computes, by one of its outputs."""
    model = os.path.join(MODELS, "bert_tiny", "model.onnx")
    good("plan", model, "--devices", "2", "--dim", "batch=4", "--dim", "seq=32", "-o", d + "/p.onnx")
    outputs = {o for n in onnx.load(d + "/p.onnx").graph.node for o in n.output}
    for form, kind in (("model-explorer", float), ("model-explorer-cuts", str)):
        good("report", d + "/p.onnx", "--format", form, "-o", d + "/data.json")
        data = json.load(open(d + "/data.json"))
        assert set(data["results"]) <= outputs and len(data["results"]) > 60, len(data["results"])
        assert all(isinstance(r["value"], kind) for r in data["results"].values()), list(data["results"].items())[:3]
        assert set(data) - {"results"} == ({"gradient"} if kind is float else set()), set(data)
    assert any(r["value"].startswith("{2,1") for r in data["results"].values()), data["results"]
    rc, _, err = call("report", d + "/p.onnx", "--format", "pdf", "-o", d + "/none.json")
    assert rc == 2 and "report-format" in err and not os.path.exists(d + "/none.json"), (rc, err)


def labels(d):
    """Labels are shardings as metadata of nodes. onnx must read and accept them, edits must update them, and removal must leave no
    trace."""
    model = os.path.join(MODELS, "bert_tiny", "model.onnx")
    words = ["plan", model, "--devices", "2", "--dim", "batch=4", "--dim", "seq=32"]
    good(*words, "-o", d + "/plain.onnx")
    good(*words, "--labels", "-o", d + "/labelled.onnx")
    m = onnx.load(d + "/labelled.onnx")
    onnx.checker.check_model(m)
    for n in m.graph.node:
        told = {p.key: p.value for p in n.metadata_props}
        specs = [s for c in n.device_configurations for s in c.sharding_spec]
        assert ("ai.tessera.sharding.plan2" in told) == bool(n.device_configurations), n.name
        assert all(s.tensor_name in told["ai.tessera.sharding.plan2"] for s in specs), (n.name, told)
    good("annotate", d + "/labelled.onnx", "-o", d + "/same.onnx")
    assert open(d + "/same.onnx", "rb").read() == open(d + "/labelled.onnx", "rb").read(), "without edits the bytes change"
    good("annotate", d + "/labelled.onnx", "--no-labels", "-o", d + "/back.onnx")
    assert open(d + "/back.onnx", "rb").read() == open(d + "/plain.onnx", "rb").read(), "labels leave something behind"
    node = next(n for n in m.graph.node if n.op_type == "MatMul" or n.op_type == "Gemm")
    good("annotate", d + "/labelled.onnx", "--config", "plan2", "--stage", "%s=0" % node.name, "-o", d + "/edited.onnx")
    edited = next(n for n in onnx.load(d + "/edited.onnx").graph.node if n.name == node.name)
    assert any(p.value.endswith("; stage 0") for p in edited.metadata_props), "an edit leaves a label behind that is not true"
    good("annotate", d + "/labelled.onnx", "--remove-config", "plan2", "--cascade", "-o", d + "/bare.onnx")
    assert not any(p.key.startswith("ai.tessera.") for n in onnx.load(d + "/bare.onnx").graph.node for p in n.metadata_props)


def limits(d):
    """The first lines of the page must say if the plan does not fit, is slower than one device, or was measured with another time."""
    model = os.path.join(MODELS, "bert_tiny", "model.onnx")
    good("plan", model, "--devices", "ring:3", "--dim", "batch=6", "--dim", "seq=32", "-o", d + "/p.onnx")
    good("report", d + "/p.onnx", "--memory", "100KiB", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert data["verdict"]["fits"] is False and data["verdict"]["limit"] == 100 << 10, data["verdict"]
    seen(d + "/page.html", "Does not fit: device %d needs" % data["verdict"]["fullest"], "but has 100 KiB")
    tight = max(t["memory"] for t in data["simulation"]["timeline"]) + 1
    good("report", d + "/p.onnx", "--memory", tight, "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert data["verdict"]["fits"] is True and data["verdict"]["narrow"] and not data["verdict"]["one_device_fits"], data["verdict"]
    seen(d + "/page.html", "Barely fits in memory", "which does not have enough memory")
    good("annotate", model, "--config", "one:3", "--random", "3", "-o", d + "/slow.onnx")
    slow = d + "/slow.json"
    t = json.loads(good("topology", "show", "ring:3", "--json"))
    for link in t["links"]:
        link["bandwidth"] = 1e6
    json.dump({k: t[k] for k in ("devices", "links")}, open(slow, "w"))
    good("report", d + "/slow.onnx", "--devices", slow, "--dim", "batch=6", "--dim", "seq=32", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert data["verdict"]["faster"] < 0.9 and data["verdict"]["bound"] in ("communication", "waiting"), data["verdict"]
    seen(d + "/page.html", "times slower than one device")
    good("annotate", model, "--config", "wide:20", "--random", "3", "-o", d + "/wide.onnx")
    good("report", d + "/wide.onnx", "--devices", "full:20", "--dim", "batch=40", "--dim", "seq=32", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    loads = [link["seconds"] for link in data["links"]["rows"]]
    assert len(loads) == 240 and loads[0] > 0 and sorted(loads, reverse=True) == loads, loads
    seen(d + "/page.html", "The 24 busiest of %d links" % (240 + data["links"]["left_out"]))
    runs = [{"ph": "X", "cat": "Session", "name": "model_run", "pid": r, "tid": 0, "ts": 1000 * k, "dur": dur} for r in range(3)
            for k, dur in enumerate((90e6, 3e6, 2e6, 4e6))]
    runs += [{"ph": "X", "cat": "Node", "name": "mm_kernel_time", "pid": r, "tid": 0, "ts": 10, "dur": 20, "args": {"op_name": "MatMul"}}
             for r in range(3)]
    json.dump({"traceEvents": runs}, open(d + "/trace.json", "w"))
    good("report", d + "/p.onnx", "--trace", d + "/trace.json", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert data["verdict"]["measured_s"] == 3.0 and data["verdict"]["measured_runs"] == 4, data[
        "verdict"]  # the median, without the first run
    seen(d + "/page.html", "Measured 3 s", "the run took", "Median of 4 runs", "Fits")


def beside(d):
    """Two plans, as models and as documents. Equal nodes must not be listed as differences."""
    model = os.path.join(MODELS, "gpt2_tiny", "model.onnx")
    dims = ["--dim", "batch=4", "--dim", "seq=32"]
    for n, out in (("4", "a"), ("2", "b")):
        good("plan", model, "--devices", n, *dims, "-o", "%s/%s.onnx" % (d, out), "--plan", "%s/%s.json" % (d, out))
    good("report", d + "/a.onnx", "--beside", d + "/b.onnx", "-o", d + "/page.html")
    both = page(d + "/page.html")[0]["comparison"]
    assert both["title"] == d + "/b.onnx" and (both["this"]["devices"], both["other"]["devices"]) == (4, 2), both
    assert both["differences"] and both["differing_nodes"] >= len(both["differences"]) and all(row["this"] != row["other"]
                                                                                               for row in both["differences"])
    seen(d + "/page.html", "Comparison of two plans", d + "/b.onnx", "Nodes with different shardings",
         "%d nodes differ" % both["differing_nodes"])
    good("report", d + "/a.onnx", "--beside", d + "/a.onnx", "-o", d + "/page.html")
    both = page(d + "/page.html")[0]["comparison"]
    assert both["this"] == both["other"] and not both["differences"] and not both["differing_nodes"], both
    seen(d + "/page.html", "Both plans shard every node the same way", absent=["Nodes with different shardings"])
    good("report", model, *dims, "--devices", "4", "--beside", d + "/b.json", "-o", d + "/page.html")
    for rc, file in ((2, model), (3, d + "/absent.onnx"), (3, d + "/absent.json")):
        got, _, err = call("report", d + "/a.onnx", "--beside", file, "-o", d + "/none.html")
        assert got == rc and err and not os.path.exists(d + "/none.html"), (file, got, err)


def layers_fold(d):
    """2,000 nodes on 8 devices: the page must be below 1 MB, equal layers must share a line, and every node's name must be on it."""
    count = layers.save(d + "/m.onnx", 62)
    listed = [n.name for n in onnx.load(d + "/m.onnx").graph.node]
    lines = ["--config", "b:8"] + [
        w for n in onnx.load(d + "/m.onnx").graph.node
        for w in ("--shard", "%s:%s={8,1,1}" % (n.name, n.output[0])) if n.op_type == "Add" and "up" in n.name
    ]
    good("annotate", d + "/m.onnx", *lines, "-o", d + "/cut.onnx")
    good("infer", d + "/cut.onnx", "--propagate", "-o", d + "/full.onnx")
    good("report", d + "/full.onnx", "-o", d + "/page.html")
    size = os.path.getsize(d + "/page.html")
    data, _ = page(d + "/page.html")
    rows = data["shardings"]["rows"]
    assert count > 2000 and size < 1e6, (count, size)
    assert len(rows) < 200 and any("layers.{0\u201361}" in row["name"] and row["count"] == 62 for row in rows), rows[-1]
    assert names(data) == set(listed), set(listed) ^ names(data)
    lanes = data["predicted"]["lanes"]
    assert len(lanes) == 8 and sum(isinstance(l, list) for l in lanes) >= 1 and sum(len(l) for l in lanes if isinstance(l, list)) % 4 == 0
    pieces = [data["tensors"]["layouts"][t["layout"]] for t in data["tensors"]["rows"]]
    assert any(len(c["boxes"]) == 8 and c["boxes"][3][:3] == [3, 3, 4] for c in pieces), pieces[:2]
    seen(d + "/page.html", "layers.{0\u201361}", "\u00d7\u202f62")


def shardings_of_nodes_without_one_are_inferred(d):
    """The plan on the page must be that of the model's own shardings: the time of the plan and of the simulation agree."""
    for k, edits in enumerate(([], ["--shard", "node_MatMul_105:val_108={1,4}"])):
        file, out = "%s/own%d.onnx" % (d, k), "%s/own%d.html" % (d, k)
        good("annotate", MODELS + "/bert_tiny/model.onnx", "--config", "c:4", *edits, "-o", file)
        good("report", file, "-o", out)
        data, _ = page(out)
        planned, simulated = data["plan"]["milliseconds"], data["simulation"]["first_s"] * 1000
        assert abs(planned - simulated) <= 0.005 * simulated, (edits, planned, simulated)


def hostile(d):
    """Names with markup: of nodes, values, configurations, devices and the file."""
    f = TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["x" if i == 0 else EVIL[i - 1] + "v", "w"], [EVIL[i] + "v"], name=EVIL[i]) for i in range(len(EVIL))
    ]
    ends = [helper.make_tensor_value_info(v, f, [16, 16]) for v in ("x", EVIL[-1] + "v")]
    w = numpy_helper.from_array(np.zeros((16, 16), "f"), "w")
    path = d + "/<b>'\"&.onnx"
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [w]), ir_version=10,
                          opset_imports=[helper.make_opsetid("", 18)]), path)
    good("topology", "make", "cpu:2", "-o", d + "/t.json")
    t = json.load(open(d + "/t.json"))
    t["devices"][0]["name"] = EVIL[0]
    json.dump(t, open(d + "/t.json", "w"))
    good("plan", path, "--devices", d + "/t.json", "--config", EVIL[2], "-o", d + "/planned.onnx")
    good("simulate", d + "/planned.onnx", "--trace", d + "/trace.json")
    for source, words in ((path, ["--devices", d + "/t.json"]), (d + "/planned.onnx", ["--trace", d + "/trace.json"])):
        good("report", source, *words, "-o", d + "/page.html")
        data, p = page(d + "/page.html")
        assert data["model"] == p.title and p.title.endswith(os.path.basename(source)), p.title
        assert "<" not in p.scripts[0] and names(data) == set(EVIL), "a name is not shown as it is"
        assert data["topology"]["devices"][0]["name"] == EVIL[0] and set(data["predicted"]["nodes"]) >= set(EVIL)
    assert data["configuration"] == EVIL[2] and set(data["measured"]["nodes"]) >= set(EVIL[:3])


# Pages of pipelines and of traces: equal input must give equal bytes, and broken traces and wrong arguments must be refused.
def stages_and_traces(d):
    f = TensorProto.FLOAT
    w = [numpy_helper.from_array(np.zeros((32, 32), "f"), "w%d" % i) for i in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"], name="a"), helper.make_node("MatMul", ["h", "w1"], ["y"], name="b")]
    ends = [helper.make_tensor_value_info(v, f, [8, 32]) for v in ("x", "y")]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], w), ir_version=10, opset_imports=[helper.make_opsetid("", 18)]),
        d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "pipe:2", "--stage", "a=0", "--stage", "b=1", "-o", d + "/staged.onnx")
    good("report", d + "/staged.onnx", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert data["simulation"]["stages"] == [0, 1] and len(data["simulation"]["timeline"]) == 2 and data["configuration"] == "pipe", data
    again = open(d + "/page.html").read()
    good("report", d + "/staged.onnx", "-o", d + "/page.html")
    assert open(d + "/page.html").read() == again, "the same input, other bytes"
    for text in ("", "{", "[]", '{"traceEvents": 7}', '[{"ph": "X", "name": "x", "pid": -1, "ts": 1, "dur": 1, "cat": "compute"}]'):
        open(d + "/bad.json", "w").write(text)
        rc, _, err = call("report", d + "/staged.onnx", "--trace", d + "/bad.json", "-o", d + "/none.html")
        assert rc == 3 and "report-trace" in err and not os.path.exists(d + "/none.html"), (text, rc, err)
    # Ranks above 4,096 are valid. Events of ranks that no partition can have are not shown, and the page says how many.
    work = [{"ph": "X", "cat": "Node", "name": "mm", "pid": rank, "ts": 10, "dur": 20, "args": {"op_name": "MatMul"}}
            for rank in (0, 4096, 65535, 65536, 65536)]
    json.dump(work, open(d + "/trace.json", "w"))
    good("report", d + "/staged.onnx", "--trace", d + "/trace.json", "-o", d + "/page.html")
    data, _ = page(d + "/page.html")
    assert len(data["measured"]
               ["devices"]) == 64 and data["measured"]["device_count"] == 65536 and data["measured_left_out"] == 2, data["measured"]
    seen(d + "/page.html", "Measured", "The first 64 of 65536 devices.", "2 more events are in the trace and not shown.")
    for rc, *words in ((2, d + "/m.onnx", "-o", d + "/none.html"), (2, d + "/staged.onnx"), (3, d + "/absent.onnx", "-o", d + "/none.html"),
                       (8, d + "/staged.onnx", "-o", d + "/no/such/page.html"),
                       (2, d + "/staged.onnx", "--config", "other", "-o", d + "/none.html"), (3, d + "/staged.onnx", "--trace",
                                                                                              d + "/absent", "-o", d + "/none.html")):
        got, _, err = call("report", *words)
        assert got == rc and err and not os.path.exists(d + "/none.html"), (words, got, err)


def plot_of_the_documents(_):
    """docs/scale.svg must be the plot of the tables in docs/scale.md."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    made = subprocess.run([sys.executable, root + "/tools/study", "--plot", root + "/docs/scale.md", "/dev/stdout"], capture_output=True,
                          text=True, timeout=60).stdout
    assert made == open(root + "/docs/scale.svg").read(), "run tools/study --plot docs/scale.md docs/scale.svg"


chromium = browser.Browser() if browser.program() else None
harness.run([numbers, explorer, labels, limits, beside, layers_fold,
             shardings_of_nodes_without_one_are_inferred, hostile, stages_and_traces, plot_of_the_documents])
if chromium:
    chromium.close()
harness.finish()
