#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh TREE: makes of the tree what a host of packages has: GRUB's settings and configuration, by GRUB's own
# programs. The files of /boot are kept below /usr, for the hosts that get them.
set -eu
cd "$1"
kv=6.12.0-lab

# GRUB's own program looks for the disk. A host of the lab has none.
cat >usr/sbin/grub-probe <<'E'
#!/bin/sh
target=
while [ $# -gt 0 ]; do
	case $1 in
	--target=*) target=${1#*=} ;;
	--target | -t) target=$2; shift ;;
	esac
	shift
done
case $target in
device) echo /dev/vda1 ;;
fs) echo ext2 ;;
drive) echo '(hd0,gpt1)' ;;
partmap) echo gpt ;;
fs_uuid | partuuid) exit 1 ;;
esac
E
cat >usr/etc/default/grub <<'E'
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Test
GRUB_CMDLINE_LINUX_DEFAULT="systemd.show_status=0"
GRUB_CMDLINE_LINUX="console=ttyS0"
E
mkdir -p usr/etc/default/grub.d boot/grub
echo 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT admin=1"' >usr/etc/default/grub.d/50-admin.cfg
echo "kernel of v1" >boot/vmlinuz-$kv
echo "initramfs of v1" >boot/initrd.img-$kv
ln -s usr/etc etc
mount -t proc proc proc
mount --rbind /dev dev
chroot . update-grub
umount -R dev proc
rm etc
mv boot usr/lib/testos/boot
mkdir boot
