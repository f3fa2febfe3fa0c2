# SPDX-License-Identifier: Apache-2.0
"""Tests which caches a node updates in place: those of the main graph, not what a body reads or returns.

usage: caches.py TESSERA"""
import ctypes
import os
import sys

from onnx import TensorProto as T, helper as h

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hunt"))
import api  # noqa: E402

import harness  # noqa: E402

LIBRARY = api.Library(os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "libtessera.so"))
CACHE = [1, 2, 8, 16]


def attention(past, present):
    """A node that appends to a cache, and returns it."""
    return h.make_node("GroupQueryAttention", ["packed", "", "", past, "past_value", "lengths", "total"], ["y", present, "value"],
                       domain="com.microsoft", num_heads=2, kv_num_heads=2)


def cache(name):
    return h.make_tensor_value_info(name, T.FLOAT, CACHE)


def model_of(nodes, result):
    inputs = [h.make_tensor_value_info("packed", T.FLOAT, [1, 1, 96]), cache("past"), cache("past_value"),
              h.make_tensor_value_info("lengths", T.INT32, [1]), h.make_tensor_value_info("total", T.INT32, []),
              h.make_tensor_value_info("go", T.BOOL, [])]
    return h.make_model(h.make_graph(nodes, "g", inputs, [cache(result)]), ir_version=10,
                        opset_imports=[h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)])


def in_branch():
    same = h.make_graph([h.make_node("Identity", ["packed"], ["copy"])], "else", [], [cache("copy")])
    then = h.make_graph([attention("past", "present")], "then", [], [cache("present")])
    return model_of([h.make_node("If", ["go"], ["result"], then_branch=then, else_branch=same)], "result")


def in_loop():
    turn, on = h.make_tensor_value_info("turn", T.INT64, []), h.make_tensor_value_info("on", T.BOOL, [])
    nodes = [h.make_node("Identity", ["on"], ["still"]), attention("carried", "present")]
    body = h.make_graph(nodes, "body", [turn, on, cache("carried")], [h.make_tensor_value_info("still", T.BOOL, []), cache("present")])
    return model_of([h.make_node("Loop", ["", "go", "past"], ["result"], body=body)], "result")


def has_room(onnx_model, past):
    """What the library returns for the cache `past` and the value "present", which may be in a body."""
    data, lib = onnx_model.SerializeToString(), LIBRARY
    with api.Session(lib) as session:
        model = ctypes.c_void_p()
        status = lib.model_load_bytes(session.handle, data, len(data), ctypes.byref(model))
        assert status == api.OK, session.findings()
        session.models.append(model)
        values, node = {}, lib.model_next_node(model, None)
        while node:
            for count, value in ((lib.node_input_count, lib.node_input), (lib.node_output_count, lib.node_output)):
                found = [value(node, i) for i in range(count(node))]
                values.update({lib.value_name(v): v for v in found if v})
            node = lib.model_next_node(model, node)
        return lib.cache_has_room(values[past], values[b"present"])


harness.check("main graph", has_room(model_of([attention("past", "present")], "present"), b"past"))
harness.check("input of the model in a branch", not has_room(in_branch(), b"past"))
harness.check("state of a loop", not has_room(in_loop(), b"carried"))
harness.finish()
