#!/bin/sh
# What an installed driver of the version $1 leaves on disk, as far as the roles look at it.
mkdir -p /usr/local/Ascend/driver/lib64/common /usr/local/Ascend/driver/lib64/driver /usr/local/Ascend/driver/tools /usr/local/dcmi
printf 'Version=%s\nascendhal_version=7.35.23\nInnerversion=V100R001C23SPC001B220\n' "$1" >/usr/local/Ascend/driver/version.info
install -m 755 /opt/test-host/fake-npu-smi /usr/local/bin/npu-smi
install -m 755 /opt/test-host/fake-hccn-tool /usr/local/Ascend/driver/tools/hccn_tool
[ -e /etc/hccn.conf ] || { : >/etc/hccn.conf; chmod 644 /etc/hccn.conf; }
