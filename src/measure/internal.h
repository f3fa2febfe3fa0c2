// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of this module: measured speeds of devices, links and nodes.
#ifndef TSR_MEASURE_INTERNAL_H
#define TSR_MEASURE_INTERNAL_H

#include "base/base.h"

// Makes a topology of devices of this machine: "cuda:4", "cuda:2@1", "CUDA:0,CUDA:0,CPU", "auto"
// (machine.c).
tsr_status tsr__topology_real(tsr_session *session, const char *text, const char *driver,
                              const char *nccl, tsr_topology **out) TSR_MUST_USE;

// ---- measured rates of ranks on this machine (measure.c) ----------------------------------------

#define MEASURE_POINTS 6 // number of sizes at which a collective is timed
#define MEASURE_KINDS  6 // number of collectives: all of enum tsr_collective before TSR_SEND
#define MEASURE_GROUPS 4 // maximum number of group sizes
#define MEASURE_RANKS  64

// Seconds of a node of one kind, type and size.
#define MEASURE_SIZES 72
struct measured_size {
    int rate, move; // as returned by tsr__node_kind
    const char *word;
    tsr_dtype type; // type of its input
    double work, bytes, seconds;
};
struct measured {
    int n_sizes; // 0: the devices differ
    struct measured_size size[MEASURE_SIZES];
    int ranks;
    bool one_host;                           // if so, collectives were timed
    tsr_topology_device rank[MEASURE_RANKS]; // without names; 0: not measured
    double latency[MEASURE_RANKS][MEASURE_RANKS], bandwidth[MEASURE_RANKS][MEASURE_RANKS];
    int n_groups, group[MEASURE_GROUPS]; // group sizes; all groups of one size are timed at once
    int64_t bytes[MEASURE_POINTS];       // bytes of the full tensor
    double seconds[MEASURE_KINDS][MEASURE_GROUPS][MEASURE_POINTS];
    bool unsteady; // a large transfer took no longer than a small one
    double differ; // how many times as long the same work took at another time, in the median
    double others; // share of the cores' time that other programs used; 0: not known
};
#define MEASURE_SECONDS 30.0 // default of --seconds

// tsr__measure_fill fills a buffer with plausible numbers of a type, which depend on the seed.
// tsr__measure measures with all ranks at once. Under a launcher every rank calls it, and only rank
// 0 gets results (ranks is 0 elsewhere). devices: names of the ranks' devices, options->devices
// entries; NULL: all are CPUs.
void tsr__measure_fill(tsr_dtype type, uint64_t seed, void *out, size_t bytes);
tsr_status tsr__measure(tsr_session *session, const tsr_measure_options *options,
                        const char *const *devices, struct measured *out) TSR_MUST_USE;

// measured_topology.c: warns if other programs disturbed the measurement. It is certain if times
// are not possible: a link is much faster than the memory of all devices together, or a transfer
// took no time.
void tsr__measured_check(tsr_session *session, const struct measured *measured);

// measured_model.c: checks that the model of the options and its inputs can be read.
tsr_status tsr__measure_model_open(tsr_session *session,
                                   const tsr_measure_options *options) TSR_MUST_USE;
// Creates a small model whose sharding synchronizes often (measure_models.c).
tsr_status tsr__measure_waits_model(tsr_session *session, tsr_model **out) TSR_MUST_USE;
// Measures the time that ranks lose at synchronization points, on that model, and stores it in the
// topology. Not for GPUs.
tsr_status tsr__measure_waits(tsr_topology *topology,
                              const tsr_measure_options *options) TSR_MUST_USE;
// Runs the model unsharded and sharded on all ranks of the topology, and adds the measured times to
// it.
tsr_status tsr__measure_model(tsr_topology *topology,
                              const tsr_measure_options *options) TSR_MUST_USE;

#endif
