# SPDX-License-Identifier: Apache-2.0
"""What a hunt concentrates on (option FOCUS): makers of nodes, declared sizes, and shardings of which all graphs together have too few.

The focus is part of the seed of a graph, so a seed alone repeats a graph."""
import blocks
import bodies
import nodes
import odd
import shapes
import structures

RANGE = 10 ** 13  # seeds of one focus


class Focus:
    """families: lists of makers, drawn for a graph (None: those of make.py); nodes: least and greatest number; modes: how sizes are
    declared (graph.py); names: some dimensions get the names of others; draw: changes the sharding that was drawn; rewrite: how often
    structures.py rewrites the model."""

    def __init__(self, families=None, nodes=(5, 40), modes=None, names=False, draw=lambda rng, cut: None, rewrite=0.1):
        self.families, self.nodes, self.modes, self.names, self.draw, self.rewrite = families, nodes, modes, names, draw, rewrite


def judged_by_verify(rng, cut):
    if cut["transport"] == "threads":
        cut.update(oracle="verify", keep=0)


def as_users_verify(rng, cut):
    """`verify MODEL --devices N`, which plans and forces a sharding; sometimes the planner alone."""
    cut.update(kind=rng.choice(["forced", "forced", "forced", "plan"]), devices=rng.choice([2, 3, 4]), transport="threads", infer=None,
               memory=0, stages=0, keep=0)
    cut["oracle"] = "verify"


def empty_and_overlapping(rng, cut):
    """By hand: more shards than elements, groups that share devices."""
    if rng.random() < 0.8:
        cut.update(kind="hand", stages=0, scarce=rng.choice([0, 0.5, 1]), shared=rng.choice([0, 0.5, 1]),
                   devices=rng.choice([2, 3, 3, 4, 5]))


def on_few_devices(rng, cut):
    """The graph is what matters, and each device takes time."""
    cut["devices"] = min(cut["devices"], rng.choice([2, 2, 3, 4]))


READERS = [(shapes.computed_reshape, 2), (shapes.size_arithmetic, 1), (shapes.transpose, 1), (shapes.slice_, 1), (shapes.squeeze, 1),
           (nodes.unary, 2), (nodes.reduce, 1), (nodes.binary, 1)]
WINDOWS = [(shapes.odd_windows, 8), (shapes.convolve, 2), (shapes.pool, 2)] + READERS
ROUNDING = [(shapes.repeated_lines, 3), (shapes.nearly_constant, 3), (nodes.norm, 6), (nodes.along, 2), (nodes.binary, 1), (shapes.pad, 1),
            (shapes.transpose, 1), (odd.ties, 4), (odd.decide, 3)]
SUMS = [(nodes.reduce, 6), (nodes.matmul, 4), (nodes.gemm, 2), (nodes.einsum, 2), (nodes.along, 3), (nodes.norm, 3), (nodes.binary, 2),
        (nodes.unary, 2), (shapes.convolve, 1), (shapes.pool, 1)]

FOCUSES = {
    "all": Focus(),
    "windows": Focus([WINDOWS], (3, 12), ["static", "named", "named", "mixed"]),
    "rounding": Focus([ROUNDING], (3, 12), draw=judged_by_verify),
    "bodies": Focus([[(maker, 4 * weight) for maker, weight in bodies.MAKERS[:4]] + nodes.MAKERS], (3, 14), draw=as_users_verify),
    "names": Focus([nodes.MAKERS + shapes.MAKERS, bodies.MAKERS * 2 + nodes.MAKERS, blocks.MAKERS + nodes.MAKERS[:2]], (3, 16), ["named"],
                   names=True),
    "groups": Focus([SUMS, SUMS + READERS], (3, 12), ["static", "named", "named", "unknown"], draw=empty_and_overlapping),
    "odd": Focus([odd.MAKERS, odd.MAKERS + READERS, odd.MAKERS + nodes.MAKERS + shapes.MAKERS], (2, 9), draw=on_few_devices),
    "structures": Focus([structures.MAKERS + READERS, structures.MAKERS + nodes.MAKERS + odd.MAKERS], (2, 7), rewrite=0.5,
                        draw=on_few_devices),
}


def number_of(name):
    return list(FOCUSES).index(name)


def of(seed):
    return list(FOCUSES.values())[seed // RANGE]
