// SPDX-License-Identifier: Apache-2.0
// shape_signal.c - shapes of operators on images, signals and text, and of the classical models of
// ai.onnx.ml.
//
//   DFT of [2 16 1], one-sided          [2 9 2]: 16 // 2 + 1 frequencies, each real and imaginary
//   its inverse, one-sided              [2 16 1]: (9 - 1) * 2 samples, which are real
//   STFT of [1 128 1], frame 16, step 8  [1 15 9 2]: (128 - 16) // 8 + 1 frames
//   GridSample of [1 3 8 8] at [1 5 6 2]  [1 3 5 6]
#include "shapes/infer.h"

// Returns element i of a small input as a size.
static tsr_dim element_dim(struct shape_job *job, int input, int64_t i)
{
    return tsr__expr_dim(job->exprs, element_of(tsr__job_values(job, input), i));
}

// ---- images ------------------------------------------------------------------------------------

// Infers the shape of GridSample. Batch and channels are those of the input, positions those of the
// grid; either gives the rank.
void tsr__infer_grid_sample(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0), grid = tsr__job_in(job, 1);
    int rank = x.rank;
    if (rank < 0)
        rank = grid.rank;
    if (rank < 2)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, rank);
    if (!dims || (grid.rank >= 0 && grid.rank != rank))
        return;
    if (x.rank >= 0) {
        dims[0] = x.dims[0];
        dims[1] = x.dims[1];
    } else {
        dims[0] = grid.dims[0];
    }
    if (grid.rank < 0)
        return;
    for (int i = 2; i < rank; i++)
        dims[i] = grid.dims[i - 1];
}

// Infers the shape of AffineGrid. The sizes {n c h w} give a grid of [n h w 2]: two coordinates for
// each pixel of the result. Volumes have three coordinates.
void tsr__infer_affine_grid(struct shape_job *job)
{
    struct known_value size = tsr__job_values(job, 1);
    struct shape of = tsr__job_in(job, 1);
    int64_t n = tsr__value_length(size, of);
    if (n != 4 && n != 5)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, (int)n);
    if (!dims)
        return;
    dims[0] = element_dim(job, 1, 0);
    for (int i = 2; i < n; i++)
        dims[i - 1] = element_dim(job, 1, i);
    dims[n - 1] = (tsr_dim){n - 2, ""};
}

// Infers the shape of one image of that size for each region, with the input's channels.
static void regions(struct shape_job *job, int64_t height, int64_t width)
{
    struct shape x = tsr__job_in(job, 0), rois = tsr__job_in(job, 1);
    tsr_dim *dims = tsr__job_new_dims(job, 0, 4);
    if (!dims)
        return;
    if (rois.rank == 2)
        dims[0] = rois.dims[0];
    if (x.rank == 4)
        dims[1] = x.dims[1];
    dims[2] = (tsr_dim){height, ""};
    dims[3] = (tsr_dim){width, ""};
}

void tsr__infer_roi_align(struct shape_job *job)
{
    regions(job, tsr__job_int(job, "output_height", 1), tsr__job_int(job, "output_width", 1));
}

void tsr__infer_max_roi_pool(struct shape_job *job)
{
    const int64_t *size;
    if (tsr__job_ints(job, "pooled_shape", &size) == 2)
        regions(job, size[0], size[1]);
}

// Infers the shape of ImageDecoder. Height and width depend on the image; there are 3 channels or
// 1.
void tsr__infer_image_decoder(struct shape_job *job)
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 3);
    if (!dims)
        return;
    dims[2] = tsr__job_text_is(job, "pixel_format", "Grayscale", false) ? dim_of(1) : dim_of(3);
}

// Infers the shape of NonMaxSuppression: one row for each selected box, with batch, class and box.
void tsr__infer_non_max_suppression(struct shape_job *job)
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 2);
    if (dims)
        dims[1] = (tsr_dim){3, ""};
}

// ---- signals -----------------------------------------------------------------------------------

// Returns the number of frequencies of a real signal of n samples: 9 for 16.
static struct expr half_plus_one(struct exprs *exprs, struct expr n)
{
    return tsr__expr_add(exprs, tsr__expr_floor(exprs, n, expr_number(2)), expr_number(1));
}

void tsr__infer_window(struct shape_job *job)
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 1);
    if (dims)
        dims[0] = element_dim(job, 0, 0);
}

// Infers the shape of MelWeightMatrix: one row for each frequency of a one-sided transform, one
// column for each band.
void tsr__infer_mel_weights(struct shape_job *job)
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 2);
    struct expr length = element_of(tsr__job_values(job, 1), 0);
    if (!dims)
        return;
    dims[0] = tsr__expr_dim(job->exprs, half_plus_one(job->exprs, length));
    dims[1] = element_dim(job, 0, 0);
}

// Returns the length of the result of a transform along dimension `dim`. One-sided transforms omit
// the redundant half; their inverse has the full length.
static struct expr dft_length(struct shape_job *job, tsr_dim dim, bool half, bool inverse)
{
    struct expr n = tsr__expr_of(job->exprs, dim);
    // The input dft_length is the length of the signal after truncation or padding.
    if (tsr__job_has(job, 1))
        n = element_of(tsr__job_values(job, 1), 0);
    else if (half && inverse)
        n = tsr__expr_mul(job->exprs, tsr__expr_sub(job->exprs, n, expr_number(1)), expr_number(2));
    if (half && !inverse)
        n = half_plus_one(job->exprs, n);
    return n;
}

