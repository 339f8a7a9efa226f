#include "trainer/data/data.h"

#include "files.h"
#include <pthread.h>

#define CONTEXT 16

static struct pd_error err;

TestSuite(data, .init = test_dir_make, .fini = test_dir_remove);

static struct pd_data *open_ok(const struct pd_data_options *options)
{
    struct pd_data *data = NULL;
    cr_assert_eq(pd_data_open(options, &data, &err), PD_OK, "%s", err.message);
    return data;
}

static void refused(const struct pd_data_options *options, pd_status expected, const char *a, const char *b)
{
    struct pd_data *data = NULL;
    cr_assert_eq(pd_data_open(options, &data, &err), expected, "%s", err.message);
    cr_assert_null(data);
    cr_assert_not_null(strstr(err.message, a), "\"%s\" has no \"%s\"", err.message, a);
    cr_assert_not_null(strstr(err.message, b), "\"%s\" has no \"%s\"", err.message, b);
}

static struct pd_data_options options_of(struct pd_data_source *train, uint32_t count)
{
    return (struct pd_data_options){
        .train = train, .train_count = count, .context = CONTEXT, .vocab = 65536, .document_token = -1, .seed = 5};
}

#define TOKENIZER(vocab) "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":[]}}"

static void write_tokenizer(const char *name, const char *json)
{
    test_write(name, json, strlen(json));
}

Test(data, files_of_one_tokenizer_go_together_and_those_of_two_do_not)
{
    struct pd_data_source train[] = {{test_write_u16("a.bin", 100, 0, 100), PD_DATA_AUTO, 0},
                                     {test_write_u16("b.bin", 100, 0, 100), PD_DATA_AUTO, 0},
                                     {test_write_u16("c.bin", 100, 0, 100), PD_DATA_AUTO, 0}};
    struct pd_data_options options = options_of(train, 3);
    const char *path;
    struct pd_data *data = open_ok(&options);
    cr_assert_eq(pd_data_tokenizer(data, &path), 0);
    cr_assert_null(path);
    pd_data_close(data);
    write_tokenizer("a.bin.tokenizer.json", TOKENIZER("{\"a\":0,\"b\":299}"));
    write_tokenizer("c.bin.tokenizer.json", " " TOKENIZER("{\"b\": 299, \"a\": 0}"));
    data = open_ok(&options);
    cr_assert_neq(pd_data_tokenizer(data, &path), 0);
    cr_assert_str_eq(path, train[0].path);
    pd_data_close(data);
    write_tokenizer("c.bin.tokenizer.json", TOKENIZER("{\"b\":0,\"a\":299}"));
    refused(&options, PD_INVALID, "different tokenizers", "c.bin");
    write_tokenizer("c.bin.tokenizer.json", "{}");
    refused(&options, PD_CORRUPT, "model", "c.bin.tokenizer.json");
    options.train_count = 2;
    options.vocab = 299;
    refused(&options, PD_INVALID, "model.vocab=300", "a.bin");
    options.train_count = 3;
    options.vocab = 300;
    train[2] = (struct pd_data_source){test_write("d.txt", "0123456789abcdefgh", 18), PD_DATA_TEXT, 0};
    refused(&options, PD_INVALID, "different tokenizers", "d.txt");
}

struct sample {
    int32_t tokens[CONTEXT], targets[CONTEXT], positions[CONTEXT], first[CONTEXT];
};

static struct sample get(const struct pd_data *data, enum pd_split split, uint64_t i)
{
    struct sample s;
    cr_assert_eq(pd_data_sample(data, split, i, s.tokens, s.targets, s.positions, s.first, &err), PD_OK, "%s", err.message);
    return s;
}

static void check_plain(const struct sample *s)
{
    for (int t = 0; t < CONTEXT; t++) {
        cr_assert_eq(s->targets[t], s->tokens[0] + t + 1);
        cr_assert_eq(s->tokens[t], s->tokens[0] + t);
        cr_assert_eq(s->positions[t], t);
        cr_assert_eq(s->first[t], 0);
    }
}

