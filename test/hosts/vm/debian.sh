#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# debian.sh SUITE WORK: makes WORK/debian.tar, a Debian with the packages of every machine of packages, and with each of
# their boot loaders. WORK is an empty directory. Its kernel and initramfs are those of Debian's own scripts. To install
# packages takes longer than all else of an image. The text is part of the cache's key.
set -eu
PATH=$PATH:/usr/sbin:/sbin
suite=$1 work=$2
cd "$work"

# What the packages' own scripts read when they make the initramfs: the module that the disk needs. A kernel that is
# only asked whether it runs is told so by lab.probe.
cat >hook <<'END'
etc=$1/etc/initramfs-tools
mkdir -p "$etc/conf.d" "$etc/scripts/init-top"
printf 'MODULES=list\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\n' >"$etc/conf.d/lab"
echo virtio_blk >"$etc/modules"
cat >"$etc/scripts/init-top/lab" <<'SCRIPT'
#!/bin/sh
[ "$1" != prereqs ] || exit 0
read -r line </proc/cmdline
case " $line " in *" lab.probe "*)
	echo noderefit: the kernel runs >/dev/ttyS0
	poweroff -f
	;;
esac
SCRIPT
chmod 755 "$etc/scripts/init-top/lab"
END
mmdebstrap --variant=minbase --essential-hook="sh -eu $work/hook \"\$1\"" \
	--include=systemd,systemd-sysv,dbus,libpam-systemd,udev,procps,util-linux,mount,iproute2,e2fsprogs,dosfstools \
	--include=linux-image-cloud-amd64,initramfs-tools,grub-pc,systemd-boot,libcryptsetup12 \
	--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' "$suite" debian.tar
