// SPDX-License-Identifier: Apache-2.0
// node_cost.c - costs that do not depend on a plan: the time of a node in a graph, and the time of
// a collective including its copies.
//
//     Example: a node of 2e9 operations and 1 GB, on a device of 1e12 operations and 100 GB per
//     second with an overhead of 5 us. 2 ms of arithmetic and 10 ms of memory traffic overlap
//     except for a quarter of the shorter: 10 + 0.5 + 0.005 = 10.505 ms.
#include "plan/costs/planner.h"

#include <math.h>

// Arithmetic and memory traffic overlap. This is the fraction of the shorter one that is added to
// the longer one, unless the device specifies its own value.
#define UNHIDDEN 0.25

// Sizes in bytes at which the near and the far speed of memory were measured.
#define NEAR_BYTES (2.0 * (1 << 20))
#define FAR_BYTES  (128.0 * (1 << 20))

static tsr_dtype type_of(const tsr_node *node, const struct shapes *shapes)
{
    const tsr_value *first = tsr_node_input_count(node) ? tsr_node_input(node, 0) : NULL;
    return first ? tsr__shapes_of(shapes, first).dtype : TSR_FLOAT;
}

// Returns the index of the rate for a type. float32 and all types without a rate use flops (-1).
static int type_rate(tsr_dtype type)
{
    static const struct {
        tsr_dtype type;
        tsr_rate rate;
    } rates[] = {
        {TSR_FLOAT16, TSR_RATE_FLOAT16},   {TSR_BFLOAT16, TSR_RATE_BFLOAT16},
        {TSR_DOUBLE, TSR_RATE_FLOAT64},    {TSR_INT8, TSR_RATE_INT8},
        {TSR_UINT8, TSR_RATE_INT8},        {TSR_INT4, TSR_RATE_INT4},
        {TSR_UINT4, TSR_RATE_INT4},        {TSR_FLOAT8E4M3FN, TSR_RATE_FLOAT8},
        {TSR_FLOAT8E5M2, TSR_RATE_FLOAT8},
    };
    for (size_t i = 0; i < TSR_COUNT(rates); i++)
        if (rates[i].type == type)
            return (int)rates[i].rate;
    return -1;
}

const char *tsr__size_word(struct node_kind kind)
{
    return kind.word ? kind.word : tsr__kind_word(kind.rate, kind.move);
}

// Returns the kind of work of a node. The type is that of the first input.
static struct work_kind work_of(const tsr_node *node, const struct shapes *shapes,
                                const tsr_topology *topology, struct node_kind kind)
{
    tsr_dtype type = type_of(node, shapes);
    struct work_kind work = {.type = type_rate(type), .rate = kind.rate, .move = kind.move};
    if (!topology)
        return work;
    work.seen = tsr__topology_profile(topology, tsr_node_op(node), tsr_dtype_name(type));
    if (kind.move != NODE_MOVES_NOTHING)
        work.sizes =
            tsr__topology_kind_profile(topology, tsr__size_word(kind), tsr_dtype_name(type));
    return work;
}

struct work_kind tsr__work_kind(const tsr_node *node, const struct shapes *shapes,
                                const tsr_topology *topology)
{
    return work_of(node, shapes, topology, tsr__node_kind(node, shapes));
}

struct work_kind tsr__work_kind_apart(const tsr_node *node, const struct shapes *shapes,
                                      const tsr_topology *topology)
{
    return work_of(node, shapes, topology, tsr__node_kind_apart(node, shapes));
}

// Returns the kind of work of a slice. Slices were measured by element type, but a plan knows only
// the bits per element. So the first type of that size is used.
struct work_kind tsr__slice_kind(const tsr_topology *topology, const struct plan_value *value)
{
    struct work_kind kind = {.type = -1, .rate = -1, .move = RULE_SLICE_MOVE};
    const char *word = tsr__kind_word(-1, RULE_SLICE_MOVE);
    for (int type = 1; type < TSR_DTYPE_COUNT; type++) {
        const char *name = tsr_dtype_name((tsr_dtype)type);
        if (tsr_dtype_bits((tsr_dtype)type) != value->bits)
            continue;
        if (!kind.seen)
            kind.seen = tsr__topology_profile(topology, RULE_SLICE, name);
        if (!kind.sizes)
            kind.sizes = tsr__topology_kind_profile(topology, word, name);
    }
    return kind;
}

// Returns the speed of an unmeasured kind of work, as a fraction of flops. A tree traversal waits
// for memory at every node. ONNX Runtime computes support vector kernels one number at a time.
// Measured with ONNX Runtime 1.31 on one core of 50 GFLOP/s: 7 ns per tree node, 0.18 ns per kernel
// operation.
static double unmeasured_share(int rate)
{
    switch (rate) {
    case TSR_RATE_TREES:
        return 1.0 / 350;
    case TSR_RATE_KERNELS:
        return 1.0 / 9;
    default:
        return 1;
    }
}

