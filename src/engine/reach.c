// SPDX-License-Identifier: Apache-2.0
// reach.c - an allocator for ONNX Runtime: if ranks are processes of one host, tensors of a run are
// in shared memory, so that other ranks can read them without a copy.
//
// ONNX Runtime uses one allocator per process. Only sessions of ranks use ours, and only while they
// run: weights stay in ordinary memory, which has larger pages. When no shared memory is left,
// ordinary memory is used; such tensors go through buffers of the transport.
#include "engine/engine.h"
#include "transport/transport.h"

// Allocates memory for the engine; while a model runs, memory that other ranks can access. ONNX
// Runtime does not check for NULL: it expects the exception that its own allocator throws, and this
// function lets it pass. Any thread of the engine calls this. The rank's thread sets
// memory->running; an outdated value does no harm, because `release` checks where the memory came
// from.
static void *allocate(OrtAllocator *a, size_t bytes)
{
    struct shared_memory *memory = (struct shared_memory *)a;
    void *p = NULL;
    if (atomic_load_explicit(&memory->running, memory_order_relaxed))
        p = memory->endpoint->transport->alloc(memory->endpoint, bytes);
    return p ? p : memory->ordinary->Alloc(memory->ordinary, bytes);
}

// Frees memory of the engine. The transport recognizes its own addresses and returns false for all
// others.
static void release(OrtAllocator *a, void *p)
{
    struct shared_memory *memory = (struct shared_memory *)a;
    if (p && !memory->endpoint->transport->release(memory->endpoint, p))
        memory->ordinary->Free(memory->ordinary, p);
}

static const OrtMemoryInfo *info_of(const OrtAllocator *a)
{
    return ((const struct shared_memory *)a)->info;
}

// Lets the engine allocate memory that other ranks can access. This is registered once per engine;
// later calls return true if they pass the same endpoint.
bool tsr__reach_share(struct engine *engine, struct endpoint *place)
{
    struct shared_memory *memory = &engine->shared;
    if (!place || !place->transport->alloc)
        return false;
    if (memory->info)
        return memory->endpoint == place;
    memory->base =
        (OrtAllocator){.version = ORT_API, .Alloc = allocate, .Free = release, .Info = info_of};
    memory->ordinary = engine->allocator;
    memory->endpoint = place;
    OrtStatus *st =
        engine->api->CreateCpuMemoryInfo(ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &memory->info);
    if (!st)
        st = engine->api->RegisterAllocator(engine->env, &memory->base);
    if (!st)
        return true;
    // the application has registered one: tensors stay in ordinary memory
    engine->api->ReleaseStatus(st);
    if (memory->info)
        engine->api->ReleaseMemoryInfo(memory->info);
    memory->info = NULL;
    return false;
}

// Sets whether a model runs. Shared memory is limited, so only tensors of runs use it.
void tsr__reach_running(struct engine *engine, bool running)
{
    atomic_store(&engine->shared.running, running);
}

// Unregisters the shared allocator. Call it before tsr__comm_close, because the allocator uses the
// endpoint.
void tsr__reach_end(struct engine *engine)
{
    struct shared_memory *memory = &engine->shared;
    OrtStatus *st =
        memory->info ? engine->api->UnregisterAllocator(engine->env, memory->info) : NULL;
    if (st)
        engine->api->ReleaseStatus(st);
    if (memory->info)
        engine->api->ReleaseMemoryInfo(memory->info);
    memory->info = NULL;
}
