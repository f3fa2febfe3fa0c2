# SPDX-License-Identifier: Apache-2.0
"""Tests models of real exporters. Exports them with random weights, then checks, plans and verifies them on 2, 3 and 4 devices, also with
random shardings. Needs a package index. The packages (tests/zoo/requirements.txt) are installed in FOLDER/venv, models are written to
FOLDER/models; the next run uses both again.

usage: zoo.py TESSERA FOLDER [NAME...]      NAME: only these models, and those that they are derived from

Prints one line per model, and at the end their number and how often `verify` accepted a difference for which reason. A model that
its exporter or ONNX Runtime rejects is skipped; its line says so."""
import collections, json, os, re, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
TESSERA, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MODELS, PYTHON = os.path.join(FOLDER, "models"), os.path.join(FOLDER, "venv", "bin", "python")
LIMIT = 300  # seconds per command
PLAN_SECONDS = 20
# Codes with which `verify` accepts or explains a difference.
REASONS = ("engine-rounds", "engine-varies", "verify-sensitive", "engine-saturates", "engine-shortcut")
# Tolerances for rounding of the model's own types: float16, and integers, which may be off by one.
LOOSE = {"float16": "2e-2", "qdq16": "1e-3", "dynamic8": "2e-2", "int4": "2e-2"}


def make_venv():
    """Install the packages once; the marker file is written last."""
    done = os.path.join(FOLDER, "venv", "installed")
    wanted = open(os.path.join(HERE, "requirements.txt")).read()
    if os.path.exists(done) and open(done).read() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", os.path.join(FOLDER, "venv")], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "-r", os.path.join(HERE, "requirements.txt")], check=True)
    with open(done, "w") as f:
        f.write(wanted)


def export(name):
    """None if the model exists; otherwise the reason why not."""
    if os.path.exists(os.path.join(MODELS, name, "ready")):
        return None
    p = subprocess.run([PYTHON, os.path.join(HERE, "export.py"), name, MODELS], capture_output=True, text=True, timeout=900)
    if p.returncode:
        return "the exporter fails: " + (p.stderr.strip().splitlines() or [""])[-1][:200]
    reference = (
        "import onnxruntime as o, numpy as n, sys\ns = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\ns.run(None,"
        " dict(n.load(sys.argv[2])))"
    )
    p = subprocess.run([PYTHON, "-c", reference,
                        os.path.join(MODELS, name, "model.onnx"),
                        os.path.join(MODELS, name, "inputs.npz")], capture_output=True, text=True)
    if p.returncode:
        return "ONNX Runtime refuses it: " + (p.stderr.strip().splitlines() or [""])[-1][:200]
    open(os.path.join(MODELS, name, "ready"), "w").close()
    return None


def tessera(*words):
    """(exit status, the JSON document or None, stderr)."""
    try:
        p = subprocess.run([TESSERA, *map(str, words), "--json"], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return 124, None, "more than %d s" % LIMIT
    try:
        return p.returncode, json.loads(p.stdout), p.stderr
    except ValueError:
        return p.returncode, None, p.stderr


def judge(name, accepted):
    """(errors of Tessera with the model as texts, number of nodes that plans shard). accepted: counts the codes of REASONS."""
    model, inputs = os.path.join(MODELS, name, "model.onnx"), os.path.join(MODELS, name, "inputs.npz")
    wrong, sharded = [], []
    tolerance = [w for part, value in LOOSE.items() if part in name for w in ("--tolerance", value)]
    rc, _, err = tessera("check", model)
    if rc:
        wrong.append("check exits %d: %s" % (rc, err[-300:]))
    for devices in (2, 3, 4):
        start = time.monotonic()
        rc, doc, err = tessera("plan", model, "--devices", devices)
        seconds = time.monotonic() - start
        if rc or not doc["feasible"] or seconds > PLAN_SECONDS:
            wrong.append("plan for %d exits %d after %.1f s: %s" % (devices, rc, seconds, err[-300:]))
        rc, doc, err = tessera("verify", model, "--devices", devices, "--inputs", inputs, *tolerance)
        if rc or not doc["ok"]:
            wrong.append("verify on %d exits %d: %s %s" %
                         (devices, rc, [o for o in (doc or {}).get("outputs", []) if not o["ok"]], err[-300:]))
        accepted.update({f["code"] for f in (doc or {}).get("findings", [])} & set(REASONS))
        sharded.append(doc["cut_nodes"] if doc and "cut_nodes" in doc else 0)
    for devices, seed in ((3, 11), (4, 5)):
        rc, doc, err = tessera("verify", model, "--devices", devices, "--inputs", inputs, "--random", 3, "--seed", seed, *tolerance)
        if rc or not doc["ok"]:
            bad = [seed + i for i, t in enumerate((doc or {}).get("trials", [])) if not t["ok"]]
            wrong.append("random shardings on %d devices, seeds %s, exit %d: %s" % (devices, bad, rc, err[-300:]))
    return wrong, sharded


def with_sources(names, known):
    """The names and the models that they are derived from, in the order of the recipes."""
    text, wanted = open(os.path.join(HERE, "export.py")).read(), set(names)
    for _ in range(3):
        for name in list(wanted):
            body = text.split("def %s(" % name)[1].split("@recipe")[0]
            wanted |= {other for other in known if re.search('"%s"' % other, body)}
    return [name for name in known if name in wanted]


def main():
    os.makedirs(MODELS, exist_ok=True)
    make_venv()
    known = subprocess.run([PYTHON, os.path.join(HERE, "export.py"), "--list"], check=True, capture_output=True, text=True).stdout.split()
    names = with_sources(sys.argv[3:], known) if sys.argv[3:] else known
    passed = failed = skipped = 0
    accepted = collections.Counter(dict.fromkeys(REASONS, 0))
    for name in names:
        why = export(name)
        if why:
            skipped += 1
            print("skip zoo %s: %s" % (name, why), flush=True)
            continue
        wrong, sharded = judge(name, accepted)
        failed, passed = failed + bool(wrong), passed + (not wrong)
        print("%s zoo %s, sharded nodes on 2, 3, 4 devices: %s" % ("not ok" if wrong else "ok", name, sharded), flush=True)
        for line in wrong:
            print("# " + line.replace("\n", " "), flush=True)
    print("reasons of verify: " + ", ".join("%s %d" % x for x in accepted.items()))
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
