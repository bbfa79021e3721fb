package path

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/doctor"
	"flannel/pkg/linux/rtnetlink"
)

// smallPacket is the size of small echo requests, in bytes: that of a ping with its
// default options.
const smallPacket = 84

// run is one test of a path. plan collects what to do: steps send packets, all at the same
// time, each on a goroutine of its own. A sniffer reads a packet socket, on one goroutine,
// and asks each watch whether a packet is what was sent, or its answer. When both have
// ended, results write what was seen. No two of the steps, watches and results write the
// same part of the Path, except for AnswerMAC, which two watches write. A token is random
// data in a packet, by which its answer is recognized. Kind, in Path, is the backend of the
// tunnel, PathDirect without a tunnel, or "" without a route through a device of flanneld.
type run struct {
	doctor.Path
	target   Target
	within   time.Duration // for the answers to one packet, however often it is repeated
	inner    route         // to addr
	underlay route         // to the peer's public IP
	addr     netip.Addr    // the first in the peer's subnet
	watches  []*watch      // for the sniffer, which gets all at once
	steps    []func()      // each in a goroutine
	results  []func()      // after all steps, when the packet socket is closed
	closers  []func()      // at the end of Test
}

// Test sends packets to a peer, for the doctor, which derives from the Path why it does
// not answer. An answer has to arrive within the time. If all parts of the path are
// healthy, it takes milliseconds; otherwise up to four times that time, or until shortly
// after ctx ends.
func Test(ctx context.Context, t Target, within time.Duration) doctor.Path {
	r := &run{target: t, within: within, addr: t.Subnet.Addr(),
		Path: doctor.Path{Peer: t.Peer, Subnet: t.Subnet, PublicIP: t.PublicIP, Expected: t.Expected, NotForwarding: t.Blocked}}
	r.Handshake = !t.Since.IsZero() && t.Handshake.After(t.Since)
	if err := r.findRoutes(); err != nil {
		r.Problem = err.Error()
		return r.Path
	}
	if r.Underlay == "" { // there is no route to the peer
		return r.Path
	}
	r.plan(ctx)
	defer func() {
		for _, f := range r.closers {
			f()
		}
	}()
	// The peer's machine, its tunnel device, and an address of a pod.
	s, err := sniff([]netip.Addr{t.PublicIP, t.Subnet.Addr(), t.Subnet.Addr().Next()}, r.watches...)
	if err != nil {
		r.Problem = err.Error()
		return r.Path
	}
	before, unread := reversePathFiltered() // the kernel's counter, of all packets
	var running sync.WaitGroup
	for _, step := range r.steps {
		running.Go(step)
	}
	running.Wait()
	s.close() // ends its goroutine, so that results may read what the watches have seen
	for _, f := range r.results {
		f()
	}
	r.readFilters(before, unread)
	r.Neighbour = neighbourState(r.underlay)
	if r.Full.Result == doctor.Silent && r.small().Result == doctor.Answered {
		r.Largest = largest(ctx.Done(), r.sized(), within*3/4, smallPacket, r.MTU) // up to three rounds of this time
	}
	return r.Path
}

// readFilters reads what the reverse path filter does on the devices on which answers arrived,
// and how many packets it dropped since the counter was before; unread: why before could not be
// read, or nil. If an answer was lost on this node, and it cannot be read whether the filter
// dropped it, this becomes the Problem. The filter did not if it is off, or dropped nothing.
func (r *run) readFilters(before int, unread error) {
	if r.addr.Is6() { // IPv6 has neither rp_filter nor this counter
		return
	}
	after, err := reversePathFiltered()
	if unread = cmp.Or(unread, err); unread == nil {
		r.ReversePath = after - before
	}
	lostOn := r.LostOn()
	var failed error // of the filter of lostOn
	r.Filters = map[string]int{}
	for _, test := range []doctor.PathTest{r.Inner, r.Frame, r.Broadcast, r.OfPod} {
		for _, device := range test.Arrived {
			value, err := reverseFilter(device)
			if err == nil {
				r.Filters[device] = value
			} else if device == lostOn {
				failed = err
			}
		}
	}
	filter, known := r.Filters[lostOn]
	if known { // from another test, if one could not read it
		failed = nil
	}
	ruledOut := unread == nil && r.ReversePath == 0 || known && filter == 0
	if lostOn != "" && !ruledOut {
		r.Problem = errorText(cmp.Or(unread, failed))
	}
}

