# SPDX-License-Identifier: Apache-2.0
"""What both pages must hold, that of `tessera report` and the one in the browser: everything fits on the screen, names of a model are text,
and axe-core finds no violation."""
import os, shutil, subprocess

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

EVIL = [
    '<script>window.evil=1</script>', '"onmouseover="window.evil=1', "'><img src=x onerror=window.evil=1>",
    "</title></style></script><script>window.evil=1</script>", "</script><svg onload=window.evil=1>", "javascript:window.evil=1", "]]><!--",
    "bad\x7fname\tx", "\u2028\u2029", "a" * 300, "layer_007#1"
]


def hostile_model(d):
    """Writes a model whose names, of nodes, values, operators, domains, sizes and of its file, contain scripts or have no place for a line
    break. Returns its path."""
    f = TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["x" if i == 0 else EVIL[i - 1] + "v", "w%d" % i + EVIL[i]], [EVIL[i] + "v"], name=EVIL[i])
        for i in range(len(EVIL))
    ]
    nodes.append(helper.make_node(EVIL[0], ["s"], ["custom"], name="custom", domain=EVIL[3]))
    shapes = dict(x=[16, 16], s=[EVIL[1], 4], custom=[EVIL[4], 4])
    ends = [helper.make_tensor_value_info(v, f, shapes.get(v, [16, 16])) for v in ("x", "s", EVIL[-1] + "v", "custom")]
    w = [numpy_helper.from_array(np.zeros((16, 16), "f"), "w%d" % i + EVIL[i]) for i in range(len(EVIL))]
    path = d + "/<svg onload=window.evil=1>.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:2], ends[2:], w), ir_version=10,
                                 opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(EVIL[3], 1)]), path)
    return path


def fits(tab, width, name):
    wide = tab.run(
        "[...document.querySelectorAll('body *')].filter(e => { const r = e.getBoundingClientRect();let p = e.parentElement; for (; p;"
        " p = p.parentElement) if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return false;return r.right >"
        " innerWidth + 0.5; }).map(e => e.tagName + '.' + e.className + '#' + e.id).slice(0, 5)"
    )
    assert tab.run("document.documentElement.scrollWidth") <= width and not wide, (name, width, wide)


def axe_core():
    """Returns the text of axe-core's script, or None."""
    folders = [os.environ.get("AXE_CORE", "")]
    if not folders[0] and shutil.which("npm"):
        found = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, timeout=harness.HANG_S)
        folders = [found.stdout.strip()]
    for folder in folders:
        for path in (folder + "/node_modules/axe-core/axe.min.js", folder + "/axe-core/axe.min.js"):
            if folder and os.path.exists(path):
                return open(path, encoding="utf-8").read()
    return None


def violations(tab, script):
    """Returns the axe-core rules that the page violates: each with its number of elements, the first one, and why."""
    tab.run(script + "; 0")
    return tab.run(
        "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.length, v.nodes[0].target.join(' '), v.nodes[0].failureSummary]))")
