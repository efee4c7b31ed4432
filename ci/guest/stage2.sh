# shellcheck shell=bash
# In the guest, with this machine's file system: makes the RDMA devices, runs the command, ends the guest.
# What goes wrong before the command is written to the console, and run.sh finds no exit status.
exec > /dev/ttyS0 2>&1
cd /run/scatter-ring-guest || exit
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mapfile -d '' -t settings < settings
directory=${settings[0]} timeout_s=${settings[1]} huge_pages=${settings[2]}
mapfile -d '' -t environment < environment
mapfile -d '' -t words < words

main() {
    mount_and_reserve
    network
    devices
    run > stdout 2> stderr
}

mount_and_reserve() {
    mkdir -p /dev/shm /dev/pts /dev/hugepages
    mount -t tmpfs tmpfs /dev/shm
    mount -t devpts devpts /dev/pts
    mount -t hugetlbfs hugetlbfs /dev/hugepages
    echo "$huge_pages" > /proc/sys/vm/nr_hugepages
    # Registered memory counts, for root as well.
    ulimit -l unlimited
}

# Neither driver works outside the first network namespace, so that both ends of each pair are in it.
network() {
    # An end gets packets whose source is an address of this host.
    echo 1 > /proc/sys/net/ipv4/conf/all/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
    echo 0 > /proc/sys/net/ipv4/conf/default/rp_filter
    {
        echo "link set lo up"
        # Behind the rules of the pairs instead of before everything.
        echo "rule add pref 2 lookup local"
        echo "rule del pref 0"
        pair rxe 10.77.0
        pair siw 10.78.0
    } | ip -batch -
}

# Prints the commands for a pair.
pair() {
    local end own other table
    echo "link add ${1}0-net mtu 9000 type veth peer name ${1}1-net mtu 9000"
    for end in 0 1; do
        echo "address add $2.$((end + 1))/24 dev ${1}$end-net"
        echo "link set ${1}$end-net up"
    done
    # What is sent from one end's address to the other's goes over the wire. Without these rules, and from a socket that
    # is not bound, it goes over lo.
    for end in 0 1; do
        own=$2.$((end + 1))
        other=$2.$((2 - end))
        # A number that no other end has.
        table=${2//./}$end
        echo "route add $other dev ${1}$end-net src $own table $table"
        echo "rule add pref 1 iif lo from $own to $other lookup $table"
    done
}

devices() {
    local name
    for name in rxe0 rxe1 siw0 siw1; do
        rdma link add $name type ${name%[01]} netdev $name-net
    done
    for name in rxe0 rxe1 siw0 siw1; do
        # 4 is ACTIVE.
        until grep -q ^4 /sys/class/infiniband/$name/ports/1/state; do
            [ "$SECONDS" -lt 30 ] || give_up "$name does not become active"
            sleep 0.1
        done
    done
}

run() {
    local start=$SECONDS status=0
    cd "$directory" || give_up "no directory $directory"
    timeout -k 5 "$timeout_s" env -i "${environment[@]}" "${words[@]}" < /dev/null || status=$?
    # It did not heed SIGTERM.
    if [ $status = 137 ] && [ $((SECONDS - start)) -ge "$timeout_s" ]; then status=124; fi
    echo $status > /run/scatter-ring-guest/status
}

end() {
    dmesg > /run/scatter-ring-guest/kernel-log
    # With -no-reboot the emulator ends.
    echo b > /proc/sysrq-trigger
}

give_up() {
    echo "guest: $1"
    exit
}

set -e
trap end EXIT
main
