// SPDX-License-Identifier: Apache-2.0

// Provider runs an unchanged ONNX model on several devices. It calls the C API of ONNX Runtime
// through cgo, because onnxruntime_go 1.27 cannot select the devices of a provider.
//
//	export CGO_CFLAGS="-I ONNXRUNTIME/include" CGO_LDFLAGS="-L ONNXRUNTIME/lib -lonnxruntime"
//	go build -o provider provider.go
//	./provider $PWD/build/libtessera_ep.so model.onnx 2
//
// The path of the library is absolute: ONNX Runtime searches relative ones in its own folder.
// The model has the input "x" of 2 x 64 floats and the output "y". Needs ONNX Runtime 1.24 or later.
package main

/*
#include <onnxruntime_c_api.h>
#include <stdlib.h>

// Go cannot call function pointers, so each function of the table has a wrapper.
static const OrtApi *ort;

static int load_api(void) { return (ort = OrtGetApiBase()->GetApi(24)) != NULL; }

static const char *message(const OrtStatus *status) { return ort->GetErrorMessage(status); }

static void release_status(OrtStatus *status) { ort->ReleaseStatus(status); }

static OrtStatus *create_env(OrtEnv **env)
{
    return ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "example", env);
}

static OrtStatus *register_library(OrtEnv *env, const char *name, const char *path)
{
    return ort->RegisterExecutionProviderLibrary(env, name, path);
}

static OrtStatus *get_devices(OrtEnv *env, const OrtEpDevice *const **devices, size_t *n)
{
    return ort->GetEpDevices(env, devices, n);
}

static const char *provider_of(const OrtEpDevice *device) { return ort->EpDevice_EpName(device); }

static OrtStatus *create_options(OrtSessionOptions **options)
{
    return ort->CreateSessionOptions(options);
}

static OrtStatus *append_provider(OrtSessionOptions *options, OrtEnv *env, const OrtEpDevice **devices,
                                  size_t n_devices, char **keys, char **values, size_t n)
{
    return ort->SessionOptionsAppendExecutionProvider_V2(options, env, devices, n_devices,
                                                         (const char *const *)keys,
                                                         (const char *const *)values, n);
}

static OrtStatus *create_session(OrtEnv *env, const char *path, const OrtSessionOptions *options,
                                 OrtSession **session)
{
    return ort->CreateSession(env, path, options, session);
}

// Runs the session with x and copies up to `most` numbers of y.
static OrtStatus *run(OrtSession *session, float *x, float *y, size_t most, size_t *n)
{
    const char *const input = "x", *const output = "y";
    const int64_t shape[] = {2, 64};
    OrtMemoryInfo *memory = NULL;
    OrtValue *in = NULL, *out = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    float *data = NULL;
    OrtStatus *failed = ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory);
    if (!failed)
        failed = ort->CreateTensorWithDataAsOrtValue(memory, x, 2 * 64 * sizeof *x, shape, 2,
                                                     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &in);
    if (!failed)
        failed = ort->Run(session, NULL, &input, (const OrtValue *const *)&in, 1, &output, 1, &out);
    if (!failed)
        failed = ort->GetTensorTypeAndShape(out, &info);
    if (!failed)
        failed = ort->GetTensorShapeElementCount(info, n);
    if (!failed)
        failed = ort->GetTensorMutableData(out, (void **)&data);
    for (size_t i = 0; !failed && i < *n && i < most; i++)
        y[i] = data[i];
    ort->ReleaseTensorTypeAndShapeInfo(info);
    ort->ReleaseValue(out);
    ort->ReleaseValue(in);
    ort->ReleaseMemoryInfo(memory);
    return failed;
}

static void release(OrtSession *session, OrtSessionOptions *options, OrtEnv *env)
{
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

const providerName = "TesseraExecutionProvider"

// check ends the program with the message of a failed call.
func check(status *C.OrtStatus) {
	if status == nil {
		return
	}
	fmt.Fprintln(os.Stderr, C.GoString(C.message(status)))
	C.release_status(status)
	os.Exit(1)
}

// cStrings copies texts to memory of C. The caller frees each of them.
func cStrings(texts ...string) []*C.char {
	copies := make([]*C.char, len(texts))
	for i, text := range texts {
		copies[i] = C.CString(text)
	}
	return copies
}

func free(texts []*C.char) {
	for _, text := range texts {
		C.free(unsafe.Pointer(text))
	}
}

// useTessera appends the devices of the provider to the options of a session.
func useTessera(env *C.OrtEnv, options *C.OrtSessionOptions, devices string) {
	var all **C.OrtEpDevice
	var n C.size_t
	check(C.get_devices(env, &all, &n))
	var found []*C.OrtEpDevice
	for _, device := range unsafe.Slice(all, n) {
		if C.GoString(C.provider_of(device)) == providerName {
			found = append(found, device)
		}
	}
	if len(found) == 0 {
		fmt.Fprintln(os.Stderr, "the library has no device of "+providerName)
		os.Exit(1)
	}
	keys, values := cStrings("devices", "strict"), cStrings(devices, "1")
	defer free(keys)
	defer free(values)
	check(C.append_provider(options, env, &found[0], C.size_t(len(found)), &keys[0], &values[0], 2))
}

func main() {
	if len(os.Args) != 4 || C.load_api() == 0 {
		fmt.Fprintln(os.Stderr, "usage: provider LIBRARY MODEL DEVICES (ONNX Runtime 1.24 or later)")
		os.Exit(2)
	}
	words := cStrings("tessera", os.Args[1], os.Args[2])
	defer free(words)
	var env *C.OrtEnv
	var options *C.OrtSessionOptions
	var session *C.OrtSession
	check(C.create_env(&env))
	check(C.register_library(env, words[0], words[1]))
	check(C.create_options(&options))
	useTessera(env, options, os.Args[3])
	check(C.create_session(env, words[2], options, &session))

	var x, y [2 * 64]C.float
	var n C.size_t
	for i := range x {
		x[i] = C.float(i % 7)
	}
	check(C.run(session, &x[0], &y[0], C.size_t(len(y)), &n))
	for _, value := range y[:n] {
		fmt.Printf("%.6g ", float32(value))
	}
	fmt.Println()
	C.release(session, options, env)
}
