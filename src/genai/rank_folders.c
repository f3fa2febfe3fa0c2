// SPDX-License-Identifier: Apache-2.0
// rank_folders.c - writes one generation folder per device: OUT/rank0, OUT/rank1 ... Stock
// onnxruntime-genai loads them in that number of processes under any launcher.
//
// Every process samples for itself, so each gets the same full logits. Each rank keeps the KV
// caches of its own heads. onnxruntime-genai allocates them from the numbers in the configuration,
// so heads are sharded the same way in all layers. Example: 4 key heads on 3 ranks: 1, 1 and 2; the
// configuration of rank 2 has num_key_value_heads 2.
//
// If there are more ranks than key heads, each head is repeated (rules/kv_heads.c). Example: 4
// query heads and 2 key heads on 3 ranks: the key heads become 4. With more ranks than query heads,
// every rank keeps all caches. The same holds for a decoder with an encoder: onnxruntime-genai
// allocates the outputs of the encoder (the caches of cross-attention) by the decoder's number of
// key heads.
//
// Steps: shard the caches, plan one decode step, partition into OUT/parts, move the files to one
// folder per rank. OUT gets its name when it is complete.
#include "genai/internal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANNOTATED_IR 11 // least IR version with shardings
#define CONFIG_NAME  "genai"
#define PLUGIN       "libtessera_ops.so"
#define AXIS_HEADS   1
#define MAX_HEADS    65536 // heads of larger models are not repeated

// ---- shardings ---------------------------------------------------------------------------------

// Stores the first node that reads the value, and stops. Declaring the sharding at one reader is
// enough; the planner derives it for the others.
static bool first_use(void *data, tsr_node *node, size_t input)
{
    (void)input;
    *(tsr_node **)data = node;
    return false;
}

// Shards axis 1 of a value over devices 0, 1, 2 ...
static tsr_status shard_heads(tsr_node *node, tsr_value *value, tsr_config *config, int64_t ranks)
{
    return tsr_node_shard(node, value, config, AXIS_HEADS, ranks, NULL, 0, -1);
}

// Shards each cache by heads, at the node that reads it and at the one that writes it.
static tsr_status shard_caches(tsr_folder *folder, tsr_model *model, tsr_config *config,
                               int64_t ranks)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < folder->caches.n; i++) {
        tsr_value *past = tsr_graph_value(graph, folder->caches.at[i].past);
        tsr_value *present = tsr_graph_value(graph, folder->caches.at[i].present);
        tsr_node *reader = NULL;
        tsr_value_uses(past, first_use, &reader);
        if (!reader || !tsr_value_producer(present))
            continue; // no node reads the cache, or none writes it
        TRY(shard_heads(reader, past, config, ranks));
        TRY(shard_heads(tsr_value_producer(present), present, config, ranks));
    }
    return TSR_OK;
}

static tsr_status refuse_layout(tsr_folder *folder, const char *hint, const char *what)
{
    return tsr__fail(folder->session, TSR_UNSUPPORTED, DIAG_folder_layout,
                     &PLACE(.file = str_of(folder->path)), hint, "%s", what);
}

// Checks that genai_config.json has the objects that write_config changes. Only session_options may
// be missing.
static tsr_status check_config(tsr_folder *folder)
{
    const char *hint = "make the folder with onnxruntime-genai's builder";
    const json_t *decoder = json_object_get(json_object_get(folder->config, "model"), "decoder");
    const json_t *options = json_object_get(decoder, "session_options");
    if (!json_is_object(decoder))
        return refuse_layout(folder, hint, "genai_config.json has no object model.decoder");
    if (options && !json_is_object(options))
        return refuse_layout(folder, hint,
                             "model.decoder.session_options in genai_config.json is not an object");
    return TSR_OK;
}

// True if tsr_repeat_kv_heads can repeat the heads of all caches: only grouped attention reads
// fewer key heads than query heads. Other models repeat the heads of a cache themselves.
static bool can_repeat(const tsr_folder *folder)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    for (size_t i = 0; i < folder->caches.n; i++)
        if (!tsr_cache_is_grouped(tsr_graph_value(graph, folder->caches.at[i].past)))
            return false;
    return true;
}

