// SPDX-License-Identifier: Apache-2.0
// boxes.c - predefined machines by name: h100:8, hosts:2xh100:8.
//
// Memory, arithmetic (dense), memory bandwidth and links are published numbers; `source` names
// where. Latencies and kernel launch times are not published: they are typical of NCCL and CUDA.
#include "topology/internal.h"

#define LAUNCH  4e-6 // seconds to launch a kernel
#define IN_BOX  3e-6 // latency between GPUs of one machine
#define BETWEEN 8e-6 // latency between machines

struct box {
    const char *name;
    int most; // GPUs of one machine
    double memory, bandwidth, flops;
    double rates[TSR_RATE_COUNT];
    double link, port; // bytes per second one way: between two GPUs, and of one GPU to all others
    double network;    // of one GPU to other machines
    const char *source;
};

static const struct box boxes[] = {
    {"a100", 8, 80e9, 2.039e12, 19.5e12,
     .rates = {[TSR_RATE_TF32] = 156e12,
               [TSR_RATE_FLOAT16] = 312e12,
               [TSR_RATE_BFLOAT16] = 312e12,
               [TSR_RATE_INT8] = 624e12,
               [TSR_RATE_INT4] = 1248e12},
     .link = 300e9, .port = 300e9, .network = 25e9,
     .source = "NVIDIA A100 80GB SXM datasheet; DGX A100: 200 Gb/s for each GPU"},
    {"h100", 8, 80e9, 3.35e12, 67e12,
     .rates = {[TSR_RATE_TF32] = 494.5e12,
               [TSR_RATE_FLOAT16] = 989.5e12,
               [TSR_RATE_BFLOAT16] = 989.5e12,
               [TSR_RATE_FLOAT8] = 1979e12,
               [TSR_RATE_INT8] = 1979e12},
     .link = 450e9, .port = 450e9, .network = 50e9,
     .source = "NVIDIA H100 SXM datasheet, half of the figures with sparsity; DGX H100: 400 Gb/s "
               "for each GPU"},
    {"h200", 8, 141e9, 4.8e12, 67e12,
     .rates = {[TSR_RATE_TF32] = 494.5e12,
               [TSR_RATE_FLOAT16] = 989.5e12,
               [TSR_RATE_BFLOAT16] = 989.5e12,
               [TSR_RATE_FLOAT8] = 1979e12,
               [TSR_RATE_INT8] = 1979e12},
     .link = 450e9, .port = 450e9, .network = 50e9,
     .source = "NVIDIA H200 SXM datasheet, half of the figures with sparsity; DGX H200: 400 Gb/s "
               "for each GPU"},
    {"b200", 8, 180e9, 8e12, 75e12,
     .rates = {[TSR_RATE_TF32] = 1.1e15,
               [TSR_RATE_FLOAT16] = 2.25e15,
               [TSR_RATE_BFLOAT16] = 2.25e15,
               [TSR_RATE_FLOAT8] = 4.5e15,
               [TSR_RATE_INT8] = 4.5e15,
               [TSR_RATE_INT4] = 9e15},
     .link = 900e9, .port = 900e9, .network = 50e9,
     .source = "NVIDIA HGX B200 and DGX B200 datasheets, half of the figures with sparsity; 400 "
               "Gb/s for each GPU"},
    {"l40s", 8, 48e9, 864e9, 91.6e12,
     .rates = {[TSR_RATE_TF32] = 183e12,
               [TSR_RATE_FLOAT16] = 362e12,
               [TSR_RATE_BFLOAT16] = 362e12,
               [TSR_RATE_FLOAT8] = 733e12,
               [TSR_RATE_INT8] = 733e12,
               [TSR_RATE_INT4] = 733e12},
     .link = 32e9, .port = 32e9, .network = 25e9,
     .source = "NVIDIA L40S datasheet, half of the figures with sparsity; PCIe 4.0 x16; 200 Gb/s "
               "for each GPU is a guess"},
    {"mi300x", 8, 192e9, 5.3e12, 163.4e12,
     .rates = {[TSR_RATE_TF32] = 653.7e12,
               [TSR_RATE_FLOAT16] = 1307.4e12,
               [TSR_RATE_BFLOAT16] = 1307.4e12,
               [TSR_RATE_FLOAT8] = 2614.9e12,
               [TSR_RATE_INT8] = 2614.9e12},
     .link = 64e9, .port = 448e9, .network = 50e9,
     .source =
         "AMD Instinct MI300X datasheet: 7 links of 128 GB/s both ways; 400 Gb/s for each GPU"},
};

static const struct box *find_box(struct str name)
{
    for (size_t i = 0; i < TSR_COUNT(boxes); i++)
        if (str_is(name, boxes[i].name))
            return &boxes[i];
    return NULL;
}

const char *tsr_topology_box(size_t i, const char **source)
{
    if (i >= TSR_COUNT(boxes))
        return NULL;
    if (source)
        *source = boxes[i].source;
    return boxes[i].name;
}

// ---- reading "h100:8", and "2xh100:8" after "hosts:" -------------------------------------------

