// SPDX-License-Identifier: Apache-2.0
// measure_models.c - small models that measure the speed of the engine for each kind of work:
// writes them to a folder and computes speeds from their times.
//
// Most tensors have one of two sizes: 64 MiB, which exceeds the private cache of a core as weights
// do ("far"), and 1 MiB ("near").
#include "measure/measure_rank.h"

// ---- files -------------------------------------------------------------------------------------

static tsr_value *input_of(tsr_graph *graph, const struct sample *sample)
{
    tsr_dim dims[4];
    for (int i = 0; i < sample->rank; i++)
        dims[i] = (tsr_dim){.value = sample->dims[i], .symbol = ""};
    if (sample->grows > 1)
        dims[0] = (tsr_dim){.value = -1, .symbol = "rows"};
    tsr_value *value = tsr_graph_add_input(graph, "x");
    if (value && tsr_value_set_type(value, sample->type, sample->rank, dims) == TSR_OK)
        return value;
    return NULL;
}

static tsr_status fill_model(struct sample_graph *made, tsr_model *model)
{
    TRY(tsr_model_set_opset(model, "", 17));
    TRY(tsr_model_set_opset(model, "com.microsoft", 1));
    made->graph = tsr_model_graph(model);
    tsr_value *x = input_of(made->graph, made->sample);
    return x && made->sample->body(made, x) ? TSR_OK : TSR_NOMEM;
}

static tsr_status make_model(struct sample_graph *made, tsr_model **out)
{
    tsr_model *model = NULL;
    TRY(tsr_model_new(made->session, "measure", 8, &model));
    tsr_status st = fill_model(made, model);
    if (st == TSR_OK)
        *out = model;
    else
        tsr_model_free(model);
    return st;
}

tsr_status tsr__measure_waits_model(tsr_session *session, tsr_model **out)
{
    struct sample_graph made = {.session = session, .sample = &tsr__waits_sample};
    return make_model(&made, out);
}

static tsr_status write_model(struct sample_graph *made, const char *path)
{
    tsr_model *model = NULL;
    TRY(make_model(made, &model));
    tsr_status st = tsr_model_save(model, path);
    tsr_model_free(model);
    return st;
}

tsr_status tsr__measure_write(tsr_session *session, const char *folder, size_t samples,
                              int matrices)
{
    char path[MEASURE_PATH];
    for (size_t i = 0; i < samples; i++) {
        struct sample_graph made = {
            .session = session, .sample = &tsr__samples[i], .matrices = matrices};
        TRY(write_model(&made, tsr__measure_path(folder, i, path)));
    }
    return TSR_OK;
}

const char *tsr__measure_path(const char *folder, size_t sample, char *out)
{
    snprintf(out, MEASURE_PATH, "%s/model%zu.onnx", folder, sample);
    return out;
}

// Creates the input of a sample. On a GPU rank it is in GPU memory, so that no timed run includes a
// copy from host memory. For GPUs the first axis is `grows` times as long. Example: [256, 1024]
// with grows 8 becomes [2048, 1024].
tsr_status tsr__measure_input(struct measure_rank *rank, tsr_session *session, size_t sample,
                              tsr_tensors **out)
{
    const struct sample *of = &tsr__samples[sample];
    int64_t dims[4];
    memcpy(dims, of->dims, sizeof dims);
    if (rank->large)
        dims[0] *= of->grows;
    TRY(tsr_tensors_new(session, out));
    if (rank->seat)
        return tsr__measure_gpu_input(rank, *out, of->type, of->rank, dims);
    size_t bytes = (size_t)tsr_dtype_bits(of->type) / 8;
    for (int i = 0; i < of->rank; i++)
        bytes *= (size_t)dims[i];
    void *data = tsr__alloc(session, bytes);
    if (!data)
        return TSR_NOMEM;
    tsr__measure_fill(of->type, 0, data, bytes);
    tsr_status st = tsr_tensors_put(*out, "x", of->type, of->rank, dims, data);
    tsr__free(session, data, bytes);
    return st;
}

// ---- times -------------------------------------------------------------------------------------

// Finds the overhead of a node and of a run. Example: if 4 tiny nodes take 30 us and 204 take 110
// us, a node takes 0.4 us and a run 28.4 us.
static void find_overheads(const double *seconds, double *node, double *run)
{
    double few = 0, many = 0;
    for (size_t i = 0; i < tsr__n_samples; i++) {
        if (tsr__samples[i].as == AS_OVERHEAD_FEW)
            few = seconds[i];
        if (tsr__samples[i].as == AS_OVERHEAD_MANY)
            many = seconds[i];
    }
    *node = many > few ? (many - few) / (MEASURE_MANY_NODES - MEASURE_FEW_NODES) : 0;
    *run = few - MEASURE_FEW_NODES * *node;
    if (*run < 0)
        *run = 0;
}

// Returns the field of the device that the sample measures; NULL: the sample measures no speed.
static double *place_of(const struct sample *sample, tsr_topology_device *device)
{
    switch (sample->as) {
    case AS_FLOPS:
        return &device->flops;
    case AS_RATE:
        return &device->rates[sample->index];
    case AS_BANDWIDTH:
        return &device->bandwidth;
    case AS_MOVE:
        return &device->moves[sample->index];
    case AS_NEAR:
        return &device->cached[sample->index];
    default:
        return NULL;
    }
}

// Stores the seconds per node of a sample.
static void keep_node(struct measure_rank *rank, size_t number, double busy)
{
    const struct sample *sample = &tsr__samples[number];
    int nodes = sample->node.nodes;
    if (sample->node.many)
        nodes *= rank->matrices;
    if (nodes > 0)
        rank->out->node[number] = busy / nodes;
}

// Computes the speed from the seconds of a sample and stores it in the device.
static void keep_speed(struct measure_rank *rank, const struct sample *sample, double busy)
{
    tsr_topology_device *self = &rank->out->self;
    double *place = place_of(sample, self), work = sample->work;
    if (!place)
        return;
    if (rank->large)
        work *= (double)sample->grows;
    if (sample->node.many)
        work *= rank->matrices;
    *place = work / busy;
    // Rates are stored for float32; the rate of a sample in another type is converted.
    if (sample->as == AS_RATE && sample->type == TSR_FLOAT16 &&
        sample->index >= TSR_RATE_CONVOLUTION && self->rates[TSR_RATE_FLOAT16] > 0)
        *place *= self->flops / self->rates[TSR_RATE_FLOAT16];
}

void tsr__measure_summarize(struct measure_rank *rank, const double *seconds)
{
    tsr_topology_device *self = &rank->out->self;
    double run = 0;
    self->queued = rank->large;
    find_overheads(seconds, &self->overhead, &run);
    for (size_t i = 0; i < tsr__n_samples; i++) {
        double busy = seconds[i];
        if (busy <= 0)
            continue;
        // Subtracts the overhead of a run, unless it is so large that the difference would be
        // unreliable. The runs of a GPU's batch have no such overhead.
        if (busy > 2 * run && (!rank->large || tsr__samples[i].as == AS_NEAR))
            busy -= run;
        keep_speed(rank, &tsr__samples[i], busy);
        keep_node(rank, i, busy);
    }
}
