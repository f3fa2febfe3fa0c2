// SPDX-License-Identifier: Apache-2.0
// reach.c - where ONNX Runtime puts the tensors of a rank whose neighbours are processes: into memory that they can
// reach, so that what is added up or sent is read where it lies.
//
// ONNX Runtime takes one allocator for the whole process. Ours is asked by the sessions of ranks alone, and only while
// they run: weights, packed or not, stay in ordinary memory, which has larger pages. When there is no more shared memory,
// ordinary memory is given; such tensors go through the transport's own buffers.
#include "runtime/internal.h"

// ONNX Runtime does not look whether there was memory: it wants an exception, which its own allocator throws, through
// this function. Nothing here has to be undone then.
static void *give(OrtAllocator *a, size_t bytes)
{
    struct shared_memory *m = (struct shared_memory *)a;
    void *p = NULL;
    if (atomic_load_explicit(&m->running, memory_order_relaxed))
        p = m->endpoint->transport->alloc(m->endpoint, bytes);
    return p ? p : m->ordinary->Alloc(m->ordinary, bytes);
}

static void take_back(OrtAllocator *a, void *p)
{
    struct shared_memory *m = (struct shared_memory *)a;
    if (p && !m->endpoint->transport->release(m->endpoint, p))
        m->ordinary->Free(m->ordinary, p);
}

static const OrtMemoryInfo *info_of(const OrtAllocator *a)
{
    return ((const struct shared_memory *)a)->info;
}

bool tsr__reach_share(struct engine *e, struct endpoint *place)
{
    struct shared_memory *m = &e->shared;
    if (!place || !place->transport->alloc)
        return false;
    if (m->info)
        return m->endpoint == place;
    m->base = (OrtAllocator){.version = ORT_API, .Alloc = give, .Free = take_back, .Info = info_of};
    m->ordinary = e->allocator;
    m->endpoint = place;
    OrtStatus *st = e->api->CreateCpuMemoryInfo(ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &m->info);
    if (!st)
        st = e->api->RegisterAllocator(e->env, &m->base);
    if (!st)
        return true;
    e->api->ReleaseStatus(st); // somebody else has registered one: tensors stay where they were
    if (m->info)
        e->api->ReleaseMemoryInfo(m->info);
    m->info = NULL;
    return false;
}

void tsr__reach_running(struct engine *e, bool running)
{
    atomic_store(&e->shared.running, running);
}

void tsr__reach_end(struct engine *e)
{
    struct shared_memory *m = &e->shared;
    OrtStatus *st = m->info ? e->api->UnregisterAllocator(e->env, m->info) : NULL;
    if (st)
        e->api->ReleaseStatus(st);
    if (m->info)
        e->api->ReleaseMemoryInfo(m->info);
    m->info = NULL;
}
