// SPDX-License-Identifier: Apache-2.0
// ort.h - own declaration of the part of ONNX Runtime's C interface that is used here.
//
// The interface is a flat table of functions that only ever grows: an entry is known by its number,
// and none has moved since it appeared. Version 17 of the table (ONNX Runtime 1.17) has all that is
// needed, so one build runs on 1.17 and every later release, and nothing of ONNX Runtime is needed
// to build. Gaps are entries that are not used. Element types have their ONNX numbers, as tsr_dtype
// has.
#ifndef TSR_OPS_ORT_H
#define TSR_OPS_ORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_API 17 // version of the table that is requested
#define ORT_API_STATS                                                                              \
    23 // version that reports what an allocator has taken; requested if the runtime has it
#define ORT_API_EP 24 // version that execution providers need
#define ORT_OP_VERSION                                                                             \
    18 // newest form of OrtCustomOp that is used; never above the runtime's minor number

enum { ORT_LOG_ERROR = 3, ORT_LOG_FATAL = 4 };
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NO_SUCHFILE = 3, ORT_NOT_IMPLEMENTED = 9 };
enum {
    ORT_DEVICE_ALLOCATOR = 0,
    ORT_ARENA_ALLOCATOR = 1,
    ORT_MEMORY_DEFAULT = 0,
    ORT_MEMORY_CPU_INPUT = -2
};
enum { ORT_SEQUENTIAL = 0 };
enum { ORT_LOG_VERBOSE = 0, ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2 };
// Types of attributes. ONNX numbers them differently.
enum {
    ORT_ATTR_INT = 1,
    ORT_ATTR_INTS,
    ORT_ATTR_FLOAT,
    ORT_ATTR_FLOATS,
    ORT_ATTR_STRING,
    ORT_ATTR_STRINGS,
    ORT_ATTR_GRAPH,
    ORT_ATTR_TENSOR
};
enum { ORT_TENSOR = 1, ORT_SEQUENCE = 2, ORT_OPTIONAL = 6 }; // kinds of values

typedef struct OrtStatus OrtStatus; // NULL is success
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtSequenceTypeInfo OrtSequenceTypeInfo;
typedef struct OrtOptionalTypeInfo OrtOptionalTypeInfo;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtPrepackedWeightsContainer OrtPrepackedWeightsContainer;
typedef struct OrtCUDAProviderOptionsV2 OrtCUDAProviderOptionsV2;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtCustomOp OrtCustomOp;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtIoBinding OrtIoBinding;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtExternalInitializerInfo OrtExternalInitializerInfo;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpApi OrtEpApi;                   // ep/ort_ep.h
typedef struct OrtModelEditorApi OrtModelEditorApi; // ep/ort_ep.h

// Memory for sessions, provided by the caller that registers it. Later releases have more functions
// and check the version first.
struct OrtAllocator {
    uint32_t version;
    void *(*Alloc)(OrtAllocator *allocator, size_t bytes);
    void (*Free)(OrtAllocator *allocator, void *p);
    const OrtMemoryInfo *(*Info)(const OrtAllocator *allocator);
};

