/* Elements are their own row-major numbers, so what a view reads is known without reading. */
#include "resharder/catalog/read.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 1111, COLUMNS = 1027, FIRST = 4093 };

static struct pd_error err;
static struct pd_vfs *vfs;
static char path[64];
static void *buffers;

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/test_read.XXXXXX");
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES_MIN);
    cr_assert_eq(pd_vfs_new_auto(&vfs, &err), PD_OK);
}

static void teardown(void)
{
    pd_vfs_free(vfs);
    unlink(path);
    free(buffers);
}

TestSuite(read, .init = setup, .fini = teardown);

/* Writes a piece of the matrix, element by element, behind what the file holds. */
static void put_piece(FILE *f, struct pd_catalog *c, uint32_t tensor, struct pd_piece piece, bool is_transposed)
{
    const uint64_t rows = piece.is_range ? 1 : piece.count[0], columns = piece.is_range ? piece.count[0] : piece.count[1];
    piece.offset = (uint64_t)ftell(f);
    if (is_transposed) {
        piece.stride[0] = 1;
        piece.stride[1] = rows;
    }
    for (uint64_t i = 0; i < rows * columns; i++) {
        const uint64_t row = is_transposed ? i % rows : i / columns, column = is_transposed ? i / rows : i % columns;
        const int32_t value =
            (int32_t)(piece.is_range ? piece.start[0] + i : (piece.start[0] + row) * COLUMNS + piece.start[1] + column);
        fwrite(&value, sizeof value, 1, f);
    }
    cr_assert_eq(pd_catalog_add_piece(c, tensor, &piece, &err), PD_OK);
}

enum arrangement { DENSE, ROW_CUT, COLUMN_CUT, GRID, RANGES, TRANSPOSED, ARRANGEMENTS };

static void make_catalog(struct pd_catalog *c, enum arrangement how)
{
    const struct pd_foreign_tensor tensor = {.name = "w", .element = PD_ELEMENT_I32, .ndim = 2, .shape = {ROWS, COLUMNS}};
    uint32_t t, n;
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < FIRST; i++) /* nothing is aligned */
        fputc(0x55, f);
    pd_catalog_init(c, "test");
    cr_assert_eq(pd_catalog_add_tensor(c, &tensor, &t, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_file(c, path, FIRST + 4ull * ROWS * COLUMNS, &n, &err), PD_OK);
    const uint64_t row_cuts[] = {0, 300, 301, ROWS}, column_cuts[] = {0, 500, 1000, COLUMNS};
    const uint64_t rows = how == ROW_CUT || how == GRID ? 3 : 1, columns = how == COLUMN_CUT || how == GRID ? 3 : 1;
    if (how == RANGES)
        for (uint64_t at = 0, next; at < ROWS * COLUMNS; at = next) {
            next = at + 333333 < ROWS * COLUMNS ? at + 333333 : ROWS * COLUMNS;
            put_piece(f, c, t, (struct pd_piece){.is_range = true, .start = {at}, .count = {next - at}}, false);
        }
    for (uint64_t i = 0; how != RANGES && i < rows; i++)
        for (uint64_t j = 0; j < columns; j++) {
            struct pd_piece piece = {.start = {rows > 1 ? row_cuts[i] : 0, columns > 1 ? column_cuts[j] : 0}};
            piece.count[0] = (rows > 1 ? row_cuts[i + 1] : ROWS) - piece.start[0];
            piece.count[1] = (columns > 1 ? column_cuts[j + 1] : COLUMNS) - piece.start[1];
            put_piece(f, c, t, piece, how == TRANSPOSED);
        }
    cr_assert_eq(fclose(f), 0);
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

static const struct pd_view views[] = {
    {.ndim = 2, .count = {ROWS, COLUMNS}, .stride = {COLUMNS, 1}},
    {.ndim = 2, .count = {COLUMNS, ROWS}, .stride = {1, COLUMNS}},
    {.ndim = 2, .offset = 5 * COLUMNS + 490, .count = {700, 20}, .stride = {COLUMNS, 1}},
    {.ndim = 3, .offset = 3, .count = {2, 100, 4}, .stride = {500 * COLUMNS, 2, COLUMNS}},
    {.ndim = 1, .offset = ROWS * COLUMNS - 3, .count = {3}, .stride = {1}},
    {.ndim = 0, .offset = 777},
    {.ndim = 2, .offset = 11, .count = {4000, 250}, .stride = {1, 4001}}, /* wider than what is turned at once */
    {.ndim = 2, .count = {0, 7}, .stride = {7, 1}},
};

static void check_values(const struct pd_view *view, const float *values)
{
    for (uint64_t i = 0; i < pd_view_elements(view); i++) {
        uint64_t at = view->offset, rest = i;
        for (uint32_t d = view->ndim; d-- > 0; rest /= view->count[d])
            at += rest % view->count[d] * view->stride[d];
        cr_assert_eq(values[i], (float)at, "element %d is %g, not %g", (int)i, (double)values[i], (double)at);
    }
}

Test(read, views_of_every_arrangement)
{
    float *values = malloc(sizeof *values * ROWS * COLUMNS);
    for (int how = 0; how < ARRANGEMENTS; how++)
        for (int expected = 0; expected < 2; expected++) {
            struct pd_catalog c;
            struct pd_reader *r = NULL;
            make_catalog(&c, (enum arrangement)how);
            cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
            for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
                bool is_coming;
                if (expected) cr_assert_eq(pd_reader_expect(r, 0, &views[v], &is_coming, &err), PD_OK);
                cr_assert_eq(pd_reader_read(r, 0, &views[v], values, &err), PD_OK, "%s", err.message);
                check_values(&views[v], values);
            }
            pd_reader_close(r);
            pd_catalog_deinit(&c);
        }
    free(values);
}