Test(data, an_epoch_takes_every_sample_of_every_file_once)
{
    /* Tokens tell file and place: 100 samples, 37, and one. */
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 100 * CONTEXT + 5, 0, 65536), PD_DATA_AUTO, 0},
                                       {test_write_u16("b.bin", 37 * CONTEXT + 1, 20000, 65536), PD_DATA_AUTO, 0},
                                       {test_write_u16("c.bin", CONTEXT + 1, 40000, 65536), PD_DATA_AUTO, 0}};
    struct pd_data_options options = options_of(sources, 3);
    struct pd_data *data = open_ok(&options);
    cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_TRAIN), 138);
    cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_VALIDATION), 0);
    int32_t order[3][138];
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        unsigned seen[3][100] = {0};
        for (uint64_t i = 0; i < 138; i++) {
            struct sample s = get(data, PD_SPLIT_TRAIN, epoch * 138 + i);
            check_plain(&s);
            cr_assert_eq(s.tokens[0] % 20000 % CONTEXT, 0);
            seen[s.tokens[0] / 20000][s.tokens[0] % 20000 / CONTEXT]++;
            order[epoch][i] = s.tokens[0];
        }
        for (int w = 0; w < 100; w++) {
            cr_assert_eq(seen[0][w], 1);
            cr_assert_eq(seen[1][w], w < 37);
            cr_assert_eq(seen[2][w], w < 1);
        }
    }
    unsigned same = 0;
    for (int i = 0; i < 138; i++)
        same += order[0][i] == order[1][i];
    cr_assert_lt(same, 12, "epochs have their own orders");
    pd_data_close(data);
}

Test(data, weights_are_shares_and_each_file_keeps_its_own_epochs)
{
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 1000 * CONTEXT + 1, 0, 65536), PD_DATA_AUTO, 1},
                                       {test_write_u16("b.bin", 10 * CONTEXT + 1, 20000, 65536), PD_DATA_AUTO, 3}};
    struct pd_data_options options = options_of(sources, 2);
    struct pd_data *data = open_ok(&options);
    unsigned seen_a[1000] = {0}, seen_b[10] = {0}, count_b = 0;
    int32_t order_b[3000];
    for (uint64_t i = 0; i < 4000; i++) {
        struct sample s = get(data, PD_SPLIT_TRAIN, i);
        check_plain(&s);
        if (s.tokens[0] < 20000) {
            seen_a[s.tokens[0] / CONTEXT]++;
        } else {
            seen_b[(s.tokens[0] - 20000) / CONTEXT]++;
            order_b[count_b++] = s.tokens[0];
            if (count_b % 10 == 0) {
                for (int w = 0; w < 10; w++)
                    cr_assert_eq(seen_b[w], count_b / 10, "after whole epochs all were taken as often");
            }
        }
        if (i % 4 == 3) cr_assert_leq(abs((int)count_b - (int)((i + 1) * 3 / 4)), 1);
    }
    cr_assert_eq(count_b, 3000);
    cr_assert_neq(memcmp(order_b, order_b + 10, 10 * sizeof order_b[0]), 0, "each epoch of a file has its own order");
    for (int w = 0; w < 1000; w++)
        cr_assert_eq(seen_a[w], 1);
    pd_data_close(data);
}

Test(data, samples_depend_on_the_seed_and_on_nothing_else)
{
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 1000 * CONTEXT + 1, 0, 65536), PD_DATA_AUTO, 0}};
    struct pd_data_options options = options_of(sources, 1);
    struct pd_data *a = open_ok(&options), *b = open_ok(&options);
    options.seed = 6;
    struct pd_data *c = open_ok(&options);
    unsigned same = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        struct sample x = get(a, PD_SPLIT_TRAIN, i), y = get(b, PD_SPLIT_TRAIN, i), z = get(c, PD_SPLIT_TRAIN, i);
        cr_assert_eq(memcmp(&x, &y, sizeof x), 0);
        same += x.tokens[0] == z.tokens[0];
    }
    cr_assert_lt(same, 20);
    pd_data_close(a);
    pd_data_close(b);
    pd_data_close(c);
}