typedef struct OrtApi {
    OrtStatus *(*CreateStatus)(int code, const char *message);
    int (*GetErrorCode)(const OrtStatus *status);
    const char *(*GetErrorMessage)(const OrtStatus *status);
    OrtStatus *(*CreateEnv)(int log_level, const char *id, OrtEnv **out);
    void *reserved_4[3];
    OrtStatus *(*CreateSession)(const OrtEnv *env, const char *path,
                                const OrtSessionOptions *options, OrtSession **out);
    OrtStatus *(*CreateSessionFromArray)(const OrtEnv *env, const void *model, size_t bytes,
                                         const OrtSessionOptions *options, OrtSession **out);
    OrtStatus *(*Run)(OrtSession *session, const OrtRunOptions *options,
                      const char *const *input_names, const OrtValue *const *inputs,
                      size_t n_inputs, const char *const *output_names, size_t n_outputs,
                      OrtValue **outputs);
    OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **out);
    void *reserved_11[2];
    OrtStatus *(*SetSessionExecutionMode)(OrtSessionOptions *options, int mode);
    OrtStatus *(*EnableProfiling)(OrtSessionOptions *options, const char *prefix);
    void *reserved_15[2];
    OrtStatus *(*DisableMemPattern)(OrtSessionOptions *options);
    void *reserved_18[4];
    OrtStatus *(*SetSessionLogSeverityLevel)(OrtSessionOptions *options, int level);
    OrtStatus *(*SetSessionGraphOptimizationLevel)(OrtSessionOptions *options, int level);
    OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *options, int n);
    OrtStatus *(*SetInterOpNumThreads)(OrtSessionOptions *options, int n);
    OrtStatus *(*CreateCustomOpDomain)(const char *domain, OrtCustomOpDomain **out);
    OrtStatus *(*CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);
    OrtStatus *(*AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);
    void *reserved_29;
    OrtStatus *(*SessionGetInputCount)(const OrtSession *session, size_t *out);
    OrtStatus *(*SessionGetOutputCount)(const OrtSession *session, size_t *out);
    void *reserved_32;
    OrtStatus *(*SessionGetInputTypeInfo)(const OrtSession *session, size_t i, OrtTypeInfo **out);
    OrtStatus *(*SessionGetOutputTypeInfo)(const OrtSession *session, size_t i, OrtTypeInfo **out);
    void *reserved_35;
    OrtStatus *(*SessionGetInputName)(const OrtSession *session, size_t i, OrtAllocator *allocator,
                                      char **out);
    OrtStatus *(*SessionGetOutputName)(const OrtSession *session, size_t i, OrtAllocator *allocator,
                                       char **out);
    void *reserved_38;
    OrtStatus *(*CreateRunOptions)(OrtRunOptions **out);
    void *reserved_40[6];
    OrtStatus *(*RunOptionsSetTerminate)(OrtRunOptions *options);
    void *reserved_47;
    OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *allocator, const int64_t *shape, size_t rank,
                                         int type, OrtValue **out);
    OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *info, void *data,
                                                 size_t bytes, const int64_t *shape, size_t rank,
                                                 int type, OrtValue **out);
    OrtStatus *(*IsTensor)(const OrtValue *value, int *out);
    OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **out);
    void *reserved_52;
    OrtStatus *(*GetStringTensorDataLength)(const OrtValue *value, size_t *out);
    OrtStatus *(*GetStringTensorContent)(const OrtValue *value, void *out, size_t bytes,
                                         size_t *offsets, size_t n);
    OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *info,
                                           const OrtTensorTypeAndShapeInfo **out);
    OrtStatus *(*GetOnnxTypeFromTypeInfo)(const OrtTypeInfo *info, int *out);
    OrtStatus *(*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo **out);
    OrtStatus *(*SetTensorElementType)(OrtTensorTypeAndShapeInfo *info, int type);
    OrtStatus *(*SetDimensions)(OrtTensorTypeAndShapeInfo *info, const int64_t *dims, size_t rank);
    OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info, int *out);
    OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);
    OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t rank);
    OrtStatus *(*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *info, const char **names,
                                        size_t rank);
    OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);
    OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *value, OrtTensorTypeAndShapeInfo **out);
    void *reserved_66;
    OrtStatus *(*GetValueType)(const OrtValue *value, int *out);
    OrtStatus *(*CreateMemoryInfo)(const char *name, int allocator_type, int id, int memory_type,
                                   OrtMemoryInfo **out);
    OrtStatus *(*CreateCpuMemoryInfo)(int allocator_type, int memory_type, OrtMemoryInfo **out);
    void *reserved_70[6];
    OrtStatus *(*AllocatorFree)(OrtAllocator *allocator, void *p);
    void *reserved_77;
    OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **out);
    void *reserved_79;
    OrtStatus *(*GetValue)(const OrtValue *value, int i, OrtAllocator *allocator, OrtValue **out);
    OrtStatus *(*GetValueCount)(const OrtValue *value, size_t *out);
    OrtStatus *(*CreateValue)(const OrtValue *const *values, size_t n, int kind, OrtValue **out);
    void *reserved_83[3];
    OrtStatus *(*KernelInfoGetAttribute_int64)(const OrtKernelInfo *info, const char *name,
                                               int64_t *out);
    OrtStatus *(*KernelInfoGetAttribute_string)(const OrtKernelInfo *info, const char *name,
                                                char *out, size_t *bytes);
    OrtStatus *(*KernelContext_GetInputCount)(const OrtKernelContext *context, size_t *out);
    OrtStatus *(*KernelContext_GetOutputCount)(const OrtKernelContext *context, size_t *out);
    OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *context, size_t i,
                                         const OrtValue **out);
    OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *context, size_t i, const int64_t *dims,
                                          size_t rank, OrtValue **out);
    void (*ReleaseEnv)(OrtEnv *env);
    void (*ReleaseStatus)(OrtStatus *status);
    void (*ReleaseMemoryInfo)(OrtMemoryInfo *info);
    void (*ReleaseSession)(OrtSession *session);
    void (*ReleaseValue)(OrtValue *value);
    void (*ReleaseRunOptions)(OrtRunOptions *options);
    void (*ReleaseTypeInfo)(OrtTypeInfo *info);
    void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *info);
    void (*ReleaseSessionOptions)(OrtSessionOptions *options);
    void (*ReleaseCustomOpDomain)(OrtCustomOpDomain *domain);
    void *reserved_102[2];
    OrtStatus *(*CastTypeInfoToSequenceTypeInfo)(const OrtTypeInfo *info,
                                                 const OrtSequenceTypeInfo **out);
    void *reserved_105[2];
    OrtStatus *(*GetSequenceElementType)(const OrtSequenceTypeInfo *info, OrtTypeInfo **out);
    void *reserved_108[2];
    OrtStatus *(*SessionEndProfiling)(OrtSession *session, OrtAllocator *allocator, char **out);
    void *reserved_111[14];
    OrtStatus *(*GetAvailableProviders)(char ***out, int *n);
    OrtStatus *(*ReleaseAvailableProviders)(char **names, int n);
    OrtStatus *(*GetStringTensorElementLength)(const OrtValue *value, size_t i, size_t *out);
    OrtStatus *(*GetStringTensorElement)(const OrtValue *value, size_t bytes, size_t i, void *out);
    void *reserved_129;
    OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *options, const char *key,
                                        const char *value);
    OrtStatus *(*CreateAllocator)(const OrtSession *session, const OrtMemoryInfo *info,
                                  OrtAllocator **out);
    void (*ReleaseAllocator)(OrtAllocator *allocator);
    OrtStatus *(*RunWithBinding)(OrtSession *session, const OrtRunOptions *options,
                                 const OrtIoBinding *binding);
    OrtStatus *(*CreateIoBinding)(OrtSession *session, OrtIoBinding **out);
    void (*ReleaseIoBinding)(OrtIoBinding *binding);
    OrtStatus *(*BindInput)(OrtIoBinding *binding, const char *name, const OrtValue *value);
    OrtStatus *(*BindOutput)(OrtIoBinding *binding, const char *name, const OrtValue *value);
    OrtStatus *(*BindOutputToDevice)(OrtIoBinding *binding, const char *name,
                                     const OrtMemoryInfo *where);
    void *reserved_139;
    OrtStatus *(*GetBoundOutputValues)(const OrtIoBinding *binding, OrtAllocator *allocator,
                                       OrtValue ***out, size_t *n);
    void (*ClearBoundInputs)(OrtIoBinding *binding);
    void (*ClearBoundOutputs)(OrtIoBinding *binding);
    void *reserved_143[3];
    OrtStatus *(*SessionGetProfilingStartTimeNs)(const OrtSession *session, uint64_t *out);
    void *reserved_147[3];
    OrtStatus *(*AddInitializer)(OrtSessionOptions *options, const char *name,
                                 const OrtValue *value);
    void *reserved_151[12];
    OrtStatus *(*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo *info, const char *name,
                                                    int64_t *out, size_t *n);
    void *reserved_164;
    OrtStatus *(*AddRunConfigEntry)(OrtRunOptions *options, const char *key, const char *value);
    OrtStatus *(*CreatePrepackedWeightsContainer)(OrtPrepackedWeightsContainer **out);
    void (*ReleasePrepackedWeightsContainer)(OrtPrepackedWeightsContainer *container);
    OrtStatus *(*CreateSessionWithPrepackedWeightsContainer)(
        const OrtEnv *env, const char *path, const OrtSessionOptions *options,
        OrtPrepackedWeightsContainer *container, OrtSession **out);
    void *reserved_169[7];
    OrtStatus *(*RegisterAllocator)(OrtEnv *env, OrtAllocator *allocator);
    OrtStatus *(*UnregisterAllocator)(OrtEnv *env, const OrtMemoryInfo *info);
    void *reserved_178[14];
    OrtStatus *(*HasValue)(const OrtValue *value, int *out);
    OrtStatus *(*KernelContext_GetGPUComputeStream)(const OrtKernelContext *context, void **out);
    OrtStatus *(*GetTensorMemoryInfo)(const OrtValue *value, const OrtMemoryInfo **out);
    void *reserved_195[9];
    OrtStatus *(*SessionOptionsAppendExecutionProvider_CUDA_V2)(
        OrtSessionOptions *options, const OrtCUDAProviderOptionsV2 *provider);
    OrtStatus *(*CreateCUDAProviderOptions)(OrtCUDAProviderOptionsV2 **out);
    OrtStatus *(*UpdateCUDAProviderOptions)(OrtCUDAProviderOptionsV2 *provider,
                                            const char *const *keys, const char *const *values,
                                            size_t n);
    void *reserved_207;
    void (*ReleaseCUDAProviderOptions)(OrtCUDAProviderOptionsV2 *provider);
    void *reserved_209[2];
    OrtStatus *(*CreateOpAttr)(const char *name, const void *data, int n, int type,
                               OrtOpAttr **out);
    void (*ReleaseOpAttr)(OrtOpAttr *attribute);
    void *reserved_213[3];
    OrtStatus *(*SessionOptionsAppendExecutionProvider)(OrtSessionOptions *options,
                                                        const char *name, const char *const *keys,
                                                        const char *const *values, size_t n);
    void *reserved_217[8];
    void (*MemoryInfoGetDeviceType)(const OrtMemoryInfo *info, int *out); // 0: CPU, 1: GPU
    void *reserved_226[2];
    OrtStatus *(*RegisterCustomOpsLibrary_V2)(OrtSessionOptions *options, const char *path);
    void *reserved_229[8];
    OrtStatus *(*HasSessionConfigEntry)(const OrtSessionOptions *options, const char *key,
                                        int *out);
    OrtStatus *(*GetSessionConfigEntry)(const OrtSessionOptions *options, const char *key,
                                        char *out, size_t *bytes);
    void *reserved_239[5];
    OrtStatus *(*KernelInfo_GetNodeName)(const OrtKernelInfo *info, char *out, size_t *bytes);
    void *reserved_245[2];
    OrtStatus *(*Logger_LogMessage)(const OrtLogger *logger, int level, const char *message,
                                    const char *file, int line, const char *function);
    void *reserved_248[2];
    OrtStatus *(*CastTypeInfoToOptionalTypeInfo)(const OrtTypeInfo *info,
                                                 const OrtOptionalTypeInfo **out);
    OrtStatus *(*GetOptionalContainedTypeInfo)(const OrtOptionalTypeInfo *info, OrtTypeInfo **out);
    OrtStatus *(*GetResizedStringTensorElementBuffer)(OrtValue *value, size_t i, size_t bytes,
                                                      char **out);
    void *reserved_253[15];
    OrtStatus *(*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext *context, size_t i,
                                                      OrtTensorTypeAndShapeInfo **out);
    void *reserved_269;
    OrtStatus *(*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext *context,
                                                       size_t i,
                                                       const OrtTensorTypeAndShapeInfo *info);
    // functions from here on exist only if the API table was requested with version ORT_API_STATS
    void *reserved_271;
    OrtStatus *(*ReadOpAttr)(const OrtOpAttr *attribute, int type, void *out, size_t bytes,
                             size_t *needed);
    void *reserved_273[16];
    OrtStatus *(*GetValueInfoName)(const OrtValueInfo *value, const char **out);
    OrtStatus *(*GetValueInfoTypeInfo)(const OrtValueInfo *value, const OrtTypeInfo **out);
    const OrtModelEditorApi *(*GetModelEditorApi)(void);
    void *reserved_292[3];
    void (*CreateKeyValuePairs)(OrtKeyValuePairs **out);
    void (*AddKeyValuePair)(OrtKeyValuePairs *pairs, const char *key, const char *value);
    const char *(*GetKeyValue)(const OrtKeyValuePairs *pairs, const char *key); // NULL: absent
    void (*GetKeyValuePairs)(const OrtKeyValuePairs *pairs, const char *const **keys,
                             const char *const **values, size_t *n);
    void *reserved_299;
    void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *pairs);
    void *reserved_301[6];
    int (*HardwareDevice_Type)(const OrtHardwareDevice *device); // 0: CPU, 1: GPU, 2: NPU
    uint32_t (*HardwareDevice_VendorId)(const OrtHardwareDevice *device);
    void *reserved_309[8];
    const OrtEpApi *(*GetEpApi)(void);
    OrtStatus *(*GetTensorSizeInBytes)(const OrtValue *value, size_t *out);
    OrtStatus *(*AllocatorGetStats)(const OrtAllocator *allocator, OrtKeyValuePairs **out);
    // for execution providers (ep/)
    OrtStatus *(*CreateMemoryInfo_V2)(const char *name, int device_type, uint32_t vendor,
                                      int32_t id, int memory_type, size_t alignment,
                                      int allocator_type, OrtMemoryInfo **out);
    void *reserved_321[5];
    OrtStatus *(*ValueInfo_GetInitializerValue)(const OrtValueInfo *value, const OrtValue **out);
    OrtStatus *(*ValueInfo_GetExternalInitializerInfo)(const OrtValueInfo *value,
                                                       OrtExternalInitializerInfo **out);
    OrtStatus *(*ValueInfo_IsRequiredGraphInput)(const OrtValueInfo *value, bool *out);
    OrtStatus *(*ValueInfo_IsOptionalGraphInput)(const OrtValueInfo *value, bool *out);
    OrtStatus *(*ValueInfo_IsGraphOutput)(const OrtValueInfo *value, bool *out);
    OrtStatus *(*ValueInfo_IsConstantInitializer)(const OrtValueInfo *value, bool *out);
    OrtStatus *(*ValueInfo_IsFromOuterScope)(const OrtValueInfo *value, bool *out);
    OrtStatus *(*Graph_GetName)(const OrtGraph *graph, const char **out);
    OrtStatus *(*Graph_GetModelPath)(const OrtGraph *graph, const char **out);
    OrtStatus *(*Graph_GetOnnxIRVersion)(const OrtGraph *graph, int64_t *out);
    OrtStatus *(*Graph_GetNumOperatorSets)(const OrtGraph *graph, size_t *out);
    OrtStatus *(*Graph_GetOperatorSets)(const OrtGraph *graph, const char **domains,
                                        int64_t *versions, size_t n);
    OrtStatus *(*Graph_GetNumInputs)(const OrtGraph *graph, size_t *out);
    OrtStatus *(*Graph_GetInputs)(const OrtGraph *graph, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Graph_GetNumOutputs)(const OrtGraph *graph, size_t *out);
    OrtStatus *(*Graph_GetOutputs)(const OrtGraph *graph, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Graph_GetNumInitializers)(const OrtGraph *graph, size_t *out);
    OrtStatus *(*Graph_GetInitializers)(const OrtGraph *graph, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *graph, size_t *out);
    OrtStatus *(*Graph_GetNodes)(const OrtGraph *graph, const OrtNode **out, size_t n);
    OrtStatus *(*Graph_GetParentNode)(const OrtGraph *graph, const OrtNode **out);
    void *reserved_347[2];
    OrtStatus *(*Node_GetName)(const OrtNode *node, const char **out);
    OrtStatus *(*Node_GetOperatorType)(const OrtNode *node, const char **out);
    OrtStatus *(*Node_GetDomain)(const OrtNode *node, const char **out);
    OrtStatus *(*Node_GetSinceVersion)(const OrtNode *node, int *out);
    OrtStatus *(*Node_GetNumInputs)(const OrtNode *node, size_t *out);
    OrtStatus *(*Node_GetInputs)(const OrtNode *node, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Node_GetNumOutputs)(const OrtNode *node, size_t *out);
    OrtStatus *(*Node_GetOutputs)(const OrtNode *node, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Node_GetNumImplicitInputs)(const OrtNode *node, size_t *out);
    OrtStatus *(*Node_GetImplicitInputs)(const OrtNode *node, const OrtValueInfo **out, size_t n);
    OrtStatus *(*Node_GetNumAttributes)(const OrtNode *node, size_t *out);
    OrtStatus *(*Node_GetAttributes)(const OrtNode *node, const OrtOpAttr **out, size_t n);
    OrtStatus *(*Node_GetAttributeByName)(const OrtNode *node, const char *name,
                                          const OrtOpAttr **out);
    OrtStatus *(*OpAttr_GetTensorAttributeAsOrtValue)(const OrtOpAttr *attribute, OrtValue **out);
    OrtStatus *(*OpAttr_GetType)(const OrtOpAttr *attribute, int *out);
    OrtStatus *(*OpAttr_GetName)(const OrtOpAttr *attribute, const char **out);
    OrtStatus *(*Node_GetNumSubgraphs)(const OrtNode *node, size_t *out);
    OrtStatus *(*Node_GetSubgraphs)(const OrtNode *node, const OrtGraph **out, size_t n,
                                    const char **names);
    void *reserved_367;
    OrtStatus *(*Node_GetEpName)(const OrtNode *node, const char **out); // "": no provider yet
    void (*ReleaseExternalInitializerInfo)(OrtExternalInitializerInfo *info);
    const char *(*ExternalInitializerInfo_GetFilePath)(const OrtExternalInitializerInfo *info);
    int64_t (*ExternalInitializerInfo_GetFileOffset)(const OrtExternalInitializerInfo *info);
    size_t (*ExternalInitializerInfo_GetByteSize)(const OrtExternalInitializerInfo *info);
    void *reserved_373[6];
    OrtStatus *(*GetSessionOptionsConfigEntries)(const OrtSessionOptions *options,
                                                 OrtKeyValuePairs **out);
    void *reserved_380[10];
    // functions from here on exist only if the API table was requested with version ORT_API_EP
    bool (*TensorTypeAndShape_HasShape)(const OrtTensorTypeAndShapeInfo *info);
} OrtApi;

