//go:build linux

package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// notes is a set of what notifications were about.
type notes uint32

const (
	noteNFT4 notes = 1 << iota
	noteNFT6
	noteIPTables4 // the nft variant; the legacy one tells nobody anything
	noteIPTables6
	noteAll = noteNFT4 | noteNFT6 | noteIPTables4 | noteIPTables6
)

const (
	settle   = 30 * time.Millisecond  // a program's changes come in several messages
	interval = 200 * time.Millisecond // between two wake-ups
	overflow = time.Second            // after messages were lost in a storm, which is hardly about us
)

// listen subscribes to all changes of nf_tables in the calling thread's network namespace.
func listen() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to nftables notifications: %w", err)
	}
	// kube-proxy may write thousands of rules in one go. A refusal is no harm: lost messages are noticed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	return os.NewFile(uintptr(fd), "nftables notifications"), nil
}

// watch reads notifications until Close.
func (f *Firewall) watch() {
	// Larger than any message of the kernel, which fills at most a page or two.
	buf := make([]byte, 64<<10)
	for {
		n, err := f.socket.Read(buf)
		switch {
		case err == nil:
			f.inbox.arrive(interest(buf[:n]), settle)
		case errors.Is(err, unix.ENOBUFS):
			f.inbox.arrive(noteAll, overflow)
		case errors.Is(err, os.ErrClosed):
			return
		default:
			f.log.Warn("reading firewall notifications ended, rules are looked at only now and then", "err", err)
			return
		}
	}
}

// inbox gathers notes and paces the wake-ups.
type inbox struct {
	wake func()

	mu      sync.Mutex
	active  notes // what somebody wants to hear about
	pending notes // arrived, not yet told
	ready   notes // told, to be taken
	last    time.Time
	due     time.Time   // when pending is told
	timer   *time.Timer // tells it
}

// listenTo: the place of a writer that is not in use wakes nobody.
func (b *inbox) listenTo(active notes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active = active
}

// arrive tells about n after delay, unless a wake-up is on its way already.
func (b *inbox) arrive(n notes, delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n &= b.active; n == 0 {
		return
	}
	// Whoever changes several things is answered once, and whoever does not stop, a few times a second.
	at := time.Now().Add(max(delay, time.Until(b.last.Add(interval))))
	if b.pending == 0 {
		b.due, b.timer = at, time.AfterFunc(time.Until(at), b.tell)
	} else if at.Before(b.due) {
		b.due = at
		b.timer.Reset(time.Until(at))
	}
	b.pending |= n
}

// tell hands over before it wakes: Apply never finds a wake-up without its reason.
func (b *inbox) tell() {
	b.mu.Lock()
	b.ready |= b.pending
	b.pending, b.last = 0, time.Now()
	b.mu.Unlock()
	b.wake()
}

// take returns what was told since it was last called.
func (b *inbox) take() notes {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.ready
	b.ready = 0
	return n
}

func (b *inbox) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active = 0
	if b.timer != nil {
		b.timer.Stop()
	}
}

// interest says what of ours the messages are about.
func interest(datagram []byte) (n notes) {
	// Every message has a netlink header and the four bytes of nfgenmsg, the first of which is the family.
	for len(datagram) >= unix.NLMSG_HDRLEN+4 {
		size := int(binary.NativeEndian.Uint32(datagram))
		if size < unix.NLMSG_HDRLEN+4 || size > len(datagram) {
			return n
		}
		kind := binary.NativeEndian.Uint16(datagram[4:])
		if kind>>8 == unix.NFNL_SUBSYS_NFTABLES {
			family, attrs := datagram[unix.NLMSG_HDRLEN], datagram[unix.NLMSG_HDRLEN+4:size]
			n |= concerns(int(kind&0xff), family, attrs)
		}
		datagram = datagram[min(align(size), len(datagram)):]
	}
	return n
}

// concerns judges one message by its table and chain; the numbers are of nfnetlink's attributes. A storm of changes to
// other programs' chains must not wake us.
func concerns(kind int, family byte, attrs []byte) notes {
	own, foreign := noteNFT4, noteIPTables4
	if family == unix.NFPROTO_IPV6 {
		own, foreign = noteNFT6, noteIPTables6
	} else if family != unix.NFPROTO_IPV4 {
		return 0
	}
	chainAttr := uint16(0) // sets, objects and flowtables have no chain; in tables that are not ours they do not matter
	switch kind {
	case unix.NFT_MSG_NEWGEN:
		return 0
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chainAttr = unix.NFTA_RULE_CHAIN
	}
	// Every kind of message has the table's name as its first attribute. Of several flannelds, a change of one's rules makes
	// the others look, too; that is seldom.
	switch table := name(attrs, 1); {
	case strings.HasPrefix(table, "flannel-ipv"):
		return own
	case table == "nat" || table == "filter":
		if kind == unix.NFT_MSG_DELTABLE || kind == unix.NFT_MSG_NEWTABLE { // gone, or made dormant
			return foreign
		}
		chain := name(attrs, chainAttr)
		if chain == "POSTROUTING" || chain == forwardChain || strings.HasPrefix(chain, postrtg) || strings.HasPrefix(chain, fwd) {
			return foreign
		}
	}
	return 0
}

// name is the text of the attribute of that type, "" if there is none.
func name(attrs []byte, want uint16) string {
	for len(attrs) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			return ""
		}
		if binary.NativeEndian.Uint16(attrs[2:])&^unix.NLA_F_NESTED == want {
			text := attrs[unix.SizeofNlAttr:size]
			for len(text) > 0 && text[len(text)-1] == 0 {
				text = text[:len(text)-1]
			}
			return string(text)
		}
		attrs = attrs[min(align(size), len(attrs)):]
	}
	return ""
}

func align(n int) int { return (n + 3) &^ 3 }
