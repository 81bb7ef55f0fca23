#!/bin/sh
# What a boot does with an installed driver: device nodes, and the versions that the cards run from now on.
[ -r /opt/test-host/host.env ] && . /opt/test-host/host.env
# Nodes have the null device's numbers: they open, and do nothing.
[ -e /usr/local/Ascend/driver/version.info ] || exit 0
card=0
while [ "$card" -lt "${TEST_CARDS:-2}" ]; do
  [ -e "/dev/davinci$card" ] || mknod "/dev/davinci$card" c 1 3
  card=$((card + 1))
done
for node in davinci_manager devmm_svm hisi_hdc; do [ -e "/dev/$node" ] || mknod "/dev/$node" c 1 3; done
mkdir -p /run/fake-npu
for part in driver firmware; do
  sed -n 's/^Version=//p' "/usr/local/Ascend/$part/version.info" >"/run/fake-npu/$part" 2>/dev/null
done
exit 0
