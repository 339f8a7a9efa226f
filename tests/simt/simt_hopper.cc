/* Barriers, copies and products that happen when they are waited for.
 *
 *   barrier   in its own 8 bytes: phase (1 bit), arrivals a phase (15), arrivals missing (15), bytes missing (signed, 33)
 *   copy      its bytes are read when it is asked for, and written when somebody who waits for its barrier cannot go on
 *             otherwise; one barrier's at a time
 *   product   made at the wait, from what the tiles hold then
 *
 * Copies and products see shared memory as it was at the latest pd_async_fence, and what copies brought since. */
#include <simt.h>

#include <simt_hopper.h>

#include <map>
#include <stdio.h>
#include <vector>

#include "simt_wait.h"
#include "trainer/math/cuda/kernels.h"

#define GROUP 128u
#define BOX 64u
#define COUNT_MAX 0x7fffu
#define BYTES_MAX 0xfffff
#define UNSET UINT64_MAX
#define COLUMNS_MAX 64u /* of one lane: 256 in all */

namespace
{

struct copy {
    uint64_t *barrier;
    unsigned char *to;
    std::vector<unsigned char> bytes; /* in the tile's order */
};

struct started {
    simt_product product;
    float *c;
    unsigned group;
};

struct thread {
    bool begun;
    unsigned group; /* the open one */
    std::vector<started> products;
    std::map<float *, std::vector<float>> sums; /* what c will hold, of products on their way */
};

/* Threads that wait for each other: a warpgroup, or a numbered barrier, whose threads need not all wait. */
struct meeting {
    unsigned here, round;
};

struct tile {
    std::vector<double> values;
};

/* Of a warpgroup's products, from when all wait for them to when all have them. */
struct tiles {
    unsigned round;
    std::vector<tile> of;
};

std::vector<copy> &copies = *new std::vector<copy>();
std::map<unsigned, thread> &threads = *new std::map<unsigned, thread>();
std::map<uint32_t, meeting> &meetings = *new std::map<uint32_t, meeting>();
std::map<uint32_t, tiles> &read_tiles = *new std::map<uint32_t, tiles>();

std::vector<unsigned char> &seen = *new std::vector<unsigned char>(); /* shared memory, as copies and products see it */

thread &self()
{
    return threads[simt_thread()];
}

/* Of an address in shared memory. Nothing is written at first. */
unsigned char *seen_at(const void *shared)
{
    if (seen.empty()) seen.assign(simt_shared_dynamic_bytes(), 0xff);
    return seen.data() + (static_cast<const unsigned char *>(shared) - simt_shared_dynamic());
}

/* ---- meetings ---- */

struct arrival {
    const meeting *at;
    unsigned round;
};

bool is_over(void *context, bool)
{
    const arrival *a = static_cast<const arrival *>(context);
    return a->at->round != a->round;
}

/* Whether everybody is there. */
bool come(meeting &m, unsigned count)
{
    if (++m.here < count) return false;
    m.here = 0;
    m.round++;
    return true;
}

void meet(const char *what, uint32_t key, unsigned count)
{
    meeting &m = meetings[key];
    arrival a = {&m, m.round};
    if (!come(m, count)) simt_wait_until(what, is_over, &a);
}

/* ---- barriers ---- */

struct counts {
    bool phase;
    uint32_t arrivals, missing;
    int64_t bytes;
};

counts counts_read(const uint64_t *barrier)
{
    return {(*barrier & 1) != 0, static_cast<uint32_t>(*barrier >> 1 & COUNT_MAX),
            static_cast<uint32_t>(*barrier >> 16 & COUNT_MAX), static_cast<int64_t>(*barrier) >> 31};
}

counts counts_of(const uint64_t *barrier)
{
    if (reinterpret_cast<uintptr_t>(barrier) % 8) simt_fail("a barrier that is not 8-aligned");
    if (*barrier == UNSET) simt_fail("uses a barrier that was not initialised");
    return counts_read(barrier);
}

void counts_put(uint64_t *barrier, counts c)
{
    if (c.missing == 0 && c.bytes == 0) {
        c.phase = !c.phase;
        c.missing = c.arrivals;
    }
    *barrier = static_cast<uint64_t>(c.bytes) << 31 | static_cast<uint64_t>(c.missing) << 16 |
               static_cast<uint64_t>(c.arrivals) << 1 | c.phase;
}

void arrive(uint64_t *barrier, uint32_t bytes)
{
    counts c = counts_of(barrier);
    if (c.missing == 0) simt_fail("arrives at a barrier that has all its arrivals");
    c.missing--;
    c.bytes += bytes;
    if (c.bytes > BYTES_MAX) simt_fail("expects more bytes than a barrier counts");
    counts_put(barrier, c);
}

void deliver(uint64_t *barrier)
{
    std::vector<copy> left;
    for (copy &x : copies) {
        if (x.barrier != barrier) {
            left.push_back(std::move(x));
            continue;
        }
        memcpy(x.to, x.bytes.data(), x.bytes.size());
        memcpy(seen_at(x.to), x.bytes.data(), x.bytes.size());
        counts c = counts_read(barrier);
        c.bytes -= static_cast<int64_t>(x.bytes.size());
        counts_put(barrier, c);
    }
    copies.swap(left);
}

struct phase_wait {
    uint64_t *barrier;
    bool parity;
};

bool has_ended(void *context, bool idle)
{
    const phase_wait *w = static_cast<const phase_wait *>(context);
    if (idle) deliver(w->barrier);
    return ((*w->barrier & 1) != 0) != w->parity;
}

/* ---- products ---- */

uint16_t at_address(const unsigned char *shared, uint32_t address)
{
    address ^= (address >> 7 & 7u) << 4;
    if (memcmp(shared + address, seen_at(shared + address), 2) != 0)
        simt_fail("a product reads what ordinary stores wrote: pd_async_fence after them");
    uint16_t half;
    memcpy(&half, shared + address, sizeof half);
    return half;
}

struct descriptor {
    uint32_t start, leading, stride;
};

descriptor read(uint64_t bits)
{
    const uint64_t known = 0xc000000000000000ull | 0x3fffull << 32 | 0x3fffull << 16 | 0x3fffull;
    if (bits >> 62 != 1 || (bits & ~known)) simt_fail("a matrix descriptor other than of 128-byte swizzle from base 0");
    if (bits & 0x38) simt_fail("a matrix descriptor that begins in the midst of its eight rows, and says base 0");
    return {static_cast<uint32_t>(bits & 0x3fff) << 4, static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4,
            static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4};
}

/* Element (row, k) of an operand whose rows are contiguous along k. */
uint16_t along(const unsigned char *shared, const descriptor &d, unsigned row, unsigned k)
{
    return at_address(shared, d.start + row / 8 * d.stride + row % 8 * 128 + k * 2);
}

/* Element (k, n) of an operand whose rows are k. */
uint16_t down(const unsigned char *shared, const descriptor &d, unsigned k, unsigned n)
{
    return at_address(shared, d.start + n / 64 * d.leading + k / 8 * d.stride + k % 8 * 128 + n % 64 * 2);
}

double value(uint16_t half, bool bf16)
{
    return static_cast<double>(bf16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

/* Rows g and g + 8 of this warp, 16 columns of A. */
void a_rows(const simt_product &p, const std::vector<started> *const *quad, size_t index, double (&a)[2][16])
{
    const unsigned row = simt_thread() % GROUP / 32 * 16 + simt_thread() % 32 / 4;
    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 16; k++) {
            uint16_t bits;
            if (p.in_registers) {
                const uint32_t word = (*quad[k % 8 / 2])[index].product.registers[k / 8 * 2 + half];
                bits = static_cast<uint16_t>(k % 2 ? word >> 16 : word);
            } else {
                const unsigned char *shared = simt_shared_dynamic();
                const unsigned m = row + 8 * half;
                bits = p.a_turned ? down(shared, read(p.a), k, m) : along(shared, read(p.a), m, k);
            }
            a[half][k] = value(bits, p.bf16);
        }
}

/* What B holds, by the lane of a quad, k and the lane's columns: read once for the 32 lanes that need it. */
const double *b_columns(const simt_product &p, tile &t)
{
    const unsigned char *shared = simt_shared_dynamic();
    const descriptor d = read(p.b);
    const unsigned columns = p.pieces * 2;
    if (!t.values.empty()) return t.values.data();
    t.values.resize(size_t{4} * 16 * columns);
    double *to = t.values.data();
    for (unsigned quad = 0; quad < 4; quad++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < columns; column++) {
                const unsigned n = column / 2 * 8 + 2 * quad + column % 2;
                *to++ = value(p.turned ? down(shared, d, k, n) : along(shared, d, n, k), p.bf16);
            }
    return t.values.data();
}

/* Sums in fp64 and rounds once a step of 16, as simt_mma_m16n8k16. */
void multiply(const started &s, const std::vector<started> *const *quad, size_t index, tile &t, std::vector<float> &sum)
{
    const simt_product &p = s.product;
    const unsigned columns = p.pieces * 2;
    double a[2][16], x[COLUMNS_MAX];
    a_rows(p, quad, index, a);
    const double *b = b_columns(p, t) + size_t{simt_thread() % 4} * 16 * columns;
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned column = 0; column < columns; column++)
            x[column] = p.add ? static_cast<double>(sum[column / 2 * 4 + 2 * half + column % 2]) : 0.0;
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < columns; column++)
                x[column] += a[half][k] * b[k * columns + column];
        for (unsigned column = 0; column < columns; column++)
            sum[column / 2 * 4 + 2 * half + column % 2] = static_cast<float>(x[column]);
    }
}

