package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// The kernel's tables that a backend fills.
const (
	tableRoutes = iota
	tableNeighs
	tableFDB
	tables
)

// seen is what a node's kernel holds of the bench's peers, by its own notifications.
type seen struct {
	version [tables][1 << 16]uint8 // by number; 0: no entry, else version + 1
	count   [tables]int
	writes  int // notifications so far
}

// has tells whether all entries of p are there, in p's version.
func (s *seen) has(backend string, p peer) bool {
	if backend != "vxlan" {
		return s.version[tableRoutes][p.number] == p.version+1
	}
	return s.version[tableRoutes][p.number] != 0 && s.version[tableNeighs][p.number] == p.version+1 && s.version[tableFDB][p.number] == p.version+1
}

// lacks tells whether no entry of p is there.
func (s *seen) lacks(p peer) bool {
	return s.version[tableRoutes][p.number] == 0 && s.version[tableNeighs][p.number] == 0 && s.version[tableFDB][p.number] == 0
}

// full tells whether n peers have all their entries.
func (s *seen) full(backend string, n int) bool {
	return s.count[tableRoutes] == n && (backend != "vxlan" || s.count[tableNeighs] == n && s.count[tableFDB] == n)
}

// kernelWatch listens to a node's kernel: that costs the daemon under test nothing but a second core, and needs
// nothing of it but that it does its work.
type kernelWatch struct {
	fd   int
	stop atomic.Bool
	done sync.WaitGroup

	mu      sync.Mutex
	seen    seen
	goal    func(*seen) bool
	reached chan time.Time
	err     error
}

func watchKernel(node *lab.Node) (*kernelWatch, error) {
	w := &kernelWatch{}
	err := node.Do(func() (err error) {
		w.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		interval := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds()) // to notice close
		return errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &interval),
			unix.Bind(w.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
			unix.SetsockoptInt(w.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_NEIGH),
			unix.SetsockoptInt(w.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_IPV4_ROUTE))
	})
	if err != nil {
		return nil, fmt.Errorf("watch the kernel: %w", err)
	}
	w.done.Go(w.run)
	return w, nil
}

func (w *kernelWatch) close() {
	w.stop.Store(true)
	w.done.Wait()
	_ = unix.Close(w.fd)
}

func (w *kernelWatch) run() {
	buf := make([]byte, 64<<10)
	for !w.stop.Load() {
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		w.mu.Lock()
		if err != nil {
			w.err = fmt.Errorf("watch the kernel: %w", err) // ENOBUFS: the figures would be wrong
		} else {
			w.take(buf[:n])
		}
		if w.goal != nil && (err != nil || w.goal(&w.seen)) {
			w.reached <- time.Now()
			w.goal = nil
		}
		w.mu.Unlock()
	}
}

// expect returns a function that waits until goal is true, and returns when it became so.
func (w *kernelWatch) expect(goal func(*seen) bool) (wait func(context.Context) (time.Time, error)) {
	reached := make(chan time.Time, 1)
	w.mu.Lock()
	if goal(&w.seen) {
		reached <- time.Now()
	} else {
		w.goal, w.reached = goal, reached
	}
	w.mu.Unlock()
	return func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		select {
		case at := <-reached:
			w.mu.Lock()
			defer w.mu.Unlock()
			return at, w.err
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			return time.Time{}, fmt.Errorf("the kernel has %v entries (routes, neighbours, FDB), and still not those expected: %w", w.seen.count, ctx.Err())
		}
	}
}

// writes is the number of notifications so far.
func (w *kernelWatch) writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.writes
}

// take reads the notifications of one datagram.
func (w *kernelWatch) take(b []byte) {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return
		}
		body := b[unix.NLMSG_HDRLEN:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			w.seen.route(kind == unix.RTM_NEWROUTE, body)
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			w.seen.neigh(kind == unix.RTM_NEWNEIGH, body)
		}
		b = b[min(len(b), (size+3)&^3):]
	}
}

func (s *seen) route(present bool, body []byte) {
	if len(body) < unix.SizeofRtMsg || body[1] != 24 || body[4] != unix.RT_TABLE_MAIN {
		return
	}
	dst, gateway := attributes(body[unix.SizeofRtMsg:], unix.RTA_DST, unix.RTA_GATEWAY)
	p, ok := peerOfSubnet(dst)
	if !ok {
		return
	}
	if node, direct := peerOfNode(gateway); direct {
		p.version = node.version
	}
	s.note(tableRoutes, p, present)
}

func (s *seen) neigh(present bool, body []byte) {
	if len(body) < 12 {
		return
	}
	dst, lladdr := attributes(body[12:], unix.NDA_DST, unix.NDA_LLADDR)
	if body[0] == unix.AF_BRIDGE {
		if p, ok := peerOfMAC(lladdr); ok {
			s.note(tableFDB, p, present)
		}
		return
	}
	p, ok := peerOfSubnet(dst)
	if node, has := peerOfMAC(lladdr); ok && (has || !present) {
		p.version = node.version
		s.note(tableNeighs, p, present)
	}
}

// note takes one change in. A deletion counts only if it is of the version that is there: the new one may come first.
func (s *seen) note(table int, p peer, present bool) {
	s.writes++
	is := &s.version[table][p.number]
	switch {
	case present:
		if *is == 0 {
			s.count[table]++
		}
		*is = p.version + 1
	case *is == p.version+1 || table == tableNeighs && *is != 0:
		*is = 0
		s.count[table]--
	}
}

// attributes finds two attributes of a message.
func attributes(b []byte, first, second uint16) (one, two []byte) {
	for len(b) >= syscall.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < syscall.SizeofRtAttr || size > len(b) {
			break
		}
		switch binary.NativeEndian.Uint16(b[2:]) & 0x3fff {
		case first:
			one = b[syscall.SizeofRtAttr:size]
		case second:
			two = b[syscall.SizeofRtAttr:size]
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return one, two
}