#define ORT_SLOT(name, i)                                                                          \
    _Static_assert(offsetof(OrtApi, name) == (i) * sizeof(void *), "place of " #name)
ORT_SLOT(Run, 9);
ORT_SLOT(AddCustomOpDomain, 28);
ORT_SLOT(CreateTensorWithDataAsOrtValue, 49);
ORT_SLOT(GetStringTensorContent, 54);
ORT_SLOT(GetTensorTypeAndShape, 65);
ORT_SLOT(CreateValue, 82);
ORT_SLOT(SessionEndProfiling, 110);
ORT_SLOT(AddInitializer, 150);
ORT_SLOT(CreateSessionWithPrepackedWeightsContainer, 168);
ORT_SLOT(RegisterAllocator, 176);
ORT_SLOT(HasValue, 192);
ORT_SLOT(SessionOptionsAppendExecutionProvider, 216);
ORT_SLOT(GetResizedStringTensorElementBuffer, 252);
ORT_SLOT(GetAllocatorWithDefaultOptions, 78);
ORT_SLOT(ReleaseCustomOpDomain, 101);
ORT_SLOT(AddSessionConfigEntry, 130);
ORT_SLOT(KernelInfoGetAttributeArray_int64, 163);
ORT_SLOT(AddRunConfigEntry, 165);
ORT_SLOT(KernelContext_GetGPUComputeStream, 193);
ORT_SLOT(CreateMemoryInfo, 68);
ORT_SLOT(BindOutput, 137);
ORT_SLOT(BindOutputToDevice, 138);
ORT_SLOT(GetTensorMemoryInfo, 194);
ORT_SLOT(MemoryInfoGetDeviceType, 225);
ORT_SLOT(RegisterCustomOpsLibrary_V2, 228);
ORT_SLOT(GetSessionConfigEntry, 238);
ORT_SLOT(KernelInfo_GetNodeName, 244);
ORT_SLOT(ShapeInferContext_SetOutputTypeShape, 270);
ORT_SLOT(RunWithBinding, 133);
ORT_SLOT(GetKeyValue, 297);
ORT_SLOT(AllocatorGetStats, 319);
ORT_SLOT(CreateMemoryInfo_V2, 320);
ORT_SLOT(GetSymbolicDimensions, 63);
ORT_SLOT(GetStringTensorElement, 128);
ORT_SLOT(ReleaseOpAttr, 212);
ORT_SLOT(Logger_LogMessage, 247);
ORT_SLOT(ReadOpAttr, 272);
ORT_SLOT(GetModelEditorApi, 291);
ORT_SLOT(AddKeyValuePair, 296);
ORT_SLOT(HardwareDevice_Type, 307);
ORT_SLOT(GetEpApi, 317);
ORT_SLOT(ValueInfo_GetInitializerValue, 326);
ORT_SLOT(Graph_GetName, 333);
ORT_SLOT(Graph_GetParentNode, 346);
ORT_SLOT(Node_GetName, 349);
ORT_SLOT(Node_GetAttributeByName, 361);
ORT_SLOT(Node_GetSubgraphs, 366);
ORT_SLOT(ExternalInitializerInfo_GetByteSize, 372);
ORT_SLOT(TensorTypeAndShape_HasShape, 390);

typedef struct OrtApiBase {
    const OrtApi *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

// One operator. Our operators embed this struct as the first member of a larger one. The functions
// get the operator or its kernel as argument, except for the last four.
struct OrtCustomOp {
    uint32_t version;
    void *(*CreateKernel)(const OrtCustomOp *op, const OrtApi *api,
                          const OrtKernelInfo *info); // before 16
    const char *(*GetName)(const OrtCustomOp *op);
    const char *(*GetExecutionProviderType)(const OrtCustomOp *op); // NULL: CPU
    int (*GetInputType)(const OrtCustomOp *op, size_t i);           // 0: any
    size_t (*GetInputTypeCount)(const OrtCustomOp *op);
    int (*GetOutputType)(const OrtCustomOp *op, size_t i);
    size_t (*GetOutputTypeCount)(const OrtCustomOp *op);
    void (*KernelCompute)(void *kernel, OrtKernelContext *context); // before 16
    void (*KernelDestroy)(void *kernel);
    int (*GetInputCharacteristic)(const OrtCustomOp *op, size_t i); // 0: required
    int (*GetOutputCharacteristic)(const OrtCustomOp *op, size_t i);
    int (*GetInputMemoryType)(const OrtCustomOp *op, size_t i);
    int (*GetVariadicInputMinArity)(const OrtCustomOp *op);
    int (*GetVariadicInputHomogeneity)(const OrtCustomOp *op);
    int (*GetVariadicOutputMinArity)(const OrtCustomOp *op);
    int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *op);
    OrtStatus *(*CreateKernelV2)(const OrtCustomOp *op, const OrtApi *api,
                                 const OrtKernelInfo *info, void **out);
    OrtStatus *(*KernelComputeV2)(void *kernel, OrtKernelContext *context);
    OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *op, OrtShapeInferContext *context);
    int (*GetStartVersion)(const OrtCustomOp *op);
    int (*GetEndVersion)(const OrtCustomOp *op);
    size_t (*GetMayInplace)(int **inputs, int **outputs);
    void (*ReleaseMayInplace)(int *inputs, int *outputs);
    size_t (*GetAliasMap)(int **inputs, int **outputs);
    void (*ReleaseAliasMap)(int *inputs, int *outputs);
};
_Static_assert(sizeof(OrtCustomOp) == 26 * sizeof(void *), "size of OrtCustomOp");

#endif