struct order {
    const struct box *box;
    int64_t hosts, devices; // machines, and GPUs in each
};

static size_t find(struct str text, char what)
{
    size_t i = 0;
    while (i < text.n && text.p[i] != what)
        i++;
    return i;
}

// Returns the text after index i; empty at the end.
static struct str after(struct str text, size_t i)
{
    return i < text.n ? (struct str){text.p + i + 1, text.n - i - 1}
                      : (struct str){text.p + text.n, 0};
}

// False: not a predefined machine.
static bool read_order(struct str kind, struct str sizes, struct order *out)
{
    *out = (struct order){.hosts = 1};
    if (str_is(kind, "hosts")) {
        // "2xh100:8": the x before the colon ends the number of hosts. "2x8" has no colon.
        size_t times = find(sizes, 'x'), colon = find(sizes, ':');
        if (colon == sizes.n || times > colon ||
            !tsr__str_int((struct str){sizes.p, times}, &out->hosts))
            return false;
        kind = (struct str){sizes.p + times + 1, colon - times - 1};
        sizes = after(sizes, colon);
    }
    out->box = find_box(kind);
    return out->box && tsr__str_int(sizes, &out->devices);
}

bool tsr__topology_is_box(struct str kind, struct str sizes)
{
    struct order order;
    return read_order(kind, sizes, &order);
}

// ---- making ------------------------------------------------------------------------------------

static void set_gpu(tsr_topology *topology, const struct box *box, int device, int in_box)
{
    tsr_topology_device *topology_device = &topology->device[device];
    topology_device->name = tsr__arena_printf(&topology->arena, "CUDA:%d", in_box).p;
    topology_device->memory = (int64_t)box->memory;
    topology_device->flops = box->flops;
    topology_device->bandwidth = box->bandwidth;
    topology_device->overhead = LAUNCH;
    memcpy(topology_device->rates, box->rates, sizeof topology_device->rates);
}

// GPUs of a machine are linked through its switch; GPUs of the same index in other machines through
// the network. All messages of a GPU share one port for each.
static bool link_gpus(tsr_topology *topology, const struct order *order)
{
    int in_box = (int)order->devices, n = topology->window ? topology->window : topology->n;
    for (int i = 0; i < n; i++)
        // GPU i has the ports 2 i (switch) and 2 i + 1 (network).
        if (!tsr__topology_port(topology, i, order->box->port) ||
            !tsr__topology_port(topology, i, order->box->network))
            return false;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            bool same = i / in_box == k / in_box;
            if (i == k || (!same && i % in_box != k % in_box))
                continue;
            bool ok = same ? tsr__topology_link(topology, i, k, IN_BOX, order->box->link)
                           : tsr__topology_link(topology, i, k, BETWEEN, order->box->network);
            if (!ok)
                return false;
            struct topology_link *link = &topology->links.at[topology->links.n - 1];
            link->out_port = 2 * i + !same;
            link->in_port = 2 * k + !same;
        }
    return true;
}

static tsr_status refuse(tsr_session *session, const struct order *order)
{
    tsr__diag(session, DIAG_topology_text, NULL, "name more hosts: hosts:2xh100:8",
              "a box %s has 1 to %d devices, and a topology at most %d", order->box->name,
              order->box->most, TOPOLOGY_MAX_DEVICES);
    return TSR_MALFORMED;
}

// All hosts are equal: if there are too many links, only those of the first hosts (the window) are
// listed.
tsr_status tsr__topology_box(tsr_session *session, struct str kind, struct str sizes,
                             tsr_topology **out)
{
    struct order order;
    if (!read_order(kind, sizes, &order))
        return TSR_MALFORMED;
    if (order.devices < 1 || order.devices > order.box->most || order.hosts < 1 ||
        order.hosts > TOPOLOGY_MAX_DEVICES / order.devices)
        return refuse(session, &order);
    tsr_topology *topology = tsr__topology_new(session, (int)(order.hosts * order.devices));
    if (!topology)
        return TSR_NOMEM;
    for (int i = 0; i < topology->n; i++)
        set_gpu(topology, order.box, i, i % (int)order.devices);
    size_t each = (size_t)(order.hosts + order.devices - 2);
    if (each * (size_t)topology->n > TOPOLOGY_LISTED && order.hosts > TOPOLOGY_WINDOW)
        topology->window = TOPOLOGY_WINDOW * (int)order.devices;
    bool ok = link_gpus(topology, &order);
    topology->memory_assumed = false;
    topology->host = (int)order.devices;
    if (order.hosts > 1) {
        topology->n_grid = 2;
        topology->grid[0] = (int)order.hosts;
        topology->grid[1] = (int)order.devices;
    }
    topology->text =
        tsr__arena_printf(&topology->arena, STR_FMT ":" STR_FMT, STR_ARG(kind), STR_ARG(sizes));
    tsr_status status = ok ? tsr__topology_finish(topology, false) : TSR_NOMEM;
    if (status == TSR_OK)
        *out = topology;
    else
        tsr_topology_free(topology);
    return status;
}
