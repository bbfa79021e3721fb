package underlay

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch tells that what Read reads may have changed: the channel receives one value for any number of changes, and
// nothing more once ctx has ended; it is never closed. What changes after Watch has returned is not missed. It
// watches the network namespace of the calling goroutine's thread.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	raw, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	context.AfterFunc(ctx, s.Close)
	go receive(ctx, s, raw)
	go coalesce(ctx, raw, changed)
	return changed, nil
}

// receive ends with ctx, which closes the socket. The kernel drops messages when we are slow (our own routes pass by
// here too) and says so: that counts as a change.
func receive(ctx context.Context, s *nl.NetlinkSocket, raw chan<- struct{}) {
	f := filter{}
	for {
		msgs, from, err := s.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			clear(f)
			poke(raw)
			time.Sleep(settle) // whatever it is, it must not make us spin
			continue
		}
		if from.Pid != nl.PidKernel {
			continue
		}
		for _, m := range msgs {
			if f.counts(m) {
				poke(raw)
			}
		}
	}
}

// filter holds the indices of interfaces that cannot be the underlay: ours, and ports of bridges, which pods' are.
type filter map[int32]bool

// counts tells from the first bytes of a message whether it is of interest; most are not.
func (f filter) counts(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return false
		}
		info := nl.DeserializeIfInfomsg(m.Data)
		if info.Family == unix.AF_BRIDGE { // of a port's state within its bridge
			return false
		}
		index := info.Index
		if m.Header.Type == unix.RTM_DELLINK {
			known := f[index]
			delete(f, index)
			return !known
		}
		if boring(m.Data[unix.SizeofIfInfomsg:]) {
			f[index] = true
			return false
		}
		delete(f, index)
		return true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && !f[int32(nl.DeserializeIfAddrmsg(m.Data).Index)]
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		r := nl.DeserializeRtMsg(m.Data)
		return r.Table == unix.RT_TABLE_MAIN && (r.Dst_len == 0 || r.Scope == unix.RT_SCOPE_LINK)
	}
	return false
}

func boring(attributes []byte) bool {
	attrs, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return false
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			if Ours(strings.TrimRight(string(a.Value), "\x00")) {
				return true
			}
		case unix.IFLA_LINKINFO:
			info, _ := nl.ParseRouteAttr(a.Value)
			for _, i := range info {
				if i.Attr.Type == nl.IFLA_INFO_SLAVE_KIND && strings.TrimRight(string(i.Value), "\x00") == "bridge" {
					return true
				}
			}
		}
	}
	return false
}
