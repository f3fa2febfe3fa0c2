// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of the module rules share: parsed and built rules, derivations, rows
// of the operator tables.
#ifndef TSR_RULES_INTERNAL_H
#define TSR_RULES_INTERNAL_H

#include "rules/rules.h"
#include "shapes/infer.h"

// ---- parsed rules (rule_text.c) -----------------------------------------------------------------

#define PATTERN_MAX_LETTERS RULE_MAX_FACTORS

// A letter of a rule's text: it names one factor ("m"), or a pack of factors ("B").
struct letter {
    struct str name;
    bool pack;    // a capital: any number of dimensions
    bool in, out; // sides on which the letter occurs
    enum factor_kind kind;
    enum combine combine;
    bool has_clause;
    int64_t unit; // block size of a "blk" clause
};
// One dimension of a tensor. With several letters it is their product, outermost first; without
// letters its size is 1.
struct pattern_dim {
    int *letters;
    int n;
    bool broadcast; // size 1 here means that it is not sharded; a pack may also be shorter here
    bool any;       // "_": any size, no factor, not sharded
    bool window;    // the size here differs from that of the factor (struct rule_window)
};
struct pattern_tensor {
    bool host, optional, variadic;
    struct pattern_dim *dims;
    int n_dims;
};
struct pattern {
    struct letter *letters;
    int n_letters;
    struct pattern_tensor *inputs, *outputs;
    int n_inputs, n_outputs;
    struct rule_rewrite *rewrites; // `factor` of each holds a letter
    int n_rewrites;
    struct rule_window *windows; // `factor` of each holds a letter
    int n_windows;
    struct rule_list *lists;
    int n_lists;
    struct rule_trim *trims;
    int n_trims;
    bool same;    // all outputs have the dimensions of the first input; other inputs are `host`
    bool stretch; // all inputs are [A~], all outputs [A*]
};
// A rule that is built step by step (rule_build.c). After the first error, calls do nothing.
#define NO_LETTER (-1)
#define NO_INPUT  (-1)
struct rule_builder {
    struct arena *arena;
    struct pattern pattern;        // its `letters` point to the array below
    struct pattern_tensor *tensor; // the tensor added last, which calls for dimensions extend
    enum side side;                // whether that tensor is an input or output
    const char *wrong;             // the first error
    bool begun;                    // something was added
    int rank, axis;                // of "@", "<" and ">" in texts; rank -1: not allowed
    const bool *marked;            // of "@_", "@1" and "@-": rank entries
    struct letter letters[PATTERN_MAX_LETTERS];
};
void tsr__rule_start(struct rule_builder *rule, struct arena *arena);
// Records the error unless there is already one, and returns false.
bool tsr__rule_fail(struct rule_builder *rule, const char *wrong);
// Returns the rule, which lives as long as the builder and its arena, or NULL after an error.
const struct pattern *tsr__rule_built(struct rule_builder *rule);

// Add parts of the rule in the notation of rule_text.c: a full rule; tensors such as "[n c
// S*],[c]?"; dimensions of the last tensor such as "n (g i)"; clauses such as "rep d q; once 2".
void tsr__rule_text(struct rule_builder *rule, const char *text);
void tsr__rule_inputs(struct rule_builder *rule, const char *tensors);
void tsr__rule_outputs(struct rule_builder *rule, const char *tensors);
void tsr__rule_dims(struct rule_builder *rule, const char *dims);
void tsr__rule_clauses(struct rule_builder *rule, const char *clauses);
// Sets what "@", "<" and ">" stand for in later texts: the dimensions d0 d1 .. of a tensor of that
// rank, those before the axis, and those after it. With rank 3 and axis 1, "< v >" is "d0 v d2".
void tsr__rule_axes(struct rule_builder *rule, int rank, int axis);
// The same with a mark for each dimension: "@_" and "@1" have "_" or "1" for marked ones, "@-"
// leaves them out. With d1 of three marked, "@1" is "d0 1 d2" and "@-" is "d0 d2".
void tsr__rule_marks(struct rule_builder *rule, int rank, const bool *marked);

// Add an empty tensor, to which the following calls add dimensions.
void tsr__rule_input(struct rule_builder *rule);
void tsr__rule_output(struct rule_builder *rule);
struct pattern_tensor *tsr__rule_tensor(struct rule_builder *rule, enum side side);
void tsr__rule_optional(struct rule_builder *rule); // the last tensor may be absent
void tsr__rule_variadic(struct rule_builder *rule); // the last tensor repeats

