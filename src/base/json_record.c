// SPDX-License-Identifier: Apache-2.0
// json_record.c - writes structs as JSON objects, using tables of their members (tessera_json.h).

#include "tessera_json.h"

static int64_t read_int(tsr_json_kind kind, const void *at)
{
    if (kind == TSR_JSON_INT64)
        return *(const int64_t *)at;
    if (kind == TSR_JSON_SIZE)
        return (int64_t) * (const size_t *)at;
    return *(const int *)at;
}

static bool is_known(const tsr_json_field *field, const void *at)
{
    switch (field->kind) {
    case TSR_JSON_TEXT:
        return *(const char *const *)at != NULL;
    case TSR_JSON_BOOL:
        return *(const bool *)at;
    case TSR_JSON_DOUBLE:
        return *(const double *)at > 0;
    default:
        return read_int(field->kind, at) > 0;
    }
}

static bool is_null(const tsr_json_field *field, const void *at)
{
    if (field->when == TSR_JSON_OR_NULL)
        return !is_known(field, at);
    return field->when == TSR_JSON_NEGATIVE_AS_NULL && read_int(field->kind, at) < 0;
}

static bool is_left_out(const tsr_json_field *field, const void *at)
{
    if (field->when == TSR_JSON_IF_KNOWN)
        return !is_known(field, at);
    return field->when == TSR_JSON_UNLESS_NEGATIVE && read_int(field->kind, at) < 0;
}

// Adds one value, or one element of a list.
static void add_value(tsr_json *json, const char *key, const tsr_json_field *field, const void *at)
{
    if (is_null(field, at)) {
        tsr_json_null(json, key);
        return;
    }
    switch (field->kind) {
    case TSR_JSON_BOOL:
        tsr_json_bool(json, key, *(const bool *)at);
        break;
    case TSR_JSON_DOUBLE:
        tsr_json_number(json, key, *(const double *)at);
        break;
    case TSR_JSON_MILLISECONDS:
        tsr_json_number(json, key, 1e3 * *(const double *)at);
        break;
    case TSR_JSON_TEXT:
        tsr_json_string(json, key, *(const char *const *)at);
        break;
    case TSR_JSON_NAME:
        tsr_json_string(json, key, field->names[*(const int *)at]);
        break;
    case TSR_JSON_RECORD:
        tsr_json_record(json, key, field->fields, at);
        break;
    default:
        tsr_json_int(json, key, read_int(field->kind, at));
    }
}

static void add_list(tsr_json *json, const tsr_json_field *field, const char *elements, size_t n)
{
    if (field->kind == TSR_JSON_COLLECTIVES) {
        tsr_json_collectives(json, field->key, (const tsr_collective_count *)elements, n);
        return;
    }
    tsr_json_begin(json, field->key, '[');
    for (size_t i = 0; elements && i < n; i++)
        add_value(json, NULL, field, elements + i * field->stride);
    tsr_json_end(json);
}

void tsr_json_fields(tsr_json *json, const tsr_json_field *fields, const void *record)
{
    for (const tsr_json_field *field = fields; field->key; field++) {
        const char *at = (const char *)record + field->offset;
        if (!field->list) {
            if (!is_left_out(field, at))
                add_value(json, field->key, field, at);
            continue;
        }
        int64_t n = read_int(field->count_kind, (const char *)record + field->count_offset);
        if (n > 0 || field->when != TSR_JSON_IF_KNOWN)
            add_list(json, field, *(const char *const *)at, (size_t)n);
    }
}

void tsr_json_record(tsr_json *json, const char *key, const tsr_json_field *fields,
                     const void *record)
{
    tsr_json_begin(json, key, '{');
    tsr_json_fields(json, fields, record);
    tsr_json_end(json);
}

void tsr_json_records(tsr_json *json, const char *key, const tsr_json_field *fields,
                      const void *records, size_t n, size_t stride)
{
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; i < n; i++)
        tsr_json_record(json, NULL, fields, (const char *)records + i * stride);
    tsr_json_end(json);
}
