// SPDX-License-Identifier: Apache-2.0
// boxes.c - predefined machines by name: h100:8, hosts:2xh100:8, 4090:2.
//
// Memory, arithmetic (dense), memory bandwidth and links are published numbers; `source` names the
// publication. Engines reach only a fraction of them (`reach`). docs/published.md has the sources
// of these fractions and a comparison with measurements of full models.
#include "topology/internal.h"

// Seconds that a small kernel takes. An H200 takes 1.6 us for an addition of one element in a CUDA
// graph. Matrix products take 2 to 3 us in addition to their work.
#define KERNEL 2.7e-6

// Costs of communication. Inside a machine an all-reduce of 16 KiB over 8 GPUs takes 10 us: engines
// reach 6 to 12 us with their own kernels, NCCL takes 15 to 25. Between machines NCCL takes 25 to
// 60 us.
static const struct link_costs {
    double start, latency, message; // seconds
} inside = {5e-6, 3e-6, 0.3e-6}, between = {20e-6, 8e-6, 1e-6};

// The fractions of published numbers that engines reach. `products`: arithmetic of matrix products.
// `memory`: memory bandwidth. `caches` and `groups`: memory bandwidth for KV caches of which each
// head is read by one query head, or by several. `links`: bandwidth of links. `unhidden`: see
// tsr_topology_device. `packed`: memory bandwidth for weights of 4 bits; 0: as `memory`.
struct reach {
    double products, memory, caches, groups, links, unhidden, packed;
};
static const struct reach turing = {0.60, 0.80, 0.70, 0.35, 0.80, 0.8, 0},
                          ampere = {0.76, 0.78, 0.85, 0.35, 0.82, 0.8, 0},
                          ada = {0.70, 0.85, 0.80, 0.60, 0.80, 0.5, 0},
                          hopper = {0.67, 0.88, 0.80, 0.70, 0.82, 0, 0},
                          hopper_141 = {0.67, 0.745, 0.80, 0.70, 0.82, 0, 0},
                          blackwell = {0.65, 0.80, 0.80, 0.70, 0.82, 0, 0},
                          cdna = {0.50, 0.78, 0.70, 0.60, 0.75, 0, 0},
                          apple = {0.75, 0.85, 0.80, 0.80, 0.80, 0, 0.60};

struct box {
    const char *name;
    int most; // largest number of GPUs in one machine
    double memory, bandwidth, flops;
    double rates[TSR_RATE_COUNT];
    double link, port; // bytes per second one way: between two GPUs, and of one GPU to all others
    double network;    // bandwidth of one GPU to other machines
    const struct reach *reach;
    const char *provider; // NULL: CUDA
    bool compared;        // docs/published.md compares its predictions with measurements
    const char *source;
};

// Published rates of matrix products by element type. float16 and bfloat16 have the same rate.
#define RATES(tf32, float16, float8, int8, int4)                                                   \
    {                                                                                              \
        [TSR_RATE_TF32] = (tf32), [TSR_RATE_FLOAT16] = (float16), [TSR_RATE_BFLOAT16] = (float16), \
        [TSR_RATE_FLOAT8] = (float8), [TSR_RATE_INT8] = (int8), [TSR_RATE_INT4] = (int4)           \
    }

