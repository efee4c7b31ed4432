#!/usr/bin/env bash
# ci/guest/prepare.sh DIRECTORY: makes a guest there, for run.sh: an emulator, a kernel, and an initial file system with
# the modules that it needs. From packages of Debian, which are unpacked and not installed: the emulator's would remove
# an installed qemu-utils of another version. Takes a minute and downloads 300 MB.
#
# ci/guest/prepare.sh --kernel: prints the version of the kernel package that would be taken, or nothing where it is not
# known before the lists of packages have been read.
#
# Exit status: 3 where it cannot be done on this machine, 125 where it should have worked.
set -Eeuo pipefail
here=$(dirname "$(realpath "$0")")

# The cloud kernel has neither rdma_rxe nor 9p.
kernel_package=linux-image-amd64
# In the order of loading: for the file system, for the devices, for bad wires.
modules=(virtio_pci 9pnet_virtio 9p overlay veth crc32_generic crc32c_generic rdma_rxe siw rdma_ucm sch_netem)
# What is used on this machine, here or in the guest, and the packages that have it: see ci/all.sh.
needed=(
    gcc:gcc make:make flock:util-linux setpriv:util-linux ip:iproute2 rdma:iproute2 tc:iproute2
)

not_run() {
    echo "guest: NOT RUN: $1" >&2
    exit 3
}

kernel_version() {
    ! command -v apt-cache > /dev/null || apt-cache policy $kernel_package | sed -n 's/^ *Candidate: \([0-9].*\)/\1/p'
}

main() {
    check_machine
    work=$directory/work
    mkdir -p "$work"
    echo "guest: preparing it, once: a minute"
    trap 'echo "guest: cannot be prepared: $BASH_COMMAND failed" >&2; exit 125' ERR
    # Lists that are there already may do.
    [ "$(id -u)" != 0 ] || apt-get -qq update || :
    emulator
    kernel_and_modules
    initial_file_system
    rm -rf "$work"
}

check_machine() {
    local entry packages=
    [ "$(uname -m)" = x86_64 ] || not_run "this is not an x86-64 machine"
    { command -v apt-get && command -v apt-cache; } > /dev/null || not_run "there is no apt here"
    # Of Debian: Ubuntu's kernel packages are cut in another way.
    grep -qx 'ID=debian' /etc/os-release || not_run "this is not Debian; it runs in a container of Debian"
    for entry in "${needed[@]}"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${entry%:*}" > /dev/null || packages+=" ${entry#*:}"
    done
    # Not used here, but every program in the guest would find no device without it.
    [ -e /etc/libibverbs.d/rxe.driver ] || packages+=" ibverbs-providers"
    [ -z "$packages" ] || not_run "missing, and to be installed with apt-get:$packages"
}

# fetch NAME PACKAGE...: unpacks packages into $work/NAME.
fetch() {
    local name=$1 archive
    shift
    mkdir -p "$work/$name.deb" "$work/$name"
    # As root apt would become a user who cannot write here.
    (cd "$work/$name.deb" && apt-get -qq -o APT::Sandbox::User=root download "$@") 2> "$work/log" ||
        not_run "packages cannot be had: $(grep -m 1 '^E:' "$work/log" || tail -n 1 "$work/log")"
    for archive in "$work/$name.deb"/*.deb; do dpkg-deb -x "$archive" "$work/$name"; done
    rm -rf "$work/$name.deb"
}

emulator() {
    local packages
    # With the libraries that this machine lacks.
    packages=$(apt-get -s --no-install-recommends install qemu-system-x86 2> /dev/null | awk '$1 == "Inst" { print $2 }') ||
        not_run "apt finds no way to install qemu-system-x86"
    # shellcheck disable=SC2046,SC2086
    fetch qemu $(printf '%s\n' qemu-system-x86 qemu-system-data seabios $packages | sort -u)
    rm -rf "$work"/qemu/usr/share/{doc,locale,man}
    mv "$work/qemu" "$directory/qemu"
}

kernel_and_modules() {
    local image release version headers module
    image=$(apt-cache depends $kernel_package | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    [ -n "$image" ] || not_run "apt knows no package $kernel_package"
    # As 6.1.0-57-amd64, of source 6.1.
    release=${image#linux-image-}
    version=$(cut -d . -f 1-2 <<< "$release")
    fetch kernel "$image" "linux-headers-$release" "linux-headers-${release%-amd64}-common" \
        "linux-kbuild-$version" "linux-source-$version" busybox-static
    tree=$work/kernel
    tools
    tar -x -f "$tree/usr/src/linux-source-$version.tar.xz" -C "$tree" --strip-components=1 \
        "linux-source-$version/scripts/extract-vmlinux" "linux-source-$version/drivers/infiniband/sw/siw"
    # An emulated processor would take seconds to decompress it.
    sh "$tree/scripts/extract-vmlinux" "$tree/boot/vmlinuz-$release" > "$directory/kernel"

    tree_modules=$tree/lib/modules/$release
    find "$tree_modules" -name '*.ko.xz' -exec xz -d {} +
    # Debian's kernel comes without it.
    if [ -z "$(find "$tree_modules" -name siw.ko)" ]; then
        headers=$tree/usr/src/linux-headers-$release
        # It includes another one where that would be installed.
        sed -i "s,/usr/src/,$tree/usr/src/," "$headers/Makefile"
        module=$tree/drivers/infiniband/sw/siw
        make -s -C "$headers" M="$module" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules > "$work/log" 2>&1 ||
            { cat "$work/log" >&2; false; }
        cp "$module/siw.ko" "$tree_modules/"
    fi
    depmod -b "$tree" "$release"
}

# What this machine may lack, from busybox.
tools() {
    local name
    # In /bin, or in /usr/bin.
    busybox=$(find "$tree" -path '*bin/busybox' -type f)
    mkdir "$work/tools"
    for name in cpio depmod unxz xz; do ln -s "$busybox" "$work/tools/$name"; done
    PATH=$PATH:$work/tools
}

initial_file_system() {
    local root=$work/root file number=100
    mkdir -p "$root"/{bin,dev,host,io,modules,proc,root,rw,sys}
    cp "$busybox" "$root/bin/"
    install -m 755 "$here/init" "$root/init"
    for file in $(modules_in_order); do
        number=$((number + 1))
        strip --strip-debug -o "$root/modules/$number-$(basename "$file")" "$tree_modules/$file"
    done
    (cd "$root" && find . | cpio -o -H newc 2> /dev/null) > "$directory/initrd"
}

# Prints the files of the modules, each behind those that it depends on.
modules_in_order() {
    local module line file
    for module in "${modules[@]}"; do
        if grep -q "/$module\.ko$" "$tree_modules/modules.builtin"; then continue; fi
        # FILE: DEPENDENCIES, the last one to be loaded first.
        line=$(grep -E "(^|/)$module\.ko:" "$tree_modules/modules.dep") ||
            { echo "guest: the kernel has no module $module" >&2; return 1; }
        for file in ${line/:/}; do echo "$file"; done | tac
    done | awk '!seen[$0]++'
}

directory=$1
if [ "$directory" = --kernel ]; then kernel_version; else main; fi
