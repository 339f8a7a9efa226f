#!/bin/sh
# Sanitizers of older compilers now and then do not start where addresses are drawn from more than 28 bits (vm.mmap_rnd_bits):
# checked.sh COMMAND runs it without drawing, where that is allowed.
if setarch -R true 2>/dev/null; then exec setarch -R "$@"; fi
exec "$@"