// Returns the number of copies of each key head. Every rank must get at least one head. If heads
// are repeated, all copies must have the same number of query heads. Returns 0 if there is no such
// number, for example with fewer query heads than ranks; the caches are then replicated.
static int64_t repeats(const tsr_folder *folder, int64_t ranks)
{
    if (json_object_get(json_object_get(folder->config, "model"), "encoder"))
        return 0;
    int64_t keys = tsr__genai_cache_heads(folder), queries = int64_max(folder->heads, keys);
    if (queries > MAX_HEADS || !can_repeat(folder))
        return keys >= ranks;
    for (int64_t times = 1; keys * times <= queries; times++)
        if (keys * times >= ranks && (times == 1 || queries % (keys * times) == 0))
            return times;
    return 0;
}

// Refuses folders without genai_config.json, and models without caches: this layout shards the
// caches.
static tsr_status check_heads(tsr_folder *folder)
{
    if (!folder->is_genai)
        return refuse_layout(folder, "make one with onnxruntime-genai's builder",
                             "the folder has no genai_config.json");
    if (!tsr__genai_cache_heads(folder))
        return refuse_layout(folder, "use tessera partition without --layout",
                             "the model has no KV caches of shape [batch, heads, past, head size]");
    return check_config(folder);
}

// ---- the partition -----------------------------------------------------------------------------

// Sets the options about inputs and outputs: if `sharded`, the caches stay sharded (keep_cut). All
// other outputs are returned by every rank in full (everywhere).
static tsr_status list_ports(tsr_folder *folder, const tsr_model *model, bool sharded,
                             tsr_partition_options *options)
{
    const tsr_graph *graph = tsr_model_graph(model);
    size_t n_outputs = tsr_graph_output_count(graph);
    const char **kept = ARENA_ARRAY(&folder->arena, const char *, 2 * folder->caches.n + 1);
    const char **everywhere = ARENA_ARRAY(&folder->arena, const char *, n_outputs + 1);
    if (!kept || !everywhere)
        return TSR_NOMEM;
    for (size_t i = 0; sharded && i < folder->caches.n; i++) {
        kept[options->n_keep_cut++] = folder->caches.at[i].past;
        kept[options->n_keep_cut++] = folder->caches.at[i].present;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        const char *name = tsr_value_name(tsr_graph_output(graph, i));
        bool is_cache = false;
        for (size_t k = 0; sharded && k < folder->caches.n; k++)
            is_cache |= strcmp(name, folder->caches.at[k].present) == 0;
        if (!is_cache)
            everywhere[options->n_everywhere++] = name;
    }
    options->keep_cut = kept;
    options->everywhere = everywhere;
    return TSR_OK;
}

// Sets the sizes of a decode step: one token in the middle of the context, or after 128 tokens if
// the context length is unknown.
static tsr_status decode_sizes(tsr_folder *folder, tsr_plan_options *plan)
{
    int64_t past = folder->context > 2 ? folder->context / 2 : 128;
    return tsr__genai_sizes(folder, folder->model, 1, past, &plan->sizes, &plan->n_sizes);
}

// Target devices. topology NULL: `ranks` equal devices.
struct machine {
    int64_t ranks;
    tsr_topology *topology;
    int64_t alone; // predicted picoseconds of a step on one device; 0: unknown
};

static tsr_plan_facts facts_of(const tsr_plan_result *planned)
{
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    (void)tsr_plan_result_about(planned, &facts);
    return facts;
}