// Return the index of a letter with that name ("h"), or with that letter and number (d2);
// NO_LETTER: none.
int tsr__rule_find(const struct rule_builder *rule, struct str name);
int tsr__rule_letter(struct rule_builder *rule, struct str name);           // created if new
int tsr__rule_numbered(struct rule_builder *rule, char letter, int number); // created if new

// Add dimensions to the last tensor.
enum dim_mark { DIM_PLAIN, DIM_BROADCAST, DIM_WINDOW };
void tsr__rule_dim(struct rule_builder *rule, char letter, int number); // 'd', 2: adds d2
void tsr__rule_marked_dim(struct rule_builder *rule, char letter, int number, enum dim_mark mark);
// Adds the dimensions d(from) .. d(to-1).
void tsr__rule_range(struct rule_builder *rule, char letter, int from, int to);
void tsr__rule_any(struct rule_builder *rule, int n);                         // adds "_" n times
void tsr__rule_ones(struct rule_builder *rule, int n);                        // adds "1" n times
void tsr__rule_product(struct rule_builder *rule, const int *letters, int n); // adds (h d)
struct pattern_dim *tsr__rule_empty_dim(struct rule_builder *rule);
void tsr__rule_dim_letter(struct rule_builder *rule, struct pattern_dim *dim, int letter);

// Set how factors behave; each factor has at most one clause. `letters` are separated by blanks.
void tsr__rule_kind(struct rule_builder *rule, enum factor_kind kind, const char *letters);
void tsr__rule_kind_if(struct rule_builder *rule, bool holds, enum factor_kind kind,
                       const char *letters);
void tsr__rule_kind_range(struct rule_builder *rule, enum factor_kind kind, char letter, int from,
                          int to);
void tsr__rule_kind_of(struct rule_builder *rule, enum factor_kind kind, int letter);
void tsr__rule_reduce(struct rule_builder *rule, int letter, enum combine combine);
// Returns the letter, so that the caller can set what the clause says. NULL: it already has a
// clause, no tensor has the letter, or an earlier call failed.
struct letter *tsr__rule_clause(struct rule_builder *rule, int letter);

// Add what changes in the local node; `factor` is the index of a letter. Patches apply to the list
// added last. A list without an input is the attribute `name`, which must outlive the builder.
void tsr__rule_rewrite(struct rule_builder *rule, struct rule_rewrite rewrite);
void tsr__rule_window(struct rule_builder *rule, struct rule_window window);
void tsr__rule_trim(struct rule_builder *rule, struct rule_trim trim);
void tsr__rule_list(struct rule_builder *rule, int input, const char *name, const int64_t *values,
                    int64_t n);
void tsr__rule_unset(struct rule_builder *rule, const char *name); // removes the attribute
void tsr__rule_patch(struct rule_builder *rule, int at, enum patch_kind what, int window,
                     int64_t value);
void tsr__rule_patch_count(struct rule_builder *rule, int at, int letter);

// Parses the text of a rule. NULL: *wrong is the error, or NULL if out of memory.
struct pattern *tsr__pattern_parse(struct arena *arena, struct str text, const char **wrong);

// Returns the parsed text of a rule, cached in `shapes->patterns`. NULL: invalid, out of memory, or
// the cache is full.
const struct pattern *tsr__pattern_of(const struct shapes *shapes, const char *text);

// ---- rows (table.c) ----------------------------------------------------------------------------

struct known_size {
    struct str letter;
    tsr_dim size;
};

// Input and result of a derive function. The function builds a rule, or selects another text. If it
// does neither, the row's text is the rule.
struct derivation {
    struct arena *arena; // freed when the rule is made
    const tsr_node *node;
    const struct shapes *shapes;
    bool shapes_only;         // only the letters are needed: windows may be left out
    struct rule_builder rule; // used if something was added to it
    const char *text;         // the selected text of a rule, a constant
    const char *whole;        // why nothing is sharded; a constant text
    int n_sizes;
    struct known_size sizes[RULE_MAX_FACTORS]; // sizes set by tsr__derive_size
};
typedef void (*derive_fn)(struct derivation *derivation);
void tsr__derivation_start(struct derivation *derivation, struct arena *arena, const tsr_node *node,
                           const struct shapes *shapes, const char *text);
