#!/bin/sh
# PID 1 of a test host: make it look like a machine, count what tries to leave, hand over to systemd.
set -u
# The cgroup trees are mounted read-only in the container's own namespace; systemd and an inner engine write there.
for tree in /sys/fs/cgroup/*; do mountpoint -q "$tree" && mount -o remount,bind,rw "$tree"; done
# These are bind mounts; a real host's can be replaced.
for name in hosts hostname resolv.conf; do
  cp "/etc/$name" "/run/$name.mounted" && umount "/etc/$name" 2>/dev/null && cp "/run/$name.mounted" "/etc/$name"
done
# A look-up of a name must be seen as the packet that it is: the name server is an address that leads outside.
echo 'nameserver 198.51.100.53' >/etc/resolv.conf
mount -o remount,bind,rw /proc/sys

# With a default route every attempt to leave becomes a packet, which is counted and refused.
ip route replace default via "$TEST_GATEWAY"
for chain in OUTPUT FORWARD; do
  for inside in 127.0.0.0/8 "$TEST_SUBNET" 172.16.0.0/12 224.0.0.0/4 255.255.255.255/32; do
    iptables -t mangle -A "$chain" -d "$inside" -j RETURN
  done
  iptables -t mangle -A "$chain" -j NFLOG --nflog-group 5
  iptables -t mangle -A "$chain" -m comment --comment leaves-the-test-network -j DROP
  ip6tables -t mangle -A "$chain" -d 2000::/3 -j NFLOG --nflog-group 5
  ip6tables -t mangle -A "$chain" -d 2000::/3 -m comment --comment leaves-the-test-network -j DROP
done
# What each of them was, with the name that it asked for: /var/log/leaving.log.
tcpdump -i nflog:5 -Z root -nn -tttt -l >>/var/log/leaving.log 2>/var/log/leaving.err </dev/null &

[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key

# Services of systemd know nothing of the container's environment; the fake tools read it here.
printf 'TEST_CARDS=%s\nTEST_SUBNET=%s\n' "${TEST_CARDS:-0}" "$TEST_SUBNET" >/opt/test-host/host.env
if [ "${TEST_CARDS:-0}" -gt 0 ]; then
  if [ ! -e /opt/test-host/driver-made ]; then
    sh /opt/test-host/driver-tree.sh 25.5.0
    mkdir -p /usr/local/Ascend/firmware
    printf 'Version=7.8.0.1.220\n' >/usr/local/Ascend/firmware/version.info
    printf 'UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\nDriver_Install_Path_Param=/usr/local/Ascend\nFirmware_Install_Path_Param=/usr/local/Ascend\nDriver_Install_Status=complete\n' >/etc/ascend_install.info
    host=$(hostname -I | tr ' ' '\n' | sed -n 's/^172\.[0-9]*\.[0-9]*\.//p' | head -n 1)
    card=0
    while [ "$card" -lt "$TEST_CARDS" ]; do
      printf 'address_%s=10.20.%s.%s\nnetmask_%s=255.255.0.0\n' "$card" "$host" "$((card + 1))" "$card"
      card=$((card + 1))
    done >/etc/hccn.conf
    touch /opt/test-host/driver-made
  fi
  sh /opt/test-host/load-driver.sh
fi
exec /lib/systemd/systemd
