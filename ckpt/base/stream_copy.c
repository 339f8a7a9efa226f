#include "ckpt/base/stream_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE 64u
#define STREAM_BYTES_MIN 4096u /* below this the caches are faster */

/* dst is a multiple of 16 bytes. */
static void copy_line(char *dst, const char *src)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)src);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + 48));
    _mm_stream_si128((__m128i *)(void *)dst, a);
    _mm_stream_si128((__m128i *)(void *)(dst + 16), b);
    _mm_stream_si128((__m128i *)(void *)(dst + 32), c);
    _mm_stream_si128((__m128i *)(void *)(dst + 48), d);
}

void pd_stream_copy(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    if (bytes < STREAM_BYTES_MIN) {
        memcpy(to, from, bytes);
        return;
    }
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE; /* whole lines: partial ones would be read and written back */
    memcpy(to, from, head);
    size_t lines_end = head + (bytes - head) / LINE * LINE;
    for (size_t i = head; i < lines_end; i += LINE)
        copy_line(to + i, from + i);
    _mm_sfence(); /* streaming stores are not ordered with other stores */
    memcpy(to + lines_end, from + lines_end, bytes - lines_end);
}

#else

void pd_stream_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif
