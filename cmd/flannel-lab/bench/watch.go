package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// Tables of the kernel that a backend writes: host-gw the routes alone, vxlan all.
const (
	tableRoutes = iota
	tableNeighs
	tableFDB
	tables // their number
)

// seen is the state of the peers' entries in a kernel, according to its
// notifications. A peer has one entry in each table. An entry names the peer by its number,
// and the peer's version (see type peer) by a MAC or a gateway.
type seen struct {
	version [tables][1 << 16]uint8 // by number of the peer: version + 1; 0: no entry
	count   [tables]int            // number of entries
	writes  int                    // number of notifications about entries of peers, also of deletions
}

// has reports whether all entries of p exist, in the version of p. (With vxlan, a route is
// the same in all versions.)
func (s *seen) has(backend string, p peer) bool {
	if backend != "vxlan" {
		return s.version[tableRoutes][p.number] == p.version+1
	}
	return s.version[tableRoutes][p.number] != 0 && s.version[tableNeighs][p.number] == p.version+1 &&
		s.version[tableFDB][p.number] == p.version+1
}

// lacks reports whether no entry of p exists.
func (s *seen) lacks(p peer) bool {
	return s.version[tableRoutes][p.number] == 0 && s.version[tableNeighs][p.number] == 0 &&
		s.version[tableFDB][p.number] == 0
}

// full reports whether n peers have all their entries. It compares numbers only, because
// it is called after each of tens of thousands of notifications.
func (s *seen) full(backend string, n int) bool {
	return s.count[tableRoutes] == n && (backend != "vxlan" || s.count[tableNeighs] == n && s.count[tableFDB] == n)
}

// kernelWatch measures when a node's kernel has the entries of peers, by the kernel's
// notifications. So the daemon under test needs no support for it: any flanneld can be
// measured. On a machine with two cores, the goroutine run takes one and the daemon the
// other, so that reading notifications hardly delays the daemon.
//
// The time of an entry is that at which run has read its notification. Callers subtract
// the time of what they did to cause it: just before the start of the daemon (launch), or
// just before or after a write to the store (measureOne, joinOne).
type kernelWatch struct {
	stop atomic.Bool    // tells run to end
	done sync.WaitGroup // of run

	mu    sync.Mutex // guards the following; run holds it while it processes a datagram
	seen  seen
	goals []goal // those that are not met yet
	err   error  // the last one of reading notifications: times and counts are wrong since
}

// goal is what a caller of expect waits for. met is called by run after each datagram, with
// the lock held. reached, which has room for one value, gets the time when met is true.
type goal struct {
	met     func(*seen) bool
	reached chan time.Time
}

// watchKernel subscribes to route and neighbour notifications of a node. The
// caller must call close.
func watchKernel(node *lab.Node) (*kernelWatch, error) {
	w := &kernelWatch{}
	if err := w.follow(node, unix.NETLINK_ROUTE, w.seen.take, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE); err != nil {
		return nil, err
	}
	return w, nil
}

// follow subscribes to groups of a netlink protocol until close, and starts run. take
// processes the notifications of one datagram.
func (w *kernelWatch) follow(node *lab.Node, protocol int, take func([]byte), groups ...int) error {
	var fd int
	err := node.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
			return err
		}
		interval := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds()) // timeout of Read, so that run sees stop
		err = errors.Join(
			// Room for all notifications of a first sync, in case run is delayed.
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &interval),
			unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
		for _, g := range groups {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	w.done.Go(func() { w.run(fd, take) })
	return nil
}

// close ends run, which takes up to 200 ms.
func (w *kernelWatch) close() {
	w.stop.Store(true)
	w.done.Wait()
}