// Returns the rule of the node, which lives as long as the derivation, or NULL.
const struct pattern *tsr__derivation_rule(struct derivation *derivation);
// Sets the size of a letter, "g" or f2, that does not follow from the shapes.
void tsr__derive_size(struct derivation *derivation, const char *letter, int64_t size);
void tsr__derive_numbered_size(struct derivation *derivation, char letter, int number,
                               tsr_dim size);
// Sets the size of a letter to the only element of input i, if that is known.
void tsr__derive_element_size(struct derivation *derivation, const char *letter, size_t i);
// Ends the derivation: nothing is sharded, and the rule gives no shapes. Always returns false.
bool tsr__derive_none(struct derivation *derivation, const char *why);
// Does the same if `holds`, and returns `holds`.
bool tsr__derive_none_if(struct derivation *derivation, bool holds, const char *why);
// Returns the shape of input i; rank -1: unknown or absent.
struct shape tsr__derive_in(const struct derivation *derivation, size_t i);

// Why some factors of a rule are not sharded. `factors`: their names ("f c"), or "_" for dimensions
// without a factor.
struct stay {
    const char *factors, *why;
};
// Kinds of work (kinds.c has the rates of each).
enum op_work {
    WORK_ELEMENTWISE,
    WORK_ATTENTION,
    WORK_CONVOLUTION,
    WORK_COPY,
    WORK_CURVE, // exponentials, logarithms, trigonometry
    WORK_ERROR_FUNCTION,
    WORK_NORM,
    WORK_PACKED_PRODUCT,
    WORK_POOL,
    WORK_PRODUCT,
    WORK_RECURRENCE,
    WORK_REDUCTION,
    WORK_SOFTMAX,
    WORK_SUPPORT_VECTORS,
    WORK_TRANSPOSE,
    WORK_TREES,
    WORK_VIEW, // the result is the input with another shape
};
// Whether the kernels of ONNX Runtime store the first output in the memory of an input.
enum input_reuse {
    REUSE_NONE,
    REUSE_ON_CPU,
    REUSE_ON_CUDA,
    REUSE_ON_ALL,
    REUSE_VIEW, // the output is the first input
};
// A node whose work or workspace is computed from its shapes.
struct sized_node {
    const tsr_node *node;
    const struct shapes *shapes;
};
typedef double (*size_fn)(const struct sized_node *sized);

struct expansion;
typedef void (*expand_fn)(struct expansion *expansion);
// Element types of input 0 that the nodes of an expansion support.
enum expand_types { EXPAND_ANY, EXPAND_FLOATS, EXPAND_NUMBERS };
struct op_row {
    const char *op;
    int64_t since;      // first opset to which this row applies
    const char *domain; // NULL: ai.onnx
    const char *rule;   // the usual form if there is a derive function
    derive_fn derive;   // NULL: the text is the rule of every node
    derive_fn other;    // builds a second rule with strided shards (tsr__rule_strided), or NULL
    // types of the outputs; later outputs have the type of the first input
    enum result_type type, type1, type2, type3;
    shape_fn shape; // NULL: the letters of the rule give all shapes
    shape_fn value; // computes elements of small integer outputs; NULL: none
    // How far declared shapes of this operator's outputs are ignored: onnx's inference is known to
    // give sizes that differ from a run (shapes.c).
    enum doubt misinferred;
    const char *whole; // why it is not sharded, or NULL; the rule then gives only shapes
    bool single;       // draws random numbers: one device runs it, unless it has a seed (draws.c)
    int single_switch; // `single` applies only if this input is given and not false; 0: always
    unsigned writes;   // bits of inputs that ONNX Runtime overwrites if there are several outputs
    bool rereads;      // the kernel may store the output over input 0 and read input 0 afterwards
    const char *some;  // factors that must not be empty in the kernel (empty.c); "*": all;
                       // "q^": q must not be empty on CUDA
    // Condition for the factors in `some` that have "~" after them.
    bool (*some_if)(const tsr_node *node, const struct rule *rule, const struct shapes *shapes);
    bool bodies; // control flow: its bodies are sharded, not the node itself (control.c)
    struct {
        expand_fn build; // replaces a node of which a `stat` factor is sharded (expand.h)
        int64_t opset;   // lowest opset of ai.onnx that the new nodes need
        enum expand_types types;
    } expand;
    enum sum_mode sum;   // how the operator treats partial sums
    unsigned sum_inputs; // bits of inputs to which `sum` applies
    // Attribute that sets the accuracy of the kernel. Above 1, the kernel rounds input 0
    // (workarounds.c). NULL: none.
    const char *rounding;
    bool stash;    // ONNX Runtime computes in the type of attribute stash_type, by default float32
    unsigned kept; // bits of inputs whose constants ONNX Runtime does not replace (kept_inputs.c)
    // Inputs that may have unused space at their end, and the outputs that share their memory;
    // zeros: none (cache_buffers.c).
    struct {
        unsigned char past, present;
    } caches[2];
    // The same for inputs without unused space: the output is a new, longer tensor (cache_pairs.c).
    struct {
        unsigned char past, present;
    } grows[2];
    bool extends; // returns input 0 with new elements in it or after it (cache_pairs.c)
    // Input with the length of the caches after the node. The length of `present` is this number,
    // or that of `past` if it is greater. 0: none.
    unsigned char cache_length;
    // Input with the index of the last token of each sequence in the caches, after the node. 0:
    // none.
    unsigned char cache_last;
    const struct stay *stays; // why factors are not sharded; ends with {0}. NULL: no reasons
    const char *note;
    enum op_work work;
    size_fn count; // operations of an unsharded node; NULL: the rule gives them
    // For a mixture of experts: its inputs. Input 1 has [tokens, experts], attribute k the number
    // of experts that each token uses. NULL: the operator is not a mixture.
    const struct expert_inputs *experts;
    enum input_reuse reuse;
    size_fn workspace; // bytes that the CPU kernel allocates; NULL: none
    struct {
        unsigned inputs; // bits of inputs whose float16 constants CPU kernels convert
        int more;        // extra bytes for each byte of the constant
    } widens;
};
// Conditions of the column some_if (empty.c).
bool tsr__stacks_differ(const tsr_node *node, const struct rule *rule, const struct shapes *shapes);
bool tsr__scales_of_blocks(const tsr_node *node, const struct rule *rule,
                           const struct shapes *shapes);
