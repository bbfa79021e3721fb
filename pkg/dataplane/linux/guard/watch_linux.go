package guard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"flannel/pkg/rtnetlink"
)

// watchOthers subscribes to what others than the sender with this port ID change in
// nftables. A filter on the socket drops the notifications of our own changes, so that
// they cost nothing here, and those of ten thousand new peers do not fill the socket's
// buffer. It must be there before the first change.
func watchOthers(port uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables notifications: %w", err)
	}
	if err := c.SetBPF(ignoreSender(port)); err != nil {
		return nil, errors.Join(fmt.Errorf("filter nftables notifications: %w", err), c.Close())
	}
	return c, nil
}

// ignoreSender is a socket filter that drops a notification of a change by the socket
// with this port ID. All messages of a notification are about one transaction, so that
// the first one says whose.
func ignoreSender(port uint32) []bpf.RawInstruction {
	const sender = 12                                                               // nlmsg_pid
	swapped := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port)) // a filter loads in network byte order
	// Jt and Jf are how many instructions to skip if the comparison is true or false.
	// The two returns are the number of bytes to pass: all of them, or none.
	return []bpf.RawInstruction{
		{Op: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: sender},
		{Op: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped, Jt: 1},
		{Op: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Op: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// receive marks the guard stale when somebody else has changed its table.
func (g *Guard) receive() {
	defer close(g.watching)
	for {
		messages, err := g.watch.Receive()
		if errors.Is(err, unix.ENOBUFS) { // notifications were lost
			g.stale.Store(true)
			g.notify()
			continue
		}
		if err != nil { // closed
			return
		}
		for _, m := range messages {
			if len(m.Data) >= 4 && tableOf(m.Data[4:]) == g.table.Name {
				g.stale.Store(true)
				g.notify()
			}
		}
	}
}

// tableOf returns the name of the table that a notification is about: attribute 1 in all
// of them.
func tableOf(attrs []byte) string {
	for kind, value := range rtnetlink.Attrs(attrs) {
		if kind == unix.NFTA_RULE_TABLE {
			return string(value[:max(0, len(value)-1)])
		}
	}
	return ""
}
