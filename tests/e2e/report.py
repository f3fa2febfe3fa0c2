# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera report`: the page must be well-formed, load nothing, and show the numbers of plan and simulate. Names of a model must
not become markup. Needs no engine.

usage: report.py TESSERA MODELS"""
import base64, hashlib, html.parser, json, os, re, subprocess, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import layers

import harness

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
VOID = {"meta", "br", "input"}
EVIL = ['<script>alert(1)</script>', '"onmouseover="alert(1)', "'><img src=x onerror=alert(1)>", "</title></style></script>", "a&amp;b", "]]>", "bad\x7fname\tx"]


def call(*words):
    return harness.call(TESSERA, *words)


def good(*words):
    return harness.good(TESSERA, *words)


class Page(html.parser.HTMLParser):
    """Parses the page. Every element must be closed in order (cells may stay open, as HTML allows), and only known attributes may occur."""
    ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "id", "style", "title", "viewbox", "role", "aria-label", "type", "placeholder",
                  "data-filter", "data-zoom", "data-way", "data-tip", "data-lane", "data-tensor", "data-copy", "tabindex", "aria-live", "aria-hidden", "value", "href", "d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height",
                  "text-anchor", "stroke-width", "preserveaspectratio", "shape-rendering"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.scripts, self.kept = [], {}, [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, "left open: %s" % self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, _ in attrs:
            assert name in self.ATTRIBUTES, (tag, name)
        if tag in ("td", "th") and self.open[-1] in ("td", "th"):
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in ("tr", "tbody", "thead", "table"):
            while self.open[-1] in ("td", "th"):
                self.open.pop()
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.words.append(data)


def page(path):
    text = open(path, encoding="utf-8").read()
    p = Page(text)
    assert text.startswith("<!DOCTYPE html>") and p.tags["html"] == p.tags["body"] == 1 and "img" not in p.tags
    assert not re.search(r"@import|url\(", text) and not {"link", "iframe", "object", "base"} & set(p.tags), "something is loaded from elsewhere"
    assert set(re.findall(r"https?://[^'\"]*", text)) <= {"http://www.w3.org/2000/svg"}, "something is loaded from elsewhere"
    dead = set(re.findall(r'href="#([^"]*)"', text)) - set(re.findall(r' id="([^"]*)"', text))
    assert not dead, ("links to sections that the page does not have", dead)
    digest = base64.b64encode(hashlib.sha256(p.scripts[-1].encode()).digest()).decode()
    assert "script-src 'sha256-%s'" % digest in text and text.count("<script>") == 1, "the browser would not run the page's script"
    return p, json.loads(p.scripts[-2]), text


# The page must have the numbers of plan and simulate: for a model, a model with a plan document, and a planned model.
def numbers(d):
    model = os.path.join(MODELS, "llama_tiny", "model.onnx")
    dims = ["--dim", "batch=8", "--dim", "seq=16"]
    plan = json.loads(good("plan", model, "--devices", "hosts:2x2", *dims, "-o", d + "/planned.onnx", "--plan", d + "/plan.json", "--json"))
    simulated = json.loads(good("simulate", d + "/planned.onnx", *dims, "--json"))
    ways = (["--devices", "hosts:2x2"], ["--plan", d + "/plan.json", "--devices", "hosts:2x2"])
    for source, words in [(model, w) for w in ways] + [(d + "/planned.onnx", [])]:
        good("report", source, *words, *dims, "-o", d + "/page.html")
        p, data, text = page(d + "/page.html")
        for key in ("cost", "memory", "collectives", "nodes", "cut_nodes", "optimal"):
            assert data["plan"][key] == plan[key], (words, key, data["plan"][key], plan[key])
        told = data["simulation"]
        assert told["seconds"] == simulated["seconds"], (words, told["seconds"], simulated["seconds"])
        assert [t["memory"] for t in told["timeline"]] == [t["memory"] for t in simulated["timeline"]]
        words_seen = " ".join(p.words)
        nodes = [n.name for n in onnx.load(model).graph.node]
        assert all(n in words_seen for n in nodes[:50]) and "Where time goes" in words_seen and "4 links of" in words_seen, words_seen[-2000:]
        first = onnx.load(d + "/planned.onnx").graph.node[4]
        assert first.name in words_seen and text.count("<code>{") > 100
        for op, n in plan["collectives"].items():
            assert "%d %s" % (n, op) in words_seen, op
        verdict(p, data, simulated, plan)
        assert "replicated on 4, tokens over 4" in words_seen, "the plan is not shown in words"
        if source == model and "--plan" not in words:
            assert all(c["name"] in words_seen and c["reason"] in words_seen for c in plan["compared"] + plan["rejected"]), plan["compared"]
        assert "tessera report %s" % source in words_seen.replace("'", ""), "the command is not shown"


def verdict(p, data, simulated, plan):
    """Checks the first line of the page against the numbers of `simulate`."""
    told, devices = data["verdict"], len(simulated["timeline"])
    most = max(t["memory"] for t in simulated["timeline"])
    assert told["fits"] is True and told["memory"] == most and told["limit"] == 16 << 30, told
    assert abs(told["one_device_s"] / (plan["one_device"] / 1e12) - 1) < 0.05 and abs(told["faster"] - told["one_device_s"] / simulated["seconds"]) < 1e-6, told
    shares = told["shares"]
    assert abs(sum(shares.values()) - 1) < 1e-6 and told["bound"].replace(" ", "_") == max(shares, key=shares.get), told
    assert abs(shares["communication"] - sum(t["communication_s"] for t in simulated["timeline"]) / devices / simulated["seconds"]) < 1e-6
    words = " ".join(p.words)
    assert "Fits in memory" in words and "times as fast as one device" in words and words.index("Fits") < words.index("Memory"), words[:500]
    assert data["communications"] == sum(plan["collectives"].values()) == len(simulated["communication"])
    assert data["link_bytes"] == sum(c["carried"] for c in simulated["communication"])


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
    """Labels are shardings as metadata of nodes. onnx must read and accept them, edits must update them, and removal must leave no trace."""
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
    p, data, text = page(d + "/page.html")
    assert data["verdict"]["fits"] is False and data["verdict"]["limit"] == 100 << 10 and "Does not fit: device" in text, data["verdict"]
    tight = max(t["memory"] for t in data["simulation"]["timeline"]) + 1
    good("report", d + "/p.onnx", "--memory", tight, "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    assert data["verdict"]["fits"] is True and "Barely fits in memory" in text and "which does not have enough memory" in text, data["verdict"]
    good("annotate", model, "--config", "one:3", "--random", "3", "-o", d + "/slow.onnx")
    slow = d + "/slow.json"
    t = json.loads(good("topology", "show", "ring:3", "--json"))
    for link in t["links"]:
        link["bandwidth"] = 1e6
    json.dump({k: t[k] for k in ("devices", "links")}, open(slow, "w"))
    good("report", d + "/slow.onnx", "--devices", slow, "--dim", "batch=6", "--dim", "seq=32", "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    assert data["verdict"]["faster"] < 0.9 and "times slower than one device" in text and data["verdict"]["bound"] in ("communication", "waiting"), data["verdict"]
    good("annotate", model, "--config", "wide:20", "--random", "3", "-o", d + "/wide.onnx")
    good("report", d + "/wide.onnx", "--devices", "full:20", "--dim", "batch=40", "--dim", "seq=32", "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    bars = re.findall(r'&#8594; \d+</span><span class="bar"><i class="talk" style="width:([\d.]+)%', open(d + "/page.html").read())
    assert re.search(r"The 24 busiest of \d+ links", text) and len(bars) == 24 and bars[0] == "100.00" and sorted(bars, key=float, reverse=True) == bars, bars
    runs = [{"ph": "X", "cat": "Session", "name": "model_run", "pid": r, "tid": 0, "ts": 1000 * k, "dur": dur} for r in range(3) for k, dur in enumerate((90e6, 3e6, 2e6, 4e6))]
    runs += [{"ph": "X", "cat": "Node", "name": "mm_kernel_time", "pid": r, "tid": 0, "ts": 10, "dur": 20, "args": {"op_name": "MatMul"}} for r in range(3)]
    json.dump({"traceEvents": runs}, open(d + "/trace.json", "w"))
    good("report", d + "/p.onnx", "--trace", d + "/trace.json", "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    assert data["verdict"]["measured_s"] == 3.0, data["verdict"]  # the median, without the first run
    words = " ".join(p.words)
    assert "the run took" in words and words.index("Measured 3 s") < words.index("Fits"), words[:400]


def beside(d):
    """Two plans, as models and as documents. Equal nodes must not be listed as differences."""
    model = os.path.join(MODELS, "gpt2_tiny", "model.onnx")
    dims = ["--dim", "batch=4", "--dim", "seq=32"]
    for n, out in (("4", "a"), ("2", "b")):
        good("plan", model, "--devices", n, *dims, "-o", "%s/%s.onnx" % (d, out), "--plan", "%s/%s.json" % (d, out))
    good("report", d + "/a.onnx", "--beside", d + "/b.onnx", "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    words = " ".join(p.words)
    assert "Comparison of two plans" in words and "Nodes with different shardings" in words and d + "/b.onnx" in words
    good("report", d + "/a.onnx", "--beside", d + "/a.onnx", "-o", d + "/page.html")
    p, data, text = page(d + "/page.html")
    assert "Both plans shard every node the same way" in " ".join(p.words) and 'id="differences"' not in text, "an empty table"
    good("report", model, *dims, "--devices", "4", "--beside", d + "/b.json", "-o", d + "/page.html")
    for rc, file in ((2, model), (3, d + "/absent.onnx"), (3, d + "/absent.json")):
        got, _, err = call("report", d + "/a.onnx", "--beside", file, "-o", d + "/none.html")
        assert got == rc and err and not os.path.exists(d + "/none.html"), (file, got, err)


def layers_fold(d):
    """2,000 nodes on 8 devices: the page must be below 1 MB, equal layers must share a line, and every node's name must be on it."""
    count = layers.save(d + "/m.onnx", 62)
    names = [n.name for n in onnx.load(d + "/m.onnx").graph.node]
    lines = ["--config", "b:8"] + [w for n in onnx.load(d + "/m.onnx").graph.node for w in ("--shard", "%s:%s={8,1,1}" % (n.name, n.output[0])) if n.op_type == "Add" and "up" in n.name]
    good("annotate", d + "/m.onnx", *lines, "-o", d + "/cut.onnx")
    good("infer", d + "/cut.onnx", "--propagate", "-o", d + "/full.onnx")
    good("report", d + "/full.onnx", "-o", d + "/page.html")
    size = os.path.getsize(d + "/page.html")
    p, data, text = page(d + "/page.html")
    rows = text.split('id="nodes"')[1].split("</table>")[0].count("<tr>") - 1
    words = " ".join(p.words)
    assert count > 2000 and size < 1e6, (count, size)
    assert rows < 200 and "layers.{0–61}" in words and "× 62" in words, (rows, words[-3000:])
    assert all(n in words for n in names), [n for n in names if n not in words][:3]
    lanes = json.loads([s for s in p.scripts if '"ticks"' in s][0])
    assert len(lanes["lanes"]) == 8 and sum(isinstance(l, list) for l in lanes["lanes"]) >= 1 and sum(len(l) for l in lanes["lanes"] if isinstance(l, list)) % 4 == 0
    tensors = json.loads([s for s in p.scripts if '"tensors"' in s][0])
    pieces = [tensors["cuts"][str(t[0])] for t in tensors["tensors"]]
    assert any(len(c["boxes"]) == 8 and c["boxes"][3][:3] == [3, 3, 4] for c in pieces), pieces[:2]

