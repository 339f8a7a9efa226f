#include "ckpt/tensor/codec_zstd.h"
#include "tests/unit/shard/shard_fixture.h"

/* As the specification of filter 2 says it. */
static void shuffle_slowly(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint32_t width)
{
    const uint64_t count = bytes / width;
    for (uint64_t i = 0; i < bytes; i++)
        dst[i] = i >= count * width ? src[i] : src[i % count * width + i / count];
}

Test(codec_zstd, bytes_are_shuffled_and_back)
{
    static const uint32_t widths[] = {1, 2, 3, 4, 8};
    enum { MOST = 5000 };
    unsigned char data[MOST], expected[MOST], got[MOST + 64], back[MOST + 64];
    uint64_t random = 5;
    for (uint64_t i = 0; i < MOST; i++)
        data[i] = (unsigned char)fixture_random(&random);
    for (uint64_t n = 0; n < MOST; n = n < 300 ? n + 1 : n + 61)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            memset(got, 0xee, sizeof got);
            memset(back, 0xee, sizeof back);
            shuffle_slowly(expected, data, n, widths[w]);
            pd_byte_shuffle(got + w, data, n, widths[w]);
            cr_assert_eq(memcmp(got + w, expected, n), 0, "%llu bytes by %u", (unsigned long long)n, widths[w]);
            pd_byte_unshuffle(back + w, got + w, n, widths[w]);
            cr_assert_eq(memcmp(back + w, data, n), 0, "%llu bytes by %u", (unsigned long long)n, widths[w]);
            cr_assert_eq(got[w + n], 0xee);
            cr_assert_eq(back[w + n], 0xee);
        }
}

Test(codec_zstd, what_went_in_comes_out)
{
    struct pd_zstd *zstd = NULL;
    const uint64_t bytes = 300000;
    unsigned char *data = malloc(bytes), *packed = malloc(bytes), *back = malloc(bytes);
    uint64_t made = 0, random = 3;
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(fixture_random(&random) % 7);
    OK(pd_zstd_new(&zstd, err));
    for (int level = 1; level <= 19; level += 6) {
        OK(pd_zstd_compress(zstd, level, packed, bytes, data, bytes, 70000, &made, err));
        cr_assert(made > 0 && made < bytes / 2);
        memset(back, 0, bytes);
        OK(pd_zstd_decompress(zstd, back, bytes, packed, made, err));
        cr_assert_eq(memcmp(back, data, bytes), 0);
    }
    cr_assert_gt(pd_zstd_heap_bytes(zstd), 10000u);
    uint64_t none = 77;
    OK(pd_zstd_compress(zstd, 3, packed, made - 1, data, bytes, 70000, &none, err));
    cr_assert_eq(none, 0, "no room is not an error");

    struct pd_error error;
    OK(pd_zstd_compress(zstd, 3, packed, bytes, data, bytes, 70000, &made, err));
    cr_assert_eq(pd_zstd_decompress(zstd, back, bytes - 1, packed, made, &error), PD_CORRUPT);
    cr_assert_eq(pd_zstd_decompress(zstd, back, bytes, packed, made - 1, &error), PD_CORRUPT);
    cr_assert_eq(pd_zstd_decompress(zstd, back, bytes, packed, 0, &error), PD_CORRUPT);
    packed[0] ^= 1;
    cr_assert_eq(pd_zstd_decompress(zstd, back, bytes, packed, made, &error), PD_CORRUPT);
    pd_zstd_free(zstd);
    pd_zstd_free(NULL);
    free(data);
    free(packed);
    free(back);
}

/* Of two planes, one random and one not, each costs what it costs alone; the frame still states its size to a reader. */
Test(codec_zstd, planes_are_coded_apart)
{
    enum { PLANE = 40000 };
    struct pd_zstd *zstd = NULL;
    unsigned char data[2 * PLANE], packed[2 * PLANE + 1000], back[2 * PLANE];
    uint64_t together = 0, apart = 0, random = 1;
    for (uint64_t i = 0; i < PLANE; i++) {
        data[i] = (unsigned char)(fixture_random(&random) % 8); /* 3 bits each */
        data[PLANE + i] = (unsigned char)fixture_random(&random);
    }
    OK(pd_zstd_new(&zstd, err));
    OK(pd_zstd_compress(zstd, 3, packed, sizeof packed, data, sizeof data, sizeof data, &together, err));
    OK(pd_zstd_compress(zstd, 3, packed, sizeof packed, data, sizeof data, PLANE, &apart, err));
    cr_assert_lt(apart, PLANE + PLANE * 3 / 8 + PLANE / 20);
    cr_assert_gt(together, apart + PLANE / 20, "zstd splits blocks by itself now: plane_bytes may go");
    OK(pd_zstd_decompress(zstd, back, sizeof back, packed, apart, err));
    cr_assert_eq(memcmp(back, data, sizeof data), 0);
    pd_zstd_free(zstd);
}
