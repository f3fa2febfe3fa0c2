// SPDX-License-Identifier: Apache-2.0
// shapes_peer.cc - shape inference by libonnx on a model in memory: shapes_peer FILE. Prints the
// CPU time of InferShapes in milliseconds; checks that it inferred as many shapes as there are
// nodes.
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <cstdio>
#include <ctime>
#include <fstream>

static double cpu_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

int main(int argc, char **argv)
{
    onnx::ModelProto m;
    std::ifstream in(argc > 1 ? argv[1] : "", std::ios::binary);
    if (!m.ParseFromIstream(&in))
        return 1;
    double start = cpu_ms();
    onnx::shape_inference::InferShapes(m);
    double ms = cpu_ms() - start;
    if (m.graph().value_info_size() + 1 < m.graph().node_size())
        return 1;
    std::printf("%.3f\n", ms);
    return 0;
}
