# SPDX-License-Identifier: Apache-2.0
"""Tests the page in the browser (`make web`) in a headless Chromium, behind a web server on the loopback. What the page says is compared
with what the command says about the same model.

Nothing may be wider than the screen at 390, 900 and 1280 pixels; all controls are reached by keyboard; the page loads nothing from
elsewhere, treats no name as markup and leaves the console empty. TESSERA_PICTURES=FOLDER stores pictures. If axe-core is installed (see
tests/e2e/page.py), it must find no violation.

usage: page.py TESSERA FOLDER MODELS, FOLDER has the page"""
import functools, gzip, hashlib, http.server, json, os, shutil, sys, threading, time
from urllib.parse import parse_qs, urlencode

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import browser
import pages

import harness

TESSERA, FOLDER, MODELS = (os.path.abspath(path) for path in sys.argv[1:4])
IDLE = ("document.getElementById('cancel').hidden && document.getElementById('status').textContent === '' &&"
        " document.getElementById('machine').options.length > 2")
BERT = os.path.join(MODELS, "bert_tiny", "model.onnx")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Page(browser.Tab):
    """The page with an address of its own, which waits until the page has done what it was told."""

    def __init__(self, place, state=(), width=1280, **options):
        self.place = place
        super().__init__(place["browser"], place["address"] + ("#" + urlencode(state) if state else ""), width, **options)
        self.wait()

    def wait(self, condition=IDLE, seconds=harness.HANG_S * 4):
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, "the page is still busy: " + self.run("document.getElementById('status').textContent")
            time.sleep(0.05)

    def choose(self, name, value):
        self.run("(() => { const e = document.getElementById('%s'); e.value = %s; for (const kind of ['input', 'change'])"
                 " e.dispatchEvent(new Event(kind)) })()" % (name, json.dumps(value)))

    def press(self, name):
        self.run("document.getElementById('%s').click()" % name)
        self.wait()

    def text(self, selector):
        return self.run("[...document.querySelectorAll('%s')].map(e => e.innerText).join('\\n')" % selector)

    def upload(self, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[path])
        self.wait()

    def error(self):
        return self.text("#error")

    def edit(self, node, value, spec):
        self.choose("node", node)
        self.choose("value", value)
        self.choose("spec", spec)
        self.run("document.getElementById('edit').requestSubmit()")
        self.wait()

    def foreign(self):
        return [url for url in self.requests() if not url.startswith(("http://127.0.0.1:", "blob:", "data:"))]

    def done(self):
        assert not self.errors() and not self.foreign(), (self.errors(), self.foreign())
        self.close()


def native(*words):
    return json.loads(harness.good(TESSERA, *words, "--json"))


def examples(d, place):
    """Each example opens, is planned for four devices, and gets the time that the command predicts."""
    listed = json.load(open(FOLDER + "/examples.json", encoding="utf-8"))
    assert len(listed) == 6, listed
    for example in listed:
        sizes = ["%s=%d" % item for item in example["dims"].items()]
        page = Page(place, [("model", example["id"]), ("machine", "h100:4"), ("do", "plan")])
        assert not page.error() and page.text("#report h1") == example["file"], (example, page.error())
        path = os.path.join(FOLDER, "examples", example["file"])
        words = [word for size in sizes for word in ("--dim", size)]
        plan = native("plan", path, "--devices", "h100:4", *words, "-o", d + "/planned.onnx")
        report = native("report", d + "/planned.onnx", "--config", plan["configuration"], *words)
        shown = page.run("document.querySelector('#versions tbody').innerText")
        said = page.run("time(%r)" % report["simulation"]["first_s"])
        assert said in shown and plan["feasible"], (example, said, shown)
        parts = native("partition", d + "/planned.onnx", "--config", plan["configuration"], *words, "--dry-run")
        rows = page.run("[...document.querySelectorAll('#ranks tbody tr')].map(r => r.innerText)")
        sizes = zip(range(4), parts["weight_bytes"], parts["file_bytes"])
        wanted = [page.run("[%d, bytes(%d), bytes(%d)].join('\\t')" % row) for row in sizes]
        assert rows == wanted, (example, rows, wanted)
        page.done()


MOST_BYTES = 2_000_000  # compressed, without the examples