// run processes notifications until close, and then closes the socket. It sends
// the time to those whose goals become true.
func (w *kernelWatch) run(fd int, take func([]byte)) {
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	buf := make([]byte, 64<<10)
	for !w.stop.Load() {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // nothing came
			continue
		}
		w.mu.Lock()
		if err != nil {
			w.err = fmt.Errorf("watch the kernel: %w", err) // also ENOBUFS, because the figures would be wrong
		} else {
			take(buf[:n])
		}
		w.goals = slices.DeleteFunc(w.goals, func(g goal) bool {
			done := err != nil || g.met(&w.seen) // after an error, too: the caller gets w.err
			if done {
				g.reached <- time.Now()
			}
			return done
		})
		w.mu.Unlock()
	}
}

// expect returns a function that waits until met is true, up to ten minutes, and returns
// the time when it became true: now, if it is true already. There are two steps, so that
// the caller can cause in between what it waits for, and no notification is missed:
//
//	wait := w.expect(met)
//	… // write to the store
//	at, err := wait(ctx)
func (w *kernelWatch) expect(met func(*seen) bool) (wait func(context.Context) (time.Time, error)) {
	reached := make(chan time.Time, 1)
	w.mu.Lock()
	if met(&w.seen) {
		reached <- time.Now()
	} else {
		w.goals = append(w.goals, goal{met, reached})
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
			return time.Time{}, fmt.Errorf("the kernel has %v entries (routes, neighbours, FDB), but not yet the expected ones: %w", w.seen.count, ctx.Err())
		}
	}
}

// writes returns the number of notifications about entries of peers so far.
func (w *kernelWatch) writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.writes
}

// take processes the notifications of one datagram. It decodes only the bytes that it
// needs, instead of whole messages, to leave the CPU to the daemon under test.
func (s *seen) take(b []byte) {
	for kind, body := range messages(b) {
		switch kind {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			s.route(kind == unix.RTM_NEWROUTE, body)
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			s.neigh(kind == unix.RTM_NEWNEIGH, body)
		}
	}
}

// messages yields type and body of the netlink messages of a datagram.
func messages(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) || !yield(binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):] // messages are aligned to 4 bytes, as are attributes
		}
	}
}

// route records a route to the subnet of a peer. A gateway that is the address
// of a peer gives the version (host-gw).
func (s *seen) route(present bool, body []byte) {
	// struct rtmsg: byte 1 is the length of the destination prefix, byte 4 the table.
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

// neigh records a neighbour or FDB entry of a peer. The MAC gives the version.
func (s *seen) neigh(present bool, body []byte) {
	if len(body) < 12 { // struct ndmsg, whose byte 0 is the family
		return
	}
	dst, lladdr := attributes(body[12:], unix.NDA_DST, unix.NDA_LLADDR)
	if body[0] == unix.AF_BRIDGE {
		if p, ok := peerOfMAC(lladdr); ok {
			s.note(tableFDB, p, present)
		}
		return
	}
	p, ok := peerOfSubnet(dst) // the neighbour is the first address of the peer's subnet
	if node, has := peerOfMAC(lladdr); ok && (has || !present) {
		p.version = node.version
		s.note(tableNeighs, p, present)
	}
}

// note records one change of the entry of a peer. A deletion of another version than the
// current one is ignored, because the new entry may be notified first. A deleted neighbour
// has no MAC, so its version is not known, and any deletion counts.
func (s *seen) note(table int, p peer, present bool) {
	s.writes++
	current := &s.version[table][p.number]
	switch {
	case present:
		if *current == 0 {
			s.count[table]++
		}
		*current = p.version + 1
	case *current == p.version+1 || table == tableNeighs && *current != 0:
		*current = 0
		s.count[table]--
	}
}

// attributes returns the values of two attributes of a message; nil if absent.
func attributes(b []byte, first, second uint16) (v1, v2 []byte) {
	for len(b) >= syscall.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < syscall.SizeofRtAttr || size > len(b) {
			break
		}
		switch binary.NativeEndian.Uint16(b[2:]) & 0x3fff { // without the flags in the upper two bits
		case first:
			v1 = b[syscall.SizeofRtAttr:size]
		case second:
			v2 = b[syscall.SizeofRtAttr:size]
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return v1, v2
}
