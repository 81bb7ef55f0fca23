#!/bin/sh
# Build the rpm packages of the stand-in for an openEuler host: make_repository.sh OUT
# Programs and libraries are Debian's, so that the engine is a real one; names and requirements are of the kinds that
# openEuler's packages have: sonames, files, virtual and rich ones, epochs, weak ones.
set -eu
out=$1
work=$(mktemp -d)
mkdir -p "$out" "$work/debs" "$work/specs"
cd "$work/debs"
apt-get -qq download docker.io containerd runc tini chrony dmsetup libdevmapper1.02.1

# tree NAME DEB...: the files of these .deb packages, below /usr where Debian has a link
tree() {
  root=$work/trees/$1
  mkdir -p "$root"
  shift
  for deb in "$@"; do dpkg-deb -x "$work/debs/$deb"_*.deb "$root"; done
  for part in bin sbin lib; do
    [ ! -d "$root/$part" ] || { mkdir -p "$root/usr/$part"; cp -a "$root/$part/." "$root/usr/$part/"; rm -r "$root/$part"; }
  done
  rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/bash-completion" "$root/usr/share/zsh" \
    "$root/usr/share/fish" "$root/usr/share/lintian" "$root/etc/init.d" "$root/etc/default" "$root/usr/share/bug"
}

# package NAME VERSION RELEASE [LINE OF THE SPEC]...: from its tree; scriptlets are read from $work/NAME.scripts
package() {
  name=$1 version=$2 release=$3
  shift 3
  root=$work/trees/$name
  mkdir -p "$root"
  [ -e "$work/$name.scripts" ] || : >"$work/$name.scripts"
  {
    printf 'Name: %s\nVersion: %s\nRelease: %s\nSummary: stand-in\nLicense: none\n' "$name" "$version" "$release"
    for line in "$@"; do echo "$line"; done
    printf '%%description\nstand-in\n%%install\ncp -a %s/. %%{buildroot}/\n' "$root"
    cat "$work/$name.scripts"
    echo '%files'
    (cd "$root" && find . -mindepth 1 -type d) | sed 's/^\.//' | while read -r folder; do [ -d "$folder" ] || echo "%dir $folder"; done
    (cd "$root" && find . \( -type f -o -type l \) | sed 's/^\.//; s/.*\.conf$/%config(noreplace) &/')
  } >"$work/specs/$name-$version.spec"
  rpmbuild --quiet -bb --define "_topdir $work/build" --define "_rpmdir $out" --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
    --define '_binary_payload w1.gzdio' --define 'debug_package %{nil}' --define '__os_install_post %{nil}' \
    --define '_build_id_links none' "$work/specs/$name-$version.spec" >&2
}

tree docker-engine docker.io tini
rm -rf "$work/trees/docker-engine/usr/share" "$work/trees/docker-engine/lib" "$work/trees/docker-engine/usr/lib/udev"
# The end of the installation is slow where a drill asks for it; what it leaves shows that it was reached.
cat >"$work/docker-engine.scripts" <<'SCRIPTS'
%pre
getent group docker >/dev/null || groupadd --system docker
%post
echo "$1" >>/run/docker-engine.post
[ ! -e /run/slow ] || sleep "$(cat /run/slow)"
systemctl daemon-reload >/dev/null 2>&1 || :
touch /var/lib/docker-engine.ready
%preun
[ "$1" != 0 ] || systemctl disable --now docker.socket docker.service >/dev/null 2>&1 || :
%postun
[ "$1" != 0 ] || rm -f /var/lib/docker-engine.ready
SCRIPTS
for version in 18.09.0 25.0.3; do
  package docker-engine "$version" 1.oe2203 'Epoch: 1' 'Requires: containerd >= 2:1.6' 'Requires: /usr/sbin/runc' 'Requires: virtual(engine-data) >= 3' \
    'Requires: (engine-rich if system-base)' 'Requires: system-base' 'Recommends: engine-tips'
done
tree containerd containerd
package containerd "$(dpkg-deb -f "$work"/debs/containerd_*.deb Version | sed 's/[~-].*//')" 1.oe2203 'Epoch: 2'
tree docker-runc runc
package docker-runc 1.1.5 2.oe2203
tree device-mapper-libs libdevmapper1.02.1 dmsetup
package device-mapper-libs 1.02.185 1.oe2203
for name in engine-data engine-rich engine-tips legacy-runtime unrelated; do
  mkdir -p "$work/trees/$name/usr/share/stand-in"
  echo "$name" >"$work/trees/$name/usr/share/stand-in/$name"
done
package engine-data 0.9 1.oe2203 'BuildArch: noarch' 'Provides: virtual(engine-data) = 2'
package engine-data 1.0 1.oe2203 'BuildArch: noarch' 'Provides: virtual(engine-data) = 3'
package engine-rich 1.0~rc1^git2 1.oe2203 'BuildArch: noarch'
package engine-tips 1.0 1.oe2203 'BuildArch: noarch'
package legacy-runtime 1.0 1.oe2203 'BuildArch: noarch' 'Conflicts: docker-engine >= 1:20'
package unrelated 1.0 1.oe2203 'BuildArch: noarch' 'Requires: libdevmapper.so.1.02.1()(64bit)'

tree chrony chrony
chrony=$work/trees/chrony
rm -rf "$chrony/etc" "$chrony/usr/share" "$chrony/usr/lib/systemd" "$chrony/usr/lib/tmpfiles.d" "$chrony/var"
mkdir -p "$chrony/etc" "$chrony/usr/lib/systemd/system"
printf 'pool pool.ntp.org iburst\ndriftfile /var/lib/chrony/drift\nmakestep 1.0 3\nlogdir /var/log/chrony\n' >"$chrony/etc/chrony.conf"
# -x: a container must not set the machine's clock.
printf '[Unit]\nDescription=NTP client/server\n[Service]\nType=simple\nRuntimeDirectory=chrony\nRuntimeDirectoryMode=0750\nStateDirectory=chrony\nExecStart=/usr/sbin/chronyd -x -d -u root -f /etc/chrony.conf\n[Install]\nWantedBy=multi-user.target\n' \
  >"$chrony/usr/lib/systemd/system/chronyd.service"
printf '%%pre\ngetent passwd chrony >/dev/null || useradd --system --no-create-home --home-dir /var/lib/chrony --shell /usr/sbin/nologin chrony\n%%preun\n[ "$1" != 0 ] || systemctl disable --now chronyd.service >/dev/null 2>&1 || :\n' >"$work/chrony.scripts"
package chrony 4.1 3.oe2203

# The system of the host as rpm knows it: all that the others need and none of them has.
rpm -qp --provides "$out"/*.rpm | sed 's/ .*//' | sort -u >"$work/provided"
rpm -qp --list "$out"/*.rpm | sort -u >>"$work/provided"
rpm -qp --requires "$out"/*.rpm | grep -v '^rpmlib(' | grep -v '^(' | sed 's/ .*//' | sort -u | grep -vxFf "$work/provided" |
  grep -vx system-base | sed 's/^/Provides: /' >"$work/base"
echo 'Provides: system-release = 22.03' >>"$work/base"
IFS='
'
# shellcheck disable=SC2046 # a line each
package system-base 22.03 1 $(cat "$work/base")
createrepo_c --quiet "$out"
rm -rf "$work"
