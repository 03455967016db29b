#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tree.sh TREE WORK: turns a Debian root file system at TREE into the tree of an ostree commit, and makes under WORK the
# overlays v2 and v3 from which the later commits are derived. The text of this script is part of the cache's key.
set -eu
tree=$1 work=$2
kv=6.12.0-lab
cd "$tree"

# Units that a machine without hardware, without updates of its own and without logins never needs; what is left boots
# in well under a second. They go from /usr and /etc both, so that /etc has no masks that an agent would have to explain.
units=usr/lib/systemd/system
rm -f $units/*.wants/systemd-pcr* $units/*.wants/systemd-tpm2* $units/*.wants/systemd-pstore* \
	$units/*.wants/ldconfig.service $units/*.wants/systemd-update-done.service \
	$units/*.wants/systemd-journal-catalog-update.service $units/*.wants/systemd-firstboot.service \
	$units/*.wants/systemd-hibernate-clear.service $units/*.wants/systemd-machine-id-commit.service \
	$units/*.wants/systemd-random-seed.service $units/*.wants/systemd-binfmt.service $units/*.wants/proc-sys-fs-binfmt_misc.automount \
	$units/*.wants/systemd-modules-load.service $units/*.wants/kmod-static-nodes.service $units/*.wants/systemd-sysusers.service \
	$units/*.wants/sys-kernel-*.mount $units/*.wants/sys-fs-fuse-connections.mount $units/*.wants/dev-hugepages.mount \
	$units/*.wants/systemd-ask-password-* $units/*.wants/getty.target $units/*.wants/getty-static.service \
	$units/*.wants/systemd-creds.socket $units/*.wants/systemd-sysext.socket $units/*.wants/systemd-tmpfiles-clean.timer
rm -rf etc/systemd/system/*.wants
for generator in cryptsetup debug getty gpt-auto hibernate-resume rc-local ssh system-update sysv tpm2 veritysetup integritysetup; do
	rm -f usr/lib/systemd/system-generators/systemd-$generator-generator
done

# The node's services: real units of real processes, with nothing in them. Each writes what happened to it into
# /run/testos/NAME.log and refuses to start while /etc/kubernetes/NAME.conf says "fail", so that a configuration can be
# as bad as they come.
mkdir -p usr/lib/testos
echo v1 >usr/lib/testos/version
cat >usr/lib/testos/service <<'E'
#!/bin/sh
mkdir -p /run/testos
if grep -qs '^fail' "/etc/kubernetes/$1.conf"; then
	echo "$1: its configuration says fail" >&2
	echo fail >>"/run/testos/$1.log"
	exit 1
fi
echo start >>"/run/testos/$1.log"
exec sleep infinity
E
chmod 755 usr/lib/testos/service
for service in kubelet crio containerd; do
	cat >$units/$service.service <<E
[Unit]
Description=Stands for $service

[Service]
Type=exec
ExecStart=/usr/lib/testos/service $service
ExecReload=/bin/sh -c 'echo reload >>/run/testos/$service.log'

[Install]
WantedBy=multi-user.target
E
	mkdir -p etc/systemd/system/multi-user.target.wants
	ln -s /usr/lib/systemd/system/$service.service etc/systemd/system/multi-user.target.wants/$service.service
done
printf '\n[Unit]\nAfter=crio.service containerd.service\nWants=crio.service\n' >>$units/kubelet.service
printf 'enable kubelet.service\nenable crio.service\nenable containerd.service\n' >usr/lib/systemd/system-preset/80-testos.preset

# People and owners.
echo 'core:x:1000:1000:the admin:/var/home/core:/bin/bash' >>etc/passwd
echo 'core:x:1000:' >>etc/group
echo 'core:*:20000:0:99999:7:::' >>etc/shadow
echo 'core:!::' >>etc/gshadow
echo '_chrony:x:991:991::/var/lib/chrony:/usr/sbin/nologin' >>etc/passwd
echo '_chrony:x:991:' >>etc/group
echo '_chrony:!*:20000::::::' >>etc/shadow
echo '_chrony:!::' >>etc/gshadow

# Vendor defaults, which a deployment finds in /usr/etc.
printf 'pool vendor.example iburst\ndriftfile /var/lib/chrony/drift\n' >etc/chrony.conf
mkdir -p etc/kubernetes etc/crio/crio.conf.d etc/testos
echo 'from v1' >etc/testos/default.conf
printf '[crio]\n' >etc/crio/crio.conf
mkdir -p etc/systemd/journald.conf.d
printf '[Journal]\nStorage=persistent\nSystemMaxUse=16M\n' >etc/systemd/journald.conf.d/10-lab.conf
printf '[Login]\nInhibitDelayMaxSec=5\n' >etc/systemd/logind.conf
: >etc/fstab
: >etc/machine-id
echo lab >etc/hostname
rm -f etc/resolv.conf etc/passwd- etc/group- etc/shadow- etc/gshadow- etc/.pwd.lock

sed -i 's/^PRETTY_NAME=.*/PRETTY_NAME="Test OS"/' usr/lib/os-release
mkdir -p usr/lib/ostree
printf '[sysroot]\nreadonly=true\n' >usr/lib/ostree/prepare-root.conf

# No kernel runs here; ostree asks only that the files are there, and makes its boot checksum of them.
mkdir -p usr/lib/modules/$kv
echo "kernel of v1" >usr/lib/modules/$kv/vmlinuz
echo "initramfs of v1" >usr/lib/modules/$kv/initramfs.img

# The shape of an ostree host.
rm -rf boot var home root srv opt mnt media tmp usr/local run proc sys dev \
	usr/share/locale usr/share/doc usr/share/man usr/share/info usr/lib/x86_64-linux-gnu/gconv
mkdir boot var run proc sys dev sysroot tmp
chmod 1777 tmp
ln -s var/home home
ln -s var/roothome root
ln -s var/srv srv
ln -s var/opt opt
ln -s var/mnt mnt
ln -s run/media media
ln -s ../var/usrlocal usr/local
ln -s sysroot/ostree ostree
cat >usr/lib/tmpfiles.d/testos-var.conf <<'E'
d /var/home 0755 root root -
d /var/home/core 0700 core core -
d /var/roothome 0700 root root -
d /var/srv 0755 root root -
d /var/opt 0755 root root -
d /var/mnt 0755 root root -
d /var/usrlocal 0755 root root -
d /var/lib 0755 root root -
d /var/lib/kubelet 0755 root root -
d /run/media 0755 root root -
E
mv etc usr/etc

# v2: another version, another kernel, a default that changed and one that is new.
mkdir -p "$work/v2/usr/lib/testos" "$work/v2/usr/etc/testos" "$work/v2/usr/lib/modules/$kv"
echo v2 >"$work/v2/usr/lib/testos/version"
echo 'from v2' >"$work/v2/usr/etc/testos/default.conf"
echo 'new in v2' >"$work/v2/usr/etc/testos/new.conf"
echo "kernel of v2" >"$work/v2/usr/lib/modules/$kv/vmlinuz"
# v3: v1 with another version and the same kernel; only the remote has it.
mkdir -p "$work/v3/usr/lib/testos"
echo v3 >"$work/v3/usr/lib/testos/version"
