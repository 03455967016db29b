#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# image.sh REPO REF1 REF2 OS GUEST SUITE WORK: makes of the host lab's commits REF1 and REF2, in REPO, a disk that
# boots. WORK, an empty directory, then has disk.img, and vmlinuz and initramfs.img as REF1 has them. The commits on the
# disk have the same names: the host lab's trees with a kernel, an initramfs and GUEST. In the environment LOADER is the
# boot loader, and COMPOSEFS and SELINUX are 1 or empty. The text is part of the cache's key, and so are these.
set -eu
PATH=$PATH:/usr/sbin:/sbin
repo=$1 ref1=$2 ref2=$3 os=$4 guest=$5 suite=$6 work=$7
. "$(dirname "$0")/parts.sh"
cd "$work"

# What is the boot loader's own: ostree's name for it, what it needs in the tree, what has to be there before ostree
# writes its first entry, and what installs it on the disk $loop, whose one file system is mounted at root.
case $LOADER in
extlinux)
	backend=syslinux
	into_tree() { :; }
	before_entries() {
		# ostree writes the loader's configuration where this link leads. The loader reads ours first, which includes
		# that one and then says again what the default is: ostree's own word for it has the version in it.
		mkdir -p root/boot/syslinux root/boot/loader.0
		ln -s ../loader/syslinux.cfg root/boot/syslinux/syslinux.cfg
		ln -s loader.0 root/boot/loader
		echo 'PROMPT 0' >root/boot/loader.0/syslinux.cfg
		printf '%s\n' 'PROMPT 0' 'TIMEOUT 1' 'SERIAL 0 115200' 'INCLUDE /boot/loader/syslinux.cfg' 'DEFAULT TestOS' \
			>root/boot/syslinux/extlinux.conf
	}
	install_loader() {
		dd if=/usr/lib/EXTLINUX/mbr.bin of=disk.img bs=440 count=1 conv=notrunc status=none
		extlinux --install root/boot/syslinux
	}
	;;