void check_same(const std::vector<started> &mine, const std::vector<started> &theirs)
{
    bool same = mine.size() == theirs.size();
    for (size_t i = 0; same && i < mine.size(); i++) {
        const simt_product &x = mine[i].product, &y = theirs[i].product;
        same = x.a == y.a && x.b == y.b && x.pieces == y.pieces && x.add == y.add && x.turned == y.turned &&
               x.in_registers == y.in_registers && x.a_turned == y.a_turned && mine[i].group == theirs[i].group;
    }
    if (!same) simt_fail("made other products than the first thread of its warpgroup");
}

} // namespace

/* ---- what simt.cc calls ---- */

void simt_hopper_begin(void)
{
    copies.clear();
    threads.clear();
    meetings.clear();
    read_tiles.clear();
    seen.clear();
}

void simt_hopper_return(void)
{
    const auto found = threads.find(simt_thread()); /* most kernels make none */
    if (found != threads.end() && !found->second.products.empty())
        simt_fail("returns with products on their way: wait for their groups first");
}

const char *simt_hopper_end(void)
{
    if (!copies.empty()) return "ends with a copy into shared memory that nobody waited for";
    for (const auto &m : meetings)
        if (m.second.here) return "ends with threads at a numbered barrier that nobody else came to";
    return nullptr;
}

