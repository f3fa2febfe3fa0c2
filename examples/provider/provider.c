// SPDX-License-Identifier: Apache-2.0
// provider.c - runs an unchanged ONNX model on several devices with the C API of ONNX Runtime.
//
//   cc -I ONNXRUNTIME/include provider.c -L ONNXRUNTIME/lib -lonnxruntime -o provider
//   ./provider $PWD/build/libtessera_ep.so model.onnx 2
//
// The path of the library is absolute: ONNX Runtime searches relative ones in its own folder.
// The model has the input "x" of 2 x 64 floats and the output "y". Needs ONNX Runtime 1.24 or
// later.
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *ort;

// Ends the program with the message of a failed call.
static void check(OrtStatus *status)
{
    if (!status)
        return;
    fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
    exit(1);
}

// Appends the devices of the provider to the options of a session.
static void use_tessera(OrtEnv *env, OrtSessionOptions *options, const char *devices)
{
    const char *const keys[] = {"devices", "strict"};
    const char *const values[] = {devices, "1"};
    const OrtEpDevice *const *all = NULL;
    const OrtEpDevice *found[8];
    size_t n_all = 0, n_found = 0;
    check(ort->GetEpDevices(env, &all, &n_all));
    for (size_t i = 0; i < n_all && n_found < 8; i++)
        if (strcmp(ort->EpDevice_EpName(all[i]), "TesseraExecutionProvider") == 0)
            found[n_found++] = all[i];
    check(ort->SessionOptionsAppendExecutionProvider_V2(options, env, found, n_found, keys, values,
                                                        2));
}

static void run(OrtSession *session)
{
    const char *const inputs[] = {"x"}, *const outputs[] = {"y"};
    const int64_t shape[] = {2, 64};
    float data[2 * 64], *result = NULL;
    OrtMemoryInfo *memory = NULL;
    OrtValue *x = NULL, *y = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    size_t n = 0;
    for (int i = 0; i < 2 * 64; i++)
        data[i] = (float)(i % 7);
    check(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    check(ort->CreateTensorWithDataAsOrtValue(memory, data, sizeof data, shape, 2,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
    check(ort->Run(session, NULL, inputs, (const OrtValue *const *)&x, 1, outputs, 1, &y));
    check(ort->GetTensorTypeAndShape(y, &info));
    check(ort->GetTensorShapeElementCount(info, &n));
    check(ort->GetTensorMutableData(y, (void **)&result));
    for (size_t i = 0; i < n; i++)
        printf("%s%.6g", i ? " " : "", result[i]);
    printf("\n");
    ort->ReleaseTensorTypeAndShapeInfo(info);
    ort->ReleaseValue(y);
    ort->ReleaseValue(x);
    ort->ReleaseMemoryInfo(memory);
}

int main(int argc, char **argv)
{
    OrtEnv *env = NULL;
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    ort = OrtGetApiBase()->GetApi(24);
    if (argc != 4 || !ort) {
        fprintf(stderr, "usage: provider LIBRARY MODEL DEVICES (ONNX Runtime 1.24 or later)\n");
        return 2;
    }
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "example", &env));
    check(ort->RegisterExecutionProviderLibrary(env, "tessera", argv[1]));
    check(ort->CreateSessionOptions(&options));
    use_tessera(env, options, argv[3]);
    check(ort->CreateSession(env, argv[2], options, &session));
    run(session);
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
    return 0;
}
