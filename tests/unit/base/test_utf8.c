#include "ckpt/base/utf8.h"

#include <criterion/criterion.h>
#include <stdio.h>

Test(utf8, what_no_terminal_should_be_given_becomes_question_marks)
{
    static const char *const pairs[][2] = {{"a name, \xc3\xa9\xe4\xb8\xad\n\t", "a name, \xc3\xa9\xe4\xb8\xad\n\t"},
                                           {"\x1b[2J", "?[2J"},
                                           {"\xff\xfe x\x80", "?? x?"},
                                           {"\xc2\x9b"
                                            "m\x7f",
                                            "??m?"},
                                           {"\xe4\xb8", "??"},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", pairs[i][0]);
        pd_utf8_clean(text);
        cr_assert_str_eq(text, pairs[i][1]);
    }
}
