package underlay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
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
	if err := deaf(s.GetFd()); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	raw, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	context.AfterFunc(ctx, s.Close)
	go receive(ctx, s, raw)
	go coalesce(ctx, raw, changed)
	return changed, nil
}

// deaf makes the kernel keep the notifications of most routes to itself: one for each peer would wake us for nothing.
// Those of the default routes and of what is on the link come through, and all that are not of routes. What came
// before the filter, receive looks at.
func deaf(fd int) error {
	const (
		kind  = 4 // nlmsg_type
		route = unix.NLMSG_HDRLEN
		dst   = route + 1 // rtm_dst_len
		scope = route + 6 // rtm_scope
	)
	swapped := func(v uint16) uint32 { // a filter reads words in the order of the network
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kind},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped(unix.RTM_NEWROUTE), Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped(unix.RTM_DELROUTE), Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: dst},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 2},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: scope},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RT_SCOPE_LINK, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
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
	for _, a := range parse(attributes) {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			if Ours(strings.TrimRight(string(a.Value), "\x00")) {
				return true
			}
		case unix.IFLA_LINKINFO:
			for _, i := range parse(a.Value) {
				if i.Attr.Type == nl.IFLA_INFO_SLAVE_KIND && strings.TrimRight(string(i.Value), "\x00") == "bridge" {
					return true
				}
			}
		}
	}
	return false
}

// parse reads attributes, none where they cannot be read. The library panics where the last one lacks its padding.
func parse(b []byte) []syscall.NetlinkRouteAttr {
	if short := -len(b) & (unix.RTA_ALIGNTO - 1); short > 0 {
		b = append(slices.Clip(b), make([]byte, short)...)
	}
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	return attrs
}
