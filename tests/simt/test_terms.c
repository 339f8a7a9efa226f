/* Terms and their sums on the host: the bits of the CPU backend, of runs of all lengths, in place and apart. */
#include "tests/simt/simt_fixture.h"

enum { N = 30011, MARK = 4 };

static const uint64_t cuts[] = {0, 1, 1000, 1024, 20011, N};
enum { RUNS = sizeof cuts / sizeof *cuts - 1 };

struct sums {
    int64_t terms[N + RUNS]; /* a check behind each run */
    uint32_t flags[RUNS][2], damaged[RUNS];
    float apart[N];
};

static void make(struct sums *s, const void *x, enum pd_term_source source, bool adds, bool keeps, struct pd_term_run *runs,
                 struct pd_terms *t)
{
    const struct pd_quantum q = pd_quantum_of(777, 3, 0);
    const uint64_t bytes = source == PD_TERM_INTEGER ? 8 : 4;
    for (uint32_t i = 0; i < RUNS; i++) {
        int64_t *to = s->terms + cuts[i] + i, n = (int64_t)(cuts[i + 1] - cuts[i]);
        runs[i] = (struct pd_term_run){
            (const char *)x + cuts[i] * bytes, keeps ? to : NULL, (uint64_t)n, adds, !adds, q.scale, to + n, s->flags[i]};
    }
    *t = (struct pd_terms){runs, RUNS, source, q.limit, MARK, false};
}

static pd_status both(struct pd_math *math, struct sums *got, struct sums *want, const void *x, enum pd_term_source source,
                      bool adds, bool keeps, struct pd_error *err)
{
    struct pd_term_run ours[RUNS], theirs[RUNS];
    struct pd_terms a, b;
    make(got, x, source, adds, keeps, ours, &a);
    make(want, x, source, adds, keeps, theirs, &b);
    PD_TRY(pd_cuda_terms(NULL, &a, err));
    return pd_terms(math, &b, err);
}

Test(simt_terms, bits_of_the_cpu)
{
    static struct sums got, want;
    static float x[N];
    static int64_t whole[N];
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    struct pd_error err;
    uint64_t seed = 12;
    for (uint32_t i = 0; i < N; i++) {
        x[i] = (float)ldexp(random_normal(&seed), (int)(i % 60) - 50);
        whole[i] = (int64_t)random_u64(&seed);
    }
    x[1500] = INFINITY, x[1501] = 0x1p100f, x[20020] = NAN;
    for (int order = 0; order < SOME_ORDERS; order++) {
        simt_set_order(some_orders[order]);
        memset(&got, 0xfb, sizeof got), memset(&want, 0xfb, sizeof want);
        cr_assert_eq(both(f.math, &got, &want, x, PD_TERM_F32, false, false, &err), PD_OK, "%s", err.message);
        cr_assert_eq(memcmp(&got, &want, sizeof got), 0, "what terms add up to differs");
        cr_assert_eq(got.terms[0], -0x0404040404040405, "terms were kept");
        cr_assert_eq(both(f.math, &got, &want, x, PD_TERM_F32, false, true, &err), PD_OK, "%s", err.message);
        cr_assert_eq(both(f.math, &got, &want, x, PD_TERM_F32, true, true, &err), PD_OK, "%s", err.message);
        cr_assert_eq(both(f.math, &got, &want, whole, PD_TERM_INTEGER, true, true, &err), PD_OK, "%s", err.message);
        cr_assert_eq(memcmp(&got, &want, sizeof got), 0, "terms differ");
        cr_assert(got.flags[3][0] == MARK && got.flags[3][1] == MARK && got.flags[2][0] != MARK && got.flags[2][1] != MARK);
        cr_assert(got.flags[4][0] != MARK && got.flags[4][1] == MARK);
        got.terms[cuts[3] + 9] ^= 4, want.terms[cuts[3] + 9] ^= 4;
        for (uint32_t i = 0; i < RUNS; i++) {
            const uint64_t n = cuts[i + 1] - cuts[i];
            int64_t *a = got.terms + cuts[i] + i, *b = want.terms + cuts[i] + i;
            const struct pd_term_sums apart[] = {{n, a, got.apart + cuts[i], 0x1p-43f, NULL, NULL, 0, false, NULL},
                                                 {n, b, want.apart + cuts[i], 0x1p-43f, NULL, NULL, 0, false, NULL}};
            const struct pd_term_sums in_place[] = {
                {n, a, (float *)a, 0x1p-43f, a + n, &got.damaged[i], MARK, false, NULL},
                {n, b, (float *)b, 0x1p-43f, b + n, &want.damaged[i], MARK, false, NULL}};
            cr_assert_eq(pd_cuda_term_sums(NULL, &apart[0], &err), PD_OK, "%s", err.message);
            cr_assert_eq(pd_term_sums(f.math, &apart[1], &err), PD_OK);
            cr_assert_eq(pd_cuda_term_sums(NULL, &in_place[0], &err), PD_OK, "%s", err.message);
            cr_assert_eq(pd_term_sums(f.math, &in_place[1], &err), PD_OK);
            cr_assert_eq(memcmp(a, got.apart + cuts[i], n * sizeof(float)), 0, "in place there are other sums");
            cr_assert_eq(memcmp(a, b, n * sizeof(float)), 0, "sums of run %u differ", i);
        }
        cr_assert_eq(memcmp(got.apart, want.apart, sizeof got.apart), 0);
        cr_assert_eq(memcmp(got.damaged, want.damaged, sizeof got.damaged), 0);
        cr_assert(got.damaged[3] == MARK && got.damaged[4] != MARK);
    }
    fixture_free(&f);
}

