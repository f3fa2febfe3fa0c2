#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prompts - what a prompt loses if its decoder is planned for one new token, as tessera.Generator and the execution provider do: the
predicted time of 512 tokens in that plan, compared with a plan of their own.

Prints one line per figure: name, ours, peer, ratio, goal, ok or short. Machines of GPUs have no goal: a prompt of a small decoder would
use more of them than a token.
usage: prompts [MODEL ...]"""
import json, sys, tempfile

import figures
from figures import ROOT, tessera

PROMPT, PAST = 512, 128  # tokens; PAST as in src/ep/decode_plan.c
MACHINES = ("cpu:2", "cpu:4", "cpu:8", "hosts:2x1", "hosts:4x1", "hosts:2x4", "h100:2", "h100:8")
MODELS = ("llama-3.2-1b", "qwen3-0.6b", "llama-2-7b")
GOAL = 1.05


def sizes(tokens, past):
    every = {"batch_size": 1, "sequence_length": tokens, "past_sequence_length": past, "total_sequence_length": past + tokens}
    return [word for name, size in every.items() for word in ("--dim", "%s=%d" % (name, size))]


def number(key, *words):
    return json.loads(tessera(*words, "--json"))[key]


def main(folder):
    states = [word for part in ("key", "value") for word in ("--state", "past_key_values.*.%s=present.*.%s" % (part, part))]
    for name in sys.argv[1:] or MODELS:
        figures.make(ROOT + "/bench/known.py", name, folder, "graph")
        for machine in MACHINES:
            model, planned = folder + "/model.onnx", folder + "/planned.onnx"
            own = number("milliseconds", "plan", model, "--devices", machine, *sizes(PROMPT, 1), *states, "-o", planned)
            number("milliseconds", "plan", model, "--devices", machine, *sizes(1, PAST), *states, "-o", planned)
            ours = 1e3 * number("seconds", "simulate", planned, "--devices", machine, *sizes(PROMPT, 1))
            goal = "-" if machine.startswith("h100") else "%.2f" % GOAL
            verdict = "" if goal == "-" else "  ok" if ours <= GOAL * own else "  short"
            print("%-28s %9.2f ms %9.2f ms  %5.3f  %s%s" % (name + " on " + machine, ours, own, ours / own, goal, verdict), flush=True)


with tempfile.TemporaryDirectory() as folder:
    main(folder)
