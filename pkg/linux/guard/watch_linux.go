package guard

import (
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// changesOfOthers are all changes of nftables, except those by the socket with this port ID.
// A filter drops the notifications of these, so that they cost nothing here, and those of
// ten thousand new peers do not fill the socket's buffer. All messages of a notification
// are about one transaction, so the first one says whose it is.
func changesOfOthers(port uint32) rtnetlink.Notifications {
	return rtnetlink.Notifications{Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Filter: rtnetlink.WithoutSender(port)}
}

// notifications are those of others, for this guard. The goroutine of the Listener calls observe and,
// after notifications were lost, changed.
func (g *Guard) notifications() rtnetlink.Notifications {
	n := changesOfOthers(g.conn.socket.PID())
	n.Each, n.Lost, n.Log = g.observe, func(error) { g.changed() }, g.log
	return n
}

// observe marks the guard stale when somebody else has changed its table.
func (g *Guard) observe(_ rtnetlink.Header, body []byte) error {
	// Attribute 1 is the table's name in all of these messages.
	if len(body) >= 4 && unix.ByteSliceToString(rtnetlink.Attr(body[4:], unix.NFTA_RULE_TABLE)) == g.table.Name {
		g.changed()
	}
	return nil
}

// changed marks the guard stale: others have changed its table, or may have.
func (g *Guard) changed() {
	g.stale.Store(true)
	g.notify()
}
