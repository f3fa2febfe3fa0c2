// SPDX-License-Identifier: Apache-2.0
// provider.cpp - runs an unchanged ONNX model on several devices with the C++ API of ONNX Runtime.
//
//   c++ -std=c++17 -I ONNXRUNTIME/include provider.cpp -L ONNXRUNTIME/lib -lonnxruntime -o provider
//   ./provider $PWD/build/libtessera_ep.so model.onnx 2
//
// The path of the library is absolute: ONNX Runtime searches relative ones in its own folder.
// The model has the input "x" of 2 x 64 floats and the output "y". Needs ONNX Runtime 1.24 or
// later.
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

static void run(Ort::Env &env, const char *model, const std::string &devices)
{
    std::vector<Ort::ConstEpDevice> tessera;
    for (const auto &device : env.GetEpDevices())
        if (std::string(device.EpName()) == "TesseraExecutionProvider")
            tessera.push_back(device);
    Ort::SessionOptions options;
    Ort::KeyValuePairs settings;
    settings.Add("devices", devices.c_str());
    settings.Add("strict", "1");
    options.AppendExecutionProvider_V2(env, tessera, settings);
    Ort::Session session(env, model, options);

    const std::array<int64_t, 2> shape = {2, 64};
    std::array<float, 2 * 64> data;
    for (size_t i = 0; i < data.size(); i++)
        data[i] = static_cast<float>(i % 7);
    auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    auto x = Ort::Value::CreateTensor<float>(memory, data.data(), data.size(), shape.data(),
                                             shape.size());
    const char *inputs[] = {"x"}, *outputs[] = {"y"};
    auto y = session.Run(Ort::RunOptions{nullptr}, inputs, &x, 1, outputs, 1);
    const float *result = y[0].GetTensorData<float>();
    const size_t n = y[0].GetTensorTypeAndShapeInfo().GetElementCount();
    for (size_t i = 0; i < n; i++)
        std::printf("%s%.6g", i ? " " : "", result[i]);
    std::printf("\n");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::fprintf(stderr, "usage: provider LIBRARY MODEL DEVICES\n");
        return 2;
    }
    try {
        Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "example");
        env.RegisterExecutionProviderLibrary("tessera", argv[1]);
        run(env, argv[2], argv[3]);
    } catch (const Ort::Exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
