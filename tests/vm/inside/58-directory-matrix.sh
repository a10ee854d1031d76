#!/bin/bash
# The crash matrix of directories, on xfs and as subvolumes of btrfs, with an older kernel than most machines that run `make test` have.
# about 440 s
set -euo pipefail
here=$(dirname "$0")
export LONGSHORE=$here/longshore
"$here/matrix" killed_before_every_step_directory --test-threads=2 --show-output 2>&1 | grep -v '^fault: '
[ "${PIPESTATUS[0]}" = 0 ]
