/* Converts a checkpoint, with progress, until it is done or interrupted: convert SOURCE DESTINATION [FORMAT] */
#include <inttypes.h>
#include <perdure.h>
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t is_interrupted;

static void interrupt(int number)
{
    (void)number;
    is_interrupted = 1;
}

static int convert_progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " MB", done / 1000000, total / 1000000);
    return is_interrupted; /* not 0: undo and return */
}

static void print_note(void *context, const char *text)
{
    (void)context;
    printf("note: %s\n", text);
}

int main(int argc, char **argv)
{
    const struct perdure_watch watch = {.progress = convert_progress, .note = print_note};
    struct perdure_convert convert = PERDURE_CONVERT;
    struct perdure_error err;
    if (argc < 3) return fprintf(stderr, "convert SOURCE DESTINATION [FORMAT]\n"), 2;
    signal(SIGINT, interrupt);
    convert.source = argv[1];
    convert.destination = argv[2];
    convert.format = argc > 3 ? argv[3] : NULL;
    convert.watch = &watch;
    if (perdure_convert(&convert, &err)) return fprintf(stderr, "\n%s\n", err.message), 1;
    fprintf(stderr, "\n");
    return 0;
}
