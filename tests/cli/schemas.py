# SPDX-License-Identifier: Apache-2.0
"""Tests that real documents match their schemas: schemas.py TESSERA

Runs every command with --json, and reads the files that the commands write (manifest, plan, topology, the data of a report page).
Each document names its schema in "$schema" and must match schemas/NAME.json. The check here is stricter than the schema: a key that
the schema does not list is an error, so a new key must be added to the schema."""
import glob
import json
import os
import re
import subprocess
import sys

import harness

TESSERA = os.path.abspath(sys.argv[1])
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PREFIX = "urn:tessera:schema:1:"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float), "integer": int}
KEYWORDS = {
    "$schema", "$id", "$ref", "$defs", "title", "description", "type", "properties", "required", "additionalProperties", "items", "minimum",
    "enum", "const", "anyOf"
}
BERT = "tests/models/bert_tiny/model.onnx"
SIZES = ["--dim", "batch=2", "--dim", "seq=9"]


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


SCHEMAS = {os.path.basename(path)[:-5]: load(path) for path in sorted(glob.glob(ROOT + "/schemas/*.json"))}


def referred(schema, root):
    """Returns the schema that a $ref names, and the document from which its own references start."""
    name, _, pointer = schema["$ref"].partition("#")
    root = SCHEMAS[name[len(PREFIX):]] if name else root
    found = root
    for part in pointer.split("/")[1:]:
        found = found[part]
    return found, root


def has_type(value, names):
    names = [names] if isinstance(names, str) else names
    return any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names)


def object_errors(value, schema, root, at):
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key in schema.get("required", []):
        if key not in value:
            yield "%s: no %s" % (at, key)
    for key, member in value.items():
        place = "%s.%s" % (at, key)
        if key in known:
            yield from errors(member, known[key], root, place)
        elif isinstance(others, dict):
            yield from errors(member, others, root, place)
        elif known or others is False:
            yield "%s: not in the schema" % place


def errors(value, schema, root, at="document"):
    """Yields where the value does not match the schema."""
    unknown = set(schema) - KEYWORDS
    assert not unknown, "this test does not check %s" % unknown
    if "$ref" in schema:
        yield from errors(value, *referred(schema, root), at)
    if "anyOf" in schema:
        tried = [list(errors(value, one, root, at)) for one in schema["anyOf"]]
        if all(tried):
            yield from min(tried, key=len)
    if "type" in schema and not has_type(value, schema["type"]):
        yield "%s: %.60r is not %s" % (at, value, schema["type"])
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield "%s: %.60r is not %s" % (at, value, schema.get("enum", schema.get("const")))
    if "minimum" in schema and value < schema["minimum"]:
        yield "%s: %r is less than %r" % (at, value, schema["minimum"])
    if isinstance(value, dict):
        yield from object_errors(value, schema, root, at)
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from errors(item, schema.get("items", {}), root, "%s[%d]" % (at, i))


def check(document, name):
    named = document.get("$schema")
    assert named == PREFIX + name, (named, name)
    found = list(errors(document, SCHEMAS[name], SCHEMAS[name]))
    assert not found, "\n".join("schemas/%s.json: %s" % (name, line) for line in found[:12])


def run(d, *words, codes=(0,)):
    """Runs a command and returns the document that it prints."""
    words = [word.replace("@", d + "/") for word in words]
    p = subprocess.run([TESSERA, *words, "--json"], capture_output=True, text=True, timeout=harness.HANG_S, cwd=ROOT)
    assert p.returncode in codes, (words, p.returncode, p.stderr[-500:])
    try:
        return json.loads(p.stdout)
    except ValueError:
        raise AssertionError("%s prints no document: %r" % (words, p.stdout[:200]))