// Returns the predicted time of a step on one device, in picoseconds; 0: unknown. Plans without
// fixed shardings and drops the diagnostics of that plan.
static int64_t time_on_one(tsr_folder *folder, const struct machine *machine)
{
    tsr_plan_options options = {
        .size = sizeof options, .devices = 1, .topology = machine->topology};
    tsr_plan_result *planned = NULL;
    tsr_model *model = NULL;
    if (decode_sizes(folder, &options) != TSR_OK)
        return 0;
    struct diag_mark mark = tsr__diag_mark(folder->session);
    tsr_status st = tsr_model_load(folder->session, folder->model_path, &model);
    if (st == TSR_OK)
        st = tsr_plan(model, &options, &planned);
    tsr_model_free(model);
    tsr__diag_back(folder->session, &mark, false);
    int64_t time = 0;
    if (st == TSR_OK) {
        tsr_plan_facts facts = facts_of(planned);
        time =
            machine->topology && facts.devices > 1 ? facts.one_device : tsr__genai_run_time(&facts);
    }
    tsr_plan_result_free(planned);
    return time;
}

// Adds the configuration. Shards the caches, after repeating their heads if there are fewer than
// ranks. If `repeats` returns 0, the caches stay unsharded.
static tsr_status add_config(tsr_folder *folder, tsr_model *model, int64_t ranks)
{
    tsr_config *config;
    int64_t times = repeats(folder, ranks);
    if (times > 1)
        TRY(tsr_repeat_kv_heads(model, times));
    TRY(tsr_model_add_config(model, CONFIG_NAME, ranks, NULL, 0, &config));
    if (tsr_model_ir_version(model) < ANNOTATED_IR)
        TRY(tsr_model_set_ir_version(model, ANNOTATED_IR)); // in memory only
    return times ? shard_caches(folder, model, config, ranks) : TSR_OK;
}

// Predicts the time of a step with the caches sharded over these devices. INT64_MAX: the plan does
// not fit in memory.
static tsr_status try_choice(tsr_folder *folder, tsr_topology *choice, int64_t *cost)
{
    tsr_plan_options options = {.size = sizeof options, .topology = choice, .config = CONFIG_NAME};
    tsr_plan_result *planned = NULL;
    tsr_model *model = NULL;
    *cost = INT64_MAX;
    TRY(decode_sizes(folder, &options));
    TRY(tsr_model_load(folder->session, folder->model_path, &model));
    struct diag_mark mark = tsr__diag_mark(folder->session);
    tsr_status st = add_config(folder, model, tsr_topology_devices(choice));
    if (st == TSR_OK)
        st = tsr_plan(model, &options, &planned);
    tsr_model_free(model);
    if (st == TSR_OK)
        *cost = facts_of(planned).cost;
    tsr_plan_result_free(planned);
    if (st != TSR_OK && st != TSR_INFEASIBLE)
        return st;
    tsr__diag_back(folder->session, &mark, false);
    return TSR_OK;
}

#define WORTH 0.99 // take a later choice only if its time is below this fraction of the best

// Chooses the number of devices for this layout, which may be smaller than for an unrestricted
// plan. Plans each choice of the topology and takes the fastest (see WORTH). Example: 1 device 0.40
// ms, 2 devices 0.68 ms: takes 1.
static tsr_status take_choice(tsr_folder *folder, struct machine *machine)
{
    tsr_topology *all = machine->topology;
    int64_t least = INT64_MAX;
    for (size_t i = 0;; i++) {
        tsr_topology *choice = (tsr_topology *)(uintptr_t)tsr_topology_choice(all, i);
        int64_t cost;
        if (choice == all)
            return TSR_OK;
        TRY(try_choice(folder, choice, &cost));
        if (least == INT64_MAX || (double)cost < WORTH * (double)least) {
            least = cost;
            machine->topology = choice;
            machine->ranks = tsr_topology_devices(choice);
        }
    }
}

