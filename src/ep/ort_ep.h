// SPDX-License-Identifier: Apache-2.0
// ort_ep.h - own declaration of ONNX Runtime's interface for execution providers, as of 1.24;
// OrtEp as of 1.27.
//
// Structs that a provider fills in (OrtEpFactory, OrtEp, OrtNodeComputeInfo) begin with the version
// that they were written for. ONNX Runtime reads no field that is newer than this version.
#ifndef TSR_EP_ORT_EP_H
#define TSR_EP_ORT_EP_H

#include "engine/engine.h"

typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtMemoryDevice OrtMemoryDevice;
typedef struct OrtSyncStream OrtSyncStream;

enum { ORT_HARDWARE_CPU = 0, ORT_HARDWARE_GPU = 1 };
enum { ORT_MEMORY_DEVICE_CPU = 0, ORT_MEMORY_DEVICE_GPU = 1 };
// Whether ONNX Runtime can use a compiled model (EPContext) with this provider.
enum {
    ORT_COMPILED_NOT_APPLICABLE,
    ORT_COMPILED_OPTIMAL,
    ORT_COMPILED_PREFER_RECOMPILATION,
    ORT_COMPILED_UNSUPPORTED
};

typedef struct OrtNodeFusionOptions {
    uint32_t ort_version_supported;
    bool drop_constant_initializers; // the fused node gets no weights as inputs
} OrtNodeFusionOptions;

struct OrtEpApi {
    OrtStatus *(*CreateEpDevice)(OrtEpFactory *factory, const OrtHardwareDevice *hardware,
                                 const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options,
                                 OrtEpDevice **out);
    void (*ReleaseEpDevice)(OrtEpDevice *device);
    OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo *info,
                                                    const OrtNode *const *nodes, size_t n,
                                                    const OrtNodeFusionOptions *options);
    void *reserved_3[2];
    OrtStatus *(*EpDevice_AddAllocatorInfo)(OrtEpDevice *device, const OrtMemoryInfo *info);
    const OrtMemoryDevice *(*MemoryInfo_GetMemoryDevice)(const OrtMemoryInfo *info);
    // returns NULL if the value is not a tensor
    const OrtMemoryDevice *(*Value_GetMemoryDevice)(const OrtValue *value);
    void *reserved_8;
    int (*MemoryDevice_GetDeviceType)(const OrtMemoryDevice *device);
    void *reserved_10;
    uint32_t (*MemoryDevice_GetVendorId)(const OrtMemoryDevice *device);
    uint32_t (*MemoryDevice_GetDeviceId)(const OrtMemoryDevice *device);
    void *reserved_13[3];
    OrtStatus *(*CreateHardwareDevice)(int type, uint32_t vendor, uint32_t id, const char *name,
                                       const OrtKeyValuePairs *metadata, OrtHardwareDevice **out);
    void (*ReleaseHardwareDevice)(OrtHardwareDevice *device);
};
_Static_assert(offsetof(OrtEpApi, CreateHardwareDevice) == 16 * sizeof(void *),
               "place of CreateHardwareDevice");

// Copies tensors between devices; all arrays have n elements, `streams` may be NULL.
struct OrtDataTransferImpl {
    uint32_t ort_version_supported;
    void (*Release)(OrtDataTransferImpl *transfer);
    bool (*CanCopy)(const OrtDataTransferImpl *transfer, const OrtMemoryDevice *from,
                    const OrtMemoryDevice *to);
    OrtStatus *(*CopyTensors)(OrtDataTransferImpl *transfer, const OrtValue **from, OrtValue **to,
                              OrtSyncStream **streams, size_t n);
};

struct OrtModelEditorApi {
    void *reserved_0[6];
    OrtStatus *(*CreateNode)(const char *op, const char *domain, const char *name,
                             const char *const *inputs, size_t n_inputs, const char *const *outputs,
                             size_t n_outputs, OrtOpAttr **attributes, size_t n_attributes,
                             OrtNode **out);
};

// A fused node after Compile. Threads may call Compute at the same time.
struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus *(*CreateState)(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **out);
    OrtStatus *(*Compute)(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context);
    void (*ReleaseState)(OrtNodeComputeInfo *info, void *state);
};

// The provider in one session of the application.
struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEp *ep);
    // Errors of GetCapability are only logged; errors of Compile fail the session.
    OrtStatus *(*GetCapability)(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info);
    OrtStatus *(*Compile)(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t n,
                          OrtNodeComputeInfo **infos, OrtNode **context_nodes);
    void (*ReleaseNodeComputeInfos)(OrtEp *ep, OrtNodeComputeInfo **infos, size_t n);
    void *reserved_5[3];
    OrtStatus *(*OnRunStart)(OrtEp *ep, const OrtRunOptions *options);
    OrtStatus *(*OnRunEnd)(OrtEp *ep, const OrtRunOptions *options, bool synchronize);
    void *reserved_10[2];
    const char *(*GetCompiledModelCompatibilityInfo)(OrtEp *ep, const OrtGraph *graph);
    void *reserved_13;
    OrtStatus *(*IsConcurrentRunSupported)(OrtEp *ep, bool *out);
    void *reserved_15[7];
    OrtStatus *(*OnSessionInitializationEnd)(OrtEp *ep); // an error fails the session; since 1.27
    void *reserved_23[2];
};
#define ORT_API_OF_EP 27 // the version of this struct
_Static_assert(offsetof(OrtEp, OnRunStart) == 8 * sizeof(void *), "place of OnRunStart");
_Static_assert(offsetof(OrtEp, OnSessionInitializationEnd) == 22 * sizeof(void *),
               "place of OnSessionInitializationEnd");
_Static_assert(sizeof(OrtEp) == 200, "size of OrtEp");

struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEpFactory *factory);
    const char *(*GetVendor)(const OrtEpFactory *factory);
    OrtStatus *(*GetSupportedDevices)(OrtEpFactory *factory,
                                      const OrtHardwareDevice *const *hardware, size_t n_hardware,
                                      OrtEpDevice **out, size_t most, size_t *n);
    OrtStatus *(*CreateEp)(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                           const OrtKeyValuePairs *const *metadata, size_t n,
                           const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out);
    void (*ReleaseEp)(OrtEpFactory *factory, OrtEp *ep);
    uint32_t (*GetVendorId)(const OrtEpFactory *factory);
    const char *(*GetVersion)(const OrtEpFactory *factory);
    OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory *factory,
                                                         const OrtHardwareDevice *const *devices,
                                                         size_t n, const char *info, int *out);
    OrtStatus *(*CreateAllocator)(OrtEpFactory *factory, const OrtMemoryInfo *info,
                                  const OrtKeyValuePairs *options, OrtAllocator **out);
    void (*ReleaseAllocator)(OrtEpFactory *factory, OrtAllocator *allocator);
    // Must not be NULL: ONNX Runtime calls it without a check.
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *factory, OrtDataTransferImpl **out);
    bool (*IsStreamAware)(const OrtEpFactory *factory);
    void *reserved_13[5];
};
_Static_assert(offsetof(OrtEpFactory, CreateDataTransfer) == 11 * sizeof(void *),
               "place of CreateDataTransfer");
_Static_assert(sizeof(OrtEpFactory) == 144, "size of OrtEpFactory");

#endif
