/* What a worker leaves in writing for its launcher. */
#include "trainer/run/note.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

Test(note, a_lost_gpu_is_named_until_notes_are_cleared)
{
    char dir[] = "/tmp/perdure-note-XXXXXX", got[PD_NOTE_GPU_BYTES];
    bool is_spare = false;
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_not(pd_note_read_gpu(dir, 3, got, &is_spare));
    cr_assert(pd_note_write_gpu(dir, 3, "GPU-0123", true));
    cr_assert(pd_note_read_gpu(dir, 3, got, &is_spare));
    cr_assert_str_eq(got, "GPU-0123");
    cr_assert(is_spare);
    pd_note_clear(dir);
    cr_assert_not(pd_note_read_gpu(dir, 3, got, &is_spare));
    pd_note_dir_remove(dir);
    cr_assert_neq(access(dir, F_OK), 0);
}
