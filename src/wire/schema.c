// SPDX-License-Identifier: Apache-2.0
// schema.c - the ONNX schema as a table: kind and message type of each field.
//
// Rows are found by message and field number without a search. Packed and unpacked lists are not
// distinguished, because readers accept both. Enumerations are integers. Fields without a row are
// unknown.
//
// `check` tells how the contents of a length-delimited field are checked (enum wire_inside):
// messages are visited, and packed lists must end with a complete element.
//
// For a new version of ONNX: add the number to fields.h and a row here, and raise WIRE_MAX_NUMBER
// if necessary. A new message needs an enumerator in wire.h and its name below. Fields without a
// row are preserved, so older programs do not lose the data of newer files.
#include "wire/internal.h"

// VALUE: a number or text. LIST: numbers that may be packed. SUB: a message. Repeated texts and
// messages have one field per element, so their rows do not differ from single ones.
#define ROW(f, text, ...) [f] = {.number = f, .name = text, __VA_ARGS__},
#define VALUE(k)          .kind = KIND_##k
#define LIST(k)           .kind = KIND_##k, .check = INSIDE_PACKED
#define SUB(m)            .kind = KIND_MESSAGE, .message = WIRE_##m, .check = INSIDE_MESSAGE

// clang-format off
const struct wire_row tsr__wire_rows[WIRE_MESSAGE_COUNT][WIRE_MAX_NUMBER + 1] = {
    [WIRE_MODEL] = { // ModelProto
        ROW(F_MODEL_IR_VERSION, "ir_version", VALUE(INT))
        ROW(F_MODEL_PRODUCER_NAME, "producer_name", VALUE(BYTES))
        ROW(F_MODEL_PRODUCER_VERSION, "producer_version", VALUE(BYTES))
        ROW(F_MODEL_DOMAIN, "domain", VALUE(BYTES))
        ROW(F_MODEL_MODEL_VERSION, "model_version", VALUE(INT))
        ROW(F_MODEL_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_MODEL_GRAPH, "graph", SUB(GRAPH))
        ROW(F_MODEL_OPSET_IMPORT, "opset_import", SUB(OPSET))
        ROW(F_MODEL_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
        ROW(F_MODEL_TRAINING_INFO, "training_info", SUB(TRAINING))
        ROW(F_MODEL_FUNCTIONS, "functions", SUB(FUNCTION))
        ROW(F_MODEL_CONFIGURATION, "configuration", SUB(CONFIG))
    },
    [WIRE_GRAPH] = { // GraphProto
        ROW(F_GRAPH_NODE, "node", SUB(NODE))
        ROW(F_GRAPH_NAME, "name", VALUE(BYTES))
        ROW(F_GRAPH_INITIALIZER, "initializer", SUB(TENSOR))
        ROW(F_GRAPH_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_GRAPH_INPUT, "input", SUB(VALUE_INFO))
        ROW(F_GRAPH_OUTPUT, "output", SUB(VALUE_INFO))
        ROW(F_GRAPH_VALUE_INFO, "value_info", SUB(VALUE_INFO))
        ROW(F_GRAPH_QUANTIZATION_ANNOTATION, "quantization_annotation", SUB(ANNOTATION))
        ROW(F_GRAPH_SPARSE_INITIALIZER, "sparse_initializer", SUB(SPARSE_TENSOR))
        ROW(F_GRAPH_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
    },
    [WIRE_NODE] = { // NodeProto
        ROW(F_NODE_INPUT, "input", VALUE(BYTES))
        ROW(F_NODE_OUTPUT, "output", VALUE(BYTES))
        ROW(F_NODE_NAME, "name", VALUE(BYTES))
        ROW(F_NODE_OP_TYPE, "op_type", VALUE(BYTES))
        ROW(F_NODE_ATTRIBUTE, "attribute", SUB(ATTRIBUTE))
        ROW(F_NODE_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_NODE_DOMAIN, "domain", VALUE(BYTES))
        ROW(F_NODE_OVERLOAD, "overload", VALUE(BYTES))
        ROW(F_NODE_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
        ROW(F_NODE_DEVICE_CONFIGURATIONS, "device_configurations", SUB(NODE_CONFIG))
    },
    [WIRE_ATTRIBUTE] = { // AttributeProto
        ROW(F_ATTRIBUTE_NAME, "name", VALUE(BYTES))
        ROW(F_ATTRIBUTE_F, "f", VALUE(FLOAT))
        ROW(F_ATTRIBUTE_I, "i", VALUE(INT))
        ROW(F_ATTRIBUTE_S, "s", VALUE(BYTES))
        ROW(F_ATTRIBUTE_T, "t", SUB(TENSOR))
        ROW(F_ATTRIBUTE_G, "g", SUB(GRAPH))
        ROW(F_ATTRIBUTE_FLOATS, "floats", LIST(FLOAT))
        ROW(F_ATTRIBUTE_INTS, "ints", LIST(INT))
        ROW(F_ATTRIBUTE_STRINGS, "strings", VALUE(BYTES))
        ROW(F_ATTRIBUTE_TENSORS, "tensors", SUB(TENSOR))
        ROW(F_ATTRIBUTE_GRAPHS, "graphs", SUB(GRAPH))
        ROW(F_ATTRIBUTE_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_ATTRIBUTE_TP, "tp", SUB(TYPE))
        ROW(F_ATTRIBUTE_TYPE_PROTOS, "type_protos", SUB(TYPE))
        ROW(F_ATTRIBUTE_TYPE, "type", VALUE(INT))
        ROW(F_ATTRIBUTE_REF_ATTR_NAME, "ref_attr_name", VALUE(BYTES))
        ROW(F_ATTRIBUTE_SPARSE_TENSOR, "sparse_tensor", SUB(SPARSE_TENSOR))
        ROW(F_ATTRIBUTE_SPARSE_TENSORS, "sparse_tensors", SUB(SPARSE_TENSOR))
    },
    [WIRE_TENSOR] = { // TensorProto
        ROW(F_TENSOR_DIMS, "dims", LIST(INT))
        ROW(F_TENSOR_DATA_TYPE, "data_type", VALUE(INT))
        ROW(F_TENSOR_SEGMENT, "segment", SUB(SEGMENT))
        ROW(F_TENSOR_FLOAT_DATA, "float_data", LIST(FLOAT))
        ROW(F_TENSOR_INT32_DATA, "int32_data", LIST(INT))
        ROW(F_TENSOR_STRING_DATA, "string_data", VALUE(BYTES))
        ROW(F_TENSOR_INT64_DATA, "int64_data", LIST(INT))
        ROW(F_TENSOR_NAME, "name", VALUE(BYTES))
        ROW(F_TENSOR_RAW_DATA, "raw_data", VALUE(BYTES))
        ROW(F_TENSOR_DOUBLE_DATA, "double_data", LIST(DOUBLE))
        ROW(F_TENSOR_UINT64_DATA, "uint64_data", LIST(INT))
        ROW(F_TENSOR_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_TENSOR_EXTERNAL_DATA, "external_data", SUB(STRING_PAIR))
        ROW(F_TENSOR_DATA_LOCATION, "data_location", VALUE(INT))
        ROW(F_TENSOR_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
    },
    [WIRE_SEGMENT] = { // TensorProto.Segment
        ROW(F_SEGMENT_BEGIN, "begin", VALUE(INT))
        ROW(F_SEGMENT_END, "end", VALUE(INT))
    },
    [WIRE_SPARSE_TENSOR] = { // SparseTensorProto
        ROW(F_SPARSE_TENSOR_VALUES, "values", SUB(TENSOR))
        ROW(F_SPARSE_TENSOR_INDICES, "indices", SUB(TENSOR))
        ROW(F_SPARSE_TENSOR_DIMS, "dims", LIST(INT))
    },
    [WIRE_VALUE_INFO] = { // ValueInfoProto
        ROW(F_VALUE_INFO_NAME, "name", VALUE(BYTES))
        ROW(F_VALUE_INFO_TYPE, "type", SUB(TYPE))
        ROW(F_VALUE_INFO_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_VALUE_INFO_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
    },
    [WIRE_TYPE] = { // TypeProto
        ROW(F_TYPE_TENSOR_TYPE, "tensor_type", SUB(TYPE_TENSOR))
        ROW(F_TYPE_SEQUENCE_TYPE, "sequence_type", SUB(TYPE_SEQUENCE))
        ROW(F_TYPE_MAP_TYPE, "map_type", SUB(TYPE_MAP))
        ROW(F_TYPE_DENOTATION, "denotation", VALUE(BYTES))
        ROW(F_TYPE_OPAQUE_TYPE, "opaque_type", SUB(TYPE_OPAQUE))
        ROW(F_TYPE_SPARSE_TENSOR_TYPE, "sparse_tensor_type", SUB(TYPE_SPARSE_TENSOR))
        ROW(F_TYPE_OPTIONAL_TYPE, "optional_type", SUB(TYPE_OPTIONAL))
    },
    [WIRE_TYPE_TENSOR] = { // TypeProto.Tensor
        ROW(F_TYPE_TENSOR_ELEM_TYPE, "elem_type", VALUE(INT))
        ROW(F_TYPE_TENSOR_SHAPE, "shape", SUB(SHAPE))
    },
    [WIRE_TYPE_SEQUENCE] = { // TypeProto.Sequence
        ROW(F_TYPE_SEQUENCE_ELEM_TYPE, "elem_type", SUB(TYPE))
    },
    [WIRE_TYPE_MAP] = { // TypeProto.Map
        ROW(F_TYPE_MAP_KEY_TYPE, "key_type", VALUE(INT))
        ROW(F_TYPE_MAP_VALUE_TYPE, "value_type", SUB(TYPE))
    },
    [WIRE_TYPE_OPAQUE] = { // TypeProto.Opaque
        ROW(F_TYPE_OPAQUE_DOMAIN, "domain", VALUE(BYTES))
        ROW(F_TYPE_OPAQUE_NAME, "name", VALUE(BYTES))
    },
    [WIRE_TYPE_SPARSE_TENSOR] = { // TypeProto.SparseTensor
        ROW(F_TYPE_SPARSE_TENSOR_ELEM_TYPE, "elem_type", VALUE(INT))
        ROW(F_TYPE_SPARSE_TENSOR_SHAPE, "shape", SUB(SHAPE))
    },
    [WIRE_TYPE_OPTIONAL] = { // TypeProto.Optional
        ROW(F_TYPE_OPTIONAL_ELEM_TYPE, "elem_type", SUB(TYPE))
    },
    [WIRE_SHAPE] = { // TensorShapeProto
        ROW(F_SHAPE_DIM, "dim", SUB(DIMENSION))
    },
    [WIRE_DIMENSION] = { // TensorShapeProto.Dimension
        ROW(F_DIMENSION_DIM_VALUE, "dim_value", VALUE(INT))
        ROW(F_DIMENSION_DIM_PARAM, "dim_param", VALUE(BYTES))
        ROW(F_DIMENSION_DENOTATION, "denotation", VALUE(BYTES))
    },
    [WIRE_OPSET] = { // OperatorSetIdProto
        ROW(F_OPSET_DOMAIN, "domain", VALUE(BYTES))
        ROW(F_OPSET_VERSION, "version", VALUE(INT))
    },
    [WIRE_STRING_PAIR] = { // StringStringEntryProto
        ROW(F_STRING_PAIR_KEY, "key", VALUE(BYTES))
        ROW(F_STRING_PAIR_VALUE, "value", VALUE(BYTES))
    },
    [WIRE_ANNOTATION] = { // TensorAnnotation
        ROW(F_ANNOTATION_TENSOR_NAME, "tensor_name", VALUE(BYTES))
        ROW(F_ANNOTATION_QUANT_PARAMETER_TENSOR_NAMES, "quant_parameter_tensor_names",
            SUB(STRING_PAIR))
    },
    [WIRE_TRAINING] = { // TrainingInfoProto
        ROW(F_TRAINING_INITIALIZATION, "initialization", SUB(GRAPH))
        ROW(F_TRAINING_ALGORITHM, "algorithm", SUB(GRAPH))
        ROW(F_TRAINING_INITIALIZATION_BINDING, "initialization_binding", SUB(STRING_PAIR))
        ROW(F_TRAINING_UPDATE_BINDING, "update_binding", SUB(STRING_PAIR))
    },
    [WIRE_FUNCTION] = { // FunctionProto
        ROW(F_FUNCTION_NAME, "name", VALUE(BYTES))
        ROW(F_FUNCTION_INPUT, "input", VALUE(BYTES))
        ROW(F_FUNCTION_OUTPUT, "output", VALUE(BYTES))
        ROW(F_FUNCTION_ATTRIBUTE, "attribute", VALUE(BYTES))
        ROW(F_FUNCTION_NODE, "node", SUB(NODE))
        ROW(F_FUNCTION_DOC_STRING, "doc_string", VALUE(BYTES))
        ROW(F_FUNCTION_OPSET_IMPORT, "opset_import", SUB(OPSET))
        ROW(F_FUNCTION_DOMAIN, "domain", VALUE(BYTES))
        ROW(F_FUNCTION_ATTRIBUTE_PROTO, "attribute_proto", SUB(ATTRIBUTE))
        ROW(F_FUNCTION_VALUE_INFO, "value_info", SUB(VALUE_INFO))
        ROW(F_FUNCTION_OVERLOAD, "overload", VALUE(BYTES))
        ROW(F_FUNCTION_METADATA_PROPS, "metadata_props", SUB(STRING_PAIR))
    },
    [WIRE_CONFIG] = { // DeviceConfigurationProto
        ROW(F_CONFIG_NAME, "name", VALUE(BYTES))
        ROW(F_CONFIG_NUM_DEVICES, "num_devices", VALUE(INT))
        ROW(F_CONFIG_DEVICE, "device", VALUE(BYTES))
    },
    [WIRE_NODE_CONFIG] = { // NodeDeviceConfigurationProto
        ROW(F_NODE_CONFIG_CONFIGURATION_ID, "configuration_id", VALUE(BYTES))
        ROW(F_NODE_CONFIG_SHARDING_SPEC, "sharding_spec", SUB(SPEC))
        ROW(F_NODE_CONFIG_PIPELINE_STAGE, "pipeline_stage", VALUE(INT))
    },
    [WIRE_SPEC] = { // ShardingSpecProto
        ROW(F_SPEC_TENSOR_NAME, "tensor_name", VALUE(BYTES))
        ROW(F_SPEC_DEVICE, "device", LIST(INT))
        ROW(F_SPEC_INDEX_TO_DEVICE_GROUP_MAP, "index_to_device_group_map", SUB(GROUP))
        ROW(F_SPEC_SHARDED_DIM, "sharded_dim", SUB(SHARDED_DIM))
    },
    [WIRE_GROUP] = { // IntIntListEntryProto
        ROW(F_GROUP_KEY, "key", VALUE(INT))
        ROW(F_GROUP_VALUE, "value", LIST(INT))
    },
    [WIRE_SHARDED_DIM] = { // ShardedDimProto
        ROW(F_SHARDED_DIM_AXIS, "axis", VALUE(INT))
        ROW(F_SHARDED_DIM_SIMPLE_SHARDING, "simple_sharding", SUB(SIMPLE_DIM))
    },
    [WIRE_SIMPLE_DIM] = { // SimpleShardedDimProto
        ROW(F_SIMPLE_DIM_DIM_VALUE, "dim_value", VALUE(INT))
        ROW(F_SIMPLE_DIM_DIM_PARAM, "dim_param", VALUE(BYTES))
        ROW(F_SIMPLE_DIM_NUM_SHARDS, "num_shards", VALUE(INT))
    },
    [WIRE_SEQUENCE] = { // SequenceProto (value files)
        ROW(F_SEQUENCE_NAME, "name", VALUE(BYTES))
        ROW(F_SEQUENCE_ELEM_TYPE, "elem_type", VALUE(INT))
        ROW(F_SEQUENCE_TENSOR_VALUES, "tensor_values", SUB(TENSOR))
        ROW(F_SEQUENCE_SPARSE_TENSOR_VALUES, "sparse_tensor_values", SUB(SPARSE_TENSOR))
        ROW(F_SEQUENCE_SEQUENCE_VALUES, "sequence_values", SUB(SEQUENCE))
        ROW(F_SEQUENCE_MAP_VALUES, "map_values", SUB(MAP))
        ROW(F_SEQUENCE_OPTIONAL_VALUES, "optional_values", SUB(OPTIONAL))
    },
    [WIRE_MAP] = { // MapProto (value files)
        ROW(F_MAP_NAME, "name", VALUE(BYTES))
        ROW(F_MAP_KEY_TYPE, "key_type", VALUE(INT))
        ROW(F_MAP_KEYS, "keys", LIST(INT))
        ROW(F_MAP_STRING_KEYS, "string_keys", VALUE(BYTES))
        ROW(F_MAP_VALUES, "values", SUB(SEQUENCE))
    },
    [WIRE_OPTIONAL] = { // OptionalProto (value files)
        ROW(F_OPTIONAL_NAME, "name", VALUE(BYTES))
        ROW(F_OPTIONAL_ELEM_TYPE, "elem_type", VALUE(INT))
        ROW(F_OPTIONAL_TENSOR_VALUE, "tensor_value", SUB(TENSOR))
        ROW(F_OPTIONAL_SPARSE_TENSOR_VALUE, "sparse_tensor_value", SUB(SPARSE_TENSOR))
        ROW(F_OPTIONAL_SEQUENCE_VALUE, "sequence_value", SUB(SEQUENCE))
        ROW(F_OPTIONAL_MAP_VALUE, "map_value", SUB(MAP))
        ROW(F_OPTIONAL_OPTIONAL_VALUE, "optional_value", SUB(OPTIONAL))
    },
};

// names for diagnostics: "... (in a TensorProto)"
static const char *const message_names[WIRE_MESSAGE_COUNT] = {
    [WIRE_MODEL] = "ModelProto",
    [WIRE_GRAPH] = "GraphProto",
    [WIRE_NODE] = "NodeProto",
    [WIRE_ATTRIBUTE] = "AttributeProto",
    [WIRE_TENSOR] = "TensorProto",
    [WIRE_SEGMENT] = "TensorProto.Segment",
    [WIRE_SPARSE_TENSOR] = "SparseTensorProto",
    [WIRE_VALUE_INFO] = "ValueInfoProto",
    [WIRE_TYPE] = "TypeProto",
    [WIRE_TYPE_TENSOR] = "TypeProto.Tensor",
    [WIRE_TYPE_SEQUENCE] = "TypeProto.Sequence",
    [WIRE_TYPE_MAP] = "TypeProto.Map",
    [WIRE_TYPE_OPAQUE] = "TypeProto.Opaque",
    [WIRE_TYPE_SPARSE_TENSOR] = "TypeProto.SparseTensor",
    [WIRE_TYPE_OPTIONAL] = "TypeProto.Optional",
    [WIRE_SHAPE] = "TensorShapeProto",
    [WIRE_DIMENSION] = "TensorShapeProto.Dimension",
    [WIRE_OPSET] = "OperatorSetIdProto",
    [WIRE_STRING_PAIR] = "StringStringEntryProto",
    [WIRE_ANNOTATION] = "TensorAnnotation",
    [WIRE_TRAINING] = "TrainingInfoProto",
    [WIRE_FUNCTION] = "FunctionProto",
    [WIRE_CONFIG] = "DeviceConfigurationProto",
    [WIRE_NODE_CONFIG] = "NodeDeviceConfigurationProto",
    [WIRE_SPEC] = "ShardingSpecProto",
    [WIRE_GROUP] = "IntIntListEntryProto",
    [WIRE_SHARDED_DIM] = "ShardedDimProto",
    [WIRE_SIMPLE_DIM] = "SimpleShardedDimProto",
    [WIRE_SEQUENCE] = "SequenceProto",
    [WIRE_MAP] = "MapProto",
    [WIRE_OPTIONAL] = "OptionalProto",
};
// clang-format on

const struct wire_row *tsr__wire_row(enum wire_message m, uint32_t number)
{
    if (m >= WIRE_MESSAGE_COUNT || number > WIRE_MAX_NUMBER || !tsr__wire_rows[m][number].name)
        return NULL;
    return &tsr__wire_rows[m][number];
}

const char *tsr__wire_message_name(enum wire_message m)
{
    return m < WIRE_MESSAGE_COUNT ? message_names[m] : "message";
}