def small(_, __):
    """What a visitor loads before choosing a model."""
    size = sum(len(gzip.compress(open(os.path.join(FOLDER, name), "rb").read())) for name in os.listdir(FOLDER)
               if os.path.isfile(os.path.join(FOLDER, name)))
    assert 100_000 < size < MOST_BYTES, size


def opened(d, place):
    """A model of this computer is shown as `info` describes it, planned as the command plans it, and saved with its weights."""
    page = Page(place)
    page.upload(BERT)
    info = native("info", BERT)
    summary = page.text("#about summary")
    assert "%d nodes" % info["nodes"] in summary and "no findings" in summary, summary
    assert page.run("[...document.querySelectorAll('#dims input')].map(e => e.dataset.dim)") == ["batch", "seq"]
    page.run("(() => { const [b, s] = document.querySelectorAll('#dims input'); b.value = 2; s.value = 9 })()")
    page.choose("machine", "ring:4")
    page.press("go")
    assert not page.error(), page.error()
    os.mkdir(d + "/native")
    harness.good(TESSERA, "plan", BERT, "--devices", "ring:4", "--dim", "batch=2", "--dim", "seq=9", "-o", d + "/native/model.onnx",
                 "--plan", d + "/native.json")
    saved = download(page, d, "Download the annotated model", "model.onnx")
    assert digest(saved) == digest(d + "/native/model.onnx"), "the saved model differs from the command's"
    plan = download(page, d, "Download the plan", "model.plan.json")
    with open(plan, encoding="utf-8") as file, open(d + "/native.json", encoding="utf-8") as other:
        plans = [json.load(file), json.load(other)]
    assert plans[0]["model"].pop("sha256") is None and plans[1]["model"].pop("sha256") and plans[0] == plans[1], plans[0]["model"]
    harness.good(TESSERA, "annotate", BERT, "--script", plan, "-o", d + "/again.onnx")
    keys = ("node", "value", "sharding")
    specs = [sorted(tuple(s[k] for k in keys) for s in native("info", path)["shardings"]) for path in (saved, d + "/again.onnx")]
    assert specs[0] == specs[1] and specs[0], "the script of the plan gives other shardings"
    page.done()


def download(page, d, button, name):
    page.place["browser"].call("Browser.setDownloadBehavior", behavior="allow", downloadPath=d)
    page.run("[...document.querySelectorAll('button')].find(b => b.textContent === '%s').click()" % button)
    page.wait()
    deadline = time.monotonic() + 30
    while not os.path.exists(os.path.join(d, name)):
        assert time.monotonic() < deadline, "nothing was downloaded: " + page.error()
        time.sleep(0.05)
    return os.path.join(d, name)


def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def edited(_, place):
    """A wrong annotation is named with its place; a right one is inferred, checked and predicted; an earlier version can be shown again."""
    page = Page(place, [("model", "annotated")])
    found = page.text("#about")
    assert "shard-device" in found and "layer3/down" in found and "did you mean 1?" in found, found
    page.edit("layer3/down", "down3", "{2,1:0,1}")
    page.run("document.querySelector('#nodes tbody button').click()")
    index, outputs = page.run("(cells => [+cells[0].innerText, cells[5].innerText])(document.querySelector('#nodes tbody tr').cells)")
    filled = page.run("['node', 'value', 'spec'].map(id => document.getElementById(id).value)")
    path = os.path.join(FOLDER, "examples", page.text("#report h1"))
    node = onnx.load(path, load_external_data=False).graph.node[index]
    assert filled[:2] == [node.name, node.output[0]] and filled[2] in outputs, (filled, outputs)
    assert not page.error() and "no findings" in page.text("#about summary"), (page.error(), page.text("#about"))
    assert page.text("#report .verdict"), "a valid model is not predicted"
    page.edit("layer0/up", "up0", "{1:0,1}")
    rows = page.run("[...document.querySelectorAll('#history tbody tr')].map(r => r.cells[1].textContent)")
    assert len(rows) == 3 and rows[0] == "\u2013" and rows[1] != rows[2], rows
    page.edit("layer0/up", "up0", "{3,1:0,1}")
    assert "up0" in page.error() or "{3,1:0,1}" in page.error(), page.error()
    page.run("[...document.querySelectorAll('#history button')][1].click()")
    page.wait()
    assert page.run("[...document.querySelectorAll('#history tbody tr')].findIndex(r => r.innerText.includes('yes'))") == 1
    page.done()


