// SPDX-License-Identifier: Apache-2.0
// write.c - struct manifest -> manifest.json. One order of fields, no times, no paths: the same
// partition has the same bytes.
#include "bundle/bundle.h"

// The layout as the operators' attributes have it (tsr__layout_encode), number by number.
static void write_layout(tsr_json *j, const struct tile_layout *l)
{
    tsr_json_begin(j, "layout", '[');
    tsr_json_int(j, NULL, l->rank);
    for (int d = 0; d < l->rank; d++) {
        tsr_json_int(j, NULL, l->dims[d].n);
        for (int f = 0; f < l->dims[d].n; f++) {
            tsr_json_int(j, NULL, l->dims[d].factors[f].size);
            tsr_json_int(j, NULL, l->dims[d].factors[f].cuts);
        }
    }
    tsr_json_int(j, NULL, l->n_loops);
    for (int i = 0; i < l->n_loops; i++) {
        tsr_json_int(j, NULL, l->loops[i].dim);
        tsr_json_int(j, NULL, l->loops[i].factor);
    }
    tsr_json_int(j, NULL, l->n_shards);
    for (int64_t k = 0; k < l->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, k, &owners);
        tsr_json_int(j, NULL, (int64_t)n);
        for (size_t i = 0; i < n; i++)
            tsr_json_int(j, NULL, owners[i]);
    }
    tsr_json_end(j);
}

static void write_ports(tsr_json *j, const char *key, const struct manifest_port *ports, size_t n)
{
    tsr_json_begin(j, key, '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", ports[i].name);
        tsr_json_string(j, "type", ports[i].type);
        if (ports[i].rank < 0)
            tsr_json_null(j, "shape");
        else
            tsr_json_begin(j, "shape", '[');
        for (int k = 0; k < ports[i].rank; k++) {
            const tsr_dim *d = &ports[i].dims[k];
            if (d->value >= 0)
                tsr_json_int(j, NULL, d->value);
            else if (d->symbol && d->symbol[0])
                tsr_json_string(j, NULL, d->symbol);
            else
                tsr_json_null(j, NULL);
        }
        if (ports[i].rank >= 0)
            tsr_json_end(j);
        tsr_json_string(j, "sharding", ports[i].sharding);
        if (ports[i].kept)
            write_layout(j, ports[i].kept);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void write_states(tsr_json *j, const struct manifest *m)
{
    tsr_json_begin(j, "states", '[');
    for (size_t i = 0; i < m->n_states; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "input", m->states[i].input);
        tsr_json_string(j, "output", m->states[i].output);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void write_devices(tsr_json *j, const struct manifest *m)
{
    tsr_json_begin(j, "devices", '[');
    for (int64_t r = 0; r < m->n_ranks; r++) {
        const struct manifest_device *d = &m->devices[r];
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "rank", r);
        tsr_json_string(j, "device", d->device);
        tsr_json_string(j, "file", d->file);
        tsr_json_begin(j, "data", '[');
        for (size_t k = 0; k < d->n_data; k++)
            tsr_json_string(j, NULL, d->data[k]);
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void write_collectives(tsr_json *j, const struct manifest *m)
{
    tsr_json_begin(j, "collectives", '[');
    for (size_t i = 0; i < m->n_collectives; i++) {
        const struct manifest_collective *c = &m->collectives[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "id", c->id);
        tsr_json_string(j, "op", c->op);
        tsr_json_string(j, "type", c->type);
        tsr_json_begin(j, "groups", '[');
        for (size_t g = 0; g < c->n_groups; g++) {
            tsr_json_begin(j, NULL, '[');
            for (size_t k = 0; k < c->groups[g].n; k++)
                tsr_json_int(j, NULL, c->groups[g].ranks[k]);
            tsr_json_end(j);
        }
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void write_rest(tsr_json *j, const struct manifest *m)
{
    tsr_json_begin(j, "replicated", '[');
    for (size_t i = 0; i < m->n_replicated; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "node", m->replicated[i].node);
        tsr_json_string(j, "op", m->replicated[i].op);
        tsr_json_string(j, "reason", m->replicated[i].reason);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_begin(j, "weights", '[');
    for (int64_t r = 0; r < m->n_ranks; r++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "elements", m->devices[r].weights);
        tsr_json_int(j, "bytes", m->devices[r].weight_bytes);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_begin(j, "files", '{');
    for (size_t i = 0; i < m->n_files; i++)
        tsr_json_string(j, m->files[i].name, m->files[i].sha256);
    tsr_json_end(j);
    tsr_json_begin(j, "sizes", '{');
    for (size_t i = 0; i < m->n_files; i++)
        tsr_json_int(j, m->files[i].name, (int64_t)m->files[i].bytes);
    tsr_json_end(j);
}

const char *tsr__manifest_text(tsr_session *s, const struct manifest *m, tsr_json **owner)
{
    tsr_json *j = tsr_json_new(s);
    *owner = j;
    if (!j)
        return NULL;
    tsr_json_begin(j, NULL, '{');
    tsr_json_int(j, "version", MANIFEST_VERSION);
    tsr_json_string(j, "generator", m->generator);
    tsr_json_begin(j, "model", '{');
    tsr_json_string(j, "name", m->model_name);
    tsr_json_string(j, "sha256", m->model_sha256);
    tsr_json_end(j);
    tsr_json_string(j, "configuration", m->configuration);
    if (m->dialect)
        tsr_json_string(j, "dialect", m->dialect);
    tsr_json_string(j, "plan", m->plan);
    tsr_json_int(j, "ranks", m->n_ranks);
    write_devices(j, m);
    write_ports(j, "inputs", m->inputs, m->n_inputs);
    write_ports(j, "outputs", m->outputs, m->n_outputs);
    write_states(j, m);
    write_collectives(j, m);
    write_rest(j, m);
    tsr_json_end(j);
    return tsr_json_text(j);
}

tsr_status tsr__manifest_write(struct outfolder *o, const struct manifest *m)
{
    struct arena a;
    tsr__arena_init(&a, o->session);
    tsr_json *owner = NULL;
    const char *text = tsr__manifest_text(o->session, m, &owner);
    struct str path = tsr__outfolder_path(o, &a, MANIFEST_NAME);
    struct outfile file;
    tsr_status st = text && path.p ? tsr__out_open(o->session, path.p, &file) : TSR_NOMEM;
    if (st == TSR_OK) {
        tsr__out_write(&file, text, strlen(text));
        st = tsr__out_commit(&file);
        tsr__out_abort(&file);
    }
    tsr_json_free(owner);
    tsr__arena_free(&a);
    return st;
}