static const struct box boxes[] = {
    {"a100", 8, 80e9, 2.039e12, 19.5e12, .rates = RATES(156e12, 312e12, 0, 624e12, 1248e12),
     .link = 300e9, .port = 300e9, .network = 25e9, .reach = &ampere, .compared = true,
     .source = "NVIDIA A100 80GB SXM datasheet; DGX A100: 200 Gb/s for each GPU"},
    {"h100", 8, 80e9, 3.35e12, 67e12, .rates = RATES(494.5e12, 989.5e12, 1979e12, 1979e12, 0),
     .link = 450e9, .port = 450e9, .network = 50e9, .reach = &hopper, .compared = true,
     .source = "NVIDIA H100 SXM datasheet, half of the figures with sparsity; DGX H100: 400 Gb/s "
               "for each GPU"},
    {"h200", 8, 141e9, 4.8e12, 67e12, .rates = RATES(494.5e12, 989.5e12, 1979e12, 1979e12, 0),
     .link = 450e9, .port = 450e9, .network = 50e9, .reach = &hopper_141, .compared = true,
     .source = "NVIDIA H200 SXM datasheet, half of the figures with sparsity; DGX H200: 400 Gb/s "
               "for each GPU"},
    {"b200", 8, 180e9, 8e12, 75e12, .rates = RATES(1.1e15, 2.25e15, 4.5e15, 4.5e15, 9e15),
     .link = 900e9, .port = 900e9, .network = 50e9, .reach = &blackwell,
     .source = "NVIDIA HGX B200 and DGX B200 datasheets, half of the figures with sparsity; 400 "
               "Gb/s for each GPU"},
    {"l40s", 8, 48e9, 864e9, 91.6e12, .rates = RATES(183e12, 362e12, 733e12, 733e12, 733e12),
     .link = 32e9, .port = 32e9, .network = 25e9, .reach = &ada,
     .source = "NVIDIA L40S datasheet, half of the figures with sparsity; PCIe 4.0 x16; 200 Gb/s "
               "for each GPU is a guess"},
    {"mi300x", 8, 192e9, 5.3e12, 163.4e12,
     .rates = RATES(653.7e12, 1307.4e12, 2614.9e12, 2614.9e12, 0), .link = 64e9, .port = 448e9,
     .network = 50e9, .reach = &cdna,
     .source =
         "AMD Instinct MI300X datasheet: 7 links of 128 GB/s both ways; 400 Gb/s for each GPU"},
    {"rtx6000", 8, 48e9, 960e9, 91.1e12, .rates = RATES(182e12, 364e12, 728e12, 728e12, 1457e12),
     .link = 32e9, .port = 32e9, .network = 12.5e9, .reach = &ada, .compared = true,
     .source =
         "NVIDIA RTX 6000 Ada datasheet, half of the figures with sparsity; PCIe 4.0 x16; 100 "
         "Gb/s for each GPU is a guess"},
    {"5090", 8, 32e9, 1.792e12, 104.8e12,
     .rates = RATES(104.8e12, 209.5e12, 419e12, 838e12, 1676e12), .link = 64e9, .port = 64e9,
     .network = 1.25e9, .reach = &ada,
     .source = "NVIDIA RTX Blackwell architecture paper: dense, sums in float32; PCIe 5.0 x16; 10 "
               "Gb/s for each GPU is a guess"},
    {"4090", 8, 24e9, 1.008e12, 82.6e12,
     .rates = RATES(82.6e12, 165.2e12, 330.3e12, 660.6e12, 1321.2e12), .link = 32e9, .port = 32e9,
     .network = 1.25e9, .reach = &ada, .compared = true,
     .source =
         "NVIDIA Ada architecture paper: dense, sums in float32; PCIe 4.0 x16; 10 Gb/s for each "
         "GPU is a guess"},
    {"3090", 8, 24e9, 936e9, 35.6e12, .rates = RATES(35.6e12, 71e12, 0, 284e12, 568e12),
     .link = 32e9, .port = 32e9, .network = 1.25e9, .reach = &ampere, .compared = true,
     .source =
         "NVIDIA GA102 architecture paper: dense, sums in float32; PCIe 4.0 x16 without NVLink; "
         "10 Gb/s for each GPU is a guess"},
    {"l4", 8, 24e9, 300e9, 30.3e12, .rates = RATES(60e12, 121e12, 242.5e12, 242.5e12, 0),
     .link = 32e9, .port = 32e9, .network = 12.5e9, .reach = &ada,
     .source =
         "NVIDIA L4 datasheet, half of the figures with sparsity; PCIe 4.0 x16; 100 Gb/s for each "
         "GPU is a guess"},
    {"a10g", 8, 24e9, 600e9, 35e12, .rates = RATES(35e12, 70e12, 0, 140e12, 280e12), .link = 32e9,
     .port = 32e9, .network = 12.5e9, .reach = &ampere,
     .source =
         "NVIDIA A10G datasheet (AWS G5), half of the figures with sparsity; PCIe 4.0 x16; 100 "
         "Gb/s for each GPU"},
    {"t4", 8, 16e9, 320e9, 8.1e12,
     .rates = {[TSR_RATE_FLOAT16] = 65e12, [TSR_RATE_INT8] = 130e12, [TSR_RATE_INT4] = 260e12},
     .link = 16e9, .port = 16e9, .network = 6.25e9, .reach = &turing,
     .source = "NVIDIA T4 datasheet; PCIe 3.0 x16; 50 Gb/s for each GPU is a guess"},
    {"m1max", 1, 64e9, 400e9, 10.4e12, .link = 5e9, .port = 5e9, .network = 1.25e9, .reach = &apple,
     .provider = "CoreML", .compared = true,
     .source = "Apple, M1 Pro and M1 Max (2021): 400 GB/s, 10.4 TFLOP/s; 10 Gb/s Ethernet"},
    {"m2ultra", 1, 192e9, 800e9, 27.2e12, .link = 5e9, .port = 5e9, .network = 1.25e9,
     .reach = &apple, .provider = "CoreML", .compared = true,
     .source = "Apple, M2 Ultra (2023): 192 GB, 800 GB/s, 27.2 TFLOP/s; 10 Gb/s Ethernet"},
    {"m4max", 1, 128e9, 546e9, 18.4e12, .link = 5e9, .port = 5e9, .network = 1.25e9,
     .reach = &apple, .provider = "CoreML",
     .source =
         "Apple, M4 Max (2024): 128 GB, 546 GB/s; 18.4 TFLOP/s of 40 cores is an estimate, Apple "
         "publishes none; 10 Gb/s Ethernet"},
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

// The machine and the numbers in a text such as "hosts:2xh100:8".
struct order {
    const struct box *box;
    int64_t hosts, devices; // number of machines, and of GPUs in each
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

// Parses the name and sizes of a machine. False: not a predefined machine.
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

// Sets the speeds of a GPU. Products of all types reach the same part of their published rate.
static void set_gpu(tsr_topology *topology, const struct box *box, int device, int in_box)
{
    tsr_topology_device *gpu = &topology->device[device];
    const struct reach *reach = box->reach;
    gpu->name =
        tsr__arena_printf(&topology->arena, "%s:%d", box->provider ? box->provider : "CUDA", in_box)
            .p;
    gpu->memory = (int64_t)box->memory;
    gpu->flops = box->flops * reach->products;
    gpu->bandwidth = box->bandwidth * reach->memory;
    gpu->moves[TSR_MOVE_CACHE] = box->bandwidth * reach->caches;
    gpu->moves[TSR_MOVE_GROUPED] = box->bandwidth * reach->groups;
    gpu->moves[TSR_MOVE_PACKED] = box->bandwidth * reach->packed;
    gpu->unhidden = reach->unhidden;
    gpu->overhead = KERNEL;
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        gpu->rates[i] = box->rates[i] * reach->products;
}

static bool link_gpu(tsr_topology *topology, const struct order *order, int from, int to)
{
    bool same = from / (int)order->devices == to / (int)order->devices;
    const struct link_costs *costs = same ? &inside : &between;
    double bandwidth = (same ? order->box->link : order->box->network) * order->box->reach->links;
    struct topology_link *link = tsr__topology_link(topology, from, to, costs->latency, bandwidth);
    if (!link)
        return false;
    link->start = costs->start;
    link->message = costs->message;
    link->out_port = 2 * from + !same;
    link->in_port = 2 * to + !same;
    return true;
}

// Links the GPUs of a machine through its switch, and GPUs of the same index in different machines
// through the network. All messages of a GPU share one port for the switch and one for the network.
static bool link_gpus(tsr_topology *topology, const struct order *order)
{
    int in_box = (int)order->devices, n = topology->window ? topology->window : topology->n;
    double reach = order->box->reach->links;
    for (int i = 0; i < n; i++)
        // GPU i has the ports 2 i (switch) and 2 i + 1 (network).
        if (!tsr__topology_port(topology, i, order->box->port * reach) ||
            !tsr__topology_port(topology, i, order->box->network * reach))
            return false;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            bool linked = i / in_box == k / in_box || i % in_box == k % in_box;
            if (i != k && linked && !link_gpu(topology, order, i, k))
                return false;
        }
    return true;
}

static tsr_status report_box_size(tsr_session *session, const struct order *order)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_topology_text, NULL,
                     "name more hosts: hosts:2xh100:8",
                     "a box %s has 1 to %d devices, and a topology at most %d", order->box->name,
                     order->box->most, TOPOLOGY_MAX_DEVICES);
}

// Creates the topology. All hosts are equal, so if there are too many links, only those of the
// first hosts (the window) are listed.
tsr_status tsr__topology_box(tsr_session *session, struct str kind, struct str sizes,
                             tsr_topology **out)
{
    struct order order;
    if (!read_order(kind, sizes, &order))
        return TSR_MALFORMED;
    if (order.devices < 1 || order.devices > order.box->most || order.hosts < 1 ||
        order.hosts > TOPOLOGY_MAX_DEVICES / order.devices)
        return report_box_size(session, &order);
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
    topology->basis = order.box->compared ? "published" : "data sheet";
    topology->host = (int)order.devices;
    if (order.hosts > 1) {
        topology->n_grid = 2;
        topology->grid[0] = (int)order.hosts;
        topology->grid[1] = (int)order.devices;
    }
    topology->text =
        tsr__arena_printf(&topology->arena, STR_FMT ":" STR_FMT, STR_ARG(kind), STR_ARG(sizes));
    tsr_status status = ok ? tsr__topology_finish(topology, false) : TSR_NOMEM;
    return tsr__topology_hand_over(topology, status, out);
}