def by_hand(_, place):
    """Without a plan: an empty configuration for the machine, one sharding, and the address that leads back to it."""
    page = Page(place, [("model", "bert-base"), ("machine", "{4, [[1],[2],[3],[0]]}")])
    page.press("hand")
    assert not page.error() and "4 devices" in page.text("#report header"), page.error()
    name = page.run("(document.getElementById('node').value = 'Gemm', document.getElementById('node').dispatchEvent(new Event('input')),"
                    " document.querySelector('#names option').value)")
    page.choose("node", name)
    output = page.run("[...document.getElementById('value').options].pop().value")
    page.edit(name, output, "{1,4:0,1,2,3}")
    assert not page.error(), page.error()
    words = page.text("#history")
    again = Page(place)
    again.run("location.hash = %s" % json.dumps(page.run("location.hash")))
    again.wait("document.querySelectorAll('#history tbody tr').length === 2 && " + IDLE)
    assert again.text("#history").split() == words.split(), (again.text("#history"), words)
    page.done()
    again.done()


def by_hand_again(d, place):
    """A model that was sharded by hand and saved can be sharded by hand once more; its script gives the same shardings."""
    page = Page(place, [("machine", "2")])
    page.upload(BERT)
    for name in ("by-hand", "by-hand-2"):
        page.press("hand")
        assert not page.error() and page.text("#report header").count(name), (page.error(), page.text("#report header"))
        assert page.text("#command") == "tessera report model.onnx --config %s -o page.html" % name, page.text("#command")
        node = onnx.load(BERT).graph.node[-1]
        page.edit(node.name, node.output[0], "{1,2:0,1}")
        assert not page.error(), page.error()
        script = download(page, d, "Download the plan", "model.plan.txt")
        saved = download(page, d, "Download the annotated model", "model.onnx")
        harness.good(TESSERA, "annotate", BERT, "--script", script, "-o", d + "/again.onnx")
        specs = [[(s["node"], s["value"], s["sharding"]) for s in native("info", path)["shardings"] if s["configuration"] == name]
                 for path in (saved, d + "/again.onnx")]
        assert specs[0] == specs[1] and specs[0], specs
        os.mkdir("%s/%s" % (d, name))
        os.rename(saved, "%s/%s/model.onnx" % (d, name))
        os.remove(script)
        page.upload("%s/%s/model.onnx" % (d, name))
    page.done()


def options_of_versions(_, place):
    """The address, and an edit, have the options that a version was made with, whatever the form says now. To show a version fills in
    the form. The command to make the page has quotes where a shell needs them."""
    page = Page(place)
    page.upload(BERT)
    page.run("document.querySelector('#dims input').value = 64")
    page.choose("machine", "")
    page.choose("other", "{2, [[1],[0]]}")
    page.press("go")
    address = page.run("location.hash")
    assert "{2, [[1],[0]]}" in parse_qs(address[1:])["machine"] and "'{2, [[1],[0]]}'" in page.text("#command"), page.text("#command")
    page.choose("machine", "h100:8")
    page.run("document.querySelector('#dims input').value = 8")
    node = onnx.load(BERT).graph.node[-1]
    page.edit(node.name, node.output[0], "{1:0,1}")
    assert not page.error(), page.error()
    edited = parse_qs(page.run("location.hash")[1:])
    assert edited.pop("edit") and edited == parse_qs(address[1:]), (edited, address)
    page.run("[...document.querySelectorAll('#history button')].pop().click()")
    page.wait()
    form = page.run("[document.getElementById('other').value, document.querySelector('#dims input').value]")
    assert form == ["{2, [[1],[0]]}", "64"] and page.run("location.hash") == address, (form, page.run("location.hash"))
    page.done()


def chosen(d, place):
    """The list of examples and the address show what is open, whatever was tried. Names of files are not options."""
    page = Page(place, [("machine", "2")])
    state = lambda: (page.run("document.getElementById('example').value"), parse_qs(page.run("location.hash")[1:]).get("model"))
    page.choose("example", "annotated")
    page.wait()
    assert state() == ("annotated", ["annotated"]), state()
    with open(d + "/none.onnx", "wb") as file:
        file.write(b"no model")
    page.upload(d + "/none.onnx")
    assert page.error() and state() == ("annotated", ["annotated"]), state()
    for name in ("--help", "out"):
        shutil.copy(BERT, d + "/" + name)
        page.upload(d + "/" + name)
        page.press("go")
        assert not page.error() and page.text("#report .verdict") and state() == ("", None), (name, page.error(), state())
    page.done()