struct cutting {
    uint64_t first;
};

static bool next_rows(void *context, struct pd_read_task *task)
{
    struct cutting *c = context;
    if (c->first == ROWS) return false;
    const uint64_t count = ROWS - c->first < 40 ? ROWS - c->first : 40;
    *task = (struct pd_read_task){
        .view = {.ndim = 2, .offset = c->first * COLUMNS, .count = {count, COLUMNS}, .stride = {COLUMNS, 1}},
        .user = c->first};
    if (c->first == 80) task->tensor = PD_READ_NOTHING;
    c->first += count;
    return true;
}

Test(read, a_line_reads_every_byte_once)
{
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    struct pd_read_line line;
    struct pd_read_task task;
    struct cutting cutting = {0};
    float *values = malloc(sizeof *values * 40 * COLUMNS);
    uint64_t rows = 0;
    bool has_one = true;
    make_catalog(&c, DENSE);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    pd_read_line_init(&line, r, next_rows, &cutting);
    for (;;) {
        cr_assert_eq(pd_read_line_take(&line, &task, &has_one, &err), PD_OK);
        if (!has_one) break;
        cr_assert_eq(task.user, rows);
        rows += task.view.count[0];
        if (task.tensor == PD_READ_NOTHING) continue;
        cr_assert_eq(pd_reader_read(r, task.tensor, &task.view, values, &err), PD_OK, "%s", err.message);
        check_values(&task.view, values);
    }
    cr_assert_eq(rows, ROWS);
    cr_assert_leq(pd_reader_bytes(r), 4ull * ROWS * COLUMNS + 8 * 2 * PD_VFS_ALIGN);
    pd_reader_close(r);
    pd_catalog_deinit(&c);
    free(values);
}

enum { LAYERS = 2, HEIGHT = 4096, WIDTH = 1024, STEP = 64, TURNED = 1024 };

static bool next_step(void *context, struct pd_read_task *task)
{
    uint64_t *row = context;
    if (*row == LAYERS * HEIGHT) return false;
    *task = (struct pd_read_task){.view = {.ndim = 2, .offset = *row * WIDTH, .count = {STEP, WIDTH}, .stride = {WIDTH, 1}}};
    *row += STEP;
    return true;
}

