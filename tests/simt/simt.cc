/* The scheduler: threads of one block, run in turn until each waits at a barrier, waits for its warp, or has returned.
 *
 *   new -> ready <-> waits at a barrier, for its warp -> returned
 *
 * A fiber whose thread has returned goes on with the next new one: threads that never wait take one stack and no switch.
 *
 *   invariant  a fiber runs only while simt_self is its place; whoever arrives last at a warp operation releases the others,
 *              and the scheduler releases a barrier when nobody is ready and all are there; when nobody is ready otherwise,
 *              or a rule is broken, the launch ends and its fibers are abandoned */
#define SIMT_RUNTIME
#include <simt.h>

#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "fiber.h"
#include "machine.h"
#include "simt_wait.h"

#define THREADS_MAX 1024u
#define SHARED_MAX 232448u /* of a block on compute capability 9.0 and 10.0 */
#define SHARED_STATIC_MAX 49152u
#define GRID_YZ_MAX 65535u
#define SNAPSHOTS 4u
#define WARP_ALL 0xffffffffu

namespace
{

enum state { NEW, READY, AT_BARRIER, IN_WARP, WAITING, RETURNED };

struct copy {
    void *shared;
    unsigned char bytes[16];
    unsigned group;
};

struct thread {
    simt_place place; /* first: simt_self points to it */
    unsigned index;
    state at;
    const char *operation;       /* of the warp, while IN_WARP; what for, while WAITING */
    bool (*there)(void *, bool); /* while WAITING */
    void *there_context;
    uint32_t mask;
    unsigned char deposit[SIMT_LANE_BYTES];
    size_t deposit_bytes;
    const simt_lanes *snapshot;
    std::vector<copy> copies; /* cp.async that nobody has waited for */
    unsigned group;           /* of copies, the open one */
    simt_fiber *fiber;        /* from its first instruction on */
};

struct shared_variable {
    const void *key;
    size_t bytes;
    void *data;
};

struct warp {
    simt_lanes snapshots[SNAPSHOTS];
    float sums[SNAPSHOTS][32][4]; /* of a product, once one lane has asked */
    bool is_summed[SNAPSHOTS];
    unsigned next;
};

struct launch {
    const char *kernel;
    void (*body)(void *);
    void *context;
    unsigned threads;
    std::vector<shared_variable> shared;
    size_t shared_bytes, static_bytes;
    unsigned char *dynamic;
    std::vector<unsigned> order;            /* of the threads of a block */
    unsigned begun, fibers_taken, returned; /* of a block */
    uint32_t blocks, place, taken;          /* of the grid; where the block is in the order of blocks; its items */
    char problem[640];
};

/* Kept for the next launch, and reachable to the end. */
std::vector<thread *> &threads = *new std::vector<thread *>();
std::vector<simt_fiber *> &fibers = *new std::vector<simt_fiber *>();
std::vector<warp> warps;
launch *current;
simt_fiber scheduler;
uint64_t order_seed;
bool order_is_set, last_alone;
constexpr unsigned WARPGROUP = 128;

thread *self()
{
    return reinterpret_cast<thread *>(const_cast<simt_place *>(simt_self));
}

uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

std::vector<unsigned> make_order(unsigned count, uint64_t salt)
{
    std::vector<unsigned> order(count);
    for (unsigned i = 0; i < count; i++)
        order[i] = order_seed == 1 ? count - 1 - i : i;
    if (order_seed < 2) return order;
    for (unsigned i = count; i > 1; i--) {
        const unsigned j = static_cast<unsigned>(mix(order_seed * 1000003 + salt + i) % i);
        const unsigned kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    return order;
}

void pause_self()
{
    thread *t = self();
    simt_fiber_switch(t->fiber, &scheduler);
}

/* Makes the next new thread of the block the running one. */
bool begin_next(simt_fiber *fiber)
{
    if (current->begun == current->threads) return false;
    thread *t = threads[current->order[current->begun++]];
    t->at = READY;
    t->fiber = fiber;
    simt_self = &t->place;
    return true;
}

void fiber_main(void *argument)
{
    (void)argument;
    simt_fiber *fiber = self()->fiber;
    do {
        current->body(current->context);
        thread *t = self();
        if (!t->copies.empty()) simt_fail("returns with cp.async under way: wait for its groups first");
        simt_hopper_return();
        t->at = RETURNED;
        current->returned++;
    } while (begin_next(fiber));
    simt_fiber_leave(fiber, &scheduler);
}

void describe(char *to, size_t bytes, const thread *t)
{
    snprintf(to, bytes, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", current->kernel, t->place.block.x,
             t->place.block.y, t->place.block.z, t->place.thread.x, t->place.thread.y, t->place.thread.z);
}

const char *doing(const thread *t)
{
    return t->at == AT_BARRIER ? "waits at __syncthreads" : t->at == RETURNED ? "has returned" : t->operation;
}

/* Nobody can go on. Names one that waits and one that it waits for. */
void explain_standstill()
{
    char who[160];
    for (unsigned i = 0; i < current->threads; i++) {
        const thread *t = threads[i];
        if (t->at == RETURNED) continue;
        describe(who, sizeof who, t);
        if (t->at == WAITING) {
            snprintf(current->problem, sizeof current->problem, "%s %s, and nobody can continue", who, doing(t));
            return;
        }
        for (unsigned j = 0; j < current->threads; j++) {
            const thread *o = threads[j];
            const bool awaited = t->at == AT_BARRIER ? o->at != AT_BARRIER
                                                     : o->index / 32 == t->index / 32 && (t->mask >> (o->index % 32) & 1u) &&
                                                           (o->at != IN_WARP || strcmp(o->operation, t->operation) != 0 ||
                                                            o->mask != t->mask);
            if (!awaited) continue;
            snprintf(current->problem, sizeof current->problem,
                     "%s %s%s which thread (%u,%u,%u) does not reach: it %s%s; let all threads of it get there", who,
                     t->at == IN_WARP ? "is in " : "", doing(t), o->place.thread.x, o->place.thread.y, o->place.thread.z,
                     o->at == IN_WARP ? "is in " : "", doing(o));
            return;
        }
    }
    describe(who, sizeof who, threads[0]);
    snprintf(current->problem, sizeof current->problem, "%s: nobody can continue", who);
}

bool release_barrier()
{
    for (unsigned i = 0; i < current->threads; i++)
        if (threads[i]->at != AT_BARRIER) return false;
    for (unsigned i = 0; i < current->threads; i++)
        threads[i]->at = READY;
    return true;
}

/* Of threads whose warpgroup is `late` or of the others: those that can go on as things are; else the first that can when
 * what was late comes. */
bool release_some(unsigned late, bool is_late)
{
    bool any = false;
    for (bool idle : {false, true})
        for (unsigned i : current->order) {
            if (idle && any) return true;
            thread *t = threads[i];
            if ((i / WARPGROUP == late) != is_late || t->at != WAITING || !t->there(t->there_context, idle)) continue;
            t->at = READY;
            any = true;
            if (idle) return true;
        }
    return any;
}

/* An order by a seed holds one warpgroup back: it goes on where no other can. */
bool release_waiting()
{
    const unsigned groups = (current->threads + WARPGROUP - 1) / WARPGROUP;
    const unsigned late = order_seed > 1 ? static_cast<unsigned>(mix(order_seed) % groups) : groups;
    return release_some(late, false) || release_some(late, true);
}

void start_grid(dim3 grid, dim3 block)
{
    for (unsigned i = 0; i < current->threads; i++) {
        thread *t = threads[i];
        t->place = {dim3(i % block.x, i / block.x % block.y, i / block.x / block.y), dim3(), block, grid};
        t->index = i;
    }
}

void start_block(dim3 at)
{
    simt_hopper_begin();
    for (unsigned i = 0; i < current->threads; i++) {
        thread *t = threads[i];
        t->place.block = at;
        t->at = NEW;
        t->copies.clear();
        t->group = 0;
    }
    current->begun = current->fibers_taken = current->returned = current->taken = 0;
}

void run_new()
{
    while (current->begun < current->threads && !current->problem[0]) {
        if (current->fibers_taken == fibers.size()) {
            fibers.push_back(new simt_fiber());
            simt_fiber_init(fibers.back());
        }
        simt_fiber *fiber = fibers[current->fibers_taken++];
        begin_next(fiber);
        simt_fiber_start(fiber, fiber_main);
        simt_fiber_switch(&scheduler, fiber);
    }
}

/* What it will pop is far away by now. */
void look_ahead(const thread *t)
{
#ifdef SIMT_OWN_SWITCH
    if (t->at == READY) __builtin_prefetch(t->fiber->stack_pointer);
#else
    (void)t;
#endif
}

void run_block()
{
    const std::vector<unsigned> &order = current->order;
    run_new();
    while (current->returned < current->threads && !current->problem[0]) {
        bool any = false;
        for (size_t i = 0; i < order.size(); i++) {
            thread *t = threads[order[i]];
            if (i + 2 < order.size()) look_ahead(threads[order[i + 2]]);
            if (t->at != READY) continue;
            any = true;
            simt_self = &t->place;
            simt_fiber_switch(&scheduler, t->fiber);
            if (current->problem[0]) return;
        }
        if (any || current->returned == current->threads || release_barrier() || release_waiting()) continue;
        explain_standstill();
    }
}

void end_block()
{
    const char *wrong = current->problem[0] ? nullptr : simt_hopper_end();
    if (wrong) snprintf(current->problem, sizeof current->problem, "kernel %s: a block %s", current->kernel, wrong);
    for (const shared_variable &v : current->shared)
        free(v.data);
    current->shared.clear();
    current->static_bytes = 0;
}

void *poisoned(size_t bytes)
{
    void *data;
    if (posix_memalign(&data, 1024, bytes)) abort();
    memset(data, 0xff, bytes);
    return data;
}

void prepare(unsigned count)
{
    while (threads.size() < count)
        threads.push_back(new thread());
    if (warps.size() < (count + 31) / 32) warps.resize((count + 31) / 32);
    if (!order_is_set) {
        const char *asked = getenv("PERDURE_SIMT_ORDER");
        simt_set_order(asked ? strtoull(asked, nullptr, 10) : 0);
    }
}

void run_grid(dim3 grid, dim3 block)
{
    start_grid(grid, block);
    current->order = make_order(current->threads, 1);
    const uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    current->blocks = static_cast<uint32_t>(blocks);
    for (uint64_t i = last_alone ? blocks - 1 : 0; i < blocks && !current->problem[0]; i++) {
        uint64_t b = i;
        if (order_seed == 1) b = blocks - 1 - i;
        if (order_seed > 1) b = (i + mix(order_seed)) % blocks;
        current->place = static_cast<uint32_t>(i);
        start_block(dim3(static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                         static_cast<unsigned>(b / grid.x / grid.y)));
        if (current->shared_bytes) current->dynamic = static_cast<unsigned char *>(poisoned(current->shared_bytes));
        run_block();
        free(current->dynamic);
        current->dynamic = nullptr;
        end_block();
    }
}

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
size_t shared_max()
{
    const unsigned capability = simt_machine().capability;
    if (capability == 86 || capability == 89 || capability >= 120) return 101376;
    return capability < 90 ? 166912 : SHARED_MAX;
}

/* What lies in the host's memory, and is not pinned, is not there for a GPU. */
pd_status check_words(const simt_grid &g, struct pd_error *err)
{
    simt_turn turn;
    for (const uint64_t word : g.words)
        if (simt_memory_is_hosts(word))
            PD_FAIL(err, PD_BUG, "kernel %s is given %p, memory of the host that is not pinned: copy it to the device",
                    g.kernel, reinterpret_cast<void *>(static_cast<uintptr_t>(word)));
    return PD_OK;
}

pd_status check_shape(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, struct pd_error *err)
{
    const uint64_t count = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (count == 0 || count > THREADS_MAX || block.z > 64)
        PD_FAIL(err, PD_DEVICE_LOST, "kernel %s: a block of %u x %u x %u threads; a device takes 1 to %u", kernel, block.x,
                block.y, block.z, THREADS_MAX);
    if (grid.x > 0x7fffffffu || grid.y > GRID_YZ_MAX || grid.z > GRID_YZ_MAX)
        PD_FAIL(err, PD_DEVICE_LOST, "kernel %s: a grid of %u x %u x %u blocks; y and z end at %u", kernel, grid.x, grid.y,
                grid.z, GRID_YZ_MAX);
    if (shared_bytes > shared_max())
        PD_FAIL(err, PD_DEVICE_LOST, "kernel %s: %zu bytes of shared memory; a block gets at most %zu", kernel, shared_bytes,
                shared_max());
    return PD_OK;
}

/* The caller holds a turn of the machine. */
pd_status run(const simt_grid &g, void *context, struct pd_error *err)
{
    launch l = {};
    l.kernel = g.kernel;
    l.body = g.body;
    l.context = context;
    l.threads = g.block.x * g.block.y * g.block.z;
    l.shared_bytes = g.shared_bytes;
    prepare(l.threads);
    PD_CHECK(!current);
    current = &l;
    const unsigned before = simt_flush_denormals();
    run_grid(g.grid, g.block);
    simt_restore_denormals(before);
    simt_self = nullptr;
    current = nullptr;
    if (l.problem[0]) PD_FAIL(err, PD_BUG, "%s", l.problem);
    return PD_OK;
}

/* At once, and on memory of a GPU if there is any. */
pd_status run_alone(const simt_grid &g, void *context, struct pd_error *err)
{
    pd_status st = PD_OK;
    const cudaError_t code = simt_enqueue(nullptr, g.kernel, SIMT_OWN_GPU, [&] { st = run(g, context, err); });
    if (code == cudaSuccess || code == cudaErrorNoDevice) return st;
    PD_FAIL(err, PD_DEVICE_LOST, "kernel %s: %s", g.kernel, cudaGetErrorString(code));
}

} // namespace

const simt_place *simt_self;

void simt_set_order(uint64_t order)
{
    order_seed = order;
    order_is_set = true;
}

/* Each block before this one was told once that nothing is left. */
uint32_t pd_queue_next(uint32_t *begun, uint32_t items)
{
    launch &l = *current;
    const uint32_t even = (items + l.blocks - 1) / l.blocks;
    const uint32_t share = order_seed > 1 ? static_cast<uint32_t>(mix(order_seed + l.place) % (2 * even + 1)) : even;
    if (last_alone) return l.taken++ ? items : items - 1;
    const uint32_t old = *begun, item = old - l.place;
    *begun = old >= items + l.blocks - 1 ? 0 : old + 1;
    return l.place + 1 == l.blocks || l.taken++ < share ? item : items;
}

void simt_run_last_block_alone(bool alone)
{
    last_alone = alone;
}

/* The names of kernels that were launched go to a file, one a line and, mostly, once a process. */
static void note_launch(const char *kernel)
{
    static const char *const path = getenv("PERDURE_SIMT_KERNELS");
    static thread_local const char *last;
    if (!path || last == kernel) return;
    last = kernel;
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%s\n", kernel);
    fclose(file);
}

pd_status simt_launch(const simt_grid *grid, std::shared_ptr<void> context, void *stream, struct pd_error *err)
{
    const simt_grid g = *grid;
    note_launch(g.kernel);
    if (g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0) return PD_OK;
    PD_TRY(check_shape(g.kernel, g.grid, g.block, g.shared_bytes, err));
    if (!stream) return run_alone(g, context.get(), err);
    PD_TRY(check_words(g, err));
    cudaError_t code = simt_enqueue(static_cast<cudaStream_t>(stream), g.kernel, SIMT_OWN_GPU, [g, context] {
        struct pd_error failure = {};
        if (run(g, context.get(), &failure)) simt_lose(failure.message);
    });
    const cudaError_t left = cudaGetLastError();
    if (code == cudaSuccess) code = left;
    if (code == cudaSuccess) return PD_OK;
    PD_FAIL(err, PD_DEVICE_LOST, "kernel %s: %s%s", g.kernel, cudaGetErrorString(code),
            code == left ? ", which is an earlier call's: look at what that returns" : "");
}

void simt_fail(const char *what)
{
    char who[160];
    describe(who, sizeof who, self());
    snprintf(current->problem, sizeof current->problem, "%s: %s", who, what);
    for (;;)
        pause_self();
}

void simt_syncthreads(void)
{
    self()->at = AT_BARRIER;
    pause_self();
}

void *simt_shared(const void *key, size_t bytes)
{
    for (const shared_variable &v : current->shared)
        if (v.key == key) return v.data;
    current->static_bytes += bytes;
    if (current->static_bytes > SHARED_STATIC_MAX) simt_fail("more than 48 KiB of PD_SHARED; take PD_SHARED_DYNAMIC");
    /* Launches ask for more than 48 KiB where PD_SHARED_DYNAMIC alone is more (grid.h). */
    const size_t most = current->shared_bytes > SHARED_STATIC_MAX ? shared_max() : SHARED_STATIC_MAX;
    if (current->static_bytes + current->shared_bytes > most)
        simt_fail("PD_SHARED and PD_SHARED_DYNAMIC together are more than the launch asks for");
    current->shared.push_back({key, bytes, poisoned(bytes)});
    return current->shared.back().data;
}

size_t simt_shared_dynamic_bytes(void)
{
    return current->shared_bytes;
}

unsigned char *simt_shared_dynamic(void)
{
    if (!current->dynamic) simt_fail("PD_SHARED_DYNAMIC in a launch of 0 bytes of it");
    return current->dynamic;
}

unsigned simt_thread(void)
{
    return self()->index;
}

void simt_wait_until(const char *what, bool (*there)(void *, bool), void *context)
{
    thread *t = self();
    t->operation = what;
    t->there = there;
    t->there_context = context;
    t->at = WAITING;
    pause_self();
}

unsigned simt_lane(void)
{
    return self()->index % 32;
}

/* A snapshot lives until the warp has had SNAPSHOTS more operations; all lanes of one run before any has two. */
const simt_lanes *simt_exchange(const char *name, uint32_t mask, const void *deposit, size_t bytes)
{
    thread *t = self();
    const unsigned base = t->index / 32 * 32;
    const unsigned lanes = current->threads - base < 32 ? current->threads - base : 32;
    if (!(mask >> (t->index - base) & 1u)) simt_fail("calls a warp operation with a mask that it is not in");
    if (lanes < 32 && mask >> lanes) simt_fail("calls a warp operation with a mask of lanes that the block does not have");
    t->operation = name;
    t->mask = mask;
    if (bytes) memcpy(t->deposit, deposit, bytes);
    t->deposit_bytes = bytes;
    t->at = IN_WARP;
    for (unsigned l = 0; l < lanes; l++) {
        const thread *o = threads[base + l];
        if (!(mask >> l & 1u)) continue;
        if (o->at == IN_WARP && o->mask == mask && (o->operation == name || strcmp(o->operation, name) == 0)) continue;
        pause_self();
        return t->snapshot;
    }
    warp *w = &warps[base / 32];
    w->is_summed[w->next % SNAPSHOTS] = false;
    simt_lanes *s = &w->snapshots[w->next++ % SNAPSHOTS];
    s->mask = mask;
    for (unsigned l = 0; l < lanes; l++) {
        thread *o = threads[base + l];
        if (!(mask >> l & 1u)) continue;
        memcpy(s->lane[l].bytes, o->deposit, o->deposit_bytes);
        o->snapshot = s;
        o->at = READY;
    }
    return s;
}

static uint16_t half_at(const void *p, unsigned index)
{
    uint16_t half;
    memcpy(&half, static_cast<const char *>(p) + 2 * index, sizeof half);
    return half;
}

void simt_ldmatrix(uint32_t *r, unsigned matrices, bool transposed, const void *row)
{
    if (reinterpret_cast<uintptr_t>(row) % 16) simt_fail("ldmatrix of a row that is not 16-aligned");
    const simt_lanes *lanes = simt_exchange(transposed ? "ldmatrix.trans" : "ldmatrix", WARP_ALL, &row, sizeof row);
    const unsigned g = simt_lane() / 4, t = 2 * (simt_lane() % 4);
    for (unsigned m = 0; m < matrices; m++) {
        const void *rows[8];
        for (unsigned i = 0; i < 8; i++)
            memcpy(&rows[i], lanes->lane[8 * m + i].bytes, sizeof rows[i]);
        const uint16_t low = transposed ? half_at(rows[t], g) : half_at(rows[g], t);
        const uint16_t high = transposed ? half_at(rows[t + 1], g) : half_at(rows[g], t + 1);
        r[m] = low | static_cast<uint32_t>(high) << 16;
    }
    simt_exchange("ldmatrix", WARP_ALL, nullptr, 0); /* nobody writes the rows before all have read them */
}

struct fragments {
    uint32_t a[4], b[2];
    float c[4];
};

static double element(uint32_t word, unsigned upper, bool bf16)
{
    const uint16_t half = static_cast<uint16_t>(upper ? word >> 16 : word);
    return static_cast<double>(bf16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

/* Sums in fp64 and rounds once: hardware keeps no promise about the order. Lane 4 g + t has rows g and g + 8 of the sums at
 * columns 2 t and 2 t + 1, of A at columns 2 t, 2 t + 1 and 8 more, and of B, turned, likewise. */
static void multiply_warp(const simt_lanes *lanes, bool bf16, float (*ret_sums)[4])
{
    double a[16][16], b[16][8], sums[16][8];
    for (unsigned l = 0; l < 32; l++) {
        const unsigned g = l / 4, t = 2 * (l % 4);
        fragments f;
        memcpy(&f, lanes->lane[l].bytes, sizeof f);
        for (unsigned i = 0; i < 8; i++) {
            a[g + i / 2 % 2 * 8][t + i % 2 + i / 4 * 8] = element(f.a[i / 2], i % 2, bf16);
            if (i < 4) b[t + i % 2 + i / 2 * 8][g] = element(f.b[i / 2], i % 2, bf16);
            if (i < 4) sums[g + i / 2 * 8][t + i % 2] = static_cast<double>(f.c[i]);
        }
    }
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < 8; column++)
                sums[row][column] += a[row][k] * b[k][column];
    for (unsigned l = 0; l < 32; l++)
        for (unsigned i = 0; i < 4; i++)
            ret_sums[l][i] = static_cast<float>(sums[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2]);
}

void simt_mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b, bool bf16)
{
    fragments mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    memcpy(mine.c, c, sizeof mine.c);
    const simt_lanes *lanes = simt_exchange(bf16 ? "mma.bf16" : "mma.f16", WARP_ALL, &mine, sizeof mine);
    warp *w = &warps[self()->index / 32];
    const size_t at = static_cast<size_t>(lanes - w->snapshots);
    if (!w->is_summed[at]) multiply_warp(lanes, bf16, w->sums[at]);
    w->is_summed[at] = true;
    memcpy(c, w->sums[at][simt_lane()], sizeof w->sums[at][0]);
}

/* The bytes are taken now and arrive when waited for; until then NaN patterns lie there. */
void simt_cp_async16(void *shared, const void *global, bool valid)
{
    thread *t = self();
    if (reinterpret_cast<uintptr_t>(shared) % 16 || (valid && reinterpret_cast<uintptr_t>(global) % 16))
        simt_fail("cp.async of an address that is not 16-aligned");
    copy c = {shared, {0}, t->group};
    if (valid) memcpy(c.bytes, global, sizeof c.bytes);
    memset(shared, 0xff, sizeof c.bytes);
    t->copies.push_back(c);
}

void simt_cp_async_commit(void)
{
    self()->group++;
}

void simt_cp_async_wait(unsigned pending)
{
    thread *t = self();
    size_t left = 0;
    for (const copy &c : t->copies) {
        if (c.group + pending >= t->group)
            t->copies[left++] = c;
        else
            memcpy(c.shared, c.bytes, sizeof c.bytes);
    }
    t->copies.resize(left);
}