// Returns operations per second. A type without a speed uses `flops`; a kind of work without a
// speed uses a fraction of the speed of its type (unmeasured_share). The speed of a kind is for
// float32. For other types it is scaled like that of matrix products. Example: with 2e12 for
// convolutions, 1e12 for float32 and 8e12 for float16, a float16 convolution has 16e12.
static double rate_of(struct work_kind kind, const tsr_topology_device *device)
{
    double flops = device->flops, of_type = flops;
    if (kind.type >= 0 && device->rates[kind.type] > 0)
        of_type = device->rates[kind.type];
    if (kind.rate < 0 || device->rates[kind.rate] <= 0)
        return of_type * unmeasured_share(kind.rate);
    return device->rates[kind.rate] * (of_type / flops);
}

// Returns the more general kind of memory traffic whose speed is used if the topology has none for
// `move`.
static int fallback_move(int move)
{
    if (move == TSR_MOVE_ERROR)
        return TSR_MOVE_CURVE;
    return move == TSR_MOVE_GROUPED ? TSR_MOVE_CACHE : TSR_MOVE_STREAM;
}

double tsr__far_speed(const tsr_topology_device *device, int move)
{
    if (device->moves[move] > 0)
        return device->moves[move];
    if (device->moves[fallback_move(move)] > 0 && move >= TSR_MOVE_COPY)
        return device->moves[fallback_move(move)];
    return device->bandwidth;
}

double tsr__near_speed(const tsr_topology_device *device, int move)
{
    if (device->cached[move] > 0)
        return device->cached[move];
    if (device->moves[move] <= 0 && device->cached[fallback_move(move)] > 0 &&
        move >= TSR_MOVE_COPY)
        return device->cached[fallback_move(move)];
    return tsr__far_speed(device, move);
}

double tsr__unhidden(const tsr_topology_device *device)
{
    return device->unhidden > 0 ? device->unhidden : UNHIDDEN;
}

// Returns the memory speed for `bytes`, in bytes per second. Interpolates logarithmically between
// the two measured sizes. Example: 16 MiB is half way between 2 and 128 MiB, so 40 GB/s near and 10
// GB/s far give 20 GB/s. A device that queues nodes always has the far speed. For a small tensor it
// needs little more time than the launch of the node, which `overhead` contains.
static double move_rate(int move, double bytes, const tsr_topology_device *device)
{
    double far = tsr__far_speed(device, move), near = tsr__near_speed(device, move);
    if (near == far || bytes >= FAR_BYTES || device->queued)
        return far;
    if (bytes <= NEAR_BYTES)
        return near;
    return near * pow(far / near, log(bytes / NEAR_BYTES) / log(FAR_BYTES / NEAR_BYTES));
}

// Corrects a predicted time with measurements of similar nodes. Example: if they took 1.5 times as
// long as predicted, 2 ms become 3 ms.
static int64_t as_seen(double seconds, struct work_kind kind, double work, double bytes)
{
    double times = kind.sizes ? tsr__profile_ratio(kind.sizes, work, bytes) : 1;
    if (kind.seen)
        times *= tsr__profile_ratio(kind.seen, work, bytes);
    return whole_number(seconds * times * 1e12);
}

// Seconds of a step of a recurrent node on a CPU; on a GPU it takes a kernel. ONNX Runtime 1.31
// needs 0.5 us for an LSTM, GRU or RNN of 16 elements on one core.
#define STEP 0.5e-6

// Without a measured speed, weights in the cache are read this many times as fast as from memory.
// Measured with LSTM, GRU and RNN on one core: 23 GB/s for 1 MiB per step, 10 GB/s for 64 MiB.
#define WEIGHTS_IN_CACHE 2.5

static bool is_gpu(const tsr_topology_device *device)
{
    return device->queued || (device->name && tsr__device_is_cuda(str_of(device->name)));
}

// A device without a name is a CPU.
static bool is_cpu(const tsr_topology_device *device)
{
    return !is_gpu(device) && (!device->name || strncmp(device->name, "CPU", 3) == 0);
}

// Returns the seconds of the steps after the first. Each reads its weights again, and takes at
// least a kernel.
static double step_seconds(const struct node_weights *weights, double held,
                           const tsr_topology_device *device)
{
    if (weights->steps <= 0)
        return 0;
    tsr_topology_device cached = *device;
    double far = tsr__far_speed(device, TSR_MOVE_WEIGHTS);
    if (!is_gpu(device) && tsr__near_speed(device, TSR_MOVE_WEIGHTS) == far)
        cached.cached[TSR_MOVE_WEIGHTS] = far * WEIGHTS_IN_CACHE;
    double each = held / weights->parts, least = is_gpu(device) ? device->overhead : STEP;
    return weights->steps * fmax(each / move_rate(TSR_MOVE_WEIGHTS, each, &cached), least);
}

