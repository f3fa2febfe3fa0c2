# SPDX-License-Identifier: Apache-2.0
"""Tests the page of `tessera report` in a headless Chromium. Without Chromium all cases are skipped.

Nothing may be wider than the screen at 390 and 1280 pixels. Every mark must be reachable by keyboard and touch and show a description. The
page must load nothing, treat no name as markup and leave the console empty. TESSERA_PICTURES=FOLDER stores a picture of each page. If
axe-core is installed, it must find no violation at 400, 900 and 1600 pixels: `npm install axe-core` in a folder that AXE_CORE names, or
`npm install -g axe-core`.

usage: page.py TESSERA MODELS"""
import json, os, subprocess, sys

import onnx
from onnx import TensorProto, helper

import browser, layers, pages

import harness

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
ARROWS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def good(*words):
    return harness.good(TESSERA, *words)


def sized(chromium, path, name):
    """Checks for overflow, requests and errors, at both widths and in both color schemes."""
    for width, touch, dark in ((390, True, False), (1280, False, False), (1280, False, True)):
        tab = browser.Tab(chromium, path, width, touch=touch, dark=dark)
        pages.fits(tab, width, name)
        assert not tab.errors() and not tab.requests(), (name, width, tab.errors(), tab.requests())
        assert tab.run("typeof window.evil") == "undefined", "a name of the model was run as a script"
        if os.environ.get("TESSERA_PICTURES"):
            tab.picture("%s/%s-%d%s.png" % (os.environ["TESSERA_PICTURES"], name, width, "-dark" if dark else ""))
        tab.close()


