# SPDX-License-Identifier: Apache-2.0
"""Checks that no call crashes if a pointer argument is NULL: null_arguments.py include/tessera.h LIBRARY FOLDER

Reads tessera.h and tessera_graph.h, as foreign_calls.py does. Calls each function once for each pointer parameter that is not a handle: a
text, options, a list, a result. That argument is NULL. The others are valid for the C types but not necessarily meaningful: handles of a
small model, "x", 1, zeroed structs. Each call runs in its own process, which must not end by a signal. A NULL handle other than a session
is a programming error by the header, and not tested.
"""
import ctypes
import glob
import os
import re
import shutil
import signal
import sys
import tempfile

try:
    import onnxruntime
except ImportError:
    onnxruntime = None  # calls that need an engine are skipped

HEADER, LIBRARY, FOLDER = sys.argv[1:]
ROOM = 1 << 16  # bytes for everything that a call writes through a pointer
SECONDS = 60
NO_HANDLE = 9
PATH = re.compile(r"char \*(path|folder|file|out|set)\b")
PLAIN = {"tsr_severity"}  # an enum
NEED_AN_ENGINE = {"tsr_verify_result", "tsr_job", "tsr_generator", "tsr_process_group"}  # tested with ranks, in tests/runtime


def read(text):
    """Structs that callers fill, callback types, and calls with the declarations of their parameters."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    structs = set(re.findall(r"typedef struct \w+ \{[^}]*\} (\w+);", text))
    callbacks = set(re.findall(r"typedef [^;(]*\(\*(\w+)\)", text))
    calls = []
    for name, given in re.findall(r"TSR_API\s[^;(]*?(\w+)\s*\(((?:[^;()]|\([^()]*\)|\)\s*\()*)\)\s*;", text):
        given = re.sub(r"\w+\s*\(\*(\w+)\)\s*\([^)]*\)", r"callback \1", given)
        calls.append((name, [" ".join(p.split()) for p in given.split(",") if p.strip() != "void"]))
    return structs, callbacks, calls


class World:
    """One object of each type, for the parameters that are not NULL."""

    def __init__(self, library, folder, scratch, structs, callbacks):
        self.library, self.structs, self.callbacks, self.kept = library, structs, callbacks, []
        self.folder, self.scratch, self.there = folder, scratch, False
        session = self.call("tsr_session_new", None)
        model = self.made("tsr_model_load", session, os.path.join(folder, "model.onnx").encode())
        graph = self.call("tsr_model_graph", model)
        node = self.call("tsr_graph_first", graph)
        value, config, pieces = self.call("tsr_node_output", node, 0), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("tsr_model_add_config", model, b"c", ctypes.c_int64(2), None, 0, ctypes.byref(config))
        spec = self.call("tsr_node_add_spec", node, config, value)
        constant = self.call("tsr_graph_add_initializer", graph, b"constant", 1, 1, (ctypes.c_int64 * 1)(1), b"abcd", 4)
        self.call("tsr_node_set_int", node, b"number", ctypes.c_int64(1))
        self.call("tsr_node_set_metadata", node, b"key", b"value")
        self.call("tsr_model_set_metadata", model, b"key", b"value")
        self.call("tsr_pieces_new", session, b"{2:0,1}", 1, 1, (ctypes.c_int64 * 1)(4), None, ctypes.byref(pieces))
        self.call("tsr_partition", model, os.path.join(scratch, "parts").encode(), None, None)
        ports = ctypes.create_string_buffer((1024).to_bytes(8, "little") + (2).to_bytes(8, "little"), 1024)  # size, and 2 devices
        plan, parts, simulation, tiling, resharding, nodes = (ctypes.c_void_p() for _ in range(6))
        self.call("tsr_partition", model, os.path.join(scratch, "again").encode(), None, ctypes.byref(parts))
        self.call("tsr_simulate", model, None, ctypes.byref(simulation))
        self.call("tsr_tiling_new", session, b"{2:0,1}", 1, (ctypes.c_int64 * 1)(4), ctypes.c_int64(0), ctypes.byref(tiling))
        self.call("tsr_resharding_new", session, b"{2:0,1}", b"{1:0,1}", 1, (ctypes.c_int64 * 1)(4), None, ctypes.byref(resharding))
        self.call("tsr_plan_nodes_new", model, None, ctypes.byref(nodes))
        other = self.made("tsr_model_load", session, os.path.join(folder, "model.onnx").encode())
        self.call("tsr_plan", other, ports, ctypes.byref(plan))
        self.handles = {
            "tsr_plan_result": plan, "tsr_partition_result": parts, "tsr_simulation": simulation, "tsr_tiling": tiling,
            "tsr_resharding": resharding, "tsr_plan_nodes": nodes, "tsr_session": session, "tsr_model": model, "tsr_graph": graph,
            "tsr_node": node, "tsr_value": value, "tsr_config": config, "tsr_spec": spec, "tsr_pieces": pieces,
            "tsr_tensors": self.made("tsr_tensors_new", session), "tsr_json": self.call("tsr_json_new", session),
            "tsr_attr": self.call("tsr_node_find_attr", node, b"number"), "tsr_tensor": self.call("tsr_value_initializer", constant),
            "tsr_node_config": self.call("tsr_node_config_at", node, 0), "tsr_folder": self.made("tsr_folder_open", session,
                                                                                                 folder.encode()),
            "tsr_topology": self.made("tsr_topology_parse", session,
                                      b"ring:2"), "tsr_manifest": self.made("tsr_manifest_open", session,
                                                                            os.path.join(scratch, "parts").encode())
        }
        assert all(h and h.value for h in self.handles.values()), self.handles

    def call(self, name, *given):
        function = getattr(self.library, name)
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*given))

    def made(self, name, *given):
        out = ctypes.c_void_p()
        status = self.call(name, *given, ctypes.byref(out)).value
        assert not status and out.value, (name, status)
        return out

    def room(self, start=b""):
        self.kept.append(ctypes.create_string_buffer(start, ROOM))
        return ctypes.cast(self.kept[-1], ctypes.c_void_p)

    def text(self, declaration):
        """An existing path (if `there`), or one that does not exist; "x" for other texts."""
        if not PATH.search(declaration):
            return b"x"
        if not self.there:
            return os.path.join(self.scratch, "x").encode()
        return (os.path.join(self.scratch, "parts") if "folder" in declaration else os.path.join(self.folder, "model.onnx")).encode()

    def argument(self, declaration):
        """A value for a parameter such as "const char *path", "tsr_model **out", "int64_t n"; None: there is no handle of that type."""
        kind, stars = kind_of(declaration), declaration.count("*")
        if kind == "callback" or kind in self.callbacks:
            self.kept.append(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(lambda *a: False))
            return self.kept[-1]
        if not stars:
            return ctypes.c_double(1) if kind == "double" else ctypes.c_int64(1)
        if "*const *" in declaration:  # a list of texts or handles
            inner = self.argument(declaration.replace("*const *", "*"))
            self.kept.append((ctypes.c_void_p * 2)(inner.value if inner else None, None))
            return ctypes.cast(self.kept[-1], ctypes.c_void_p)
        if stars == 1 and kind == "char":
            return self.room(self.text(declaration))
        if stars == 1 and is_handle(declaration, self.structs):
            return self.handles.get(kind)
        return self.room()  # a struct of size 0, a list of zeros, or space for a result


def kind_of(declaration):
    return re.search(r"\w+", declaration.replace("const ", "")).group()


def is_handle(declaration, structs):
    kind = kind_of(declaration)
    return kind.startswith("tsr_") and kind not in structs | PLAIN and declaration.count("*") == 1


def cases(structs, calls):
    """Calls with the index of the pointer that becomes NULL."""
    for name, given in calls:
        for at, declaration in enumerate(given):
            if "*" in declaration and not is_handle(declaration, structs):
                yield name, given, at


def ended(world, name, given, at):
    """How the call ended in its own process: "" if it returned."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        arguments = [world.argument(p) for p in given]
        if any(a is None for a in arguments):
            os._exit(NO_HANDLE)
        arguments[at] = None
        world.call(name, *arguments)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "signal %d" % os.WTERMSIG(status)
    return {0: "", NO_HANDLE: "no handle"}.get(os.WEXITSTATUS(status), "exit %d" % os.WEXITSTATUS(status))