// Returns the seconds in which a CPU unpacks weights. A measured speed of packed weights is that of
// one row, and includes it. (The slowest of several devices has a speed for everything.)
static double unpack_seconds(const struct node_weights *weights, double held,
                             const tsr_topology_device *device)
{
    if (!(weights->unpacked > 0))
        return 0;
    double speed = tsr__far_speed(device, TSR_MOVE_PACKED);
    bool measured = speed != tsr__far_speed(device, TSR_MOVE_STREAM) && speed != device->bandwidth;
    if ((weights->row && measured) || !is_cpu(device))
        return 0;
    return weights->unpacked * held / device->flops;
}

int64_t tsr__work_cost(double work, struct work_kind kind, double bytes,
                       const tsr_topology_device *device)
{
    return tsr__weights_cost(work, kind, bytes, &(struct node_weights){0}, 0, device);
}

// The seconds that a node computes and the seconds that it moves data. They overlap.
struct busy {
    double computing, moving;
};

static struct busy busy_of(double work, struct work_kind kind, double bytes,
                           const struct node_weights *weights, double held,
                           const tsr_topology_device *device)
{
    if (kind.move == NODE_MOVES_NOTHING)
        return (struct busy){0};
    return (struct busy){
        .computing = work / rate_of(kind, device) + unpack_seconds(weights, held, device),
        .moving = bytes / move_rate(kind.move, bytes, device) + step_seconds(weights, held, device),
    };
}

// Returns the time of `work` operations. A node that only changes a shape costs its overhead. If
// the device queues nodes, earlier nodes hide the overhead, so only the longer of work and overhead
// is charged.
int64_t tsr__weights_cost(double work, struct work_kind kind, double bytes,
                          const struct node_weights *weights, double held,
                          const tsr_topology_device *device)
{
    if (kind.move == NODE_MOVES_NOTHING)
        return as_seen(device->overhead, kind, work, bytes);
    struct busy busy = busy_of(work, kind, bytes, weights, held, device);
    double most = fmax(busy.computing, busy.moving);
    double least = fmin(busy.computing, busy.moving), seconds = most;
    // measurements of this kind include its memory traffic
    if (kind.rate < 0 || device->rates[kind.rate] <= 0)
        seconds += least * tsr__unhidden(device);
    if (device->queued)
        return as_seen(fmax(seconds, device->overhead), kind, work, bytes);
    return as_seen(seconds + device->overhead, kind, work, bytes);
}

int64_t tsr__kind_cost(struct node_kind kind, tsr_dtype type, double work, double bytes,
                       const tsr_topology_device *device)
{
    struct work_kind of = {.type = type_rate(type), .rate = kind.rate, .move = kind.move};
    return tsr__work_cost(work, of, bytes, device);
}

int64_t tsr__sized_bytes(const struct shapes *shapes, const tsr_value *value, bool *sized)
{
    struct shape shape = tsr__shapes_of(shapes, value);
    int64_t n = 1;
    *sized = *sized && shape.rank >= 0;
    for (int d = 0; d < shape.rank; d++) {
        bool known = shape.dims[d].value >= 0;
        *sized = *sized && known;
        if (known && !mul_ok(n, shape.dims[d].value, &n))
            return PLAN_NEVER;
    }
    int bits = tsr_dtype_bits(shape.dtype) ? tsr_dtype_bits(shape.dtype) : 8;
    return n >= PLAN_NEVER / bits ? PLAN_NEVER : (n * bits + 7) / 8;
}

// Returns the bytes that the node reads and writes. A value that several inputs read is included
// once. A lookup reads at most as many bytes of its table as the node outputs. Ignores caches that
// are updated in place, and small control inputs, such as axes.
static double bytes_touched(const tsr_node *node, const struct shapes *shapes,
                            const struct rule *rule, const int64_t *sizes, bool *sized)
{
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && !tsr__node_updated_cache(node, i))
            outputs += (double)tsr__sized_bytes(shapes, tsr_node_output(node, i), sized);
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (!value || read_before(node, i) || rule_steers(rule, SIDE_INPUT, i))
            continue;
        double read = (double)tsr__sized_bytes(shapes, value, sized) *
                      tsr__node_reads(node, rule, (int)i, sizes);
        if ((int)i < rule->n_inputs && tsr__rule_looks_up(rule, (int)i) && read > outputs)
            read = outputs;
        bytes += read;
    }
    return bytes + outputs;
}

