/* What a worker leaves in writing for its launcher. */
#include "trainer/notes/note.h"

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

Test(note, those_who_left_one_are_found_in_one_walk)
{
    enum { RANKS = 16384 };
    static bool has[RANKS];
    char dir[] = "/tmp/perdure-note-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(pd_note_find(dir, PD_NOTE_ENDED, RANKS, has), 0);
    cr_assert(pd_note_write_ended(dir, 0, PD_OK, ""));
    cr_assert(pd_note_write_ended(dir, RANKS - 1, PD_IO, "the disk is gone"));
    cr_assert(pd_note_write_ended(dir, RANKS, PD_IO, "of another size"));
    cr_assert(pd_note_write_mark(dir, PD_NOTE_READY, 7));
    cr_assert_eq(pd_note_find(dir, PD_NOTE_ENDED, RANKS, has), 2);
    cr_assert(has[0] && has[RANKS - 1] && !has[7]);
    cr_assert_eq(pd_note_find(dir, PD_NOTE_READY, RANKS, NULL), 1);
    pd_note_clear(dir);
    cr_assert_eq(pd_note_find(dir, PD_NOTE_ENDED, RANKS, has), 0);
    cr_assert_not(has[0]);
    pd_note_dir_remove(dir);
}
