#!/bin/bash
# The matrices of tests/matrix.rs for what is encrypted, which take a kernel with dm-crypt: every step of a stage, a growth and an
# unstage is killed and fails.
# about 100 s
set -euo pipefail
here=$(dirname "$0")
export LONGSHORE=$here/longshore
"$here/matrix" luks --test-threads=2 --show-output 2>&1 | grep -v '^fault: '
[ "${PIPESTATUS[0]}" = 0 ]