def refused(d, place):
    """Files that are no models, and machines that are none, are refused in the command's words. What was open stays. Places in the file
    are those of the file, also behind weights that were not read."""
    page = Page(place, [("model", "bert-base")])
    broken = bytearray(open(BERT, "rb").read())
    broken[broken.rindex(b"logits") - 2] = 0x0f  # a tag of an unknown kind, behind all weights
    for name, data in (("empty.onnx", b""), ("text.onnx", b"hello"), ("cut.onnx", open(BERT, "rb").read()[:5000]), ("tag.onnx", broken)):
        with open(d + "/" + name, "wb") as file:
            file.write(data)
        page.upload(d + "/" + name)
        said = harness.call(TESSERA, "info", name, cwd=d)[2].split()
        assert said and said == page.error().split(), (name, said, page.error())
        assert "356 nodes" in page.text("#about summary")
    page.choose("machine", "")
    page.choose("other", "rng:4")
    page.press("go")
    assert "rng" in page.error() and "ring" in page.error(), page.error()
    page.done()


def prepared(_, place):
    """A model that a visitor chose is planned once unasked, so that the browser compiles the planner. A plan does not wait for that."""
    page = Page(place, [("machine", "2")])
    page.run("""(() => {
        window.said = [];
        window.Worker = class extends Worker {
            constructor(...words) {
                super(...words);
                this.addEventListener('message', ({ data }) => data.id === 0 && data.line === undefined && said.push(data));
            }
        };
    })()""")
    page.choose("example", "bert-base")
    page.wait("said.length === 1")
    assert page.run("said[0].code === 0 && 'bert-base.onnx' in said[0].files"), page.run("said[0].stderr")
    page.wait()
    page.choose("example", "vit-base")
    page.wait()
    page.press("go")
    assert not page.error() and page.text("#report h1") == "vit-base.onnx" and page.run("said.length") == 1, page.error()
    page.done()


def cancelled(_, place):
    """A plan that is cancelled leaves the page as it was; the next one runs."""
    page = Page(place, [("model", "qwen3-0.6b"), ("machine", "hosts:2xh100:8")])
    page.run("document.getElementById('go').click()")
    page.run("document.getElementById('cancel').click()")
    page.wait("document.getElementById('cancel').hidden")
    assert page.text("#status") == "Cancelled." and not page.error(), (page.text("#status"), page.error())
    page.choose("machine", "2")
    page.press("go")
    assert not page.error() and page.text("#report .verdict"), page.error()
    page.done()


def two_gigabytes(d, place):
    """Weights of a large model are not read: 1.9 GB that are a hole in a file."""
    size = 19 * 10**8 // 4 // 4096
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4096, size])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 4096), ("y", size))]
    model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 18)])
    # Fields are appended: the weight with its hole, inside a second piece of the graph, which readers merge with the first.
    tensor = weight.SerializeToString() + b"\x4a" + varint(4096 * size * 4)
    length = len(tensor) + 4096 * size * 4
    piece = b"\x2a" + varint(length) + tensor
    with open(d + "/large.onnx", "wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(len(b"\x2a" + varint(length)) + length) + piece)
        file.truncate(file.tell() + 4096 * size * 4)
    page = Page(place, [("machine", "h100:4")])
    page.upload(d + "/large.onnx")
    assert not page.error() and "1.8 GiB of weights" in page.text("#about summary"), (page.error(), page.text("#about summary"))
    page.press("go")
    assert not page.error() and page.text("#report .verdict"), page.error()
    page.done()


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def many_nodes(d, place):
    """100,000 nodes: lists draw what is seen."""
    count = 100000
    nodes = [helper.make_node("Add", ["v%d" % i, "w"], ["v%d" % (i + 1)], name="node%d" % i) for i in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("v0", "v%d" % count)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.ones((64, 64), "f"), "w")])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), d + "/many.onnx")
    page = Page(place, [("machine", "2")])
    page.upload(d + "/many.onnx")
    page.press("go")
    assert not page.error() and page.text("#report .verdict"), page.error()
    assert page.run("document.querySelectorAll('*').length") < 8000, page.run("document.querySelectorAll('*').length")
    page.edit("node99999", "v100000", "{1,2:0,1}")
    assert not page.error() and page.run("document.querySelectorAll('#history tbody tr').length") == 2, page.error()
    page.done()


