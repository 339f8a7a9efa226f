#include "trainer/math/cuda/graphs.h"

#include "trainer/math/cuda/grid.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS (2u * PD_CUDA_GRAPHS_MAX) /* a power of two; half of them stay empty */

struct kept {
    struct pd_math_key key;
    cudaGraphExec_t run; /* NULL: it has come once */
    uint64_t nodes;
};

struct pd_cuda_graphs {
    cudaStream_t stream;
    struct kept *recorded; /* NULL: nothing is */
    uint32_t known; /* runs that have come */
    struct pd_cuda_graphs_held held;
    bool is_full;          /* the device had no memory for one: no more are made */
    struct kept **slots;   /* (SLOTS), open addressing; NULL: empty */
};

static pd_status fail(cudaError_t code, const char *what, struct pd_error *err)
{
    (void)cudaGetLastError(); /* which the next kernel's launch would meet */
    return pd_error_set(err, PD_DEVICE_LOST, PD_WHERE, 0, "GPU: %s: %s", what, cudaGetErrorString(code));
}

static bool is_equal(const struct pd_math_key *a, const struct pd_math_key *b)
{
    return a->count == b->count && memcmp(a->parts, b->parts, a->count * sizeof *a->parts) == 0;
}

/* FNV-1a over the addresses. */
static uint32_t hash_of(const struct pd_math_key *key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < key->count; i++)
        hash = (hash ^ reinterpret_cast<uintptr_t>(key->parts[i])) * UINT64_C(0x100000001b3);
    return static_cast<uint32_t>(hash >> 32 ^ hash);
}

static struct kept **slot_of(struct pd_cuda_graphs *g, const struct pd_math_key *key)
{
    uint32_t i = hash_of(key) % SLOTS;
    while (g->slots[i] && !is_equal(&g->slots[i]->key, key))
        i = (i + 1) % SLOTS;
    return &g->slots[i];
}

pd_status pd_cuda_graphs_new(void *stream, struct pd_cuda_graphs **ret_graphs, struct pd_error *err)
{
    struct pd_cuda_graphs *g = static_cast<struct pd_cuda_graphs *>(calloc(1, sizeof *g));
    if (g) g->slots = static_cast<struct kept **>(calloc(SLOTS, sizeof *g->slots));
    if (!g || !g->slots) {
        free(g);
        return pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "GPU: no memory for the table of graphs");
    }
    g->stream = static_cast<cudaStream_t>(stream);
    *ret_graphs = g;
    return PD_OK;
}

void pd_cuda_graphs_free(struct pd_cuda_graphs *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (g->slots[i] && g->slots[i]->run) cudaGraphExecDestroy(g->slots[i]->run);
        free(g->slots[i]);
    }
    free(g->slots);
    free(g);
}

/* What a first call does once (kernels are loaded, algorithms looked up, workspaces made) may not happen while a stream is
 * recorded, so a run comes once as without graphs. */
static pd_status note(struct pd_cuda_graphs *g, struct kept **slot, const struct pd_math_key *key, struct pd_error *err)
{
    if (g->known == PD_CUDA_GRAPHS_MAX) return PD_OK;
    *slot = static_cast<struct kept *>(calloc(1, sizeof **slot));
    if (!*slot) return pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "GPU: no memory for a graph");
    (*slot)->key = *key;
    g->known++;
    return PD_OK;
}

/* Of a call that may find no memory: then the graph goes, and no more are made. */
static pd_status passed(struct pd_cuda_graphs *g, struct kept *kept, cudaError_t code, const char *what, bool *ret_passed,
                        struct pd_error *err)
{
    *ret_passed = code == cudaSuccess;
    if (code == cudaSuccess) return PD_OK;
    if (code != cudaErrorMemoryAllocation) return fail(code, what, err);
    (void)cudaGetLastError();
    g->is_full = true;
    if (kept->run) cudaGraphExecDestroy(kept->run);
    g->held.count -= kept->run != NULL;
    g->held.nodes -= kept->run ? kept->nodes : 0;
    kept->run = NULL;
    return PD_OK;
}

static pd_status launch(struct pd_cuda_graphs *g, struct kept *kept, bool *ret_launched, struct pd_error *err)
{
    return passed(g, kept, cudaGraphLaunch(kept->run, g->stream), "launching a graph", ret_launched, err);
}

pd_status pd_cuda_graphs_begin(struct pd_cuda_graphs *g, const struct pd_math_key *key, bool *ret_done, struct pd_error *err)
{
    struct kept **slot = slot_of(g, key);
    *ret_done = false;
    if (*slot && (*slot)->run) PD_TRY(launch(g, *slot, ret_done, err));
    if (*ret_done || key->is_rare || g->is_full) return PD_OK;
    if (!*slot) return note(g, slot, key, err);
    if (cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess)
        g->recorded = *slot;
    else
        (void)cudaGetLastError(); /* as without graphs */
    return PD_OK;
}

/* 0: the driver does not say. */
static uint64_t free_bytes(void)
{
    size_t free, total;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) return free;
    (void)cudaGetLastError();
    return 0;
}

/* Keeps the graph and queues it; it is gone when this returns, and its executable form stays. */
static pd_status keep(struct pd_cuda_graphs *g, struct kept *kept, cudaGraph_t graph, bool *ret_queued, struct pd_error *err)
{
    cudaGraphExec_t run = NULL;
    size_t nodes = 0;
    const uint64_t before = free_bytes();
    if (cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess) (void)cudaGetLastError();
    PD_TRY(passed(g, kept, cudaGraphInstantiate(&run, graph, 0), "making a graph of a block", ret_queued, err));
    if (!*ret_queued) return PD_OK;
    kept->run = run;
    kept->nodes = nodes;
    g->held.count++;
    g->held.nodes += nodes;
    PD_TRY(launch(g, kept, ret_queued, err));
    const uint64_t after = free_bytes();
    g->held.bytes += after && before > after ? before - after : 0;
    return PD_OK;
}

pd_status pd_cuda_graphs_end(struct pd_cuda_graphs *g, bool is_whole, bool *ret_again, struct pd_error *err)
{
    struct kept *const kept = g->recorded;
    cudaGraph_t graph = NULL;
    bool is_queued = false;
    *ret_again = false;
    if (!kept) return PD_OK;
    g->recorded = NULL;
    const cudaError_t code = cudaStreamEndCapture(g->stream, &graph);
    if (code != cudaSuccess) {
        const pd_status failed = fail(code, "recording a block", err);
        return is_whole ? failed : PD_OK;
    }
    const pd_status st = is_whole ? keep(g, kept, graph, &is_queued, err) : PD_OK;
    cudaGraphDestroy(graph);
    *ret_again = !st && is_whole && !is_queued;
    return st;
}

struct pd_cuda_graphs_held pd_cuda_graphs_hold(const struct pd_cuda_graphs *g)
{
    const struct pd_cuda_graphs_held none = {0, 0, 0};
    return g ? g->held : none;
}