Test(data, the_validation_tail_is_kept_out_of_training)
{
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 0},
                                       {test_write_u16("b.bin", 30, 20000, 65536), PD_DATA_AUTO, 0}};
    struct pd_data_options options = options_of(sources, 2);
    options.validation_fraction = 0.1;
    struct pd_data *data = open_ok(&options);
    cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_VALIDATION), 6); /* 100 tokens; 3 of the second are too few */
    cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_TRAIN), 56 + 1);
    for (uint64_t i = 0; i < 6; i++) {
        struct sample s = get(data, PD_SPLIT_VALIDATION, i);
        cr_assert_eq(s.tokens[0], 900 + (int)i * CONTEXT);
        check_plain(&s);
    }
    for (uint64_t i = 0; i < 57; i++) {
        struct sample s = get(data, PD_SPLIT_TRAIN, i);
        cr_assert(s.targets[CONTEXT - 1] < 900 || s.tokens[0] >= 20000);
    }
    pd_data_close(data);
}

Test(data, validation_files_are_read_in_order)
{
    struct pd_data_source train = {test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 0};
    struct pd_data_source validation[] = {{test_write_u16("v.bin", 2 * CONTEXT + 1, 30000, 65536), PD_DATA_AUTO, 0},
                                          {test_write_u16("w.bin", 1 * CONTEXT + 1, 50000, 65536), PD_DATA_AUTO, 0}};
    struct pd_data_options options = options_of(&train, 1);
    options.validation = validation;
    options.validation_count = 2;
    struct pd_data *data = open_ok(&options);
    static const int32_t expected[] = {30000, 30016, 50000};
    for (uint64_t i = 0; i < 3; i++) {
        struct sample s = get(data, PD_SPLIT_VALIDATION, i);
        cr_assert_eq(s.tokens[0], expected[i]);
    }
    struct sample s;
    cr_assert_eq(pd_data_sample(data, PD_SPLIT_VALIDATION, 3, s.tokens, s.targets, NULL, NULL, &err), PD_INVALID);
    pd_data_close(data);
}

/* Windows taken of files that begin at tokens 0, 20000 and 40000, each once; their numbers into `counts`. */
static void count_validation(const struct pd_data *data, uint32_t counts[3])
{
    static bool seen[3][200];
    memset(seen, 0, sizeof seen);
    memset(counts, 0, 3 * sizeof *counts);
    for (uint64_t i = 0; i < pd_data_sample_count(data, PD_SPLIT_VALIDATION); i++) {
        struct sample s = get(data, PD_SPLIT_VALIDATION, i);
        const int32_t file = s.tokens[0] / 20000, window = s.tokens[0] % 20000 / CONTEXT;
        check_plain(&s);
        cr_assert(!seen[file][window], "window %d of file %d comes twice", window, file);
        seen[file][window] = true;
        counts[file]++;
    }
    for (int file = 0; file < 3; file++) /* evenly over the file: the last quarter is not left out */
        for (int w = 0, late = 0; counts[file] >= 8 && w < 200; w++)
            if ((late += seen[file][w] && w >= 30) == 0 && w == 199) cr_assert_fail("file %d ends unseen", file);
}

