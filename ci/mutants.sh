#!/usr/bin/env bash
# Breaks the accounting of links by RDMA verbs in small ways, one at a time, in a copy of the tree, and runs tests that are to
# notice: credits, places of queues, signalled requests, what has come home. A mutant that no test notices is an error.
# About four minutes on two cores, most of them compiling. MUTANTS_ONLY=word runs those with that word in their name.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=${CARGO_TARGET_DIR:-target}/mutants/tree
build=${CARGO_TARGET_DIR:-target}/mutants/build
mkdir -p "$tree" "$build"
tree=$(realpath "$tree")
export CARGO_TARGET_DIR
CARGO_TARGET_DIR=$(realpath "$build")
export CARGO_PROFILE_DEV_DEBUG=none
# A mutant that hangs is noticed too.
limit=40
export SCATTER_RING_PATIENCE_S=4

# name @ file below src/link/verbs @ what sed does @ test binary @ tests in it
mutants='
signal only more than the queue holds @ flight.rs @ s/signal_every.clamp(1, depth \/ 2).into()/u64::from(signal_every.max(depth + 1))/ @ link_verbs_counts @ half_of_it
signal no last request of a doorbell @ lane.rs @ s/self.sending.flight.signal_last();//;s/batch.signal_last();// @ link_verbs_counts @ formula
one place too many @ flight.rs @ s/(self.depth - (self.posted - self.done)) as usize/(self.depth + 1 - (self.posted - self.done)) as usize/ @ link_verbs_counts @ half_of_it
take back one too few @ flight.rs @ s/self.done.max(last.saturating_sub(count))/self.done.max(last.saturating_sub(count.saturating_sub(1)))/ @ link_verbs_faults @ cut_short
take back one too many @ flight.rs @ s/self.done.max(last.saturating_sub(count))/self.done.max(last.saturating_sub(if count > 0 { count + 1 } else { 0 }))/ @ link_verbs_faults @ cut_short
believe what nobody asked for @ flight.rs @ s/outcome == Outcome::Good \&\& !self.place(number).is_signalled/false/ @ link_verbs_faults @ nobody_asked_for
one receive too many over there @ credits.rs @ s/            room: there,/            room: there + 1,/ @ link_verbs @ on_simulated_tiny_devices::messages
give a credit twice @ credits.rs @ s/self.owed += 1;/self.owed += 2;/ @ link_verbs @ on_simulated_tiny_devices::messages
forget to give credits alone @ credits.rs @ s/self.owed \* 2 >= self.owed_max || !self.is_told/!self.is_told/ @ link_verbs @ on_simulated_tiny_devices::messages
send a message with the last credit @ credits.rs @ s/        self.room > 1$/        self.room > 0/ @ link_verbs @ on_simulated_tiny_devices::messages
receives that were not flushed are home @ buffers.rs @ s/        self.posted.is_empty()$/        true/ @ link_verbs_faults @ queue_pairs_that_break
requests that were not flushed are home @ lane.rs @ s/let is_home = self.sending.flight.is_empty() \&\& /let is_home = / @ link_verbs_faults @ queue_pairs_that_break
quiet before anything is flushed @ mod.rs @ s/self.is_down \&\& self.lanes.iter().all(Lane::has_ended)/self.is_down/ @ link_verbs_faults @ queue_pairs_that_break
a gap in what was received @ lane.rs @ s/        if is_early {/        if false \&\& is_early {/ @ link_verbs_faults @ come_late
what is before a flushed request went well @ lane.rs @ s/ \&\& status != WcStatus::FLUSHED// @ link_verbs_faults @ before_one_that_is_flushed
numbers of every link are the same @ endpoint.rs @ s/getrandom::u32().unwrap_or(0)/0/ @ link_verbs_faults @ link_that_is_gone
a doorbell for each request @ lane.rs @ s/hands.batch.len() < self.window/hands.batch.is_empty()/ @ link_verbs_counts @ formula
a message overtakes a READ @ endpoint.rs @ s/fences: self.nic.is_iwarp/fences: false/ @ link_verbs @ on_simulated_soft_iwarp::what_is_said
a write that has left is in place @ endpoint.rs @ s/asks: self.nic.is_iwarp/asks: false/ @ link_verbs @ on_simulated_soft_iwarp::what_is_said
'

copy() {
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -xf - -C "$tree"
}

run() {
    (cd "$tree" && timeout "$limit" cargo test -q --test "$1" -- "$2" >"$tree/../output" 2>&1)
}

compiles() {
    (cd "$tree" && cargo test -q --no-run --test "$1" >"$tree/../output" 2>&1)
}

rm -rf "$tree" && mkdir -p "$tree"
copy
if [ -z "${MUTANTS_ONLY:-}" ]; then
    awk -F ' @ ' 'NF { print $4, $5 }' <<<"$mutants" | sort -u | while read -r binary tests; do
        compiles "$binary" && run "$binary" "$tests" || { cat "$tree/../output"; echo "without a mutant: $binary $tests fails" >&2; exit 1; }
    done
fi

survivors=0
while IFS= read -r line; do
    [ -n "$line" ] || continue
    name=${line%% @ *} line=${line#* @ }
    file=${line%% @ *} line=${line#* @ }
    change=${line%% @ *} line=${line#* @ }
    binary=${line%% @ *} tests=${line#* @ }
    [[ $name == *"${MUTANTS_ONLY:-}"* ]] || continue
    source="src/link/verbs/$file"
    sed -i "$change" "$tree/$source"
    if cmp -s "$source" "$tree/$source"; then
        echo "CHANGES NOTHING: $name" >&2
        survivors=$((survivors + 1))
    elif ! compiles "$binary"; then
        tail -20 "$tree/../output" >&2
        echo "DOES NOT COMPILE: $name" >&2
        survivors=$((survivors + 1))
    elif run "$binary" "$tests"; then
        echo "NOT NOTICED: $name" >&2
        survivors=$((survivors + 1))
    else
        echo "noticed: $name"
    fi
    cp "$source" "$tree/$source"
done <<<"$mutants"
[ "$survivors" = 0 ]