// findRoutes looks up what the path leads through. What there is no route for stays zero. An
// error means that a route is not known: then no cause is certain.
func (r *run) findRoutes() (err error) {
	if r.inner, err = routeTo(r.addr); err == nil {
		describe(&r.Path, r.target, r.inner)
	} else if !rtnetlink.NoRoute(err) {
		return err
	}
	if r.Kind != "" {
		if r.Astray, err = astray(r.target, r.inner, r.addr); err != nil {
			return err
		}
	}
	if r.underlay, err = routeTo(r.PublicIP); err == nil {
		r.Underlay = r.underlay.link.Attrs().Name
	} else if !rtnetlink.NoRoute(err) {
		return err
	}
	return nil
}

// small is the test with a small packet to the address to which Full has a large one.
func (r *run) small() doctor.PathTest {
	if r.Kind == doctor.PathDirect {
		return r.Host
	}
	return r.Inner
}

// sized returns the address to which packets of several sizes are sent.
func (r *run) sized() netip.Addr {
	if r.Kind == doctor.PathDirect {
		return r.PublicIP
	}
	return r.addr
}

// plan adds the steps for the kind of path.
func (r *run) plan(ctx context.Context) {
	r.steps = append(r.steps, func() { r.testHost(ctx) })
	switch r.Kind {
	case "":
		return
	case doctor.PathDirect:
		r.planDirect()
	default:
		r.planTunnel(ctx)
	}
	if dataplane.TraitsOfBackend(r.Kind).Frame { // VXLAN, in which packets are in Ethernet frames
		r.planFrames()
	}
	r.steps = append(r.steps, func() { r.Full = result(echoes(r.sized(), newToken(), r.within, r.MTU)) })
}

// result makes a PathTest of what echoes returned for one size.
func result(answered map[int]bool, err error) doctor.PathTest {
	switch {
	case len(answered) > 0:
		return doctor.PathTest{Result: doctor.Answered}
	case err != nil:
		return doctor.PathTest{Result: doctor.Silent, Error: err.Error()}
	}
	return doctor.PathTest{Result: doctor.Silent}
}

// testHost tests whether the peer's machine answers anything.
func (r *run) testHost(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	found := make(chan bool, 3) // has room for all, so that no goroutine waits
	go func() {
		answered, _ := echoes(r.PublicIP, newToken(), r.within, smallPacket) // an error is no answer
		found <- len(answered) > 0
	}()
	go func() { found <- hostAnswersTCP(ctx, r.PublicIP) }()
	go func() { found <- hostAnswersUDP(r.within, r.PublicIP) }()
	r.Host.Result = doctor.Silent
	for range cap(found) {
		if <-found {
			r.Host.Result = doctor.Answered
			return
		}
	}
}

// planTunnel adds an echo to the peer's device, and watches for what rejects the tunnel's
// packets.
func (r *run) planTunnel(ctx context.Context) {
	t := newToken()
	echo := watchEcho(t)
	packets := outer{r.PublicIP, dataplane.TraitsOfBackend(r.Kind).Protocol, uint16(r.Port)}
	known := packets.protocol != unix.IPPROTO_UDP || r.Port != 0      // else any UDP packet would seem to be of the tunnel
	var keys handshake                                                // the watch writes it, and the result reads it
	rejected := &watch{match: func(p packet) (request, answer bool) { // here, answer ends waitFor below
		if why := packets.rejection(p); known && why != "" && !p.outgoing {
			r.Rejected = why
		}
		if r.Kind == wireGuard && known && packets.carries(p) {
			keys.see(p, headerLength(r.PublicIP))
		}
		return false, keys.from[wgResponse] && !p.outgoing // false: echo watches what leaves
	}}
	r.watches = append(r.watches, echo, rejected)
	r.steps = append(r.steps, func() {
		r.Inner = result(echoes(r.addr, t, r.within, smallPacket))
		if r.Kind == wireGuard && r.Inner.Result == doctor.Silent { // the next handshake shows why
			waitFor(ctx, rejected.answered, wgRetry)
		}
	})
	r.results = append(r.results, func() {
		r.Inner.Left, r.Inner.Arrived = echo.left, echo.arrived
		r.Refused = keys.refused()
	})
}

// planDirect adds packets with a hop limit of 1 to an address of a pod, from this node and
// from a pod: a peer that does not have this address answers that it would not forward
// them. Clouds drop them if they do not know which node has the address.
func (r *run) planDirect() {
	dst := r.addr.Next()
	isPeer := func(a netip.Addr) bool { return a == r.PublicIP || r.Subnet.Contains(a) }
	add := func(test *doctor.PathTest, src netip.Addr) {
		t := newToken()
		packet := ipPacket(src, dst, icmpOf(dst), 1, echoRequest(src, dst, 0, t, smallPacket)) // hop limit 1, sequence 0
		r.watched(test, watchError(t, isPeer), func() error { return sendRaw(dst, packet) })
	}
	add(&r.Inner, r.inner.src)
	if r.target.Own.IsValid() { // the source is an address of a pod of this node
		add(&r.OfPod, r.target.Own.Addr().Next())
	}
}

