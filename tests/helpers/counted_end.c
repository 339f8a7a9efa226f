/* With -DPERDURE_COVERAGE the cluster base calls these for abort, _exit and raise: a process that ends so says before which
 * branches it took. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);

void counted_abort(void) __attribute__((noreturn));
void counted_abort(void)
{
    __gcov_dump();
    abort();
}

void counted_exit(int code) __attribute__((noreturn));
void counted_exit(int code)
{
    __gcov_dump();
    _exit(code);
}

/* Who was stopped goes on. */
int counted_raise(int number);
int counted_raise(int number)
{
    __gcov_dump();
    __gcov_reset();
    return raise(number);
}
