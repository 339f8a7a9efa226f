/* One scan a host: who comes later reads no byte of data, and a file that changed is read again. */
#include "trainer/data/data.h"

#include "ckpt/base/clock.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 4 << 20 };

static char folder[] = "/tmp/perdure-scans-XXXXXX", text[64], cache[64];

static uint64_t bytes_read(void)
{
    unsigned long long bytes = 0;
    FILE *f = fopen("/proc/self/io", "re");
    cr_assert(f && fscanf(f, "rchar: %llu", &bytes) == 1);
    fclose(f);
    return bytes;
}

static void write_text(char letter)
{
    char *data = malloc(BYTES);
    memset(data, letter, BYTES);
    FILE *f = fopen(text, "we");
    cr_assert(f && fwrite(data, 1, BYTES, f) == BYTES && fclose(f) == 0);
    free(data);
}

static void settle(void)
{
    pd_clock_sleep_ns(UINT64_C(1100000000)); /* times of files are coarse: what is new is not kept */
}

/* What is read on the way; *ret_fingerprint may be NULL. */
static uint64_t open_data(uint32_t vocab, pd_status expected, uint64_t *ret_fingerprint)
{
    struct pd_data_source source = {.path = text, .format = PD_DATA_TEXT};
    const struct pd_data_options options = {
        .train = &source, .train_count = 1, .context = 16, .vocab = vocab, .document_token = -1, .scan_cache = cache};
    struct pd_data *data = NULL;
    struct pd_error err = {0};
    uint64_t fingerprint[2];
    const uint64_t before = bytes_read();
    cr_assert_eq(pd_data_open(&options, &data, &err), expected, "%s", err.message);
    const uint64_t read = bytes_read() - before;
    if (data) pd_data_fingerprint(data, fingerprint);
    if (data && ret_fingerprint) *ret_fingerprint = fingerprint[0];
    pd_data_close(data);
    return read;
}

static void set_up(void)
{
    cr_assert_not_null(mkdtemp(folder));
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(cache, sizeof cache, "%s/scans", folder);
    write_text('a');
}

static void tear_down(void)
{
    unlink(text);
    unlink(cache);
    rmdir(folder);
}

TestSuite(scan_cache, .init = set_up, .fini = tear_down);

Test(scan_cache, what_has_not_changed_is_read_once)
{
    uint64_t first, again, changed;
    settle();
    cr_assert_geq(open_data(0, PD_OK, &first), BYTES);
    cr_assert_lt(open_data(0, PD_OK, &again), BYTES / 2);
    cr_assert_eq(first, again);
    open_data('a', PD_INVALID, NULL); /* token 97 of 97: it is found again, for the message */
    cr_assert_lt(open_data('a' + 1, PD_OK, NULL), BYTES / 2);
    write_text('b');
    cr_assert_geq(open_data(0, PD_OK, &changed), BYTES);
    cr_assert_neq(first, changed);
    cr_assert_geq(open_data(0, PD_OK, NULL), BYTES, "what has just changed is not kept");
    settle();
    open_data(0, PD_OK, NULL);
    cr_assert_lt(open_data(0, PD_OK, NULL), BYTES / 2);
    cr_assert_eq(unlink(cache), 0); /* as --verify-data does */
    cr_assert_geq(open_data(0, PD_OK, NULL), BYTES);
}

Test(scan_cache, a_torn_one_is_none)
{
    settle();
    open_data(0, PD_OK, NULL);
    const int fd = open(cache, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && pwrite(fd, "torn", 4, 100) == 4 && close(fd) == 0);
    cr_assert_geq(open_data(0, PD_OK, NULL), BYTES);
    cr_assert_lt(open_data(0, PD_OK, NULL), BYTES / 2);
    cr_assert_eq(truncate(cache, 77), 0);
    cr_assert_geq(open_data(0, PD_OK, NULL), BYTES);
}

/* Ranks of a host begin at once: the second waits for the first one's scan. */
Test(scan_cache, one_scan_for_all_ranks_of_a_host)
{
    uint64_t sum = 0;
    int ends[2];
    settle();
    cr_assert_eq(pipe(ends), 0);
    for (int rank = 0; rank < 4; rank++) {
        const pid_t child = fork();
        if (child) continue;
        const uint64_t mine = open_data(0, PD_OK, NULL);
        _exit(write(ends[1], &mine, sizeof mine) != sizeof mine);
    }
    for (int rank = 0; rank < 4; rank++) {
        uint64_t read_there;
        cr_assert_eq(read(ends[0], &read_there, sizeof read_there), (ssize_t)sizeof read_there);
        sum += read_there;
        (void)wait(NULL);
    }
    cr_assert(sum >= BYTES && sum < 3 * (uint64_t)BYTES / 2, "%llu bytes were read", (unsigned long long)sum);
}