/* ---- see trainer/math/cuda/hopper.h ---- */

uint32_t pd_shared_address(const void *shared)
{
    return static_cast<uint32_t>(static_cast<const unsigned char *>(shared) - simt_shared_dynamic());
}

void pd_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    if (arrivals == 0 || arrivals > COUNT_MAX) simt_fail("a barrier of no arrivals, or of too many");
    *barrier = static_cast<uint64_t>(arrivals) << 16 | static_cast<uint64_t>(arrivals) << 1;
}

void pd_barrier_init_done(void)
{
}

void pd_barrier_arrive(uint64_t *barrier)
{
    arrive(barrier, 0);
}

void pd_barrier_arrive_expect(uint64_t *barrier, uint32_t bytes)
{
    arrive(barrier, bytes);
}

void pd_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    phase_wait w = {barrier, parity != 0};
    (void)counts_of(barrier);
    if (parity > 1) simt_fail("waits for a parity that is neither 0 nor 1");
    if (!has_ended(&w, false)) simt_wait_until("waits for a phase of a barrier", has_ended, &w);
}

void pd_box_load(void *shared, const pd_tensor_map *map, uint32_t column, uint32_t row, uint32_t sequence, uint64_t *barrier)
{
    if (pd_shared_address(shared) % 1024)
        simt_fail("copies a box to where its order of bytes does not begin: a multiple of 1,024");
    (void)counts_of(barrier);
    copy x = {barrier, static_cast<unsigned char *>(shared), std::vector<unsigned char>(BOX * 128)};
    for (uint32_t r = 0; r < BOX; r++)
        for (uint32_t c = 0; c < BOX; c++) {
            const uint32_t offset = r * 128 + c * 2, to = offset ^ (offset >> 7 & 7u) << 4;
            const bool inside = row + r < map->rows && column + c < map->columns && sequence < map->sequences;
            const uint64_t from = (sequence * map->rows + row + r) * map->row_bytes + (column + c) * UINT64_C(2);
            if (inside) memcpy(&x.bytes[to], map->data + from, 2);
        }
    if (memcmp(shared, seen_at(shared), BOX * 128) != 0)
        simt_fail("copies a box over what ordinary stores wrote: pd_async_fence after them");
    memset(shared, 0xff, BOX * 128);
    memset(seen_at(shared), 0xff, BOX * 128);
    copies.push_back(std::move(x));
}