// planFrames adds packets that are put into VXLAN by hand. If that is not possible, these
// tests are not made.
func (r *run) planFrames() {
	link, ok := r.inner.link.(*netlink.Vxlan)
	if !ok {
		return
	}
	published, ok := neighbourMAC(r.inner) // the entry that flanneld has made from the lease
	if !ok || !r.inner.src.IsValid() {
		return
	}
	local := net.UDPAddr{IP: link.SrcAddr} // of the tunnel; the kernel chooses the port
	conn, err := net.DialUDP("udp", &local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.PublicIP, uint16(link.Port))))
	if err != nil {
		return
	}
	r.closers = append(r.closers, func() { _ = conn.Close() })
	own := dataplane.MAC(link.Attrs().HardwareAddr)
	s := frameSender{conn: conn, vni: uint32(link.VxlanId), own: own, ownAddr: r.inner.src, peerAddr: r.addr}
	all := dataplane.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	r.PublishedMAC = published.String()

	echo, broadcast := newToken(), newToken()
	r.watched(&r.Frame, watchEcho(echo), func() error { return s.echo(published, echo) })
	r.watched(&r.Broadcast, r.noteSender(watchEcho(broadcast), broadcast[:], r.senderOfFrame), func() error { return s.echo(all, broadcast) })
	if r.addr.Is4() {
		pattern := arpReplyPattern(own, r.addr)
		arp := &watch{match: func(p packet) (bool, bool) { found := bytes.Contains(p.data, pattern); return false, found }}
		r.watched(&r.ARP, r.noteSender(arp, pattern, senderOfARP), func() error { return s.send(all, etherARP, arpRequest(own, r.addr)) })
	}
	r.planTCP(s, published)
}

// planTCP adds TCP connections, one of the kernel and one made by hand.
func (r *run) planTCP(s frameSender, published dataplane.MAC) {
	to := netip.AddrPortFrom(r.addr, kubeletPort)
	var connections []connection
	for range attempts + 1 { // one for each attempt, and byHand
		c, err := newConnection(r.inner.src)
		if err != nil {
			return
		}
		r.closers = append(r.closers, c.close)
		connections = append(connections, c)
	}
	// byHand is only bound, so that nobody else uses its port. Each attempt opens one of the others.
	byHand, opened := connections[0], 0
	var matches []*watch
	for _, c := range connections[1:] {
		matches = append(matches, watchTCP(c.from, to))
	}
	r.watched(&r.TCP, anyOf(matches), func() error {
		opened++
		return connections[opened].open(r.addr)
	})
	r.watched(&r.FrameTCP, watchTCP(byHand.from, to), func() error { return s.syn(published, byHand.from.Port()) })
}

// watched adds a step that repeats a packet until the watch sees its answer, and a result
// that writes the test. text is why the last packet could not be sent; "": it was.
func (r *run) watched(test *doctor.PathTest, w *watch, send func() error) {
	r.watches = append(r.watches, w)
	var text string
	r.steps = append(r.steps, func() { text = errorText(repeat(r.within, w.answered, send)) })
	r.results = append(r.results, func() { *test = w.test(text) })
}

// errorText returns the text of an error, "" for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// noteSender makes a watch set AnswerMAC. sender finds it in the data before the pattern.
func (r *run) noteSender(w *watch, pattern []byte, sender func(before []byte) (dataplane.MAC, bool)) *watch {
	match := w.match
	w.match = func(p packet) (bool, bool) {
		request, answer := match(p)
		if i := bytes.Index(p.data, pattern); answer && i >= 0 && !p.outgoing {
			if a, ok := sender(p.data[:i]); ok {
				r.AnswerMAC = a.String()
			}
		}
		return request, answer
	}
	return w
}

// senderOfARP returns the hardware address of the sender in an ARP message up to its
// protocol address.
func senderOfARP(before []byte) (a dataplane.MAC, ok bool) {
	if len(before) < len(a) {
		return a, false
	}
	return dataplane.MAC(before[len(before)-len(a):]), true
}

// senderOfFrame returns the source of a frame in VXLAN, in a packet up to the body of
// the echo; false if the packet is not in a tunnel.
func (r *run) senderOfFrame(before []byte) (a dataplane.MAC, ok bool) {
	at := len(before) - icmpHeader - headerLength(r.addr) - ethernetHeader + len(a)
	if at < headerLength(r.PublicIP)+udpHeader+vxlanHeader {
		return a, false
	}
	return dataplane.MAC(before[at : at+len(a)]), true
}