grub)
	backend=none # until there are entries: this machine's ostree does not know that /boot is no file system of its own
	# ostree runs this program of the tree's, and so do we, for what GRUB reads: the entries are those that ostree makes,
	# and before them stands what greenboot puts there. Debian's GRUB can't subtract, so its numbers are written out.
	into_tree() {
		cat >tree/usr/sbin/grub-mkconfig <<'END'
#!/bin/sh
# grub-mkconfig -o FILE
set -eu
{
	cat <<'CONFIG'
serial --unit=0 --speed=115200
terminal_input serial
terminal_output serial
load_env
set timeout=0
set default=0
if [ -n "${boot_counter}" -a "${boot_success}" = "0" ]; then
  if [ "${boot_counter}" = "0" -o "${boot_counter}" = "-1" ]; then
    set default=1
    set boot_counter=-1
  elif [ "${boot_counter}" = "1" ]; then
    set boot_counter=0
  elif [ "${boot_counter}" = "2" ]; then
    set boot_counter=1
  elif [ "${boot_counter}" = "3" ]; then
    set boot_counter=2
  fi
  save_env boot_counter
fi
set boot_success=0
save_env boot_success
function load_video {
  true
}
CONFIG
	root=${2%/boot/*}
	GRUB2_BOOT_DEVICE_ID=boot GRUB2_PREPARE_ROOT_CACHE='' \
		ostree admin instutil --sysroot="${root:-/}" grub2-generate
} >"$2"
END
		chmod 755 tree/usr/sbin/grub-mkconfig
		# What greenboot does on a machine that GRUB has brought back, with ostree's word for rpm-ostree's rollback.
		cat >$units/greenboot-rpm-ostree-grub2-check-fallback.service <<'END'
[Unit]
Description=Check for fallback boot

[Service]
Type=oneshot
ExecCondition=grep -q "^boot_counter=-1$" /boot/grub2/grubenv
ExecStart=ostree admin set-default 1

[Install]
WantedBy=multi-user.target
END
		mkdir -p $units/multi-user.target.wants
		ln -s ../greenboot-rpm-ostree-grub2-check-fallback.service $units/multi-user.target.wants/
	}
	before_entries() {
		mkdir -p root/boot/grub2
		ln -s ../loader/grub.cfg root/boot/grub2/grub.cfg
		grub-editenv root/boot/grub2/grubenv create
	}
	# The core has all modules in it.
	install_loader() {
		sed -i 's,^\(linux\|initrd\) /ostree/,\1 /boot/ostree/,' root/boot/loader/entries/*.conf
		ostree config --repo=root/ostree/repo set sysroot.bootprefix true
		ostree config --repo=root/ostree/repo set sysroot.bootloader grub2
		_OSTREE_GRUB2_BOOTVERSION=1 tree/usr/sbin/grub-mkconfig -o "$PWD/root/boot/loader.1/grub.cfg"
		modules=/usr/lib/grub/i386-pc
		grub-mkimage -O i386-pc -d $modules -o core.img -p '(hd0,msdos1)/boot/grub2' biosdisk part_msdos ext2 normal \
			serial terminal linux gzio loadenv test true minicmd
		write_grub $modules/boot.img core.img
	}
	;;
*)
	echo "image.sh: no boot loader $LOADER" >&2
	exit 1
	;;
esac

# The kernel, and the shell of the initramfs. Nothing of it is configured.
extract() { # DIR PACKAGES [SOURCE...]
	dir=$1 packages=$2
	shift 2
	mmdebstrap --variant=extract --include="$packages" --dpkgopt='path-exclude=/usr/share/*' \
		--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
		--aptopt="APT::Default-Release \"$suite\"" "$suite" "$dir" "$@"
}
extract debs "linux-image-cloud-amd64,busybox-static,kexec-tools${SELINUX:+,bubblewrap}"
kv=$(ls debs/usr/lib/modules)
busybox=debs/usr/bin/busybox
modules=virtio_blk

# Nothing below changes a file in place: those of a checkout are the repository's.
ostree --repo="$repo" checkout "$ref1" tree
prepare=tree/usr/lib/ostree/ostree-prepare-root
cp -d --remove-destination debs/usr/sbin/kexec tree/usr/sbin/
cp -d debs/usr/lib/x86_64-linux-gnu/libxen*.so.* tree/usr/lib/x86_64-linux-gnu/

# As Fedora CoreOS has it. This Debian builds its ostree without composefs, and the next one's runs on it.
if [ "$COMPOSEFS" ]; then
	modules="$modules loop erofs overlay"
	extract ostree ostree/forky,ostree-boot/forky,libostree-1-1/forky "deb http://deb.debian.org/debian $suite main" \
		'deb [check-valid-until=no] http://deb.debian.org/debian forky main'
	for file in ostree/usr/lib/x86_64-linux-gnu/*.so.*; do
		[ -e "tree/${file#ostree/}" ] || cp -d "$file" tree/usr/lib/x86_64-linux-gnu/
	done
	for file in usr/bin/ostree usr/lib/ostree/ostree-prepare-root usr/lib/ostree/ostree-remount \
		usr/lib/systemd/system/ostree-finalize-staged.service usr/lib/systemd/system/ostree-boot-complete.service \
		usr/lib/systemd/system/ostree-remount.service usr/lib/systemd/system-generators/ostree-system-generator \
		usr/lib/x86_64-linux-gnu/libostree-1.so.1 usr/lib/x86_64-linux-gnu/libostree-1.so.1.0.0; do
		cp -d --remove-destination "ostree/$file" "tree/$file"
	done
	rm tree/usr/lib/ostree/prepare-root.conf
	printf '[composefs]\nenabled=true\n[sysroot]\nreadonly=true\n' >tree/usr/lib/ostree/prepare-root.conf
fi

# Debian's policy, built by its package, and enforced. It knows nothing of ostree hosts, and gets what Fedora's has for
# them: the paths that stand for others, and that systemd's own programs may follow the links into /var and make there
# what tmpfiles.d says. The agent needs nothing of it: what init starts is as unconfined here as there. The store of the
# policy is in /etc, as there: ostree has semodule look after it in each new deployment.
label= security='lsm=capability audit=0'
if [ "$SELINUX" ]; then
	label='--selinux-policy=/ --selinux-labeling-epoch=1' security='lsm=capability,selinux enforcing=1'
	mmdebstrap --variant=essential --include=selinux-policy-default,policycoreutils,selinux-utils \
		--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--essential-hook='mkdir -p "$1/etc/default" && echo HOME=/var/home >"$1/etc/default/useradd"' "$suite" selinux
	echo '(typeattributeset files_unconfined_type (syslogd_t systemd_generator_t systemd_journal_init_t' \
		'systemd_logind_t systemd_sysctl_t systemd_tmpfiles_t))' >selinux/lab.cil
	chroot selinux semodule --noreload --store=default --install=/lab.cil
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' selinux/etc/selinux/config
	echo 'store-root=/etc/selinux' >>selinux/etc/selinux/semanage.conf
	mv selinux/var/lib/selinux/default/active selinux/etc/selinux/default/
	printf '%s\n' '/home /var/home' '/var/roothome /root' '/var/usrlocal /usr/local' '/var/mnt /mnt' \
		>>selinux/etc/selinux/default/contexts/files/file_contexts.subs_dist
	cp -a selinux/etc/selinux tree/usr/etc/
	cp selinux/etc/default/useradd tree/usr/etc/default/
	for file in selinux/usr/lib/x86_64-linux-gnu/*.so.*; do
		[ -e "tree/${file#selinux/}" ] || cp -d "$file" tree/usr/lib/x86_64-linux-gnu/
	done
	for program in getenforce restorecon sefcontext_compile semodule setfiles; do
		cp -d --remove-destination "selinux/usr/sbin/$program" tree/usr/sbin/
	done
	cp debs/usr/bin/bwrap tree/usr/bin/
fi

# The initramfs runs the real ostree-prepare-root.
for dir in bin etc lib64 proc sys dev run sysroot usr/lib/ostree; do
	mkdir -p initramfs/$dir
done
cp $busybox initramfs/bin/busybox
cp $prepare tree/usr/lib/ostree/prepare-root.conf initramfs/usr/lib/ostree/
: >initramfs/etc/initrd-release
for library in $(chroot tree ldd /usr/lib/ostree/ostree-prepare-root | grep -oE '/[^ ]+\.so[^ ]*'); do
	mkdir -p "initramfs$(dirname "$library")"
	cp -L "tree$library" "initramfs$library"
done
add_module() { # NAME, after what it depends on
	for needed in $(module "$1" | grep -ao 'depends=[a-z0-9_,-]*' | cut -d= -f2 | tr , ' '); do
		add_module "$needed"
	done
	[ -e "initramfs/modules/$1.ko" ] || echo "$1" >>initramfs/modules/order
	module "$1" >"initramfs/modules/$1.ko"
}
module() { $busybox xzcat "$(find "debs/usr/lib/modules/$kv" -name "$1.ko.xz")"; }
mkdir initramfs/modules
for module in $modules; do
	add_module "$module"
done
cat >initramfs/init <<'END'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
case " $(cat /proc/cmdline) " in *" lab.probe "*)
	echo noderefit: the kernel runs >/dev/ttyS0
	poweroff -f
esac
mount -t tmpfs -o mode=755,nosuid,nodev run /run
mkdir /run/testos
cp /version /run/testos/initramfs
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
root=
for argument in $(cat /proc/cmdline); do # of several the last counts
	case $argument in root=*) root=${argument#root=} ;; esac
done
until disk=$(findfs "$root" 2>/dev/null); do sleep 0.1; done
mount -t ext4 -o rw "$disk" /sysroot && /usr/lib/ostree/ostree-prepare-root /sysroot || {
	echo noderefit: no root >/dev/ttyS0
	poweroff -f
}
for dir in run dev proc sys; do mount --move /$dir /sysroot/$dir; done
exec switch_root /sysroot /sbin/init
END
chmod 755 initramfs/init
pack() { # VERSION TREE
	mkdir -p "$2/usr/lib/modules/$kv"
	cp "debs/boot/vmlinuz-$kv" "$2/usr/lib/modules/$kv/vmlinuz"
	echo "$1" >initramfs/version
	(cd initramfs && find . | LC_ALL=C sort | "../$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 -n \
		>"$2/usr/lib/modules/$kv/initramfs.img"
}

# What the host lab has instead of a kernel goes; what it took out because a container needs no such thing stays out.
rm -rf tree/usr/lib/modules
pack v1 tree
cp "tree/usr/lib/modules/$kv/vmlinuz" "tree/usr/lib/modules/$kv/initramfs.img" .
pack v2 v2
mkdir -p v2/usr/lib/testos v2/usr/etc/testos
ostree --repo="$repo" checkout --union --subpath=/usr/lib/testos "$ref2" v2/usr/lib/testos
ostree --repo="$repo" checkout --union --subpath=/usr/etc/testos "$ref2" v2/usr/etc/testos

# The boot loader takes the first word of a title as the label, and the rest as kernel arguments: so there is no rest.
sed 's/^PRETTY_NAME=.*/PRETTY_NAME=TestOS/' tree/usr/lib/os-release >os-release
rm tree/usr/lib/os-release
mv os-release tree/usr/lib/os-release
units=tree/usr/lib/systemd/system
add_guest tree "$guest"
into_tree

# in_tree runs a program of the tree's own, which sees the work directory at /sysroot: our ostree may know less.
in_tree() {
	unshare --mount sh -ec 'mount --rbind . tree/sysroot
mount -t proc proc tree/proc
mount --bind /dev tree/dev
mount -t tmpfs run tree/run
mount -t tmpfs tmp tree/tmp
exec chroot tree "$@"' in_tree "$@"
}
commit() { # REF VERSION TREE...
	ref=$1 version=$2
	shift 2
	in_tree ostree --repo=/sysroot/commits commit --branch="$ref" --subject="$version" --bootable \
		--add-metadata-string=version="$version" --timestamp=2025-01-01T00:00:00Z $label "$@"
}
ostree --repo=commits init --mode=bare
ostree --repo=commits config set core.fsync false
commit "$ref1" v1 --tree=dir=/sysroot/tree
commit "$ref2" v2 --tree=ref="$ref1" --tree=dir=/sysroot/v2

# One partition, because ostree needs links in /boot. The boot loader's ext4 is that of 2014.
format() {
	mkfs.ext4 -q -F -L root -E lazy_itable_init=0,lazy_journal_init=0 \
		-O none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,large_file \
		-O huge_file,extra_isize "$1"
}
make_disk 2048 start=2048,type=83,bootable
ostree admin init-fs --modern root
ostree config --repo=root/ostree/repo set core.fsync false
ostree config --repo=root/ostree/repo set sysroot.bootloader "$backend"
ostree config --repo=root/ostree/repo set sysroot.readonly true
ostree --repo=root/ostree/repo pull-local commits "$ref1" "$ref2"
ostree admin --sysroot=root os-init "$os"
before_entries
set -- root=LABEL=root rw quiet $arguments $security
for argument; do
	set -- "$@" "--karg=$argument"
	shift
done
in_tree ostree admin --sysroot=/sysroot/root deploy --os="$os" "$@" "$ref1"
ostree config --repo=root/ostree/repo unset core.fsync
etc=$(echo root/ostree/deploy/"$os"/deploy/*.0)/etc
name_host "$etc"
# What is no deployment's has its labels from whoever makes the disk. The objects of the repository have those of their
# files.
if [ "$SELINUX" ]; then
	contexts=/etc/selinux/default/contexts/files/file_contexts
	in_tree setfiles -F -r /sysroot/root -e /sysroot/root/ostree /usr$contexts /sysroot/root
	in_tree setfiles -F -r "/sysroot/$(dirname "$etc")" /usr$contexts "/sysroot/$etc"
	in_tree setfiles -F -r "/sysroot/root/ostree/deploy/$os" /usr$contexts "/sysroot/root/ostree/deploy/$os/var"
	printf '%s system_u:object_r:usr_t:s0\n' '/ostree(/boot.*)?' '/ostree/deploy(/[^/]*(/deploy)?)?' \
		'/ostree/deploy/[^/]*/deploy/.*origin --' '/ostree/repo(/.*)? -d' '/ostree/repo/(config|refs/.*) --' >contexts
	in_tree setfiles -F -r /sysroot/root /sysroot/contexts /sysroot/root/ostree
fi
install_loader
finish_disk