def hostile(d):
    """Names with markup: of nodes, values, configurations, devices and the file."""
    f = TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x" if i == 0 else EVIL[i - 1] + "v", "w"], [EVIL[i] + "v"], name=EVIL[i]) for i in range(len(EVIL))]
    ends = [helper.make_tensor_value_info(v, f, [16, 16]) for v in ("x", EVIL[-1] + "v")]
    w = numpy_helper.from_array(np.zeros((16, 16), "f"), "w")
    path = d + "/<b>'\"&.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [w]), ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    good("topology", "make", "cpu:2", "-o", d + "/t.json")
    t = json.load(open(d + "/t.json"))
    t["devices"][0]["name"] = EVIL[0]
    json.dump(t, open(d + "/t.json", "w"))
    good("plan", path, "--devices", d + "/t.json", "--config", EVIL[2], "-o", d + "/planned.onnx")
    good("simulate", d + "/planned.onnx", "--trace", d + "/trace.json")
    for source, words in ((path, ["--devices", d + "/t.json"]), (d + "/planned.onnx", ["--trace", d + "/trace.json"])):
        good("report", source, *words, "-o", d + "/page.html")
        p, data, text = page(d + "/page.html")
        seen = " ".join(p.words)
        assert all(e.replace("\x7f", "\ufffd").replace("\t", "\ufffd") in seen for e in EVIL), "a name is not shown as it is"
        assert p.tags["title"] >= 1 and "onerror" not in str(p.tags)
    assert data["configuration"] == EVIL[2] and 'id="measured"' in text