// Fills in the load from the rule, which has all sizes.
static void add_load(struct node_load *load, const tsr_node *node, const struct shapes *shapes,
                     const struct rule *rule)
{
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(shapes, node, rule, sizes);
    for (int factor = 0; factor < rule->n_factors; factor++)
        sizes[factor] = sizes[factor] < 0 ? 1 : sizes[factor]; // unknown size
    load->bytes = bytes_touched(node, shapes, rule, sizes, &load->sized);
    load->work = tsr__node_work(rule, tsr__node_count(node, shapes), sizes, sizes);
    load->weights = tsr__node_weights(node, rule, sizes);
    if (load->weights.input > 0)
        load->held = (double)tsr__sized_bytes(
            shapes, tsr_node_input(node, (size_t)load->weights.input), &load->sized);
}

// The rule is not kept: a graph may have 100,000 nodes.
bool tsr__node_load(tsr_session *session, const tsr_node *node, const struct shapes *shapes,
                    struct node_load *out)
{
    struct arena scratch = {.session = session};
    const struct rule *rule = tsr__rule_of(&scratch, node, shapes);
    *out = (struct node_load){.sized = true};
    if (rule)
        add_load(out, node, shapes, rule);
    tsr__arena_free(&scratch);
    return rule != NULL;
}

int64_t tsr__load_cost(const struct node_load *load, struct work_kind kind,
                       const tsr_topology_device *device)
{
    return tsr__weights_cost(load->work, kind, load->bytes, &load->weights, load->held, device);
}

// Returns the cost of a node. The simulation calls this for graphs of single devices, where all
// sizes are local.
struct node_cost_result tsr__node_cost(tsr_session *session, const tsr_node *node,
                                       const struct shapes *shapes, const tsr_topology *seen,
                                       const tsr_topology_device *device)
{
    struct node_load load;
    struct node_cost_result cost = {.type = tsr_dtype_name(type_of(node, shapes)), .sized = true};
    if (!tsr__node_load(session, node, shapes, &load))
        return cost;
    struct work_kind kind = tsr__work_kind(node, shapes, seen);
    struct busy busy = busy_of(load.work, kind, load.bytes, &load.weights, load.held, device);
    cost.work = load.work;
    cost.bytes = load.bytes;
    cost.sized = load.sized;
    cost.moves = busy.moving > busy.computing;
    cost.ps = tsr__load_cost(&load, kind, device);
    return cost;
}

// ---- collectives -------------------------------------------------------------------------------

// Returns the bytes that pass through the memory of a device: received data is written and read.
// Data that is reduced is read on arrival; the topology charges this.
static double copied(enum tsr_collective what, double bytes, double n)
{
    const double shares[] = {[COPIES_ALL] = 1,
                             [COPIES_OTHERS] = (n - 1) / n,
                             [COPIES_PAIRS] = (n - 1) / (n * n),
                             [COPIES_NOTHING] = 0};
    return 2 * shares[tsr__collective((int)what)->copies] * bytes;
}

// Returns the cost of a collective in picoseconds: link time, plus memory copies on the slowest
// device, plus the measured synchronization overhead.
int64_t tsr__collective_cost(tsr_topology *topology, tsr_collective what,
                             const struct topology_groups *groups, int64_t bytes)
{
    if (groups->size < 2)
        return 0;
    int64_t ps = tsr__topology_cost(topology, what, groups, bytes);
    if (ps >= PLAN_NEVER)
        return PLAN_NEVER;
    ps += whole_number(topology->wait * 1e12);
    if (tsr__topology_measured(topology, what, groups))
        return ps; // the measured time includes the copies
    double slowest = 0;
    for (int i = 0; i < groups->count * groups->size; i++)
        slowest = fmax(slowest, 1 / topology->device[groups->device[i]].bandwidth);
    double more = copied(what, (double)bytes, groups->size) * slowest * 1e12;
    return more < (double)(PLAN_NEVER - ps) ? ps + (int64_t)more : PLAN_NEVER;
}

// Computes the total B of an all-to-all of n devices in which each device receives `bytes`. A
// device receives B / n * (n - 1) / n bytes, so B is bytes * n * n / (n - 1).
int64_t tsr__exchange_cost(tsr_topology *topology, const struct topology_groups *groups,
                           int64_t bytes)
{
    double n = groups->size, whole = n > 1 ? (double)bytes * n * n / (n - 1) : 0;
    return tsr__collective_cost(topology, TSR_ALL_TO_ALL, groups, whole_number(whole));
}

// All shares but the first are charged to the link from the last copy to the first device. This
// link is the slowest if devices are numbered host by host.
int64_t tsr__gather_cost(tsr_topology *topology, int64_t devices, int64_t copies, int64_t bytes)
{
    if (copies < 2)
        return 0;
    int64_t last = int64_min((copies - 1) * devices, topology->n - 1);
    int pair[2] = {(int)last, 0};
    struct topology_groups two = {1, 2, pair};
    double others = (double)bytes * (double)(copies - 1) / (double)copies;
    return tsr__collective_cost(topology, TSR_SEND, &two, (int64_t)others);
}
