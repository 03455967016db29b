# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# What image.sh and packages.sh have in common, for them to read. The text is part of the cache's key.

# What the kernel of every machine is told. Its check of the timer would fail where the emulator gets no time for a
# while, and the kernel would panic.
arguments="console=ttyS0 systemd.show_status=0 mitigations=off nowatchdog random.trust_cpu=on panic=5 no_timer_check"

# add_guest puts the lab's program into a tree. It runs from the first moment to the last, and so does what it was asked
# to run. A soft reboot kills it and takes it for one that still runs.
add_guest() { # TREE PROGRAM
	cp "$2" "$1/usr/lib/testos/guest"
	chmod 755 "$1/usr/lib/testos/guest"
	mkdir -p "$1/usr/lib/systemd/system/sysinit.target.wants"
	ln -s ../testos-guest.service "$1/usr/lib/systemd/system/sysinit.target.wants/"
	cat >"$1/usr/lib/systemd/system/testos-guest.service" <<'END'
[Unit]
Description=Do what the lab asks for
DefaultDependencies=no
IgnoreOnIsolate=yes

[Service]
Type=exec
ExecStart=/usr/lib/testos/guest serve
KillMode=process
Restart=always
RestartSec=100ms
END
}

# name_host gives a host the names that every machine has.
name_host() { # ETC
	rm -f "$1/machine-id"
	echo 6e6f646572656669742d6c61622d766d >"$1/machine-id"
	echo vm >"$1/hostname"
}

# make_disk makes disk.img with a table of partitions, of which the last has /. format makes the file system of its
# device, loop, which is mounted at root. A table may have a second copy in the last MiB.
make_disk() { # SECTOR TABLE
	truncate -s 2G disk.img
	echo "$2" | sfdisk -q disk.img
	loop=$(losetup -f --show -o $(($1 * 512)) --sizelimit $(((2 << 30) - ($1 + 2048) * 512)) disk.img)
	trap 'umount -R root 2>/dev/null || true; losetup -d "$loop"' EXIT
	format "$loop"
	mkdir root
	mount "$loop" root
}

finish_disk() {
	umount -R root
	trap - EXIT
	losetup -d "$loop"
}

# write_grub puts GRUB's first sector and core on disk.img. The core takes the sectors between the table of partitions
# and the first of them.
write_grub() { # BOOT CORE
	dd if="$1" of=disk.img bs=440 count=1 conv=notrunc status=none
	dd if="$2" of=disk.img bs=512 seek=1 conv=notrunc status=none
}