Test(data, validation_is_spread_over_all_files_and_takes_no_window_twice)
{
    struct pd_data_source train = {test_write_u16("t.bin", 1000, 0, 65536), PD_DATA_AUTO, 0};
    struct pd_data_source files[] = {{test_write_u16("a.bin", 160 * CONTEXT + 1, 0, 65536), PD_DATA_AUTO, 0},
                                     {test_write_u16("b.bin", 40 * CONTEXT + 1, 20000, 65536), PD_DATA_AUTO, 0},
                                     {test_write_u16("c.bin", 5 * CONTEXT + 1, 40000, 65536), PD_DATA_AUTO, 0}};
    static const struct {
        double weights[3];
        uint64_t wanted;
        uint32_t counts[3];
    } cases[] = {
        {{0, 0, 0}, 41, {32, 8, 1}},     /* by size */
        {{0, 0, 0}, 1000, {160, 40, 5}}, /* more than there is: all of it */
        {{0, 0, 0}, 0, {160, 40, 5}},    /* all was asked for */
        {{0, 0, 0}, 204, {159, 40, 5}},  {{1, 1, 1}, 12, {4, 4, 4}},
        {{1, 1, 1}, 31, {13, 13, 5}}, /* the third has no more */
        {{1, 1, 2}, 40, {17, 18, 5}},    {{2, 1, 1}, 120, {77, 38, 5}},
        {{1, 3, 1}, 200, {155, 40, 5}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct pd_data_options options = options_of(&train, 1);
        uint32_t counts[3];
        for (int i = 0; i < 3; i++)
            files[i].weight = cases[n].weights[i];
        options.validation = files;
        options.validation_count = 3;
        options.validation_samples = cases[n].wanted;
        struct pd_data *data = open_ok(&options);
        count_validation(data, counts);
        for (int i = 0; i < 3; i++)
            cr_assert_leq(abs((int)counts[i] - (int)cases[n].counts[i]), 1, "case %zu: file %d gives %u", n, i, counts[i]);
        uint64_t expected = cases[n].wanted && cases[n].wanted < 205 ? cases[n].wanted : 205;
        cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_VALIDATION), expected, "case %zu", n);
        cr_assert_eq(counts[0] + counts[1] + counts[2], expected, "case %zu", n);
        pd_data_close(data);
    }
}

/* A checkpoint of an earlier version, which took a weight of 1 for one that is not given, is still this data's. */
Test(data, the_weight_of_a_file_alone_does_not_matter)
{
    struct pd_data_source source = {test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 0};
    uint64_t without[2], with[2];
    for (int i = 0; i < 2; i++) {
        source.weight = i;
        struct pd_data_options options = options_of(&source, 1);
        struct pd_data *data = open_ok(&options);
        pd_data_fingerprint(data, i ? with : without);
        pd_data_close(data);
    }
    cr_assert_arr_eq(with, without, sizeof with);
}

Test(data, documents_are_kept_apart_at_their_token)
{
    /* 0 ends a document: lengths 5, 1, 20, ... */
    unsigned char text[2 * CONTEXT + 1];
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(100 + i);
    text[4] = text[5] = text[CONTEXT - 1] = 0;
    struct pd_data_source source = {test_write("a.txt", text, sizeof text), PD_DATA_AUTO, 0};
    struct pd_data_options options = options_of(&source, 1);
    options.validation = &source;
    options.validation_count = 1;
    options.separate_documents = true;
    options.document_token = 0;
    struct pd_data *data = open_ok(&options);
    struct sample s = get(data, PD_SPLIT_VALIDATION, 0);
    static const int32_t first[CONTEXT] = {0, 0, 0, 0, 0, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6};
    for (int t = 0; t < CONTEXT; t++) {
        cr_assert_eq(s.first[t], first[t], "%d", t);
        cr_assert_eq(s.positions[t], t - first[t]);
        cr_assert_eq(s.targets[t], t == 4 || t == 5 || t == CONTEXT - 1 ? -1 : (int32_t)text[t + 1], "%d", t);
    }
    s = get(data, PD_SPLIT_VALIDATION, 1);
    check_plain(&s);
    pd_data_close(data);
    options.document_token = -1;
    refused(&options, PD_INVALID, "documents cannot be kept apart", "data.document_token");
}

