package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// guardModes are compared with each other, in turns, because other work on the
// machine comes and goes.
var guardModes = []string{"off", "audit", "enforce"}

var guardRows = []row{
	{"", "start on an empty kernel", "", ""},
	{"first_sync_ms", "until every entry is there, ms", "", ""},
	{"ready_ms", "until READY=1, ms", "", ""},
	{"first_cpu_s", "CPU of the daemon, s", "", ""},
	{"first_rss_mb", "peak RSS, MB", "", ""},
	{"", "a pass that compares all entries and changes none", "", ""},
	{"pass_ms", "duration, ms", "", ""},
	{"", "one more peer, from etcd's event until the guard's sets have it", "", ""},
	{"add_set_p50_ms", "added: p50, ms", "", ""},
	{"add_set_p99_ms", "added: p99, ms", "3", ""},
	{"change_set_p50_ms", "changed: p50, ms", "", ""},
	{"change_set_p99_ms", "changed: p99, ms", "3", ""},
	{"remove_set_p50_ms", "removed: p50, ms", "", ""},
	{"remove_set_p99_ms", "removed: p99, ms", "3", ""},
	{"", "from etcd's event until routes, neighbours and FDB have it", "", ""},
	{"add_event_p50_ms", "added: p50, ms", "", ""},
	{"add_event_p99_ms", "added: p99, ms", "", ""},
	{"change_event_p50_ms", "changed: p50, ms", "", ""},
	{"change_event_p99_ms", "changed: p99, ms", "", ""},
	{"remove_event_p50_ms", "removed: p50, ms", "", ""},
	{"remove_event_p99_ms", "removed: p99, ms", "", ""},
	{"change_cpu_ms", "CPU per change, ms", "", ""},
	{"", "restart over a full kernel", "", ""},
	{"restart_same_ms", "nothing changed: until READY=1, ms", "", ""},
	{"restart_same_writes", "nothing changed: written, by /metrics", "0", ""},
	{"", "idle", "", ""},
	{"idle_cpu_percent", "CPU with children, % of a core", "", ""},
}

// guarded reports whether the daemon has a guard that the bench watches.
func (b *bench) guarded() bool { return b.options.guard != "" && b.options.guard != "off" }

// measureGuard measures vxlan with each mode of the guard.
func measureGuard(ctx context.Context, o Options, peers int) ([]column, error) {
	rounds := map[string][]map[string]float64{}
	for i := range o.rounds {
		for _, mode := range guardModes {
			fmt.Fprintf(os.Stderr, "vxlan, %d peers, guard %s: %d of %d\n", peers, mode, i+1, o.rounds)
			o.guard = mode
			figures, err := guardRound(ctx, o, peers)
			if err != nil {
				return nil, fmt.Errorf("guard %s: %w", mode, err)
			}
			rounds[mode] = append(rounds[mode], figures)
		}
	}
	var columns []column
	for _, mode := range guardModes {
		columns = append(columns, column{Store: "etcd", Backend: "vxlan, " + mode, Peers: peers, Figures: best(rounds[mode])})
	}
	return columns, nil
}

func guardRound(ctx context.Context, o Options, peers int) (map[string]float64, error) {
	b, err := newBench(ctx, o, "vxlan", peers)
	if err != nil {
		return nil, err
	}
	defer b.close()
	for _, step := range []func(context.Context) error{b.firstSync, b.idlePass, b.oneByOne, b.idle, b.restartSame} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
		}
	}
	return b.figures, nil
}

func (b *bench) restartSame(ctx context.Context) error {
	return b.restartWith(ctx, "same", nil, nil, nil)
}

// followGuard subscribes to the notifications of nftables.
func (w *kernelWatch) followGuard(node *lab.Node) error {
	return w.follow(node, unix.NETLINK_NETFILTER, w.seen.takeElements, unix.NFNLGRP_NFTABLES)
}

// known reports whether the guard takes p for a peer and for the owner of its subnet.
func (s *seen) known(p peer) bool {
	return s.version[tableSenders][p.number] == p.version+1 && s.version[tableOwners][p.number] == p.version+1
}

// unknown reports whether the guard has no element of p.
func (s *seen) unknown(p peer) bool {
	return s.version[tableSenders][p.number] == 0 && s.version[tableOwners][p.number] == 0
}

// takeElements processes notifications of nftables about elements of sets, of which
// there is one in each message.
func (s *seen) takeElements(b []byte) {
	const added, deleted = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSETELEM
	for kind, body := range messages(b) {
		if kind == added || kind == deleted {
			s.element(kind == added, body)
		}
	}
}

// element records an element of a set. Of the guard's sets, that of peers has senders,
// and that of owners a sender and the base of a subnet.
func (s *seen) element(present bool, body []byte) {
	const genHeader = 4 // struct nfgenmsg
	if len(body) < genHeader {
		return
	}
	set, elements := attributes(body[genHeader:], unix.NFTA_SET_ELEM_LIST_SET, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	element, _ := attributes(elements, unix.NFTA_LIST_ELEM, 0)
	data, _ := attributes(element, unix.NFTA_SET_ELEM_KEY, 0)
	key, _ := attributes(data, unix.NFTA_DATA_VALUE, 0)
	if len(key) < 4 {
		return
	}
	p, ok := peerOfNode(key[:4])
	switch name := string(bytes.TrimRight(set, "\x00")); {
	case ok && name == "peers4":
		s.note(tableSenders, p, present)
	case ok && name == "owners4-24":
		s.note(tableOwners, p, present)
	}
}
