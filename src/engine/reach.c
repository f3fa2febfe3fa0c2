// SPDX-License-Identifier: Apache-2.0
// reach.c - where ONNX Runtime puts the tensors of a rank whose neighbours are processes: into
// memory that they can reach, so that what is added up or sent is read where it lies.
//
// ONNX Runtime takes one allocator for the whole process. Ours is asked by the sessions of ranks
// alone, and only while they run: weights, packed or not, stay in ordinary memory, which has larger
// pages. When there is no more shared memory, ordinary memory is given; such tensors go through the
// transport's own buffers.
#include "engine/engine.h"
#include "transport/transport.h"

// ONNX Runtime does not look whether there was memory: it wants an exception, which its own
// allocator throws, through this function. Nothing here has to be undone then. Called by any thread
// of the engine. memory->running is set by the rank's thread before and after sessions are made; a
// value that is a moment old does no harm, because take_back asks where memory came from.
static void *give(OrtAllocator *a, size_t bytes)
{
    struct shared_memory *memory = (struct shared_memory *)a;
    void *p = NULL;
    if (atomic_load_explicit(&memory->running, memory_order_relaxed))
        p = memory->endpoint->transport->alloc(memory->endpoint, bytes);
    return p ? p : memory->ordinary->Alloc(memory->ordinary, bytes);
}

// The transport knows its own addresses and says false for all others.
static void take_back(OrtAllocator *a, void *p)
{
    struct shared_memory *memory = (struct shared_memory *)a;
    if (p && !memory->endpoint->transport->release(memory->endpoint, p))
        memory->ordinary->Free(memory->ordinary, p);
}

static const OrtMemoryInfo *info_of(const OrtAllocator *a)
{
    return ((const struct shared_memory *)a)->info;
}

// Registered once per engine; a later session asks again, and gets the answer of the first if its
// endpoint is the same.
bool tsr__reach_share(struct engine *engine, struct endpoint *place)
{
    struct shared_memory *memory = &engine->shared;
    if (!place || !place->transport->alloc)
        return false;
    if (memory->info)
        return memory->endpoint == place;
    memory->base =
        (OrtAllocator){.version = ORT_API, .Alloc = give, .Free = take_back, .Info = info_of};
    memory->ordinary = engine->allocator;
    memory->endpoint = place;
    OrtStatus *st =
        engine->api->CreateCpuMemoryInfo(ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &memory->info);
    if (!st)
        st = engine->api->RegisterAllocator(engine->env, &memory->base);
    if (!st)
        return true;
    engine->api->ReleaseStatus(st); // the host has registered one: tensors stay in ordinary memory
    if (memory->info)
        engine->api->ReleaseMemoryInfo(memory->info);
    memory->info = NULL;
    return false;
}

// Only what runs allocate is worth the shared memory, of which there is less.
void tsr__reach_running(struct engine *engine, bool running)
{
    atomic_store(&engine->shared.running, running);
}

// The engine must not ask an allocator whose endpoint is gone: hence before tsr__comm_close.
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
