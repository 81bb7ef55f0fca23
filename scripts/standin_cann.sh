#!/bin/sh
# Libraries that stand in for CANN's: they have the names that torch_npu links against, and do nothing.
#   standin_cann.sh TO [TORCH_NPU TORCH]     the two packages' folders; without: one empty library
# With them the real torch_npu can be imported where CANN cannot be had. It counts as many devices as the
# environment variable STANDIN_DEVICES says (none without it), and can do nothing with them.
set -eu
to=$1
npu=${2:-}
torch=${3:-}
names="libhccl libacl_op_compiler libge_runner libgraph libacl_tdt_channel"
command -v cc >/dev/null || { printf 'error[standin-cc]: no C compiler\n  do: apt-get install gcc\n' >&2; exit 3; }

source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
: >"$source/empty.c"
{
  echo '#include <stdlib.h>'
  echo 'int aclrtGetDeviceCount(unsigned *count) {'
  echo '  const char *told = getenv("STANDIN_DEVICES"); *count = told ? atoi(told) : 0; return 0; }'
  echo 'const char *aclrtGetSocName(void) { return "Ascend910B3"; }'
  echo 'const char *aclGetRecentErrMsg(void) { return ""; }'
} >"$source/acl.c"
echo '.section .note.GNU-stack,"",%progbits' >"$source/names.s"
if [ -n "$npu" ] && [ -n "$(find "$npu" -name '*.so*' | head -n 1)" ]; then
  find "$npu" "$npu.libs" -name '*.so*' -type f 2>/dev/null | xargs nm -D --undefined-only 2>/dev/null |
    awk '$1 == "U" { sub(/@.*/, "", $2); print $2 }' | sort -u >"$source/wanted"
  find "$npu" "$npu.libs" "$torch" "$torch.libs" -name '*.so*' -type f 2>/dev/null | xargs nm -D --defined-only 2>/dev/null |
    awk '{ sub(/@.*/, "", $NF); print $NF }' | sort -u >"$source/there"
  for library in libc.so.6 libm.so.6 libstdc++.so.6 libgcc_s.so.1 libdl.so.2 libpthread.so.0; do
    file=$(cc -print-file-name="$library")
    [ -e "$file" ] && nm -D --defined-only "$file" | awk '{ sub(/@.*/, "", $NF); print $NF }'
  done | sort -u >"$source/system"
  sort -u "$source/there" "$source/system" | comm -23 "$source/wanted" - |
    grep -v -E '^(Py|_Py)|^(aclrtGetDeviceCount|aclrtGetSocName|aclGetRecentErrMsg)$' >"$source/missing" || true
  {
    echo '.text'
    while read -r name; do printf '.globl "%s"\n"%s":\n' "$name" "$name"; done <"$source/missing"
    case $(uname -m) in x86_64) echo 'xorl %eax, %eax' ;; *) echo 'mov x0, #0' ;; esac
    echo 'ret'
    echo '.section .note.GNU-stack,"",%progbits'
  } >"$source/names.s"
fi
cc -shared -fPIC -Wl,--build-id=none -Wl,-soname,libascendcl.so -o "$to/libascendcl.so" "$source/acl.c" "$source/names.s"
for name in $names; do
  cc -shared -fPIC -Wl,--build-id=none -Wl,-soname,"$name.so" -o "$to/$name.so" "$source/empty.c"
done