/* Layers that lie on one another, in pieces of half a layer. */
static uint64_t make_stack(struct pd_catalog *c)
{
    const uint64_t half = 4ull * HEIGHT / 2 * WIDTH;
    const struct pd_foreign_tensor tensor = {
        .name = "w", .element = PD_ELEMENT_I32, .ndim = 3, .shape = {LAYERS, HEIGHT, WIDTH}};
    uint32_t t;
    FILE *f = fopen(path, "wb");
    for (int32_t i = 0; i < LAYERS * HEIGHT * WIDTH; i++)
        fwrite(&i, sizeof i, 1, f);
    fclose(f);
    pd_catalog_init(c, "test");
    cr_assert_eq(pd_catalog_add_file(c, path, 2 * LAYERS * half, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_tensor(c, &tensor, &t, &err), PD_OK);
    for (uint64_t i = 0; i < 2 * LAYERS; i++) {
        const struct pd_piece piece = {
            .offset = i * half, .start = {i / 2, i % 2 * HEIGHT / 2, 0}, .count = {1, HEIGHT / 2, WIDTH}};
        cr_assert_eq(pd_catalog_add_piece(c, t, &piece, &err), PD_OK);
    }
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
    return 2 * LAYERS * half;
}

/* Each larger than the reader's buffers. */
Test(read, a_line_reads_every_byte_of_a_stack_once)
{
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    struct pd_read_line line;
    struct pd_read_task task;
    uint64_t row = 0;
    bool has_one = true;
    float *values = malloc(sizeof *values * STEP * WIDTH);
    const uint64_t bytes = make_stack(&c);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    pd_read_line_init(&line, r, next_step, &row);
    while (pd_read_line_take(&line, &task, &has_one, &err) == PD_OK && has_one)
        cr_assert_eq(pd_reader_read(r, task.tensor, &task.view, values, &err), PD_OK, "%s", err.message);
    cr_assert_eq(row, LAYERS * HEIGHT);
    cr_assert_leq(pd_reader_bytes(r), bytes + 40 * PD_VFS_ALIGN);
    pd_reader_close(r);
    pd_catalog_deinit(&c);
    free(values);
}

/* Rows become columns. */
static bool next_turned(void *context, struct pd_read_task *task)
{
    uint64_t *row = context;
    if (*row == LAYERS * HEIGHT) return false;
    *task =
        (struct pd_read_task){.view = {.ndim = 2, .offset = *row * WIDTH, .count = {WIDTH, TURNED}, .stride = {1, WIDTH}}};
    *row += TURNED;
    return true;
}

/* A task of half the buffers: what follows it is sent for before it is done, and all is read once. */
Test(read, a_line_goes_on_while_a_task_is_read)
{
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    struct pd_read_line line;
    struct pd_read_task task;
    uint64_t row = 0;
    bool has_one = true;
    float *values = malloc(sizeof *values * TURNED * WIDTH);
    const uint64_t bytes = make_stack(&c);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    pd_read_line_init(&line, r, next_turned, &row);
    for (uint64_t done = 0; pd_read_line_take(&line, &task, &has_one, &err) == PD_OK && has_one; done += TURNED) {
        const uint64_t sent = pd_reader_bytes(r);
        cr_assert_eq(pd_reader_read(r, task.tensor, &task.view, values, &err), PD_OK, "%s", err.message);
        if (sent < bytes) cr_assert_gt(pd_reader_bytes(r), sent);
        for (uint64_t i = 0; i < WIDTH * TURNED; i++)
            cr_assert_eq(values[i], (float)((done + i % TURNED) * WIDTH + i / TURNED));
    }
    cr_assert_eq(row, LAYERS * HEIGHT);
    cr_assert_leq(pd_reader_bytes(r), bytes + 40 * PD_VFS_ALIGN);
    pd_reader_close(r);
    pd_catalog_deinit(&c);
    free(values);
}

Test(read, quantised_blocks_are_cut_anywhere)
{
    enum { BLOCKS = 70000 };
    const struct pd_foreign_tensor tensor = {.name = "q", .element = PD_ELEMENT_Q8_0, .ndim = 1, .shape = {32 * BLOCKS}};
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    float values[100];
    FILE *f = fopen(path, "wb");
    for (int b = 0; b < BLOCKS; b++) {
        const uint16_t one = 0x3c00;
        fwrite(&one, 2, 1, f);
        for (int i = 0; i < 32; i++)
            fputc((b + i) % 100, f);
    }
    cr_assert_eq(fclose(f), 0);
    pd_catalog_init(&c, "test");
    cr_assert_eq(pd_catalog_add_file(&c, path, 34 * BLOCKS, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, &tensor, 0, 0, &err), PD_OK);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    for (uint64_t first = 1048576 / 34 * 32 - 50; first < 32 * BLOCKS - 100; first += 100003) {
        const struct pd_view view = {.ndim = 1, .offset = first, .count = {100}, .stride = {1}};
        cr_assert_eq(pd_reader_read(r, 0, &view, values, &err), PD_OK, "%s", err.message);
        for (uint64_t i = 0; i < 100; i++)
            cr_assert_eq(values[i], (float)(((first + i) / 32 + (first + i) % 32) % 100));
    }
    pd_reader_close(r);
    pd_catalog_deinit(&c);
}

Test(read, a_file_that_has_shrunk_is_named)
{
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    float *values = malloc(sizeof *values * ROWS * COLUMNS);
    make_catalog(&c, DENSE);
    cr_assert_eq(truncate(path, 100000), 0);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    cr_assert_eq(pd_reader_read(r, 0, &views[0], values, &err), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, path), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "tensor w"), "%s", err.message);
    pd_reader_close(r);
    pd_catalog_deinit(&c);
    free(values);
}

/* What is expected meanwhile must not be read into the window that was handed out. */
Test(read, stored_bytes_stay_until_the_next_call)
{
    enum { ELEMENTS = 16 << 20 };
    const struct pd_foreign_tensor tensor = {.name = "w", .element = PD_ELEMENT_I32, .ndim = 1, .shape = {ELEMENTS}};
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    FILE *f = fopen(path, "wb");
    for (int32_t i = 0; i < ELEMENTS; i++)
        fwrite(&i, sizeof i, 1, f);
    cr_assert_eq(fclose(f), 0);
    pd_catalog_init(&c, "test");
    cr_assert_eq(pd_catalog_add_file(&c, path, 4ull * ELEMENTS, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, &tensor, 0, 0, &err), PD_OK);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_reader_open(vfs, &c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    for (uint64_t done = 0, bytes = 0; done < 4ull * ELEMENTS; done += bytes) {
        const void *data = NULL;
        cr_assert_eq(pd_reader_stored(r, 0, 0, done, &data, &bytes, &err), PD_OK, "%s", err.message);
        for (int pass = 0; pass < 3; pass++)
            for (uint64_t i = 0; i < bytes / 4; i++)
                cr_assert_eq(((const int32_t *)data)[i], (int32_t)(done / 4 + i), "byte %llu", (unsigned long long)done);
    }
    pd_reader_close(r);
    pd_catalog_deinit(&c);
}
