// SPDX-License-Identifier: Apache-2.0
// shape_rows.c - types and shapes of the classical models of ai.onnx.ml, which work row by row: the
// number of columns of the result.
//
//   TreeEnsembleRegressor of [5 8], 2 targets     [5 2]
//   LinearClassifier of [5 8], 3 classes          labels [5], scores [5 3]
//   OneHotEncoder of [5] with 4 categories        [5 4]
#include "shapes/infer.h"

static tsr_dim rows_of(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    if (x.rank == 2)
        return x.dims[0];
    return x.rank == 1 ? dim_of(1) : DIM_UNKNOWN;
}

// Returns a number of columns as a dimension; 0 is unknown.
static tsr_dim columns_of(int64_t columns)
{
    return columns > 0 ? dim_of(columns) : DIM_UNKNOWN;
}

static void set_table(struct shape_job *job, int i, int64_t columns)
{
    tsr_dim *dims = tsr__job_new_dims(job, i, 2);
    if (!dims)
        return;
    dims[0] = rows_of(job);
    dims[1] = columns_of(columns);
}

void tsr__infer_regressor(struct shape_job *job)
{
    set_table(job, 0, tsr__job_int(job, "targets", tsr__job_int(job, "n_targets", 1)));
}

// Infers the shape of a classifier. Labels are numbers unless strings are given. The number of
// score columns is unknown for string labels, and for two classes, which may have one column or
// two.
void tsr__infer_classifier(struct shape_job *job)
{
    const int64_t *labels;
    size_t n = tsr__job_ints(job, "classlabels_ints", &labels);
    if (!n)
        n = tsr__job_ints(job, "classlabels_int64s", &labels);
    tsr_dim *dims = tsr__job_dims(job, 1);
    job->out[0].dtype = tsr__job_attr(job, "classlabels_strings") ? TSR_STRING : TSR_INT64;
    if (dims) {
        dims[0] = rows_of(job);
        tsr__job_set(job, 0, 1, dims);
    }
    if (n <= 2)
        n = 0;
    set_table(job, 1, (int64_t)n);
}

// Infers the shape of OneHotEncoder: one column for each category. String categories are not
// counted here.
void tsr__infer_one_hot_encoder(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    const int64_t *categories;
    size_t n = tsr__job_ints(job, "cats_int64s", &categories);
    if (x.rank < 0)
        return;
    tsr_dim *dims = tsr__job_dims(job, x.rank + 1);
    if (!dims)
        return;
    if (x.rank)
        memcpy(dims, x.dims, (size_t)x.rank * sizeof(*dims));
    dims[x.rank] = columns_of((int64_t)n);
    tsr__job_set(job, 0, x.rank + 1, dims);
}

// Infers the shape of FeatureVectorizer, which concatenates the columns of all inputs.
void tsr__infer_feature_vectorizer(struct shape_job *job)
{
    const int64_t *sizes;
    size_t n = tsr__job_ints(job, "inputdimensions", &sizes);
    int64_t all = 0;
    for (size_t i = 0; i < n; i++)
        if (sizes[i] < 0 || !add_ok(all, sizes[i], &all))
            return;
    set_table(job, 0, all);
}

// Infers the type of CategoryMapper: strings become numbers, and numbers become strings. The shape
// stays.
void tsr__infer_category_mapper(struct shape_job *job)
{
    tsr_dtype t = tsr__job_in(job, 0).dtype;
    tsr__job_like(job, 0, 0);
    job->out[0].dtype = TSR_UNDEFINED;
    if (t == TSR_INT64)
        job->out[0].dtype = TSR_STRING;
    else if (t == TSR_STRING)
        job->out[0].dtype = TSR_INT64;
}