Test(data, documents_are_kept_apart_at_the_bounds_of_megatron)
{
    static const int32_t lengths[] = {5, 0, 1, 10, 17};
    unsigned char index[1024];
    size_t count = 0;
    const uint64_t version = 1, sequences = 5, bounds = 5;
    const int64_t documents[] = {0, 1, 2, 4, 5}; /* the second is empty; the third has two sequences */
    unsigned char type = 1;
#define PUT(data, bytes) (memcpy(index + count, data, bytes), count += (bytes))
    PUT("MMIDIDX\0", 9);
    PUT(&version, 8);
    PUT(&type, 1);
    PUT(&sequences, 8);
    PUT(&bounds, 8);
    PUT(lengths, sizeof lengths);
    for (int64_t i = 0, offset = 0; i < 5; offset += lengths[i++])
        PUT(&offset, 8);
    PUT(documents, sizeof documents);
    unsigned char text[33];
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(100 + i);
    test_write("m.bin", text, sizeof text);
    test_write("m.idx", index, count);
    struct pd_data_source source = {test_path("m"), PD_DATA_MEGATRON, 0};
    struct pd_data_options options = options_of(&source, 1);
    options.validation = &source;
    options.validation_count = 1;
    options.separate_documents = true;
    struct pd_data *data = open_ok(&options);
    struct sample s = get(data, PD_SPLIT_VALIDATION, 0);
    for (int t = 0; t < CONTEXT; t++) {
        cr_assert_eq(s.first[t], t < 5 ? 0 : 5, "%d", t);
        cr_assert_eq(s.positions[t], t < 5 ? t : t - 5);
        cr_assert_eq(s.targets[t], t == 4 || t == 15 ? -1 : 101 + t, "%d", t);
    }
    s = get(data, PD_SPLIT_VALIDATION, 1);
    check_plain(&s);
    pd_data_close(data);
}

Test(data, requests_that_cannot_be_met_are_refused_with_their_cause)
{
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 0},
                                       {test_write_u16("b.bin", CONTEXT, 0, 65536), PD_DATA_AUTO, 0}};
    struct pd_data_options good = options_of(sources, 1), options = good;
    options.train_count = 0;
    refused(&options, PD_INVALID, "data.train names no file", "");
    options = options_of(sources, 2);
    refused(&options, PD_INVALID, "b.bin is too short: 16 tokens", "a sample takes 17");
    options = good, options.vocab = 999;
    refused(&options, PD_INVALID, "a.bin: token 999 at position 999", "vocabulary has 999");
    options = good, options.validation_fraction = 0.001;
    refused(&options, PD_INVALID, "data.validation_fraction 0.001", "raise it");
    options = good, options.validation_fraction = 0.999;
    refused(&options, PD_INVALID, "a.bin is too short: 1 token without its validation part", "17");
    options = good, options.validation_fraction = 1;
    refused(&options, PD_INVALID, "data.validation_fraction is 1", "");
    options = good, options.context = 1000;
    refused(&options, PD_INVALID, "a sample takes 1001", "");
    options = good, options.context = 0;
    refused(&options, PD_INVALID, "context is 0", "");
    options = good, options.vocab = 1000, options.document_token = 1000;
    refused(&options, PD_INVALID, "data.document_token 1000", "vocabulary of 1000");
    sources[0].weight = 2;
    test_write_u16("b.bin", 1000, 0, 65536);
    options = options_of(sources, 2);
    refused(&options, PD_INVALID, "data.train[1]", "has no weight");
    sources[0].weight = -1;
    refused(&good, PD_INVALID, "data.train[0].weight is -1", "");
    sources[0].weight = 0;
    options = good, options.validation = &(struct pd_data_source){test_path("missing"), PD_DATA_AUTO, 0},
    options.validation_count = 1;
    refused(&options, PD_NOT_FOUND, "data.validation[0]", "missing");
    sources[0].path = NULL;
    refused(&good, PD_INVALID, "data.train[0]: no path is given", "");
}