void pd_async_fence(void)
{
    unsigned char *const shared = simt_shared_dynamic();
    memcpy(seen_at(shared), shared, simt_shared_dynamic_bytes());
}

void pd_group_sync(uint32_t number, uint32_t count)
{
    if (number == 0 || number > 15 || count % 32) simt_fail("a numbered barrier that a device does not have");
    meet("waits at a numbered barrier", number, count);
}

void pd_group_arrive(uint32_t number, uint32_t count)
{
    if (number == 0 || number > 15 || count % 32) simt_fail("a numbered barrier that a device does not have");
    come(meetings[number], count);
}

void pd_count_wait(const uint32_t *count, uint32_t value)
{
    if (*count != value) simt_fail("waits for a block that has not come, and does not come before this one ends");
}

void pd_count_say(uint32_t *count, uint32_t value)
{
    *count = value;
}

void simt_registers(int count)
{
    if (count < 24 || count > 256 || count % 8) simt_fail("a number of registers that cannot be asked for");
}

void pd_wgmma_fence(void)
{
    self().begun = true;
}

void simt_product_start(float *c, const simt_product &product)
{
    thread &t = self();
    if (!t.begun) simt_fail("a product with no pd_wgmma_fence since the last wait");
    if (t.sums.find(c) == t.sums.end()) t.sums[c] = std::vector<float>(c, c + product.pieces * 4);
    memset(c, 0xff, product.pieces * 4 * sizeof *c);
    t.products.push_back({product, c, t.group});
}

void pd_wgmma_commit(void)
{
    self().group++;
}

/* Everybody is there, so that everybody's operands are; nobody goes on before all have read them. */
void simt_product_wait(unsigned pending)
{
    const unsigned base = simt_thread() / GROUP * GROUP, quad_base = simt_thread() / 4 * 4;
    const uint32_t key = 0x100 + base;
    meet("waits for products", key, GROUP);
    thread &t = self();
    const std::vector<started> *quad[4];
    for (unsigned i = 0; i < 4; i++)
        quad[i] = &threads[quad_base + i].products;
    check_same(t.products, threads[base].products);
    size_t done = 0;
    while (done < t.products.size() && t.products[done].group + pending < t.group)
        done++;
    tiles &b = read_tiles[key];
    if (b.round != meetings[key].round) b = {meetings[key].round, {}};
    b.of.resize(done);
    for (size_t i = 0; i < done; i++)
        multiply(t.products[i], quad, i, b.of[i], t.sums[t.products[i].c]);
    meet("waits for products", key, GROUP);
    for (size_t i = 0; i < done; i++) {
        const started s = t.products[i];
        bool more = false;
        for (size_t j = done; j < t.products.size(); j++)
            more |= t.products[j].c == s.c;
        const auto sum = t.sums.find(s.c);
        if (more || sum == t.sums.end()) continue;
        memcpy(s.c, sum->second.data(), sum->second.size() * sizeof(float));
        t.sums.erase(sum);
    }
    t.products.erase(t.products.begin(), t.products.begin() + static_cast<std::ptrdiff_t>(done));
    t.begun = false;
}

pd_status pd_tensor_map_make(pd_tensor_map *map, const void *data, uint64_t columns, uint64_t ld, uint64_t rows,
                             uint64_t sequences, struct pd_error *err)
{
    const uint64_t side_max = UINT64_C(1) << 32, stride_end = UINT64_C(1) << 40;
    const bool is_empty = !columns || !rows || !sequences;
    const bool is_large =
        columns > side_max || rows > side_max || sequences > side_max || ld >= stride_end / 2 / (rows ? rows : 1);
    if (reinterpret_cast<uintptr_t>(data) % 16 || ld % 8 || columns > ld || is_empty || is_large)
        PD_FAIL(err, PD_BUG, "a tensor map of %llu x %llu x %llu elements, rows %llu apart", (unsigned long long)sequences,
                (unsigned long long)rows, (unsigned long long)columns, (unsigned long long)ld);
    *map = {static_cast<const unsigned char *>(data), columns, ld * 2, rows, sequences};
    return PD_OK;
}

/* Few, so that a block goes through several items of a small test. */
pd_status pd_multiprocessors(uint32_t *ret_count, struct pd_error *)
{
    *ret_count = 2;
    return PD_OK;
}