// Infers the shape of DFT. known: the axis is known. Otherwise only a transform that keeps its
// length has a known shape.
static void dft(struct shape_job *job, bool known, int64_t axis)
{
    struct shape x = tsr__job_in(job, 0);
    if (x.rank < 2)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, x.rank);
    int at = tsr__axis(axis, x.rank);
    bool half = tsr__job_int(job, "onesided", 0) != 0,
         inverse = tsr__job_int(job, "inverse", 0) != 0;
    bool same = !half && !tsr__job_has(job, 1);
    if (!dims)
        return;
    dims[x.rank - 1] = dim_of(2); // real and imaginary
    if (half && inverse)
        dims[x.rank - 1] = dim_of(1);
    if (!known && !same)
        return;
    for (int i = 0; i + 1 < x.rank; i++)
        dims[i] = x.dims[i];
    if (known && !same && at >= 0 && at < x.rank - 1)
        dims[at] = tsr__expr_dim(job->exprs, dft_length(job, x.dims[at], half, inverse));
}

// Infers the shape of DFT of opset 17, where the axis is an attribute with another default.
void tsr__infer_dft_17(struct shape_job *job)
{
    dft(job, true, tsr__job_int(job, "axis", 1));
}

void tsr__infer_dft(struct shape_job *job)
{
    int64_t axis = -2;
    bool known = !tsr__job_has(job, 2) || tsr__job_number(job, 2, &axis);
    dft(job, known, axis);
}

// Infers the shape of STFT. Frames of 16 samples every 8: of 128 samples there are (128 - 16) // 8
// + 1 = 15, each with 16 // 2 + 1 = 9 frequencies.
void tsr__infer_stft(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0), window = tsr__job_in(job, 2);
    struct expr step = element_of(tsr__job_values(job, 1), 0), frame = {0};
    tsr_dim *dims = tsr__job_new_dims(job, 0, 4);
    if (!dims)
        return;
    if (tsr__job_has(job, 3))
        frame = element_of(tsr__job_values(job, 3), 0);
    else if (window.rank == 1)
        frame = tsr__expr_of(job->exprs, window.dims[0]);
    if (x.rank >= 2) {
        dims[0] = x.dims[0];
        struct expr space = tsr__expr_sub(job->exprs, tsr__expr_of(job->exprs, x.dims[1]), frame);
        struct expr last =
            !expr_is(step, 0) ? tsr__expr_floor(job->exprs, space, step) : EXPR_UNKNOWN;
        dims[1] = tsr__expr_dim(job->exprs, tsr__expr_add(job->exprs, last, expr_number(1)));
    }
    // One-sided by default.
    struct expr frequencies =
        tsr__job_int(job, "onesided", 1) != 0 ? half_plus_one(job->exprs, frame) : frame;
    dims[2] = tsr__expr_dim(job->exprs, frequencies);
    dims[3] = (tsr_dim){2, ""};
}

// ---- text --------------------------------------------------------------------------------------

// Infers the shape of StringNormalizer. The number of remaining words is known at run time only. If
// the input has two dimensions, the first has size 1.
void tsr__infer_string_normalizer(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    if (x.rank != 1 && x.rank != 2)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, x.rank);
    if (dims && x.rank == 2)
        dims[0] = (tsr_dim){1, ""};
}

// Infers the shape of TfIdfVectorizer: one column for each n-gram, the highest index plus one.
void tsr__infer_tfidf(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    const int64_t *at;
    size_t n = tsr__job_ints(job, "ngram_indexes", &at);
    int64_t most = -1;
    for (size_t i = 0; i < n; i++)
        most = int64_max(at[i], most);
    if (x.rank != 1 && x.rank != 2)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, x.rank);
    if (!dims || most < 0 || most == INT64_MAX)
        return;
    dims[0] = x.dims[0];
    dims[x.rank - 1] = (tsr_dim){most + 1, ""};
}

// ---- ai.onnx.ml --------------------------------------------------------------------------------

// Infers the shape of ArrayFeatureExtractor: one column for each index. A vector is one row.
void tsr__infer_feature_extractor(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0), at = tsr__job_in(job, 1);
    int rank = x.rank;
    if (rank == 1)
        rank = 2; // a vector is one row
    if (rank < 1)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, rank);
    if (!dims)
        return;
    dims[0] = (tsr_dim){1, ""}; // used if x is a vector
    for (int i = 0; i + 1 < x.rank; i++)
        dims[i] = x.dims[i];
    if (at.rank >= 1)
        dims[rank - 1] = tsr__expr_dim(job->exprs, tsr__job_size(job, at, 0, at.rank));
}

// Infers the type of LabelEncoder: that of the attribute that holds the values. The shape stays.
void tsr__infer_label_encoder(struct shape_job *job)
{
    static const struct {
        const char *name;
        tsr_dtype type;
    } kinds[] = {
        {"values_strings", TSR_STRING}, {"values_int64s", TSR_INT64}, {"values_floats", TSR_FLOAT}};
    const tsr_tensor *tensor = tsr_attr_tensor(tsr__job_attr(job, "values_tensor"));
    tsr__job_like(job, 0, 0);
    job->out[0].dtype = tensor ? tsr_tensor_dtype(tensor) : TSR_UNDEFINED;
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (tsr__job_attr(job, kinds[i].name))
            job->out[0].dtype = kinds[i].type;
}
