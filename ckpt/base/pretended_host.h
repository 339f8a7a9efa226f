/* For tests: lets ranks on one machine pretend to be on several hosts.
 *
 *   PERDURE_TEST_HOSTS=3        rank r of `size` is on host r * 3 / size
 *   PERDURE_TEST_HOSTS=0,0,1    rank r is on the host of the r-th word; the list repeats
 *   PERDURE_TEST_HOST=name      this process is on that host; set by a test's replacement for ssh */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returns "" if no test hosts are set. False: more hosts than ranks, or not a number. */
bool pd_pretended_host(uint32_t rank, uint32_t size, char ret_name[64]);
