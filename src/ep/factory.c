// SPDX-License-Identifier: Apache-2.0
// factory.c - libtessera_ep.so: the execution provider TesseraExecutionProvider, which a program
// registers with its ONNX Runtime (RegisterExecutionProviderLibrary).
//
// ONNX Runtime holds a lock of its environment while it calls CreateEpFactories and
// GetSupportedDevices, so they create no session and no environment.
#include "ep/internal.h"

#include <stdlib.h>

#define VENDOR_ID 0x7E55 // no PCI vendor

__attribute__((visibility("default"))) OrtStatus *
CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                  OrtEpFactory **out, size_t most, size_t *n);
__attribute__((visibility("default"))) OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

static const char *get_name(const OrtEpFactory *factory)
{
    (void)factory;
    return EP_NAME;
}

static const char *get_vendor(const OrtEpFactory *factory)
{
    (void)factory;
    return "Tessera";
}

static uint32_t get_vendor_id(const OrtEpFactory *factory)
{
    (void)factory;
    return VENDOR_ID;
}

static const char *get_version(const OrtEpFactory *factory)
{
    (void)factory;
    return tsr_version();
}

// Lists the devices that the provider supports. The first is the CPU, with inputs and outputs in
// host memory; the others are GPUs.
static OrtStatus *get_devices(OrtEpFactory *ort, const OrtHardwareDevice *const *hardware,
                              size_t n_hardware, OrtEpDevice **out, size_t most, size_t *n)
{
    const struct ep_api *api = &((struct ep_factory *)ort)->api;
    *n = 0;
    for (size_t i = 0; i < n_hardware && *n < most; i++) {
        if (api->ort->HardwareDevice_Type(hardware[i]) != ORT_HARDWARE_CPU)
            continue;
        TRY(api->ep->CreateEpDevice(ort, hardware[i], NULL, NULL, &out[0]));
        *n = 1;
        break;
    }
    return tsr__ep_memory_devices((struct ep_factory *)ort, hardware, n_hardware, out, most, n);
}

static OrtStatus *create_ep(OrtEpFactory *ort, const OrtHardwareDevice *const *devices,
                            const OrtKeyValuePairs *const *metadata, size_t n,
                            const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out)
{
    (void)metadata;
    const OrtApi *api = ((struct ep_factory *)ort)->api.ort;
    struct provider *provider = NULL;
    TRY(tsr__ep_provider_new((struct ep_factory *)ort, options, logger, &provider));
    // If a session selects several devices, ONNX Runtime uses the memory of the first.
    provider->on_gpu = n > 0 && api->HardwareDevice_Type(devices[0]) == ORT_HARDWARE_GPU;
    *out = &provider->ort;
    return NULL;
}

static void release_ep(OrtEpFactory *ort, OrtEp *ep)
{
    (void)ort;
    tsr__ep_provider_free((struct provider *)ep);
}

static OrtStatus *validate_context(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                                   size_t n, const char *info, int *out)
{
    (void)factory, (void)devices, (void)n;
    *out = ORT_COMPILED_UNSUPPORTED;
    if (strcmp(info, CONTEXT_VERSION) == 0)
        *out = ORT_COMPILED_OPTIMAL;
    return NULL;
}

static OrtStatus *create_data_transfer(OrtEpFactory *factory, OrtDataTransferImpl **out)
{
    struct device_memory *memory = ((struct ep_factory *)factory)->memory;
    *out = NULL; // without GPUs, inputs and outputs are in host memory
    return memory ? tsr__ep_memory_transfer(memory, out) : NULL;
}

static OrtStatus *create_allocator(OrtEpFactory *factory, const OrtMemoryInfo *info,
                                   const OrtKeyValuePairs *options, OrtAllocator **out)
{
    (void)options;
    return tsr__ep_memory_allocator(((struct ep_factory *)factory)->memory, info, out);
}

static void release_allocator(OrtEpFactory *factory, OrtAllocator *allocator)
{
    (void)factory;
    tsr__ep_memory_release(allocator);
}

static bool is_stream_aware(const OrtEpFactory *factory)
{
    (void)factory;
    return false;
}

void tsr__ep_factory_release(struct ep_factory *factory)
{
    if (atomic_fetch_sub(&factory->references, 1) != 1)
        return;
    tsr__ep_memory_free(factory->memory);
    free(factory);
}

static const OrtEpFactory functions = {
    .ort_version_supported = ORT_API_EP,
    .GetName = get_name,
    .GetVendor = get_vendor,
    .GetVendorId = get_vendor_id,
    .GetVersion = get_version,
    .GetSupportedDevices = get_devices,
    .CreateEp = create_ep,
    .ReleaseEp = release_ep,
    .ValidateCompiledModelCompatibilityInfo = validate_context,
    .CreateAllocator = create_allocator,
    .ReleaseAllocator = release_allocator,
    .CreateDataTransfer = create_data_transfer,
    .IsStreamAware = is_stream_aware,
};

OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                             OrtEpFactory **out, size_t most, size_t *n)
{
    (void)name;
    int minor = tsr__ort_minor(base->GetVersionString());
    // Ask for no newer version than the library has: ONNX Runtime prints an error otherwise.
    const OrtApi *api = base->GetApi(minor < ORT_API_EP ? (uint32_t)minor : ORT_API_EP);
    if (!api)
        return NULL; // there is no API to create an error status with
    if (minor < ORT_API_EP || most < 1)
        return api->CreateStatus(ORT_FAIL, EP_NAME " needs ONNX Runtime 1.24 or later");
    struct ep_factory *factory = calloc(1, sizeof *factory);
    if (!factory)
        return api->CreateStatus(ORT_FAIL, "out of memory");
    factory->ort = functions;
    factory->api = (struct ep_api){base, api, api->GetEpApi(), api->GetModelEditorApi()};
    factory->logger = logger;
    atomic_init(&factory->references, 1);
    OrtStatus *failed = tsr__ep_memory_new(&factory->api, &factory->memory);
    if (failed) {
        tsr__ep_factory_release(factory);
        return failed;
    }
    out[0] = &factory->ort;
    *n = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory)
{
    tsr__ep_factory_release((struct ep_factory *)factory);
    return NULL;
}