def by_keyboard(chromium, path):
    """Every drawing must be one stop of the tab key. Arrow keys must move from mark to mark, and each must have a label."""
    tab = browser.Tab(chromium, path, 1280)
    groups = tab.run("[...document.querySelectorAll('.marks')].map(g => g.querySelectorAll('[data-tip]').length)")
    assert len(groups) >= 5 and all(groups), groups
    stops = tab.run("[...document.querySelectorAll('.marks')].map(g => g.querySelectorAll('[tabindex=\"0\"]').length)")
    assert all(s == 1 for s in stops), stops
    for i, n in enumerate(groups):
        tab.run("document.querySelectorAll('.marks')[%d].querySelector('[tabindex=\"0\"]').focus()" % i)
        told = []
        for _ in range(min(n, 12)):
            told.append(tab.run("document.activeElement.getAttribute('aria-label')"))
            seen = tab.run(
                "(() => { let e = document.activeElement.closest('.marks'); while (!e.classList.contains('readout')) e ="
                " e.nextElementSibling; return e.textContent })()"
            )
            assert told[-1] and seen == told[-1], (i, seen, told)
            tab.key("ArrowRight", ARROWS["ArrowRight"])
        assert len(set(told)) == len(told), (i, told)
    tab.run("document.getElementById('lanes').focus()")
    told = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp"):
        tab.key(key, ARROWS[key])
        told.add(tab.run("document.querySelector('#timeline .readout').textContent"))
    assert len(told) >= 4 and all(t.startswith("device ") and " from " in t for t in told), told
    before = tab.run("document.querySelector('#lanes .ticks').textContent")
    tab.key("+")
    assert tab.run("document.querySelector('#lanes .ticks').textContent") != before, "plus does not zoom"
    reached = set()
    tab.run("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(100):
        tab.key("Tab", ARROWS["Tab"])
        reached.add(
            tab.run(
                "(() => { const e = document.activeElement, m = e.closest('.marks'); return m ? 'marks' +"
                " [...document.querySelectorAll('.marks')].indexOf(m) : e.id || e.tagName })()"
            )
        )
    wanted = {"marks%d" % i for i in range(len(groups))} | {"lanes", "tensor", "BUTTON", "INPUT"}
    assert wanted <= reached, wanted - reached
    assert not tab.errors(), tab.errors()
    tab.close()


def by_touch(chromium, path):
    """A tap on a mark, on the timeline or on a tensor of the table must show a description."""
    tab = browser.Tab(chromium, path, 390, touch=True)
    middle = (
        "(() => { const e = document.querySelector('%s'); e.scrollIntoView({block: 'center', behavior: 'instant'}); const r ="
        " e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2, r.width, r.height] })()"
    )
    for mark, place in (("#memory .bar [data-tip]", "#memory .readout"), ("#communication .matrix [data-tip]", "#communication .readout"),
                        ("#lanes svg", "#timeline .readout"), ("#pieces [data-tip]", "#picture .readout")):
        x, y, *_ = tab.run(middle % mark)
        tab.tap(x, y if mark != "#lanes svg" else y - 5)
        words = tab.run("document.querySelector('%s').textContent" % place)
        assert "device" in words or "\u2192" in words, (mark, words)
    row = 3 if tab.run("document.getElementById('tensor').value") != "2" else 2
    x, y, *_ = tab.run(middle % ("#largest tr:nth-child(%d) a" % row))
    tab.tap(x, y)
    assert tab.run("document.getElementById('tensor').value") == str(row - 1), "the table does not choose the picture"
    small = tab.run(
        "[...document.querySelectorAll('button, select, input')].map(e => e.getBoundingClientRect()).filter(r => r.height < 32).length")
    assert small == 0, "%d things to press are too small for a finger" % small
    assert not tab.errors(), tab.errors()
    tab.close()


def works(chromium, path):
    """Tests the filter, the selection of a tensor, and the copy button."""
    tab = browser.Tab(chromium, path, 1280)
    rows = "[...document.querySelectorAll('#nodes tbody tr')].filter(r => !r.hidden).length"
    before = tab.run(rows)
    tab.run("(() => { const i = document.querySelector('[data-filter]'); i.value = 'softmax'; i.dispatchEvent(new Event('input')) })()")
    assert 0 < tab.run(rows) < before, "the filter does nothing"
    pieces = tab.run(
        "[...document.getElementById('tensor').options].map(o => { const s = document.getElementById('tensor'); s.value = o.value;"
        " s.dispatchEvent(new Event('change'));return document.querySelectorAll('#pieces i').length })"
    )
    assert len(pieces) > 5 and all(pieces) and max(pieces) >= 4, pieces
    assert tab.run("[...document.querySelectorAll('#pieces i')].every(i => i.getBoundingClientRect().width > 0)")
    tab.run("document.querySelector('[data-copy]').click()")
    assert tab.run("document.querySelector('[data-copy]').textContent") in ("Copied", "Selected")
    assert tab.run("getSelection().toString()").startswith("tessera report "), "the command is not chosen"
    assert not tab.errors(), tab.errors()
    tab.close()


def llama(chromium, d):
    model = os.path.join(MODELS, "llama_tiny", "model.onnx")
    good("plan", model, "--devices", "4", "--dim", "batch=8", "--dim", "seq=32", "-o", d + "/p.onnx")
    good("plan", model, "--devices", "2", "--dim", "batch=8", "--dim", "seq=32", "-o", d + "/q.onnx")
    good("simulate", d + "/p.onnx", "--trace", d + "/trace.json")
    good("report", d + "/p.onnx", "--trace", d + "/trace.json", "--beside", d + "/q.onnx", "-o", d + "/page.html")
    sized(chromium, d + "/page.html", "llama")
    by_keyboard(chromium, d + "/page.html")
    by_touch(chromium, d + "/page.html")
    works(chromium, d + "/page.html")


def violations(chromium, path, script):
    """Returns the axe-core rules that the page violates, with the first element, at three widths and in both color schemes."""
    found = []
    for width, dark in ((400, False), (900, False), (900, True), (1600, False), (1600, True)):
        tab = browser.Tab(chromium, path, width, touch=width == 400, dark=dark)
        found += [(width, "dark" if dark else "light", *rule) for rule in pages.violations(tab, script)]
        if os.environ.get("TESSERA_PICTURES"):
            tab.picture("%s/axe-%d%s.png" % (os.environ["TESSERA_PICTURES"], width, "-dark" if dark else ""))
        tab.close()
    return found


def accessible(chromium, d):
    """A plan for two hosts, with experts' plans for comparison, must not violate axe-core's rules."""
    script = pages.axe_core()
    if not script:
        return "axe-core is not installed (npm install -g axe-core)"
    model = os.path.join(MODELS, "llama_tiny", "model.onnx")
    good("report", model, "--devices", "hosts:2x2", "--memory", "1MiB", "--dim", "batch=8", "--dim", "seq=32", "-o", d + "/page.html")
    found = violations(chromium, d + "/page.html", script)
    assert not found, "\n".join(map(str, found))
    return None


def large(chromium, d):
    layers.save(d + "/m.onnx", 62)
    edits = [w for i in range(62) for w in ("--shard", "/model/layers.%d/mlp/up/Add:/model/layers.%d/mlp/up/Add_output_0={8,1,1}" % (i, i))]
    good("annotate", d + "/m.onnx", "--config", "b:8", *edits, "-o", d + "/cut.onnx")
    good("infer", d + "/cut.onnx", "--propagate", "-o", d + "/full.onnx")
    good("report", d + "/full.onnx", "-o", d + "/page.html")
    assert os.path.getsize(d + "/page.html") < 1e6
    sized(chromium, d + "/page.html", "large")
    tab = browser.Tab(chromium, d + "/page.html", 1280)
    name = "/model/layers.37/attn/q_proj/MatMul"
    assert not tab.run("document.getElementById('report').textContent.includes('%s')" % name), "names of closed lists are drawn"
    tab.run("(() => { const i = document.querySelector('[data-filter]'); i.value = '%s'; i.dispatchEvent(new Event('input')) })()" % name)
    assert tab.run("document.querySelectorAll('#nodes tbody tr').length") == 1, "the filter does not find a node of a closed list"
    tab.run("document.querySelector('#nodes details').open = true; new Promise(done => setTimeout(done, 100))")
    assert name in tab.run("document.querySelector('#nodes details').textContent")
    assert tab.run("document.querySelectorAll('#nodes details br').length") == 61 and not tab.errors(), tab.errors()
    tab.close()


def long_list(chromium, d):
    """Rows of a long table must be drawn as the reader scrolls. The filter must search all, also those that are not drawn."""
    letters = [a + b + c for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"]
    nodes = [helper.make_node("Relu", [letters[i - 1] if i else "x"], [name], name="node_" + name) for i, name in enumerate(letters)]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [8, 8]) for v in ("x", letters[-1])]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=10, opset_imports=[helper.make_opsetid("", 18)]),
        d + "/m.onnx")
    good("report", d + "/m.onnx", "--devices", "2", "-o", d + "/page.html")
    tab = browser.Tab(chromium, d + "/page.html", 1280)
    rows = "[...document.querySelectorAll('#nodes tbody tr')].map(r => r.cells[1].textContent)"
    drawn = tab.run(rows)
    assert 100 < len(drawn) < len(letters), len(drawn)
    for _ in range(20):
        tab.run(
            "(() => { const a = document.getElementById('nodes').parentElement; a.scrollTop = a.scrollHeight; return new Promise(done =>"
            " setTimeout(done, 50)) })()"
        )
    assert tab.run(rows) == ["node_" + name for name in letters]
    tab.run("(() => { const i = document.querySelector('[data-filter]'); i.value = 'NODE_HHG'; i.dispatchEvent(new Event('input')) })()")
    assert tab.run(rows) == ["node_hhg"] and not tab.errors(), tab.errors()
    tab.close()


