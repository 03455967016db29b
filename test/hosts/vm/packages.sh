#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh REPO REF1 REF2 OS GUEST SUITE WORK: makes a disk with a Debian of packages that boots, without ostree. WORK,
# an empty directory, then has disk.img, and vmlinuz and initramfs.img as the disk has them. The kernel, initramfs-tools
# and the boot loader are Debian's, and what they write is their own work. Of REF1 in REPO, the host lab's commit, are
# the services of the node, and which units a boot leaves out. In the environment LOADER is the boot loader, and TREE
# what debian.sh has made. The text is part of the cache's key. REF2, OS and SUITE are for image.sh.
set -eu
PATH=$PATH:/usr/sbin:/sbin
repo=$1 ref1=$2 guest=$5 work=$7
. "$(dirname "$0")/parts.sh"
cd "$work"
uuid=6e6f6465-7265-6669-742d-6c61622d766d
arguments="$arguments lsm=capability audit=0"

# What is the boot loader's own: the packages of others, the table of partitions, where / begins, what goes into the
# tree debian, and what is installed on the disk, whose / is mounted at root and has that tree.
case $LOADER in
grub)
	others='systemd-boot*'
	first=2048 table=start=2048,type=83,bootable
	# As images of clouds have their arguments. Each entry more, and each script that has none, is seconds of emulation.
	into_tree() {
		chmod -x debian/etc/grub.d/20_linux_xen debian/etc/grub.d/30_os-prober
		cat >debian/etc/default/grub.d/50-lab.cfg <<-END
			GRUB_TIMEOUT=0
			GRUB_DISABLE_RECOVERY=true
			GRUB_DISABLE_SUBMENU=true
			GRUB_TERMINAL=serial
			GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
			GRUB_CMDLINE_LINUX="$arguments"
		END
	}
	# update-grub asks the disk below / for its name. In there that is one without partitions, whose name is no loop's.
	install_loader() {
		mount -t tmpfs dev debian/dev
		mkdir -p debian/dev/disk/by-uuid
		cp -a /dev/null debian/dev/
		mknod debian/dev/vda b $(stat -c '0x%t 0x%T' "$loop")
		ln -s ../../vda "debian/dev/disk/by-uuid/$uuid"
		chroot debian sh -euc 'mount /dev/vda /mnt
mount --rbind /dev /mnt/dev
mount -t proc proc /mnt/proc
mount -t sysfs sys /mnt/sys
exec chroot /mnt sh -euc "$1"' sh '
modules=/usr/lib/grub/i386-pc boot=/boot/grub
mkdir $boot/i386-pc
cp $modules/*.mod $modules/*.lst $boot/i386-pc/
grub-mkimage -O i386-pc -o $boot/i386-pc/core.img -p "(hd0,msdos1)$boot" biosdisk part_msdos ext2
grub-editenv $boot/grubenv create
echo "(hd0) /dev/vda" >$boot/device.map
update-grub
rm $boot/device.map'
		umount -R debian/mnt debian/dev
		grep -q "root=UUID=$uuid" root/boot/grub/grub.cfg
		write_grub root/usr/lib/grub/i386-pc/boot.img root/boot/grub/i386-pc/core.img
	}
	;;
systemd-boot)
	others='grub*' esp=262144 # sectors
	first=$((2048 + esp))
	table="label: gpt
start=2048,size=$esp,type=U
start=$first,type=L"
	into_tree() {
		mkdir debian/efi
		rm -r debian/boot/grub # a font
		# As Debian's installer has it, and with no limit: an emulated machine may be slow.
		options=umask=0077,x-systemd.device-timeout=infinity,x-systemd.mount-timeout=infinity
		echo "UUID=6E6F-6465 /efi vfat $options 0 1" >>debian/etc/fstab
		echo "root=UUID=$uuid $arguments" >debian/etc/kernel/cmdline
	}
	# What a machine would write to its system partition. Not every kernel has vfat, to mount the partition here.
	install_loader() {
		mount -t tmpfs -o mode=700 efi root/efi
		mount -t proc proc root/proc
		SYSTEMD_RELAX_ESP_CHECKS=1 chroot root sh -euc '
bootctl --no-variables --make-entry-directory=auto install
for image in /boot/vmlinuz-*; do kernel-install add "${image#*-}" "$image"; done'
		grep -q "root=UUID=$uuid" root/efi/loader/entries/*.conf
		mformat -i disk.img@@1M -F -T $esp -N 6e6f6465 ::
		mcopy -i disk.img@@1M -s root/efi/* ::
	}
	;;
*)
	echo "packages.sh: no boot loader $LOADER" >&2
	exit 1
	;;
esac

mkdir debian
tar -C debian --xattrs --xattrs-include='*' -xpf "$TREE"
# shellcheck disable=SC2016
chroot debian sh -euc 'dpkg --purge $(dpkg-query --show --showformat="\${Package} " "$1")' sh "$others"

# The node's services, and people. What the host lab took out of a boot stays out, except udev.
ostree --repo="$repo" checkout --user-mode "$ref1" tree
units=usr/lib/systemd/system
for path in debian/$units/*.wants/* debian/usr/lib/systemd/system-generators/*; do
	case $path in
	*/systemd-udev* | */kmod-static-nodes.service) ;;
	*) [ -e "tree/${path#debian/}" ] || [ -L "tree/${path#debian/}" ] || rm "$path" ;;
	esac
done
rm -rf debian/etc/systemd/system/*.wants
cp -r tree/usr/lib/testos debian/usr/lib/
for service in kubelet crio containerd; do
	cp tree/$units/$service.service debian/$units/
done
cp tree/usr/lib/systemd/system-preset/80-testos.preset debian/usr/lib/systemd/system-preset/
(cd tree/usr/etc && cp -dr --parents systemd/system/multi-user.target.wants systemd/journald.conf.d systemd/logind.conf \
	chrony.conf kubernetes crio testos "$work/debian/etc/")
for file in passwd group shadow gshadow; do
	grep -E '^(core|_chrony):' tree/usr/etc/$file | sed s,/var/home/,/home/, >>debian/etc/$file
done
install -d -m 700 -o 1000 -g 1000 debian/home/core
add_guest debian "$guest"
name_host debian/etc
rm -f debian/etc/resolv.conf
# Modules that udev finds hardware for, and that nothing here needs, are seconds of emulation too.
printf 'blacklist %s\n' kvm_amd ahci evdev serio_raw button qemu_fw_cfg efi_pstore powernow_k8 \
	>debian/etc/modprobe.d/lab.conf
echo "UUID=$uuid / ext4 errors=remount-ro 0 1" >debian/etc/fstab
into_tree
cp debian/boot/vmlinuz-* vmlinuz
cp debian/boot/initrd.img-* initramfs.img

format() { mkfs.ext4 -q -F -L root -U "$uuid" -E lazy_itable_init=0,lazy_journal_init=0 "$1"; }
make_disk "$first" "$table"
cp -a debian/. root/
install_loader
finish_disk