def hostile(d, place):
    """Names of the model are text everywhere, and nothing is wider than the screen."""
    path = pages.hostile_model(d)
    for width, touch, dark in ((390, True, False), (900, False, False), (1280, False, True)):
        page = Page(place, [("machine", "2")], width, touch=touch, dark=dark)
        page.upload(path)
        assert not page.error(), page.error()
        page.press("go")
        page.run("document.querySelector('#about details').open = true")
        page.edit("#1 MatMul", pages.EVIL[1] + "v", "{1,2:0,1}")
        assert not page.error() and page.run("document.querySelectorAll('#history tbody tr').length") == 2, page.error()
        pages.fits(page, width, "hostile")
        assert page.run("typeof window.evil") == "undefined", "a name of the model was run as a script"
        if os.environ.get("TESSERA_PICTURES"):
            page.picture("%s/web-hostile-%d.png" % (os.environ["TESSERA_PICTURES"], width))
        page.done()


def widths(_, place):
    """The planned example fits on each screen, and controls are large enough for a finger."""
    for width, touch, dark in ((390, True, False), (900, False, True), (1280, False, False)):
        page = Page(place, [("model", "bert-base"), ("machine", "4"), ("do", "plan")], width, touch=touch, dark=dark)
        pages.fits(page, width, "widths")
        small = page.run("[...document.querySelectorAll('button, select, input:not([type=file])')].map(e => [e.id,"
                         " e.getBoundingClientRect().height]).filter(r => r[1] && r[1] < 32)")
        assert not small, small
        if os.environ.get("TESSERA_PICTURES"):
            page.picture("%s/web-%d.png" % (os.environ["TESSERA_PICTURES"], width), whole=False)
        page.done()


def by_keyboard(_, place):
    """Every control is reached with the tab key, and Enter plans."""
    page = Page(place, [("model", "bert-base"), ("machine", "2"), ("do", "plan")])
    reached = set()
    for _ in range(60):
        page.key("Tab", 9)
        reached.add(page.run("document.activeElement.id || document.activeElement.tagName"))
    wanted = {"example", "open", "machine", "go", "hand", "node", "value", "spec", "SUMMARY"}
    assert wanted <= reached, wanted - reached
    page.run("document.getElementById('go').focus()")
    page.key("Enter", 13)
    page.run("new Promise(done => setTimeout(done, 100))")
    page.wait()
    assert page.text("#history").count("plan for 2") == 2, page.text("#history")
    page.done()


def accessible(_, place):
    script = pages.axe_core()
    if not script:
        return "axe-core is not installed (npm install -g axe-core)"
    for width, dark in ((400, False), (900, True), (1600, False)):
        page = Page(place, [("model", "bert-base"), ("machine", "4"), ("do", "plan")], width, touch=width == 400, dark=dark)
        page.run("document.querySelector('#about details').open = true")
        assert not pages.violations(page, script), pages.violations(page, script)
        page.done()
    return None


def picture(d, _):
    """tools/browser-picture must make the picture of README."""
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "browser-picture")
    harness.good(sys.executable, tool, FOLDER, d + "/browser.png")
    assert open(d + "/browser.png", "rb").read(8) == b"\x89PNG\r\n\x1a\n" and 20_000 < os.path.getsize(d + "/browser.png") < 200_000


CASES = (small, picture, examples, opened, edited, by_hand, by_hand_again, options_of_versions, chosen, refused, prepared, cancelled,
         two_gigabytes, hostile, widths, by_keyboard, accessible)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=FOLDER))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"browser": browser.Browser(), "address": "http://127.0.0.1:%d/" % server.server_port}
    try:
        harness.run(CASES + (many_nodes,) * harness.ALL, place)
    finally:
        place["browser"].close()
        server.shutdown()
    harness.finish()


if not browser.program():
    sys.exit("tests/web/page.py needs Chromium (tools/setup installs it)")
main()