def hostile(chromium, d):
    """Names of nodes, values, operators, domains, sizes, configurations, devices and files that contain scripts or have no place for a line
    break."""
    path = pages.hostile_model(d)
    t = json.loads(good("topology", "show", "cpu:2", "--json"))
    for device, name in zip(t["devices"], pages.EVIL):
        device["name"] = name
    json.dump({k: t[k] for k in ("devices", "links")}, open(d + "/t.json", "w"))
    good("plan", path, "--devices", d + "/t.json", "--config", pages.EVIL[2], "-o", d + "/planned.onnx")
    good("simulate", d + "/planned.onnx", "--trace", d + "/trace.json")
    good("report", d + "/planned.onnx", "--trace", d + "/trace.json", "--beside", d + "/planned.onnx", "-o", d + "/page.html")
    sized(chromium, d + "/page.html", "hostile")
    tab = browser.Tab(chromium, d + "/page.html", 1280)
    shown = tab.run("document.getElementById('report').textContent")
    assert all(e.replace("\x7f", "\ufffd").replace("\t", "\ufffd") in shown for e in pages.EVIL), [e for e in pages.EVIL if e not in shown]
    tab.run("[...document.querySelectorAll('[data-tip]')].forEach(e => e.dispatchEvent(new PointerEvent('pointerover', {bubbles: true})))")
    tab.run(
        "[...document.getElementById('tensor').options].forEach(o => { const s = document.getElementById('tensor'); s.value = o.value;"
        " s.dispatchEvent(new Event('change')) })"
    )
    assert tab.run("typeof window.evil") == "undefined" and not tab.errors() and tab.run(
        "document.querySelectorAll('img, svg[onload]').length") == 0
    tab.close()


def picture(_, d):
    """tools/report-picture must make the picture of README."""
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "report-picture")
    made = subprocess.run([sys.executable, tool, os.path.dirname(TESSERA), d + "/report.png"], capture_output=True, text=True,
                          timeout=harness.HANG_S)
    assert made.returncode == 0, made.stderr
    assert open(d + "/report.png", "rb").read(8) == b"\x89PNG\r\n\x1a\n" and 20_000 < os.path.getsize(d + "/report.png") < 200_000


CASES = (llama, accessible, picture, large, long_list, hostile)
if not browser.program():
    for case in CASES:
        harness.skip(case.__name__, "no Chromium here (apt-get install chromium)")
    sys.exit(0)
chromium = browser.Browser()
harness.run([(case.__name__, lambda folder, case: case(chromium, folder), case) for case in CASES])
chromium.close()
harness.finish()
