# sh -euc SCRIPT sh FOLDER FILE...: install these rpm files of FOLDER by dnf, with every repository off.
# FOLDER/begun holds the packages' names as long as that is not done: of what a death leaves, packages may count as
# installed that lack their last scriptlet, or whose files are empty. Who is at work holds the folder's lock.
cd "$1"
shift
exec 9<.
flock 9
of() { rpm -qp --nosignature --qf "$1" "$2" 2>/dev/null; }
for file; do of '%{NAME}\n' "$file"; done >begun
sync begun .
offline_dnf() { dnf -y --disablerepo='*' --nogpgcheck --setopt=install_weak_deps=False "$@" 9<&-; }
count=$# again=
for file; do
  # Installed in this very version and here all the same: it was half there, and is done again.
  if rpm -q "$(of '%{NVRA}' "$file")" >/dev/null; then again="$again ./$file"; else set -- "$@" "./$file"; fi
done
shift "$count"
[ $# -eq 0 ] || offline_dnf install "$@"
# shellcheck disable=SC2086 # names of files, without blanks
[ -z "$again" ] || offline_dnf reinstall $again
for file in "$@" $again; do
  rpm -q "$(of '%{NVRA}' "$file")" >/dev/null || { echo "dnf ended well, and has not installed $file" >&2; exit 1; }
done
# Rpm leaves its files to the kernel; after a power cut now, nothing would tell that they are empty.
sync
rm begun
