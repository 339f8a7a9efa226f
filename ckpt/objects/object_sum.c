#include "ckpt/objects/object_sum.h"

#include "ckpt/base/digest.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

/* Reflected polynomials: bit i is the coefficient of x^(bits - 1 - i). */
static const struct sum_kind {
    const char *name;
    unsigned bits;
    uint64_t polynomial;
} sum_kinds[] = {
    [PD_OBJECT_SUM_CRC32] = {"CRC-32", 32, 0xedb88320},
    [PD_OBJECT_SUM_CRC32C] = {"CRC-32C", 32, 0x82f63b78},
    [PD_OBJECT_SUM_CRC64NVME] = {"CRC-64/NVME", 64, 0x9a6c9329ac4bc9b5},
};

static uint64_t sum_tables[4][8][256]; /* [kind][t][byte]: of the byte with t zero bytes behind it */

static void sum_make_tables(void)
{
    for (int kind = PD_OBJECT_SUM_CRC32C; kind <= PD_OBJECT_SUM_CRC64NVME; kind++)
        for (int t = 0; t < 8; t++)
            for (int i = 0; i < 256; i++) {
                uint64_t value = t ? sum_tables[kind][t - 1][i] : (uint64_t)i;
                for (int bit = 0; bit < 8; bit++)
                    value = value >> 1 ^ (value & 1 ? sum_kinds[kind].polynomial : 0);
                sum_tables[kind][t][i] = value;
            }
}

bool pd_object_sum_parse(enum pd_object_sum_kind kind, const char *text, struct pd_object_sum *ret_sum)
{
    const size_t bytes = sum_kinds[kind].bits / 8, length = strlen(text);
    unsigned char decoded[16];
    if (length != (bytes + 2) / 3 * 4 || EVP_DecodeBlock(decoded, (const unsigned char *)text, (int)length) < (int)bytes)
        return false;
    *ret_sum = (struct pd_object_sum){.kind = kind};
    for (size_t i = 0; i < bytes; i++)
        ret_sum->value = ret_sum->value << 8 | decoded[i];
    return true;
}

uint64_t pd_object_sum_of(enum pd_object_sum_kind kind, const void *data, uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (kind == PD_OBJECT_SUM_CRC32) return pd_crc32(0, data, bytes);
    pthread_once(&once, sum_make_tables);
    const uint64_t all = UINT64_MAX >> (64 - sum_kinds[kind].bits);
    const unsigned char *p = data;
    uint64_t crc = all, word;
    for (; bytes >= 8; bytes -= 8, p += 8) { /* eight bytes at a time, each by the table of its place */
        memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int t = 0; t < 8; t++)
            crc ^= sum_tables[kind][7 - t][word >> (8 * t) & 255];
    }
    for (; bytes; bytes--, p++)
        crc = crc >> 8 ^ sum_tables[kind][0][(crc ^ *p) & 255];
    return crc ^ all;
}

/* a * b modulo the polynomial */
static uint64_t sum_multiply(const struct sum_kind *k, uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (uint64_t bit = UINT64_C(1) << (k->bits - 1); bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b >> 1 ^ (b & 1 ? k->polynomial : 0);
    }
    return product;
}

uint64_t pd_object_sum_shift(enum pd_object_sum_kind kind, uint64_t value, uint64_t bytes_after)
{
    const struct sum_kind *k = &sum_kinds[kind];
    uint64_t power = UINT64_C(1) << (k->bits - 1 - 8); /* x^8, then its squares */
    for (; bytes_after; bytes_after >>= 1) {
        if (bytes_after & 1) value = sum_multiply(k, power, value);
        power = sum_multiply(k, power, power);
    }
    return value;
}

const char *pd_object_sum_name(enum pd_object_sum_kind kind)
{
    return sum_kinds[kind].name;
}
