/* Feeds the files that it is given to the target, and to each of them damage by seed: a byte changed, cut off, repeated. */
#include "tests/fuzz/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_MAX = 1 << 20, DAMAGED_DEFAULT = 200 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* In place; returns how many bytes there are then. */
static size_t damage(uint8_t *input, size_t bytes, uint64_t seed)
{
    uint64_t random = seed * 77 + 1;
    for (uint64_t n = 1 + next_random(&random) % 3; n > 0 && bytes; n--) {
        const size_t at = next_random(&random) % bytes;
        switch (next_random(&random) % 4) {
        case 0:
            input[at] ^= (uint8_t)(1u << next_random(&random) % 8);
            break;
        case 1:
            input[at] = (uint8_t)next_random(&random);
            break;
        case 2:
            bytes = at;
            break;
        default:
            memmove(input + at, input + at / 2, bytes - at);
        }
    }
    return bytes;
}

static int replay(const char *path, unsigned long count)
{
    uint8_t *input = malloc(INPUT_MAX), *damaged = malloc(INPUT_MAX);
    FILE *file = fopen(path, "rb");
    if (!file || !input || !damaged) {
        perror(path);
        return 1;
    }
    const size_t bytes = fread(input, 1, INPUT_MAX, file);
    fclose(file);
    (void)LLVMFuzzerTestOneInput(input, bytes);
    for (unsigned long seed = 1; seed <= count; seed++) {
        memcpy(damaged, input, bytes);
        const size_t left = damage(damaged, bytes, seed);
        uint8_t *exact = malloc(left + 1); /* so that a read beyond its end is seen */
        memcpy(exact, damaged, left);
        (void)LLVMFuzzerTestOneInput(exact, left);
        free(exact);
    }
    free(input);
    free(damaged);
    return 0;
}

int main(int argc, char **argv)
{
    const char *scale = getenv("PERDURE_TEST_SCALE");
    const unsigned long count = DAMAGED_DEFAULT * (scale ? strtoul(scale, NULL, 10) : 1);
    for (int i = 1; i < argc; i++)
        if (replay(argv[i], count)) return 1;
    printf("%d seeds, %lu damaged copies of each\n", argc - 1, count);
    return argc > 1 ? 0 : 1;
}