/* 32 bits, in place, with the largest. */
Test(simt_terms, narrow_bits_of_the_cpu)
{
    static struct {
        int32_t terms[N + 1];
        uint32_t flags[2], damaged;
        float largest;
    } both[2];
    static float x[N];
    static int32_t whole[N];
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    const struct pd_quantum q = pd_quantum32_of(777, 3, -5, 0);
    struct pd_error err;
    uint64_t seed = 14;
    for (uint32_t i = 0; i < N; i++) {
        x[i] = (float)ldexp(random_normal(&seed), (int)(i % 30) - 30);
        whole[i] = (int32_t)random_u64(&seed);
    }
    x[1500] = INFINITY, x[1501] = 0x1p100f;
    for (int order = 0; order < SOME_ORDERS; order++) {
        simt_set_order(some_orders[order]);
        memset(both, 0, sizeof both);
        for (int k = 0; k < 2; k++) {
            int32_t *to = both[k].terms;
            for (int turn = 0; turn < 3; turn++) {
                const struct pd_term_run run = {
                    turn < 2 ? (const void *)x : whole, to, N, turn > 0, !turn, q.scale, to + N, both[k].flags};
                const struct pd_terms t = {&run, 1, turn < 2 ? PD_TERM_F32 : PD_TERM_INTEGER, q.limit, MARK, true};
                cr_assert_eq(k ? pd_terms(f.math, &t, &err) : pd_cuda_terms(NULL, &t, &err), PD_OK, "%s", err.message);
            }
        }
        cr_assert_eq(memcmp(&both[0], &both[1], sizeof both[0]), 0, "terms differ");
        cr_assert(both[0].flags[0] == MARK && both[0].flags[1] == MARK);
        for (int k = 0; k < 2; k++) {
            int32_t *sums = both[k].terms;
            const struct pd_term_sums s = {N,    sums, (float *)sums,   q.quantum, sums + N, &both[k].damaged,
                                           MARK, true, &both[k].largest};
            cr_assert_eq(k ? pd_term_sums(f.math, &s, &err) : pd_cuda_term_sums(NULL, &s, &err), PD_OK, "%s", err.message);
        }
        cr_assert_eq(memcmp(&both[0], &both[1], sizeof both[0]), 0, "sums differ");
        cr_assert(both[0].damaged == 0 && both[0].largest > 0);
    }
    fixture_free(&f);
}