Test(data, without_validation_data_asking_for_it_is_an_error)
{
    struct pd_data_source source = {test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 0};
    struct pd_data_options options = options_of(&source, 1);
    struct pd_data *data = open_ok(&options);
    struct sample s;
    cr_assert_eq(pd_data_sample(data, PD_SPLIT_VALIDATION, 0, s.tokens, s.targets, NULL, NULL, &err), PD_INVALID);
    cr_assert_eq(pd_data_sample(data, PD_SPLIT_TRAIN, 0, s.tokens, s.targets, NULL, NULL, &err), PD_OK);
    cr_assert_eq(truncate(source.path, 10), 0);
    cr_assert_eq(pd_data_sample(data, PD_SPLIT_TRAIN, 0, s.tokens, s.targets, NULL, NULL, &err), PD_IO);
    cr_assert_not_null(strstr(err.message, "a.bin"));
    pd_data_close(data);
    pd_data_close(NULL);
}

static void fingerprint_of(const struct pd_data_options *options, uint64_t ret_fingerprint[2])
{
    struct pd_data *data = open_ok(options);
    pd_data_fingerprint(data, ret_fingerprint);
    pd_data_close(data);
}

Test(data, the_fingerprint_names_the_file_that_changed)
{
    struct pd_data_source sources[] = {{test_write_u16("a.bin", 1000, 0, 65536), PD_DATA_AUTO, 1},
                                       {test_write_u16("b.bin", 1000, 0, 65536), PD_DATA_AUTO, 1},
                                       {test_write_u16("c.bin", 1000, 7, 65536), PD_DATA_AUTO, 1}};
    struct pd_data_options options = options_of(sources, 3);
    uint64_t before[2], now[2];
    fingerprint_of(&options, before);
    struct pd_data *data = open_ok(&options);
    cr_assert_eq(pd_data_check_fingerprint(data, before, NULL, &err), PD_OK);
    pd_data_close(data);

    cr_assert_eq(rename(sources[1].path, test_path("moved.bin")), 0);
    sources[1].path = test_path("moved.bin");
    fingerprint_of(&options, now);
    cr_assert_eq(memcmp(before, now, sizeof now), 0, "a file may move");

    test_write_u16("moved.bin", 1000, 1, 65536);
    data = open_ok(&options);
    cr_assert_eq(pd_data_check_fingerprint(data, before, NULL, &err), PD_INVALID);
    cr_assert_not_null(strstr(err.message, "moved.bin changed since the checkpoint"), "%s", err.message);
    cr_assert_null(strstr(err.message, "a.bin"), "%s", err.message);
    pd_data_close(data);
    test_write_u16("moved.bin", 1000, 0, 65536);

    options.train_count = 2;
    data = open_ok(&options);
    cr_assert_eq(pd_data_check_fingerprint(data, before, NULL, &err), PD_INVALID);
    cr_assert_not_null(strstr(err.message, "3 files then, 2 now"), "%s", err.message);
    pd_data_close(data);
    options.train_count = 3;

    sources[2].weight = 2;
    fingerprint_of(&options, now);
    cr_assert_neq(before[0], now[0]);
    sources[2].weight = 1;
    struct pd_data_source swapped[] = {sources[2], sources[1], sources[0]};
    options.train = swapped;
    fingerprint_of(&options, now);
    cr_assert_neq(before[0], now[0]);
    options.train = sources, options.train_count = 2, options.validation = &sources[2], options.validation_count = 1;
    fingerprint_of(&options, now);
    cr_assert_neq(before[0], now[0]);
}

