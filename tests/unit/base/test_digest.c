#include "ckpt/base/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>

Test(digest, known_values)
{
    /* Published test values of XXH3-64: the empty input with seed 0, and the input of the files' own checksums. */
    cr_assert_eq(pd_digest64("", 0, 0), 0x2d06800538d394c2ull);
    cr_assert_eq(pd_digest64("a", 1, 0), 0xe6c632b61e964e1full);
    cr_assert_eq(pd_digest64("abc", 3, 0), 0x78af5f94892f3950ull);
    cr_assert_neq(pd_digest64("abc", 3, 1), pd_digest64("abc", 3, 0));
}

Test(digest, streams_equal_one_shot_however_they_are_cut)
{
    size_t bytes = 300000;
    unsigned char *data = malloc(bytes);
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < bytes; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        data[i] = (unsigned char)state;
    }
    for (unsigned round = 0; round < 200; round++) {
        size_t length = round < 100 ? round * 7 : bytes - round;
        struct pd_digest_stream stream;
        pd_digest_stream_init(&stream, round);
        for (size_t at = 0; at < length;) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            size_t piece = state % (length / 3 + 2);
            if (piece > length - at) piece = length - at;
            pd_digest_stream_add(&stream, data + at, piece);
            at += piece;
        }
        cr_assert_eq(pd_digest_stream_value(&stream), pd_digest64(data, length, round), "round %u", round);
    }
    free(data);
}

Test(digest, words_are_their_little_endian_bytes)
{
    const uint64_t words[2] = {0x0807060504030201ull, 0x100f0e0d0c0b0a09ull};
    const unsigned char bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    cr_assert_eq(pd_digest_words(words, 2, 7), pd_digest64(bytes, 16, 7));
    cr_assert_neq(pd_digest_words(words, 2, 7), pd_digest_words(words, 1, 7));
}

Test(digest, crc32_is_that_of_the_standard)
{
    cr_assert_eq(pd_crc32(0, "123456789", 9), 0xcbf43926u);
    cr_assert_eq(pd_crc32(pd_crc32(0, "1234", 4), "56789", 5), 0xcbf43926u);
    unsigned char text[700];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(i * i + i / 7);
    for (size_t begin = 0; begin < 20; begin++) /* by folding, and by table: a few bytes at a time */
        for (size_t end = begin; end < sizeof text; end += 13) {
            uint32_t expected = 0;
            for (size_t at = begin; at < end; at += 5)
                expected = pd_crc32(expected, text + at, end - at < 5 ? end - at : 5);
            cr_assert_eq(pd_crc32(0, text + begin, end - begin), expected, "%zu to %zu", begin, end);
        }
}
