# SPDX-License-Identifier: Apache-2.0
"""`tessera report`: one page that is well-formed, loads nothing, shows the numbers that plan and simulate give, and lets no name of a
model become a part of the page. Needs no engine.

usage: report.py TESSERA MODELS"""
import html.parser, json, os, re, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
VOID = {"meta", "br", "input"}
EVIL = ['<script>alert(1)</script>', '"onmouseover="alert(1)', "'><img src=x onerror=alert(1)>", "</title></style></script>", "a&amp;b", "]]>", "bad\x7fname\tx"]


def call(*words):
    p = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, timeout=120)
    return p.returncode, p.stdout, p.stderr


def good(*words):
    rc, out, err = call(*words)
    assert rc == 0, (words, rc, err[:2000])
    return out


class Page(html.parser.HTMLParser):
    """Holds the page to: every element closed in order (cells may be left open, as HTML allows), attributes that we write, no others."""
    ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "id", "style", "title", "viewbox", "role", "aria-label", "type", "placeholder",
                  "data-filter", "data-zoom", "min", "max", "value", "href", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height",
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
    assert text.startswith("<!DOCTYPE html>") and p.tags["html"] == p.tags["body"] == 1 and p.tags["script"] == 2 and "img" not in p.tags
    assert not re.search(r"https?://|@import|url\(", text.split('id="data"')[0]), "something is loaded from elsewhere"
    return p, json.loads(p.scripts[0]), text


def numbers(d):
    model = os.path.join(MODELS, "llama_tiny", "model.onnx")
    dims = ["--dim", "batch=8", "--dim", "seq=32"]
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


def hostile(d):
    """Names of nodes, values, configurations and devices; and of the file."""
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
    for rc, *words in ((2, d + "/m.onnx", "-o", d + "/none.html"), (2, d + "/staged.onnx"), (3, d + "/absent.onnx", "-o", d + "/none.html"), (8, d + "/staged.onnx", "-o", d + "/no/such/page.html"),
                       (2, d + "/staged.onnx", "--config", "other", "-o", d + "/none.html"), (3, d + "/staged.onnx", "--trace", d + "/absent", "-o", d + "/none.html")):
        got, _, err = call("report", *words)
        assert got == rc and err and not os.path.exists(d + "/none.html"), (words, got, err)


failed = 0
for case in (numbers, hostile, stages_and_traces):
    with tempfile.TemporaryDirectory(prefix="tessera-report-") as folder:
        try:
            case(folder)
            print("ok %s" % case.__name__)
        except Exception as x:
            failed += 1
            print("not ok %s: %s %s" % (case.__name__, type(x).__name__, str(x)[:1500]))
sys.exit(1 if failed else 0)
