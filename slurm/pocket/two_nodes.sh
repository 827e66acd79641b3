#!/usr/bin/env bash
# Two "nodes" on this machine: two network namespaces, joined by one slow link. torchrun starts the ranks of each.
#     slurm/pocket/two_nodes.sh script.py [its arguments]
#     RANKS=2 RATE=400mbit      ranks on each node, speed of the link between the nodes
# Ranks of one node reach each other at the speed of memory, those of the other node only through the link. For Linux
# with unprivileged user namespaces, iproute2 (ip, tc) and util-linux (unshare). Nothing outside of the two namespaces
# changes. Whatever ends this script ends all it has started: a namespace of processes dies with its first.
set -euo pipefail
[[ ${RANKS:-2} =~ ^[1-9][0-9]?$ ]] || { echo "RANKS=$RANKS is no number of ranks; give 1 or more, or unset it" >&2; exit 2; }
if [ "${1:-}" != --inside ]; then
    setpriv --pdeathsig KILL unshare --user --map-root-user --net --pid --fork --kill-child "$0" --inside "$@" &
    wait $!
    exit
fi
shift

slow_link() { # NAME ADDRESS: this end of it
    ip address add "$2/24" dev "$1"
    ip link set "$1" up
    tc qdisc add dev "$1" root tbf rate "${RATE:-400mbit}" burst 128k latency 100ms
}

ranks() { # NODE INTERFACE script.py …
    export GLOO_SOCKET_IFNAME=$2 NCCL_SOCKET_IFNAME=$2
    torchrun --nnodes 2 --node-rank "$1" --nproc-per-node "${RANKS:-2}" \
        --master-addr 10.77.0.1 --master-port 29500 "${@:3}"
}

node_1() { # in a namespace of its own; file 9 is the other one
    ip link set lo up
    ip link add far type veth peer name near netns /proc/self/fd/9
    slow_link far 10.77.0.2
    ranks 1 far "$@"
}

export -f slow_link ranks node_1
exec 9</proc/self/ns/net
ip link set lo up
unshare --net bash -euo pipefail -c 'node_1 "$@"' node_1 "$@" &
until ip link show near >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null # node 1 is still there
    sleep 0.05
done
slow_link near 10.77.0.1
ranks 0 near "$@" &
wait -n # either node: one that fails ends the other
wait -n
