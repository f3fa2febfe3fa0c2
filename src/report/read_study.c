// SPDX-License-Identifier: Apache-2.0
// read_study.c - reads a study: what one model comes to on machines of several sizes, each planned for itself. tools/study
// writes such files; docs/formats.md has the fields. The file is not trusted.
//
//     {"version": 1, "title": "Llama 3.1 405B", "questions": [{"name": "prefill, 64 prompts", "machines": [
//         {"devices": 1024, "used": 1024, "tokens": 131072, "seconds": 0.2344, "plan": "64 x 16", "why": "..."}]}]}
//     reads 131072 / 0.2344 = 559,000 tokens in a second, each for 0.2344 * 1024 / 131072 = 1.83 ms of a device.
#include "report/internal.h"

#include <jansson.h>

#define MAX_STUDY    ((size_t)1 << 20)
#define MAX_MACHINES 64
#define MAX_DEVICES  1000000
#define MAX_TEXT     400
#define MAX_NUMBER   1e15 // tokens of a run, and seconds

struct reading {
    struct page *page;
    const char *path;
    const char *at; // the place in the file that is read: "questions[0].machines[2]"
    bool failed;
};

// One finding is enough: what follows would often be wrong for the same reason.
static void wrong(struct reading *reading, const char *field, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(reading->path);
    if (!reading->failed)
        tsr__diag(reading->page->session, DIAG_report_study, &at,
                  "give a file that tools/study --json has written", "%s: \"%s\" %s", reading->at,
                  field, what);
    reading->failed = true;
}

// Where in the file the reader is now.
static void come_to(struct reading *reading, struct str place)
{
    if (place.p)
        reading->at = place.p;
}

// A text of at most MAX_TEXT bytes, kept in the page's memory; "" after a failure.
static const char *text_of(struct reading *reading, const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    const char *text = json_string_value(value);
    if (!text || json_string_length(value) > MAX_TEXT) {
        wrong(reading, field, "is to be a short text");
        return "";
    }
    struct str kept = tsr__arena_str(reading->page->arena, str_of(text));
    if (!kept.p)
        return "";
    return kept.p;
}

// A number above 0; 1 after a failure, so that nothing is divided by 0.
static double number_of(struct reading *reading, const json_t *object, const char *field)
{
    double value = json_number_value(json_object_get(object, field));
    if (value > 0 && value <= MAX_NUMBER)
        return value;
    wrong(reading, field, "is to be a number above 0");
    return 1;
}

// From 1 to `most`.
static int64_t count_of(struct reading *reading, const json_t *object, const char *field,
                        int64_t most)
{
    const json_t *value = json_object_get(object, field);
    int64_t count = json_integer_value(value);
    if (json_is_integer(value) && count >= 1 && count <= most)
        return count;
    wrong(reading, field, "is to be a whole number from 1 on, and no more than there are");
    return 1;
}

// A model that does not fit on a machine has no seconds there; `why` tells it.
static struct study_machine machine_of(struct reading *reading, const json_t *object)
{
    struct study_machine machine = {.plan = text_of(reading, object, "plan"),
                                    .why = text_of(reading, object, "why")};
    machine.devices = count_of(reading, object, "devices", MAX_DEVICES);
    if (!json_object_get(object, "seconds"))
        return machine;
    machine.used = count_of(reading, object, "used", machine.devices);
    machine.tokens = number_of(reading, object, "tokens");
    machine.seconds = number_of(reading, object, "seconds");
    return machine;
}

// The elements of a list, and how many: from 1 to `most`. NULL: it is no such list.
static const json_t *list_of(struct reading *reading, const json_t *object, const char *field,
                             size_t most)
{
    const json_t *list = json_object_get(object, field);
    if (json_array_size(list) >= 1 && json_array_size(list) <= most)
        return list;
    wrong(reading, field, "is to be a list that is neither empty nor long");
    return NULL;
}

// Machines stand from the smallest to the largest: a line is drawn through them.
static void fill_question(struct reading *reading, const json_t *object, size_t number,
                          struct study_question *out)
{
    struct arena *arena = reading->page->arena;
    come_to(reading, tsr__arena_printf(arena, "questions[%zu]", number));
    out->name = text_of(reading, object, "name");
    const json_t *list = list_of(reading, object, "machines", MAX_MACHINES);
    size_t n = json_array_size(list);
    struct study_machine *machines = ARENA_ARRAY(arena, struct study_machine, n + 1);
    if (!list || !machines)
        return;
    for (size_t i = 0; i < n; i++) {
        come_to(reading, tsr__arena_printf(arena, "questions[%zu].machines[%zu]", number, i));
        machines[i] = machine_of(reading, json_array_get(list, i));
        if (i > 0 && machines[i].devices <= machines[i - 1].devices)
            wrong(reading, "devices", "is not more than that of the machine before");
    }
    out->machines = machines;
    out->n = n;
}

static void fill(struct reading *reading, const json_t *root)
{
    struct study *study = &reading->page->study;
    struct arena *arena = reading->page->arena;
    reading->at = "the study";
    if (json_integer_value(json_object_get(root, "version")) != 1)
        wrong(reading, "version", "is not 1, the one that is known here");
    study->title = text_of(reading, root, "title");
    const json_t *list = list_of(reading, root, "questions", STUDY_QUESTIONS);
    size_t n = json_array_size(list);
    struct study_question *questions = ARENA_ARRAY(arena, struct study_question, n + 1);
    if (!list || !questions)
        return;
    for (size_t i = 0; i < n; i++)
        fill_question(reading, json_array_get(list, i), i, &questions[i]);
    study->questions = questions;
    study->n = n;
}

// Fields that are not known are passed over. After a failure the page has no study.
tsr_status tsr__report_study(struct page *page, const char *path)
{
    struct str text;
    json_error_t error;
    json_t *root = NULL;
    tsr_status st = tsr__file_read(page->session, page->arena, path, MAX_STUDY, &text);
    if (st != TSR_OK)
        return st;
    st = tsr__json_load(page->session, text, 0, &error, &root);
    if (st == TSR_NOMEM)
        return st;
    struct reading reading = {.page = page, .path = path, .at = path};
    if (root)
        fill(&reading, root);
    else
        wrong(&reading, "document", error.text);
    json_decref(root);
    if (page->arena->failed)
        return TSR_NOMEM;
    if (!reading.failed)
        return TSR_OK;
    page->study = (struct study){0};
    return TSR_MALFORMED;
}