// Plans one decode step with a half-full context and partitions the model.
static tsr_status partition_model(tsr_folder *folder, tsr_model *model,
                                  const struct machine *machine, const char *parts,
                                  tsr_partition_result **out)
{
    tsr_plan_options plan = {.size = sizeof plan,
                             .devices = machine->ranks,
                             .topology = machine->topology,
                             .config = CONFIG_NAME};
    tsr_plan_result *planned = NULL;
    tsr_partition_options options = {.size = sizeof options, .config = CONFIG_NAME};
    TRY(add_config(folder, model, machine->ranks));
    TRY(decode_sizes(folder, &plan));
    TRY(tsr_plan(model, &plan, &planned));
    tsr_partition_result *found = NULL;
    bool sharded = machine->ranks > 1 && repeats(folder, machine->ranks);
    tsr_status st = list_ports(folder, model, sharded, &options);
    if (st == TSR_OK)
        st = tsr_partition(model, parts, &options, &found);
    if (st == TSR_OK) {
        tsr_plan_facts facts = facts_of(planned);
        tsr_partition_result_predict(found, tsr__genai_run_time(&facts), machine->alone,
                                     facts.device_flops);
        *out = found;
    }
    tsr_plan_result_free(planned);
    return st;
}

// ---- files -------------------------------------------------------------------------------------

// State of tsr_folder_partition. `out` becomes visible when it is committed.
struct rank_folders {
    tsr_folder *folder;
    struct outfolder out;
    struct arena *arena;
    const char *parts; // folder of the partition, inside `out`
};

static tsr_status cannot_write(struct rank_folders *folders, const char *path)
{
    return tsr__fail(folders->folder->session, TSR_WRITE, DIAG_io_write,
                     &PLACE(.file = str_of(path)), NULL, "cannot be written: %s", strerror(errno));
}

// Returns a path in the folder of a rank; name "": the folder itself. NULL: out of memory. Example:
// rank 1 and "model.onnx" give ".../rank1/model.onnx".
static const char *rank_path(struct rank_folders *folders, int64_t rank, const char *name)
{
    struct str inner =
        tsr__arena_printf(folders->arena, "rank%lld%s%s", (long long)rank, *name ? "/" : "", name);
    return inner.p ? tsr__outfolder_path(&folders->out, folders->arena, inner.p).p : NULL;
}

// Reports a read error. Reads errno first, because adding a diagnostic may change it.
static tsr_status cannot_read(struct rank_folders *folders, const char *path)
{
    int error = errno;
    struct place at = PLACE(.file = str_of(path));
    if (error == ENOMEM)
        return TSR_NOMEM;
    return tsr__fail(folders->folder->session, TSR_IO, DIAG_io_read, &at, NULL,
                     "cannot be read: %s", strerror(error));
}

// Copies a file. Sets *there if the file exists: a missing file is no error. Folders are skipped.
static tsr_status copy_file(struct rank_folders *folders, const char *from, const char *to,
                            bool *there)
{
    struct stat st;
    struct outfile file;
    *there = false;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? TSR_OK : cannot_read(folders, from);
    if (fstat(fd, &st) != 0) {
        tsr_status refused = cannot_read(folders, from);
        close(fd);
        return refused;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return TSR_OK;
    }
    *there = true;
    tsr_status status = tsr__out_open(folders->folder->session, to, &file);
    if (status == TSR_OK) {
        tsr__out_copy(&file, fd, 0, (uint64_t)st.st_size);
        status = tsr__out_commit(&file);
    }
    close(fd);
    return status;
}

// Moves a file of the partition into a rank's folder. If the ranks share it, links it, or copies it
// if the file system refuses links. A missing file is no error.
static tsr_status place_part(struct rank_folders *folders, int64_t rank, const char *name,
                             const char *as, bool shared)
{
    const char *from = tsr__arena_printf(folders->arena, "%s/%s", folders->parts, name).p;
    const char *to = rank_path(folders, rank, as);
    if (!from || !to)
        return TSR_NOMEM;
    if (access(from, F_OK) != 0) // a rank may have no data file
        return errno == ENOENT ? TSR_OK : cannot_read(folders, from);
    if (!shared)
        return rename(from, to) == 0 ? TSR_OK : cannot_write(folders, to);
    bool there;
    return link(from, to) == 0 ? TSR_OK : copy_file(folders, from, to, &there);
}

// Returns the file name of the model in the folder, which the folders of the ranks keep: another
// model of the folder (vision, embedding) may have any other name.
static const char *model_name(const tsr_folder *folder)
{
    return path_name(folder->model_path);
}

