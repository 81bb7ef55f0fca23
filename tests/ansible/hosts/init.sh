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
  iptables -t mangle -A "$chain" -m comment --comment leaves-the-test-network -j DROP
  ip6tables -t mangle -A "$chain" -d 2000::/3 -m comment --comment leaves-the-test-network -j DROP
done

[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key

if [ "${TEST_CARDS:-0}" -gt 0 ]; then
  # Nodes with the null device's numbers: they open, and do nothing.
  card=0
  while [ "$card" -lt "$TEST_CARDS" ]; do
    [ -e "/dev/davinci$card" ] || mknod "/dev/davinci$card" c 1 3
    card=$((card + 1))
  done
  for node in davinci_manager devmm_svm hisi_hdc; do [ -e "/dev/$node" ] || mknod "/dev/$node" c 1 3; done
  if [ ! -e /opt/test-host/driver-made ]; then
    install -D -m 755 /opt/test-host/fake-npu-smi /usr/local/bin/npu-smi
    mkdir -p /usr/local/Ascend/driver/lib64/common /usr/local/Ascend/driver/lib64/driver /usr/local/Ascend/firmware /usr/local/dcmi
    printf 'Version=25.5.0\nascendhal_version=7.35.23\nInnerversion=V100R001C23SPC001B220\n' >/usr/local/Ascend/driver/version.info
    printf 'Version=7.8.0.1.220\n' >/usr/local/Ascend/firmware/version.info
    printf 'UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\nDriver_Install_Path_Param=/usr/local/Ascend\nFirmware_Install_Path_Param=/usr/local/Ascend\nDriver_Install_Status=complete\n' >/etc/ascend_install.info
    touch /opt/test-host/driver-made
  fi
fi
exec /lib/systemd/systemd