/* before (2), now (2): text files of these letters; the check fails with this message. */
static void changed(const char *const before[3], const char *const now[3], const char *expected)
{
    struct pd_data_source then_sources[3], now_sources[3];
    uint64_t fingerprint[2];
    struct pd_data_options then_options = options_of(then_sources, 0), now_options = options_of(now_sources, 0);
    for (unsigned i = 0; i < 3; i++) {
        char text[200];
        const char *const *names[] = {before, now};
        struct pd_data_source *sources[] = {then_sources, now_sources};
        for (unsigned k = 0; k < 2; k++) {
            if (!names[k][i]) continue;
            memset(text, names[k][i][0], sizeof text);
            sources[k][i] = (struct pd_data_source){test_write(names[k][i], text, sizeof text), PD_DATA_AUTO, 0};
            *(k ? &now_options.train_count : &then_options.train_count) = i + 1;
        }
    }
    fingerprint_of(&then_options, fingerprint);
    struct pd_data *data = open_ok(&now_options);
    cr_expect_eq(pd_data_check_fingerprint(data, fingerprint, &then_options, &err), PD_INVALID);
    cr_expect_not_null(strstr(err.message, expected), "\"%s\" has no \"%s\"", err.message, expected);
    pd_data_close(data);
}

Test(data, a_file_in_the_place_of_another_is_named_with_it)
{
    char both[1200];
    snprintf(both, sizeof both, "%s/c.txt (then %s/b.txt) changed since", test_dir, test_dir);
    changed((const char *const[]){"a.txt", "b.txt", NULL}, (const char *const[]){"a.txt", "c.txt", NULL}, both);
    snprintf(both, sizeof both, "2 files then, 3 now; new: %s/c.txt, %s/d.txt; gone: %s/b.txt; put", test_dir, test_dir,
             test_dir);
    changed((const char *const[]){"a.txt", "b.txt", NULL}, (const char *const[]){"a.txt", "c.txt", "d.txt"}, both);
}

Test(data, a_byte_order_mark_is_no_token)
{
    char text[203] = "\xef\xbb\xbf";
    memset(text + 3, 'x', 200);
    text[3] = 'a';
    struct pd_data_source source = {test_write("marked.txt", text, sizeof text), PD_DATA_AUTO, 0},
                          bare = {test_write("bare.txt", text + 3, 200), PD_DATA_AUTO, 0};
    struct pd_data_options options = options_of(&source, 1);
    struct pd_data *data = open_ok(&options);
    cr_assert_eq(pd_data_sample_count(data, PD_SPLIT_TRAIN), 199 / options.context);
    int32_t tokens[64], targets[64];
    bool found = false;
    cr_assert_leq(options.context, 64);
    for (uint64_t i = 0; i < pd_data_sample_count(data, PD_SPLIT_TRAIN); i++) {
        cr_assert_eq(pd_data_sample(data, PD_SPLIT_TRAIN, i, tokens, targets, NULL, NULL, &err), PD_OK);
        found |= tokens[0] == 'a';
        for (uint32_t t = 0; t < options.context; t++)
            cr_assert_lt(tokens[t], 128);
    }
    cr_expect(found);
    pd_data_close(data);
    uint64_t with[2], without[2];
    struct pd_data_options plain = options_of(&bare, 1);
    fingerprint_of(&options, with);
    fingerprint_of(&plain, without);
    cr_expect_neq(with[0], without[0]);
}

struct reader {
    const struct pd_data *data;
    int failed;
};

static void *read_many(void *argument)
{
    struct reader *reader = argument;
    for (uint64_t i = 0; i < 2000; i++) {
        int32_t tokens[CONTEXT], targets[CONTEXT];
        reader->failed |= pd_data_sample(reader->data, PD_SPLIT_TRAIN, i, tokens, targets, NULL, NULL, NULL) != PD_OK;
        for (int t = 0; t < CONTEXT; t++)
            reader->failed |= targets[t] != tokens[0] + t + 1;
    }
    return NULL;
}

Test(data, many_threads_may_read)
{
    struct pd_data_source source = {test_write_u16("a.bin", 60000, 0, 65536), PD_DATA_AUTO, 0};
    struct pd_data_options options = options_of(&source, 1);
    struct pd_data *data = open_ok(&options);
    struct reader readers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        readers[i] = (struct reader){data, 0};
        pthread_create(&threads[i], NULL, read_many, &readers[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(readers[i].failed, 0);
    }
    pd_data_close(data);
}
