#!/usr/bin/env bash
# Before Python 3.11.5, a possessive group keeps what an alternative read before it failed.
#
# Expected: `(?:...)++` matches what `(?>(?:...)+)` matches, as the documentation of `re` defines it.
# Seen: In `(?:ab(?=c)|x)++`, the first alternative reads `ab` and fails at the end of the text, and the match
# contains `ab` all the same. The atomic group is right.
# Versions: Python 3.11.2 (wrong) and 3.11.7 (right). Needs Python 3.11.0 to 3.11.4 as PYTHON or /usr/bin/python3.11,
# such as Debian 12's.
# Source: SRE_OP_POSSESSIVE_REPEAT in Modules/_sre/sre_lib.h; python/cpython#106052.
# Met by: patterns that were made possessive against slow backtracking, on distributions with an early 3.11.
set -euo pipefail
is_early='import sys; sys.exit(not (3, 11) <= sys.version_info[:3] < (3, 11, 5))'
for python in "${PYTHON:-python3}" /usr/bin/python3.11 ""; do
  if [ -n "$python" ] && "$python" -c "$is_early" 2> /dev/null; then break; fi
done
if [ -z "$python" ]; then
  echo "skipped: needs Python 3.11.0 to 3.11.4"
  exit 0
fi
"$python" - <<'END'
import re
import sys

got = {pattern: re.match(pattern, "xab").group() for pattern in (r"(?:ab(?=c)|x)++", r"(?>(?:ab(?=c)|x)+)")}
print(f"Python {'.'.join(map(str, sys.version_info[:3]))} matches in xab:", got)
possessive, atomic = got.values()
assert atomic == "x", "the atomic group is wrong as well"
assert possessive == "xab", "the possessive group is right here"
END