// True for files to copy unchanged, such as tokenizer.json. False for the model, its data, the
// configuration and hidden files.
static bool is_copied(const tsr_folder *folder, const char *name)
{
    const char *model = model_name(folder);
    return name[0] != '.' && strncmp(name, model, strlen(model)) != 0 &&
           strcmp(name, GENAI_CONFIG) != 0;
}

// Copies the tokenizer and similar files. readdir returns NULL at the end and on errors: errno
// tells them apart.
static tsr_status copy_rest(struct rank_folders *folders, int64_t rank)
{
    DIR *d = opendir(folders->folder->path);
    tsr_status st = TSR_OK;
    if (!d)
        return cannot_read(folders, folders->folder->path);
    while (st == TSR_OK) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (!entry && errno)
            st = cannot_read(folders, folders->folder->path);
        if (!entry)
            break;
        if (!is_copied(folders->folder, entry->d_name))
            continue;
        const char *from =
            tsr__arena_printf(folders->arena, "%s/%s", folders->folder->path, entry->d_name).p;
        const char *to = rank_path(folders, rank, entry->d_name);
        bool there;
        st = from && to ? copy_file(folders, from, to, &there) : TSR_NOMEM;
    }
    closedir(d);
    return st;
}

// Copies the plug-in and the libraries that it may load into the rank's folder: onnxruntime-genai
// loads no plug-in from elsewhere. They are in the folder `given`; NULL: next to this library,
// which the address of `here` identifies. Only the plug-in itself must exist.
static tsr_status copy_plugins(struct rank_folders *folders, int64_t rank, const char *given)
{
    static const char *const names[] = {PLUGIN, "libtessera_mpi_openmpi.so",
                                        "libtessera_mpi_mpich.so", "libjansson.so.4"};
    static const char here = 0;
    char beside[PATH_MAX] = "";
    Dl_info info;
    bool known = dladdr(&here, &info) && info.dli_fname && info.dli_fname[0] == '/';
    if (!given && !known) // loaded by a relative name
        return refuse_layout(folders->folder, "name the folder of the plug-ins with --plugins",
                             "the folder of libtessera is unknown");
    if (!given)
        snprintf(beside, sizeof beside, "%.*s",
                 (int)(strrchr(info.dli_fname, '/') - info.dli_fname), info.dli_fname);
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        const char *from =
            tsr__arena_printf(folders->arena, "%s/%s", given ? given : beside, names[i]).p;
        const char *to = rank_path(folders, rank, names[i]);
        if (!from || !to)
            return TSR_NOMEM;
        bool there;
        TRY(copy_file(folders, from, to, &there));
        if (i == 0 && !there)
            return refuse_layout(folders->folder, "name their folder with --plugins",
                                 "the plug-in " PLUGIN " was not found");
    }
    return TSR_OK;
}

