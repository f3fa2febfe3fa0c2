/* SPDX-License-Identifier: Apache-2.0
 * tessera_json.h - writes structs as JSON objects, by tables of keys and members.
 *
 * Not installed: the library and the command use it for their documents.
 *
 *     struct stage { int64_t time; const int64_t *devices; size_t n_devices; };
 *     static const tsr_json_field stage_fields[] = {
 *         {JSON_LIST(struct stage, "devices", devices, n_devices)},
 *         {JSON_FIELD(struct stage, "time", time)},
 *         {JSON_END},
 *     };
 *     tsr_json_record(json, "stage", stage_fields, &stage);
 *
 * adds "stage": {"devices": [0, 1], "time": 12}.
 *
 * The macros take the kind of a value from the type of the member. */
#ifndef TESSERA_JSON_H
#define TESSERA_JSON_H

#include "tessera_cli.h"

#include <stddef.h>

/* Value of "$schema" in documents: TSR_JSON_SCHEMA "plan" names schemas/plan.json. */
#define TSR_JSON_SCHEMA "urn:tessera:schema:1:"

typedef enum tsr_json_kind {
    TSR_JSON_BOOL,
    TSR_JSON_INT,
    TSR_JSON_INT64,
    TSR_JSON_SIZE,
    TSR_JSON_DOUBLE,
    TSR_JSON_MILLISECONDS, /* a double in seconds */
    TSR_JSON_TEXT,         /* NULL: null */
    TSR_JSON_NAME,         /* an enumeration, written as names[value] */
    TSR_JSON_COLLECTIVES,  /* a list of tsr_collective_count */
    TSR_JSON_RECORD        /* a struct, or a list of structs, written as `fields` */
} tsr_json_kind;

/* When the key is written. A value is known if it is above 0, true, or not NULL; a list if it is
 * not empty. */
typedef enum tsr_json_when {
    TSR_JSON_ALWAYS,
    TSR_JSON_IF_KNOWN,        /* else the key is left out */
    TSR_JSON_OR_NULL,         /* else null; in a list: each element that is not known */
    TSR_JSON_UNLESS_NEGATIVE, /* the key of a negative value is left out; 0 is a value */
    TSR_JSON_NEGATIVE_AS_NULL
} tsr_json_when;

typedef struct tsr_json_field {
    const char *key; /* NULL ends a table */
    tsr_json_kind kind;
    tsr_json_when when;
    size_t offset; /* of the member: the value, or the pointer to the first element */
    bool list;
    tsr_json_kind count_kind;
    size_t count_offset; /* lists: of the number of elements */
    size_t stride;       /* lists: bytes of an element */
    const struct tsr_json_field *fields;
    const char *const *names;
} tsr_json_field;

/* tsr_json_fields adds the fields of a record to the open object, tsr_json_record adds the record
 * as an object, tsr_json_records adds an array of such objects. */
TSR_API void tsr_json_fields(tsr_json *json, const tsr_json_field *fields, const void *record);
TSR_API void tsr_json_record(tsr_json *json, const char *key, const tsr_json_field *fields,
                             const void *record);
TSR_API void tsr_json_records(tsr_json *json, const char *key, const tsr_json_field *fields,
                              const void *records, size_t n, size_t stride);

/* Adds "objective", "latency", "period" and "stages" of a plan that has stages. */
TSR_API void tsr_json_plan_stages(tsr_json *json, const tsr_plan_result *plan);
/* Adds "requests", "seconds", "first_s", "period_s" and "timeline" (one object per device). */
TSR_API void tsr_json_simulation(tsr_json *json, const tsr_simulation_view *simulation);
TSR_API void tsr_json_links(tsr_json *json, const char *key, const tsr_simulated_link *links,
                            size_t n);

/* Kinds by the types of members. Because of the `&` a char array, which is no pointer, does not
 * compile. */
#define TSR_JSON_KIND_OF(type, member)                                                             \
    _Generic(&((type *)0)->member, bool *: TSR_JSON_BOOL, int *: TSR_JSON_INT,                     \
             int64_t *: TSR_JSON_INT64, size_t *: TSR_JSON_SIZE, double *: TSR_JSON_DOUBLE,        \
             char **: TSR_JSON_TEXT, const char **: TSR_JSON_TEXT)
