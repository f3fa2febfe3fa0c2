// SPDX-License-Identifier: Apache-2.0
// command.c - fuzzes the command line and edit scripts in a temporary folder.
//
// Words are separated by newlines; a word "@" names a script that contains the rest. Commands that
// run a model or start programs are excluded. No word has a slash, so nothing is written outside of
// the folder, and no number is long, so that no case takes long.
#include "fuzz.h"

#include <ctype.h>

#define WORDS 16

int tessera_main(int argc, char **argv); // main.c, renamed

static const char *const commands[] = {
    "info",     "check",   "annotate", "infer",      "shapes",   "tiles",  "rules",     "explain",
    "topology", "reshard", "tensor",   "completion", "simulate", "report", "partition", "plan"};

static void tame(char *text)
{
    int digits = 0;
    for (char *p = text; *p; p++) {
        digits = isdigit((unsigned char)*p) ? digits + 1 : 0;
        if (*p == '/' || digits > 2)
            *p = '_';
    }
}

static bool is_left_out(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(argv[i], "measure") || strstr(argv[i], "cuda") || strstr(argv[i], "auto"))
            return true;
    return false;
}

// One node on 8 x 8 floats, and an empty file.
static void make_files(void)
{
    tsr_session *s = fuzz_session(0);
    tsr_model *m;
    tsr_dim dims[2] = {{8, ""}, {8, ""}};
    MUST(tsr_model_new(s, "g", 11, &m) == TSR_OK && tsr_model_set_opset(m, "", 18) == TSR_OK);
    tsr_value *x = tsr_graph_add_input(tsr_model_graph(m), "x");
    MUST(x && tsr_value_set_type(x, TSR_FLOAT, 2, dims) == TSR_OK);
    tsr_node *n =
        tsr_graph_add_node(tsr_model_graph(m), "", "Relu", "r", &x, 1, (const char *[]){"y"}, 1);
    MUST(n && tsr_value_set_type(tsr_node_output(n, 0), TSR_FLOAT, 2, dims) == TSR_OK);
    MUST(tsr_graph_add_output(tsr_model_graph(m), tsr_node_output(n, 0)) == TSR_OK);
    MUST(tsr_model_save(m, "m") == TSR_OK);
    tsr_model_free(m);
    tsr_session_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool ready;
    static char program[] = "tessera", script[] = "script";
    char *argv[WORDS + 2] = {program}, *text = malloc(n + 1);
    int argc = 1;
    if (!ready) {
        MUST(chdir(fuzz_folder()) == 0);
        make_files();
        ready = true;
    }
    MUST(text);
    memcpy(text, data, n);
    text[n] = 0;
    if (strlen(text) != n || n < 1) {
        free(text);
        return 0;
    }
    argv[argc++] = (char *)(uintptr_t)commands[data[0] % TSR_COUNT(commands)];
    for (char *word = text + 1; word && argc < WORDS;) {
        char *end = strchr(word, '\n');
        if (end)
            *end = 0;
        if (strcmp(word, "@") == 0 && end) {
            fuzz_put(".", script, end + 1, strlen(end + 1));
            argv[argc++] = script;
            break;
        }
        tame(word);
        argv[argc++] = word;
        word = end ? end + 1 : NULL;
    }
    if (!is_left_out(argc, argv)) {
        int code = tessera_main(argc, argv);
        MUST(code >= 0 && code <= 8);
    }
    free(text);
    return 0;
}