// Writes the configuration of a rank: its numbers of heads and the plug-in.
static tsr_status write_config(struct rank_folders *folders, int64_t rank, int64_t ranks)
{
    tsr_folder *folder = folders->folder;
    int64_t times = repeats(folder, ranks);
    int64_t keys = tsr__genai_cache_heads(folder) * int64_max(times, 1), own = keys;
    // Shard r of n over H heads has the range floor(r H / n) .. floor((r + 1) H / n), as in all
    // shardings.
    if (times)
        own = (rank + 1) * keys / ranks - rank * keys / ranks;
    const char *path = rank_path(folders, rank, GENAI_CONFIG);
    json_t *config = json_deep_copy(folder->config);
    if (!config ||
        !json_equal(config, folder->config)) { // json_deep_copy may be incomplete without memory
        json_decref(config);
        return TSR_NOMEM;
    }
    json_t *decoder = json_object_get(json_object_get(config, "model"), "decoder");
    json_t *options = json_object_get(decoder, "session_options");
    int failed = json_object_set_new(decoder, "num_key_value_heads", json_integer(own));
    // Query heads follow their key heads. Example: with 32 query and 8 key heads, a rank with 2 key
    // heads has 8 query heads. A configuration without this number stays without it.
    if (folder->heads >= keys)
        failed |= json_object_set_new(decoder, "num_attention_heads",
                                      json_integer(own * (folder->heads / keys)));
    if (!options) {
        options = json_object();
        failed |= json_object_set_new(decoder, "session_options", options);
    }
    failed |= json_object_set_new(options, "custom_ops_library", json_string(PLUGIN));
    char *text = !failed && path ? json_dumps(config, JSON_INDENT(4) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(config);
    if (!text)
        return TSR_NOMEM;
    struct outfile file;
    tsr_status st = tsr__out_open(folder->session, path, &file);
    if (st == TSR_OK) {
        tsr__out_write(&file, text, strlen(text));
        st = tsr__out_commit(&file);
    }
    free(text);
    return st;
}

// Creates the folder of a rank and places its files. Data files keep the names of the partition,
// because the model refers to them.
static tsr_status fill_rank(struct rank_folders *folders, int64_t rank, int64_t ranks,
                            const char *plugins)
{
    const char *folder = rank_path(folders, rank, "");
    const char *model = tsr__arena_printf(folders->arena, "rank%lld.onnx", (long long)rank).p;
    const char *data = tsr__arena_printf(folders->arena, "rank%lld.data", (long long)rank).p;
    if (!folder || !model || !data)
        return TSR_NOMEM;
    if (mkdir(folder, 0777) != 0)
        return cannot_write(folders, folder);
    TRY(place_part(folders, rank, model, model_name(folders->folder), false));
    TRY(place_part(folders, rank, data, data, false));
    TRY(place_part(folders, rank, "common.data", "common.data", true));
    TRY(write_config(folders, rank, ranks));
    TRY(copy_rest(folders, rank));
    return copy_plugins(folders, rank, plugins);
}

// Partitions the model into OUT/parts, then creates the folders of the ranks from it.
static tsr_status fill(struct rank_folders *folders, struct machine *machine, const char *plugins,
                       tsr_partition_result **result)
{
    tsr_folder *folder = folders->folder;
    tsr_model *model = NULL;
    folders->parts = tsr__outfolder_path(&folders->out, folders->arena, "parts").p;
    if (!folders->parts)
        return TSR_NOMEM;
    if (machine->topology)
        TRY(take_choice(folder, machine));
    machine->alone = time_on_one(folder, machine);
    TRY(tsr_model_load(folder->session, folder->model_path, &model));
    tsr_status st = partition_model(folder, model, machine, folders->parts, result);
    tsr_model_free(model);
    if (st != TSR_OK)
        return st;
    for (int64_t rank = 0; rank < machine->ranks; rank++)
        TRY(fill_rank(folders, rank, machine->ranks, plugins));
    if (!tsr__folder_remove(folders->parts))
        return cannot_write(folders, folders->parts);
    return TSR_OK;
}

// Partitions the folder's model. On failure the incomplete folder is removed.
tsr_status tsr_folder_partition(tsr_folder *folder, const char *out,
                                const tsr_folder_options *options, tsr_partition_result **result)
{
    TRY(tsr__given(folder->session, "out", out));
    TRY(tsr__given(folder->session, "options", options));
    tsr_folder_options given;
    TRY(OPTIONS_READ(folder->session, &given, options, topology));
    struct machine machine = {.ranks = given.devices, .topology = given.topology};
    if (given.topology)
        machine.ranks = tsr_topology_devices(given.topology);
    TRY(check_heads(folder));
    struct rank_folders folders = {.folder = folder, .arena = &folder->arena};
    TRY(tsr__outfolder_open(folder->session, out, given.force, &folders.out));
    tsr_partition_result *made = NULL;
    tsr_status st = fill(&folders, &machine, given.plugins, &made);
    if (st == TSR_OK)
        st = tsr__outfolder_commit(&folders.out);
    tsr__outfolder_abort(&folders.out);
    if (st == TSR_OK && result)
        *result = made;
    else
        tsr_partition_result_free(made);
    return st;
}
