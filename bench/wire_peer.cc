// SPDX-License-Identifier: Apache-2.0
// wire_peer.cc - the tasks of the benchmark `wire` with C++ protobuf: wire_peer
// load|encode|parse|open FILE ROUNDS.
//
//  load    parse on the heap from a mapped file, then build a hash map of value names and all edges
//  encode  parse on an arena, then encode into existing memory
//  parse   only parse on an arena from a mapped file
//  open    the same in wall time; the others measure CPU time
// Prints "best first rss": milliseconds of the best and of the first round, peak memory in MB.
#include "onnx.pb.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using tsrbench::ModelProto;

static clockid_t clock_used = CLOCK_PROCESS_CPUTIME_ID;

static double now_ms()
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

struct Map {
    const char *p = nullptr;
    size_t n = 0;
    explicit Map(const char *path)
    {
        int fd = open(path, O_RDONLY);
        struct stat info;
        if (fd < 0 || fstat(fd, &info) != 0)
            exit(1);
        n = static_cast<size_t>(info.st_size);
        p = static_cast<const char *>(mmap(nullptr, n, PROT_READ, MAP_PRIVATE, fd, 0));
        close(fd);
        if (p == MAP_FAILED)
            exit(1);
    }
    ~Map() { munmap(const_cast<char *>(p), n); }
};

struct Edge {
    int from, to;
};

// Builds a map from names to producers, and an edge for each input: the first step of most users of
// a parsed model.
static size_t resolve(const ModelProto &m)
{
    const auto &g = m.graph();
    std::unordered_map<std::string_view, int> producers;
    producers.reserve(static_cast<size_t>(g.node_size() + g.initializer_size() + g.input_size()));
    for (const auto &i : g.input())
        producers.emplace(i.name(), -1);
    for (const auto &t : g.initializer())
        producers.emplace(t.name(), -2);
    std::vector<Edge> edges;
    edges.reserve(static_cast<size_t>(g.node_size()) * 2);
    for (int i = 0; i < g.node_size(); i++) {
        for (const auto &name : g.node(i).input()) {
            auto found = producers.find(name);
            if (found == producers.end())
                exit(1);
            edges.push_back({found->second, i});
        }
        for (const auto &name : g.node(i).output())
            producers.emplace(name, i);
    }
    for (const auto &v : g.value_info())
        if (producers.find(v.name()) == producers.end())
            exit(1);
    return edges.size();
}

static double load(const char *path)
{
    double start = now_ms();
    Map map(path);
    auto m = std::make_unique<ModelProto>();
    if (!m->ParseFromArray(map.p, static_cast<int>(map.n)) || resolve(*m) == 0)
        exit(1);
    return now_ms() - start; // without the time to free the model
}

static double parse(const char *path)
{
    double start = now_ms();
    Map map(path);
    google::protobuf::Arena arena;
    auto *m = google::protobuf::Arena::CreateMessage<ModelProto>(&arena);
    if (!m->ParseFromArray(map.p, static_cast<int>(map.n)))
        exit(1);
    return now_ms() - start;
}

static double encode(ModelProto *m, char *out)
{
    double start = now_ms();
    size_t n = m->ByteSizeLong();
    m->SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t *>(out));
    double took = now_ms() - start;
    if (n == 0)
        exit(1);
    return took;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int rounds = (int)strtol(argv[3], NULL, 10);
    if (!strcmp(argv[1], "open"))
        clock_used = CLOCK_MONOTONIC;
    double best = 0, first = 0;
    google::protobuf::Arena arena;
    ModelProto *m = nullptr;
    char *out = nullptr;
    if (!strcmp(argv[1], "encode")) {
        Map map(argv[2]);
        m = google::protobuf::Arena::CreateMessage<ModelProto>(&arena);
        if (!m->ParseFromArray(map.p, static_cast<int>(map.n)))
            return 1;
        out = static_cast<char *>(malloc(map.n + 16));
        memset(out, 1, map.n + 16);
    }
    for (int i = 0; i < rounds; i++) {
        double took = m                          ? encode(m, out)
                      : !strcmp(argv[1], "load") ? load(argv[2])
                                                 : parse(argv[2]);
        first = i ? first : took;
        best = i && best < took ? best : took;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.4f %.4f %.1f\n", best, first, static_cast<double>(usage.ru_maxrss) / 1024);
    return 0;
}