# Pages of pipelines and of traces: equal input must give equal bytes, and broken traces and wrong arguments must be refused.
def stages_and_traces(d):
    f = TensorProto.FLOAT
    w = [numpy_helper.from_array(np.zeros((32, 32), "f"), "w%d" % i) for i in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"], name="a"), helper.make_node("MatMul", ["h", "w1"], ["y"], name="b")]
    ends = [helper.make_tensor_value_info(v, f, [8, 32]) for v in ("x", "y")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], w), ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "pipe:2", "--stage", "a=0", "--stage", "b=1", "-o", d + "/staged.onnx")
    good("report", d + "/staged.onnx", "-o", d + "/page.html")
    _, data, _ = page(d + "/page.html")
    assert len(data["simulation"]["timeline"]) == 2 and data["configuration"] == "pipe", data
    again = open(d + "/page.html").read()
    good("report", d + "/staged.onnx", "-o", d + "/page.html")
    assert open(d + "/page.html").read() == again, "the same input, other bytes"
    for text in ("", "{", "[]", '{"traceEvents": 7}', '[{"ph": "X", "name": "x", "pid": -1, "ts": 1, "dur": 1, "cat": "compute"}]'):
        open(d + "/bad.json", "w").write(text)
        rc, _, err = call("report", d + "/staged.onnx", "--trace", d + "/bad.json", "-o", d + "/none.html")
        assert rc == 3 and "report-trace" in err and not os.path.exists(d + "/none.html"), (text, rc, err)
    # Ranks above 4,096 are valid. Events of ranks that no partition can have are not shown, and the page says how many.
    work = [{"ph": "X", "cat": "Node", "name": "mm", "pid": rank, "ts": 10, "dur": 20, "args": {"op_name": "MatMul"}} for rank in (0, 4096, 65535, 65536, 65536)]
    json.dump(work, open(d + "/trace.json", "w"))
    good("report", d + "/staged.onnx", "--trace", d + "/trace.json", "-o", d + "/page.html")
    words = " ".join(page(d + "/page.html")[0].words)
    assert "The first 64 of 65536 devices." in words and "2 more events are in the trace and not shown." in words, words[-2000:]
    for rc, *words in ((2, d + "/m.onnx", "-o", d + "/none.html"), (2, d + "/staged.onnx"), (3, d + "/absent.onnx", "-o", d + "/none.html"), (8, d + "/staged.onnx", "-o", d + "/no/such/page.html"),
                       (2, d + "/staged.onnx", "--config", "other", "-o", d + "/none.html"), (3, d + "/staged.onnx", "--trace", d + "/absent", "-o", d + "/none.html")):
        got, _, err = call("report", *words)
        assert got == rc and err and not os.path.exists(d + "/none.html"), (words, got, err)


def plot_of_the_documents(_):
    """docs/scale.svg must be the plot of the tables in docs/scale.md."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    made = subprocess.run([sys.executable, root + "/tools/study", "--plot", root + "/docs/scale.md", "/dev/stdout"], capture_output=True, text=True, timeout=60).stdout
    assert made == open(root + "/docs/scale.svg").read(), "run tools/study --plot docs/scale.md docs/scale.svg"


harness.run([numbers, explorer, labels, limits, beside, layers_fold, hostile, stages_and_traces, plot_of_the_documents])
harness.finish()
