#include "ckpt/objects/object_sum.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Check values of the CRC catalogue (https://reveng.sourceforge.io/crc-catalogue), and their base64. */
static const struct {
    enum pd_object_sum_kind kind;
    uint64_t of_digits;
    const char *text;
} known[] = {{PD_OBJECT_SUM_CRC32, 0xcbf43926, "y/Q5Jg=="},
             {PD_OBJECT_SUM_CRC32C, 0xe3069283, "4waSgw=="},
             {PD_OBJECT_SUM_CRC64NVME, 0xae8b14860a799888, "rosUhgp5mIg="}};

Test(object_sum, known_sums_and_headers)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct pd_object_sum sum;
        cr_assert_eq(pd_object_sum_of(known[i].kind, "123456789", 9), known[i].of_digits);
        cr_assert(pd_object_sum_parse(known[i].kind, known[i].text, &sum));
        cr_assert_eq(sum.kind, known[i].kind);
        cr_assert_eq(sum.value, known[i].of_digits);
        char composite[32];
        snprintf(composite, sizeof composite, "%s-3", known[i].text);
        const char *const bad[] = {composite, "", "!!!!!!==", "!!!!!!!!!!!=", "y/Q5"};
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
            cr_assert_not(pd_object_sum_parse(known[i].kind, bad[b], &sum), "%s", bad[b]);
    }
}

Test(object_sum, parts_make_the_whole)
{
    unsigned char data[3000];
    uint32_t random = 7;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)((random = random * 1664525 + 1013904223) >> 24);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (size_t cut = 0; cut <= sizeof data; cut += 1 + cut / 7) {
            const enum pd_object_sum_kind kind = known[i].kind;
            const uint64_t first = pd_object_sum_shift(kind, pd_object_sum_of(kind, data, cut), sizeof data - cut);
            cr_assert_eq(first ^ pd_object_sum_of(kind, data + cut, sizeof data - cut),
                         pd_object_sum_of(kind, data, sizeof data), "%s cut at %zu", pd_object_sum_name(kind), cut);
        }
}
