#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""web - the time to plan a model in the browser, compared with the command.

The page is that of `make web-build`, in a headless Chromium with an empty profile, behind a web server on the loopback. A visitor opens the
model, looks at it for two seconds and then plans it for h100:8, and twice again. The last figure does not wait: the browser has compiled
nothing of the planner then. The search has a fixed amount of work, so both sides do the same: plans that differ are an error. Sides
alternate; the shortest time of each counts. Both include reading the model and writing the annotated one.

The model is Llama 2 7B as a decoder of 4-bit weights, or the file that MODEL names.
Prints one line per figure: name, ours, peer, ratio, goal, ok or short.
usage: web [ROUNDS]"""
import functools, http.server, json, os, shutil, sys, tempfile, threading, time

ROOT, HERE = os.getcwd(), os.path.dirname(os.path.abspath(__file__))  # tools/bench starts it in the root of the project
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "e2e")]
import browser, figures

PAGE = os.path.join(ROOT, os.environ.get("PAGE", "build-web/page"))
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
MACHINE, GOAL, AGAIN = "h100:8", 3.0, 2
LOOKED_S = 2
BUSY = "!document.getElementById('opened').textContent.startsWith('model.onnx') || !document.getElementById('cancel').hidden"
# The calls of the page, whose module of tool.js is this one.
PLAN = """(async () => {
    const { tool } = await import(new URL('tool.js', location.href).href), file = document.getElementById('file').files[0];
    const source = await tool.open(file), began = performance.now();
    const args = ['plan', 'model.onnx', '--devices', '%s', '-o', 'out/model.onnx', '--json'];
    const { code, stdout, stderr } = await tool.run(args, { 'model.onnx': source.bytes });
    if (code) throw new Error(stderr);
    return [(performance.now() - began) / 1e3, JSON.parse(stdout).cost];
})()""" % MACHINE


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def native(model, folder):
    began = time.perf_counter()
    said = figures.tessera("plan", model, "--devices", MACHINE, "-o", folder + "/planned.onnx", "--json")
    return time.perf_counter() - began, json.loads(said)["cost"]


def in_browser(model, address, looked_s):
    """Seconds and cost of the first plan and of the next ones."""
    chromium = browser.Browser()
    try:
        tab = browser.Tab(chromium, address, 1280)
        root = tab.call("DOM.getDocument")["root"]["nodeId"]
        node = tab.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        tab.call("DOM.setFileInputFiles", nodeId=node, files=[model])
        while tab.run(BUSY):
            time.sleep(0.02)
        time.sleep(looked_s)
        return [tab.run(PLAN) for _ in range(1 + AGAIN)]
    finally:
        chromium.close()


def main(model, address, folder):
    peer, looked, at_once = [], [], []
    for _ in range(ROUNDS):
        peer += [native(model, folder) for _ in range(1 + AGAIN)]
        looked.append(in_browser(model, address, LOOKED_S))
        at_once.append(in_browser(model, address, 0))
    costs = {cost for row in (*looked, *at_once, peer) for _, cost in row}
    if len(costs) != 1:
        sys.exit("bench: the plans differ in cost: %s" % sorted(costs))
    seconds = min(took for took, _ in peer)
    for what, rows, which in (("the first", looked, slice(1)), ("again", looked, slice(1, None)), ("at once", at_once, slice(1))):
        took = min(took for row in rows for took, _ in row[which])
        name = "web: plan for %s, %s" % (MACHINE, what)
        print("%-52s %14s %14s %8.2f  %-8s %s" % (name, "%.3f s" % took, "%.3f s" % seconds, took / seconds, "<=%.2gx" % GOAL,
                                                  "ok" if took <= GOAL * seconds else "short"), flush=True)


if not browser.program() or not os.path.exists(PAGE + "/tessera.wasm"):
    print("bench: web needs Chromium (tools/setup installs it) and the page: make web-build", file=sys.stderr)
    sys.exit(0)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=PAGE))
threading.Thread(target=server.serve_forever, daemon=True).start()
with tempfile.TemporaryDirectory(prefix="tessera-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
    if os.environ.get("MODEL"):
        shutil.copyfile(os.environ["MODEL"], folder + "/model.onnx")
    else:
        figures.make(ROOT + "/bench/known.py", "llama-2-7b", folder + "/made", "graph")
        shutil.move(folder + "/made/model.onnx", folder + "/model.onnx")
    main(folder + "/model.onnx", "http://127.0.0.1:%d/" % server.server_port, folder)