#define TSR_JSON_KIND_OF_LIST(type, member)                                                        \
    _Generic(((type *)0)->member, int64_t *: TSR_JSON_INT64, const int64_t *: TSR_JSON_INT64,      \
             double *: TSR_JSON_DOUBLE, const double *: TSR_JSON_DOUBLE,                           \
             const char **: TSR_JSON_TEXT, const char *const *: TSR_JSON_TEXT,                     \
             tsr_collective_count *: TSR_JSON_COLLECTIVES,                                         \
             const tsr_collective_count *: TSR_JSON_COLLECTIVES)
#define TSR_JSON_ROW(type, k, member, w, what)                                                     \
    .key = (k), .when = (w), .offset = offsetof(type, member), .kind = (what)
#define TSR_JSON_VALUE(type, key, member, when)                                                    \
    TSR_JSON_ROW(type, key, member, when, TSR_JSON_KIND_OF(type, member))
#define TSR_JSON_ROW_OF_LIST(type, key, member, count, when, kind)                                 \
    TSR_JSON_ROW(type, key, member, when, kind),                                                   \
        .list = true, .stride = sizeof *((type *)0)->member,                                       \
        .count_kind = TSR_JSON_KIND_OF(type, count), .count_offset = offsetof(type, count)

#define JSON_END                         .key = NULL
#define JSON_FIELD(type, key, member)    TSR_JSON_VALUE(type, key, member, TSR_JSON_ALWAYS)
#define JSON_IF_KNOWN(type, key, member) TSR_JSON_VALUE(type, key, member, TSR_JSON_IF_KNOWN)
#define JSON_OR_NULL(type, key, member)  TSR_JSON_VALUE(type, key, member, TSR_JSON_OR_NULL)
#define JSON_UNLESS_NEGATIVE(type, key, member)                                                    \
    TSR_JSON_VALUE(type, key, member, TSR_JSON_UNLESS_NEGATIVE)
#define JSON_NEGATIVE_AS_NULL(type, key, member)                                                   \
    TSR_JSON_VALUE(type, key, member, TSR_JSON_NEGATIVE_AS_NULL)
/* JSON_MS: a double in seconds, written in milliseconds. JSON_NAME: an enumeration, written as
 * texts[value]. */
#define JSON_MS(type, key, member)                                                                 \
    TSR_JSON_ROW(type, key, member, TSR_JSON_ALWAYS, TSR_JSON_MILLISECONDS)
#define JSON_NAME(type, key, member, texts)                                                        \
    TSR_JSON_ROW(type, key, member, TSR_JSON_ALWAYS, TSR_JSON_NAME), .names = (texts)
/* A list: the pointer to its elements, and their number. */
#define JSON_LIST(type, key, member, count)                                                        \
    TSR_JSON_ROW_OF_LIST(type, key, member, count, TSR_JSON_ALWAYS,                                \
                         TSR_JSON_KIND_OF_LIST(type, member))
#define JSON_LIST_OR_NULL(type, key, member, count)                                                \
    TSR_JSON_ROW_OF_LIST(type, key, member, count, TSR_JSON_OR_NULL,                               \
                         TSR_JSON_KIND_OF_LIST(type, member))
/* JSON_RECORD: a struct inside of the record. JSON_RECORDS: a list of structs; JSON_RECORDS_IF_ANY
 * leaves it out if it is empty. */
#define JSON_RECORD(type, key, member, table)                                                      \
    TSR_JSON_ROW(type, key, member, TSR_JSON_ALWAYS, TSR_JSON_RECORD), .fields = (table)
#define JSON_RECORDS(type, key, member, count, table)                                              \
    TSR_JSON_ROW_OF_LIST(type, key, member, count, TSR_JSON_ALWAYS, TSR_JSON_RECORD),              \
        .fields = (table)
#define JSON_RECORDS_IF_ANY(type, key, member, count, table)                                       \
    TSR_JSON_ROW_OF_LIST(type, key, member, count, TSR_JSON_IF_KNOWN, TSR_JSON_RECORD),            \
        .fields = (table)

#endif