bool tsr__pads_by_wrapping(const tsr_node *node, const struct rule *rule,
                           const struct shapes *shapes);
// Returns why the factor of that name is not sharded; NULL: the row has no reason (words.c).
const char *tsr__row_stays(const struct op_row *row, struct str factor);
// Returns "" for NULL.
static inline const char *text_or_none(const char *text)
{
    return text ? text : "";
}
// The functions that rows name (handlers.def).
#define DERIVE(name)    void tsr__derive_##name(struct derivation *derivation);
#define EXPAND(name)    void tsr__expand_##name(struct expansion *expansion);
#define INFER(name)     void tsr__infer_##name(struct shape_job *job);
#define COUNT(name)     double tsr__count_##name(const struct sized_node *sized);
#define WORKSPACE(name) double tsr__workspace_##name(const struct sized_node *sized);
#include "rules/handlers.def"
#undef WORKSPACE
#undef COUNT
#undef INFER
#undef DERIVE
#undef EXPAND

// Returns the shape of an input; rank -1: absent or not known (counts.c).
struct shape tsr__sized_input(const struct sized_node *sized, size_t i);
// Returns the product of the dimensions from `first` on; 0 if one is 0 or unknown (counts.c).
double tsr__shape_product(struct shape shape, int first);

// Sets the shapes that follow from the letters of the rule (shape_letters.c).
void tsr__job_letters(struct shape_job *job);

// Rows of one or several domains, sorted by operator, domain and opset.
struct op_table {
    const struct op_row *rows;
    size_t n;
};
extern const struct op_table tsr__onnx_table, tsr__microsoft_table, tsr__ml_table;
// Returns row i of all tables, one table after the other; NULL after the last.
const struct op_row *tsr__row_at(size_t i);
// Returns the row of a node: the newest that is not above its opset; NULL: none.
const struct op_row *tsr__row_of(const struct shapes *shapes, const tsr_node *node);
const struct op_row *tsr__row_in_table(struct str op, struct str domain, int64_t opset);
// Returns the row of an operator; rows that the user added to the session have precedence
// (user_rules.c).
const struct op_row *tsr__row_find(const tsr_session *session, struct str op, struct str domain,
                                   int64_t opset);
const struct op_row *tsr__row_of_node(const tsr_node *node);

// True for a QuantizeLinear that ONNX Runtime may move before a MaxPool that returns indices, too
// (kept_inputs.c).
bool tsr__quantizes_pool(const tsr_node *node);
// True if input `at` is absent, or a constant that is false (draws.c).
bool tsr__node_input_is_off(const tsr_node *node, size_t at);

#endif