def finished(world):
    """Calls that would succeed, but with NULL for the results: (call, arguments). Includes calls that need an engine if there is one."""
    h, parts, shape = world.handles, os.path.join(world.scratch, "parts").encode(), (ctypes.c_int64 * 1)(4)
    number, some = ctypes.c_size_t(), ctypes.c_void_p()
    out = [("tsr_folder_open", (h["tsr_session"], world.folder.encode(), None)),
           ("tsr_session_temporary", (h["tsr_session"], world.scratch.encode(), None)),
           ("tsr_session_read", (h["tsr_session"], os.path.join(world.folder,
                                                                "model.onnx").encode(), ctypes.c_size_t(1 << 20), None, None)),
           ("tsr_tiles", (h["tsr_session"], b"{2:0,1}", 1, shape, ctypes.c_int64(0), ctypes.byref(some), None)),
           ("tsr_resharding_new", (h["tsr_session"], b"{2:0,1}", b"{1:0,1}", 1, shape, None, None)),
           ("tsr_node_metadata_at", (h["tsr_node"], ctypes.c_size_t(0), None, None))]
    engine = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi/libonnxruntime.so.*")) if onnxruntime else []
    if engine and not world.call("tsr_engine_open", h["tsr_session"], engine[0].encode(), None, None).value:
        out += [("tsr_job_open", (h["tsr_session"], parts, None, None)),
                ("tsr_job_open_model", (h["tsr_session"], os.path.join(world.folder, "model.onnx").encode(), None, None)),
                ("tsr_generator_open", (h["tsr_folder"], None, None)),
                ("tsr_engine_saturates", (h["tsr_session"], world.scratch.encode(), None)),
                ("tsr_engine_device", (h["tsr_session"], b"CPU", None, number)), ("tsr_topology_measure", (h["tsr_session"], None, None))]
    return out


