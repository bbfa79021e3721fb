package firewall

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/firewall"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// topics is a set of the parts of nf_tables that a notification can be about. Firewall is subscribed to those of the places
// in which the Config wants rules; other notifications wake nobody.
type topics uint32

const (
	topicNFT4      topics = 1 << iota // our own nftables table for IPv4
	topicNFT6                         // the same for IPv6
	topicIPTables4                    // our chains and their parents in iptables-nft's tables
	topicIPTables6                    // the same for IPv6
	allTopics      = topicNFT4 | topicNFT6 | topicIPTables4 | topicIPTables6
)

// The legacy variant of iptables sends no notifications, therefore it has no topic: its changes are found at the resync.

const (
	// coalesceDelay is the pause between a notification and the value on Changes. One command of another program
	// arrives as several messages.
	coalesceDelay = 30 * time.Millisecond
	// minInterval is the shortest time between two values on Changes.
	minInterval = 200 * time.Millisecond
)

// listen subscribes to all changes of nf_tables in the calling thread's network namespace, until ctx ends and the Listener
// is closed. The Listener's goroutine adds the topics of notifications to f.pending, from which queueChecks, called by
// Apply and Check, takes them; a Runner of its own wakes their caller.
func (f *Firewall) listen(ctx context.Context) (*rtnetlink.Listener, error) {
	added := make(chan struct{}, 1)
	l, err := rtnetlink.Listen(f.notifications(added))
	if err != nil {
		return nil, err
	}
	r := reconcile.Runner{
		Wakes: []<-chan struct{}{added},
		Quiet: coalesceDelay,
		Later: true, // nothing at the start, when Apply looks at everything
		Work: func(ctx context.Context) (time.Duration, error) {
			f.notify()
			reconcile.Pause(ctx, minInterval)
			return 0, nil // called again when added receives
		},
	}
	go r.Run(ctx)
	return l, nil
}

// notifications says what to listen to. added receives a value when f.pending has got topics that f is subscribed to: those
// of a message, or all after a loss. The kernel drops messages when another program writes many thousands of rules.
func (f *Firewall) notifications(added chan struct{}) rtnetlink.Notifications {
	add := func(t topics) {
		if t &= topics(f.subscribed.Load()); t != 0 {
			f.pending.Or(uint32(t))
			reconcile.Notify(added)
		}
	}
	return rtnetlink.Notifications{Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES},
		// It is called for every message, on the Listener's goroutine. Without an error, nothing counts as lost.
		Each: func(h rtnetlink.Header, body []byte) error { add(topicsOf(h.Kind, body)); return nil },
		Lost: func(error) { add(allTopics) },
		Log:  f.log,
	}
}

// topicsOf returns the topics of a message, which begins with the four bytes of nfgenmsg. The first of them is the family.
func topicsOf(kind uint16, body []byte) topics {
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < 4 {
		return 0
	}
	return messageTopics(int(kind&0xff), body[0], body[4:])
}

// ours are the chains of the default instance. Those of the others have longer names.
var ours = firewall.Chains()

// messageTopics returns the topic of one message, by the names of its table and chain. Messages about chains of other
// programs have none: kube-proxy changes thousands of rules, and must not start a comparison of ours each time.
//
// Examples, all of family IPv4:
//
//	message    table         chain            topic
//	NEWRULE    nat           KUBE-SERVICES    none
//	DELRULE    nat           FLANNEL-POSTRTG  topicIPTables4
//	NEWRULE    filter        FORWARD          topicIPTables4, our jump stands there
//	DELTABLE   flannel-ipv4                   topicNFT4
func messageTopics(kind int, family byte, attrs []byte) topics {
	nftTopic, iptablesTopic := topicNFT4, topicIPTables4
	if family == unix.NFPROTO_IPV6 {
		nftTopic, iptablesTopic = topicNFT6, topicIPTables6
	} else if family != unix.NFPROTO_IPV4 {
		return 0
	}
	chainAttr := uint16(0) // messages about sets, objects and flowtables name no chain
	switch kind {
	case unix.NFT_MSG_NEWGEN: // ends each transaction, and names no table
		return 0
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chainAttr = unix.NFTA_RULE_CHAIN
	}
	// In every kind of message, attribute 1 is the name of the table. The prefixes also match the tables and chains of
	// another flanneld instance on this host. Its changes are rare, and only cost a comparison.
	switch table := unix.ByteSliceToString(rtnetlink.Attr(attrs, 1)); {
	case strings.HasPrefix(table, "flannel-ipv"):
		return nftTopic
	case table == "nat" || table == "filter":
		if kind == unix.NFT_MSG_DELTABLE || kind == unix.NFT_MSG_NEWTABLE { // deleted, or made dormant
			return iptablesTopic
		}
		chain := unix.ByteSliceToString(rtnetlink.Attr(attrs, chainAttr))
		if slices.ContainsFunc(ours, func(c firewall.Chain) bool { return chain == c.Parent || strings.HasPrefix(chain, c.Name) }) {
			return iptablesTopic
		}
	}
	return 0
}