# Commands in order: later ones read files of earlier ones. `@` is the test's folder.
LINES = [
    ["demo"],
    ["info", BERT],
    ["plan", BERT, "--devices", "2", *SIZES, "-o", "@planned.onnx", "--plan", "@plan.json"],
    ["plan", BERT, "--devices", "h100:2", *SIZES, "-o", "@h100.onnx", "--plan", "@h100.json"],
    ["plan", BERT, "--devices", "2", "--stages", "2", *SIZES, "-o", "@staged.onnx", "--plan", "@stages.json"],
    ["plan", BERT, "--devices", "auto:h100:2", *SIZES],
    ["plan", BERT, "--devices", "2", *SIZES, "--pareto"],
    ["plan", BERT, "--devices", "2", *SIZES, "--explain", "#5"],
    ["plan", "--compare", "@plan.json", "@h100.json"],
    ["plan", BERT, "--devices", "2", *SIZES, "--memory", "1000"],
    ["advise", BERT, "--boxes", "l4:1,4090:2", "--dim", "seq=9", "--max-batch", "8", "--slo", "tpot=40ms"],
    ["advise", BERT, "--boxes", "l4:1", "--dim", "seq=9", "--max-batch", "8", "--slo", "tpot=0.001ms"],
    ["advise", BERT, "--boxes", "l4:1", "--dim", "seq=9", "--users", "9", "--slo", "tpot=40ms", "--prefill", BERT,
     "--prefill-dim", "seq=8"],
    ["advise", BERT, "--boxes", "l4:1", "--dim", "seq=9", "--max-batch", "8", "--slo", "tpot=40ms", "--prefill", BERT,
     "--load", "rate=1,answer=9,seq=8", "--pools"],
    ["info", "@planned.onnx"],
    ["info", "@h100.onnx"],
    ["annotate", BERT, "--config", "tp2:2", "--random", "3", *SIZES, "-o", "@random.onnx"],
    ["check", "@planned.onnx"],
    ["check", "@random.onnx"],
    ["check", "@planned.onnx", "@random.onnx"],
    ["infer", "@random.onnx", "-o", "@inferred.onnx"],
    ["shapes", BERT, *SIZES, "-o", "@shaped.onnx"],
    ["partition", "@planned.onnx", "-o", "@parts"],
    ["partition", "@staged.onnx", "-o", "@staged"],
    ["partition", "@planned.onnx", "-o", "@dry", "--dry-run"],
    ["partition", "@planned.onnx", "-o", "@static", "--static", *SIZES],
    ["partition", "--reseal", "@parts"],
    ["run", "@parts", "--outputs", "@out.npz"],
    ["run", BERT, "--devices", "2", "--transport", "shm", "--trace", "@trace.json"],
    ["bench", BERT, "--devices", "2", "--seconds", "0.05"],
    ["bench", "tests/folders/genai_tiny", "--seconds", "0.05", "--prompt-tokens", "4", "--max-tokens", "4"],
    ["generate", "tests/folders/genai_tiny", "--devices", "2", "--ids", "1,7,11", "--max-tokens", "4"],
    ["launch", "--hosts", "localhost:1"],
    ["worker", "--listen", "127.0.0.1:0", "--secret-file", "tests/models/secret", "--cache", "@cache", "--check"],
    ["verify", BERT, "--devices", "2", *SIZES],
    ["verify", BERT, "--devices", "2", "--inputs", "tests/models/bert_tiny/test_data_set_0", "--random", "2", "--seed", "1"],
    ["simulate", "@planned.onnx"],
    ["simulate", "@staged.onnx", "--requests", "3"],
    ["report", "@planned.onnx", "-o", "@page.html"],
    ["report", "@staged.onnx", "-o", "@staged.html"],
    ["report", "@planned.onnx", "--beside", "@h100.onnx"],
    ["report", "@staged.onnx", "--trace", "@trace.json"],
    ["tiles", "--shape", "7x4", "--sharding", "{5,1:3,2,4,1,0}"],
    ["tensor", "split", "tests/models/example.npy", "--sharding", "{5,1:3,2,4,1,0}", "-o", "@shards.npz"],
    ["reshard", "--shape", "8x6", "--from", "{2,1:0,1}", "--to", "{1,2:0,1}", "--devices", "2"],
    ["topology", "show", "h100:2"],
    ["topology", "show", "ring:3", "--instance-map"],
    ["topology", "make", "hosts:2x4", "-o", "@topology.json"],
    ["rules"],
    ["rules", "MatMul"],
    ["explain"],
    ["explain", "spec-disagree"],
    ["doctor"],
    ["info", "@absent.onnx"],
    ["plan", BERT, "--nonsense"],
    ["completion", "bash"],
]
NOT_ZERO = {
    "@absent.onnx": (3, ), "--nonsense": (2, ), "launch": (2, ), "1000": (4, ), "tpot=0.001ms": (4, ), "completion": (2, ),
    "doctor": (0, 1, 7)
}


def each_command(d):
    commands = set(re.findall(r"^(?:COMMAND|RUNS)\((\w+)\)", open(ROOT + "/src/cli/commands.def", encoding="utf-8").read(), re.M))
    for words in LINES:
        codes = next((codes for word, codes in NOT_ZERO.items() if word in words), (0,))
        name = " ".join(words).replace(BERT, "MODEL")
        try:
            check(run(d, *words, codes=codes), "report-data" if words[0] == "report" and "-o" not in words else words[0])
            harness.check(name, True)
        except AssertionError as error:
            harness.check(name, False, error)
    harness.check("every command is tried", commands == {words[0] for words in LINES}, commands ^ {words[0] for words in LINES})


def each_file(d):
    """Files that the commands above have written."""
    for path in ("parts/manifest.json", "staged/manifest.json"):
        check(load(os.path.join(d, path)), "manifest")
    for path in ("plan.json", "h100.json", "stages.json"):
        check(load(os.path.join(d, path)), "plan-file")
    for path in ("topology.json", "h100.topology.json"):
        check(load(os.path.join(d, path)), "topology")
    for path in ("page.html", "staged.html"):
        text = open(os.path.join(d, path), encoding="utf-8").read()
        check(json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1)), "report-data")


def wrong_documents(_):
    """This test's own check must find missing keys, wrong types and unknown keys."""
    good = load(ROOT + "/schemas/manifest.json")
    plan = {"$schema": PREFIX + "explain", "version": 1}
    assert list(errors({**plan, "version": 2}, SCHEMAS["explain"], SCHEMAS["explain"]))
    assert list(errors({**plan, "nonsense": 1}, SCHEMAS["explain"], SCHEMAS["explain"]))
    assert list(errors([], good, good)) and list(errors({}, good, good))


def well_formed(_):
    """Every schema must have its name as $id. jsonschema must accept it, if it is installed."""
    listed = re.findall(r"'([a-z-]+)'[,\]]", open(ROOT + "/schemas/meson.build", encoding="utf-8").read())
    assert sorted(listed) == sorted(SCHEMAS), "schemas/meson.build installs others"
    for name, schema in SCHEMAS.items():
        assert schema["$id"] == PREFIX + name, name
    try:
        import jsonschema
    except ImportError:
        return "no jsonschema: the schemas were not compared with the metaschema"
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory(prefix="tessera-schemas-") as folder:
        harness.run([each_command, each_file], folder=folder)
        harness.run([wrong_documents, well_formed])
    harness.finish()