def last_words(world, name, given):
    """How a call with NULL for its results ended in its own process: "" if it returned."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        world.call(name, *given)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return "%s without its results: signal %d" % (name, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ""


def main():
    structs, callbacks, calls = read("".join(
        open(path, encoding="utf-8").read() for path in (HEADER, HEADER.replace("tessera.h", "tessera_graph.h"))))
    tried, died, without = 0, [], set()
    with tempfile.TemporaryDirectory(prefix="tessera-null-") as scratch:
        own = shutil.copytree(FOLDER, os.path.join(scratch, "folder"))  # some calls write into the folder
        world = World(ctypes.CDLL(LIBRARY), own, scratch, structs, callbacks)
        for there in (False, True):
            world.there = there
            for name, given, at in cases(structs, calls):
                if there and not any(PATH.search(p) for p in given):
                    continue  # was already called with the same arguments
                end = ended(world, name, given, at)
                tried += 1
                if end == "no handle":
                    without |= {kind_of(p) for p in given if is_handle(p, structs)} - set(world.handles)
                elif end:
                    died.append("%s, %s: %s" % (name, given[at], end))
    with tempfile.TemporaryDirectory(
            prefix="tessera-null-") as scratch:  # separate objects: with an engine, the calls above would take long
        world = World(ctypes.CDLL(LIBRARY), shutil.copytree(FOLDER, os.path.join(scratch, "folder")), scratch, structs, callbacks)
        for name, given in finished(world):
            tried += 1
            died += filter(None, [last_words(world, name, given)])
    for ok, name in ((tried > 200, "%d calls with a NULL were made" % tried),
                     (not died, "none of them dies " + "; ".join(died)),
                     (without == NEED_AN_ENGINE, "handles that there are none of here: %s" % sorted(without))):
        print("%s - %s" % ("ok" if ok else "not ok", name))
    return bool(died) or tried <= 200 or without != NEED_AN_ENGINE


if __name__ == "__main__":
    sys.exit(main())
