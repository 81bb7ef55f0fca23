#!/bin/sh
# Print the test hosts' inventory: inventory.sh FOLDER NAME:ADDRESS:CARDS...
folder=$1
shift
host() { printf '        %s: {ansible_host: %s}\n' "$1" "$2"; }
list() { for entry in "$@"; do echo "$entry" | tr ':' ' '; done; }
echo "all:"
echo "  vars:"
echo "    ansible_user: root"
echo "    ansible_python_interpreter: /usr/bin/python3"
echo "    ansible_ssh_private_key_file: $folder/id_ed25519"
echo "    ansible_ssh_common_args: -o UserKnownHostsFile=$folder/known_hosts"
echo "    stack_bundle: $folder/bundle"
echo "  children:"
echo "    trainers:"
echo "      hosts:"
list "$@" | while read -r name address cards; do [ "$cards" = 0 ] || host "$name" "$address"; done
echo "    tracking:"
echo "      hosts:"
list "$@" | while read -r name address cards; do [ "$cards" = 0 ] && host "$name" "$address"; done
