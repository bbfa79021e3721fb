package guard

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// watchOthers subscribes to changes of nftables, except those by the socket with this
// port ID. A filter drops the notifications of these, so that they cost nothing here,
// and those of ten thousand new peers do not fill the socket's buffer. It must be there
// before the first change.
func watchOthers(port uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables notifications: %w", err)
	}
	// All messages of a notification are about one transaction, so the first one says whose it is.
	var filter []bpf.RawInstruction
	for _, i := range rtnetlink.WithoutSender(port) {
		filter = append(filter, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	if err := c.SetBPF(filter); err != nil {
		return nil, errors.Join(fmt.Errorf("filter nftables notifications: %w", err), c.Close())
	}
	return c, nil
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
