/* Notes of a rank, as its launcher reads them. */
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/input/names.h"
#include "tests/fuzz/target.h"
#include "trainer/notes/note.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"begun-0", "ended-0", "saved-0", "gpu-0"};
    struct input_record record;
    struct pd_note_begun begun;
    struct pd_note_ended ended;
    uint64_t step;
    char identity[PD_NOTE_GPU_BYTES];
    bool is_spare;
    const char *directory = input_names(names, 4);
    if (!input_record_take(&data, &bytes, 4, &record)) return 0;
    input_name_set(record.part, record.data, record.bytes);
    if (record.part == 0 && pd_note_read_process(directory, PD_NOTE_BEGUN, 0, &begun) &&
        (begun.process < 0 || begun.pulse < -1))
        abort();
    if (record.part == 1 && pd_note_read_ended(directory, 0, &ended) && ended.status >= PD_STATUS_COUNT) abort();
    if (record.part == 2) (void)pd_note_read_saved(directory, &step);
    if (record.part == 3 && pd_note_read_gpu(directory, 0, identity, &is_spare) &&
        strnlen(identity, sizeof identity) == sizeof identity)
        abort();
    return 0;
}
