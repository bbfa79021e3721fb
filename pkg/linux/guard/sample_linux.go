package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// sample is a packet that a rule has found.
type sample struct {
	rule     string
	from, to netip.Addr // of the packet itself
	inner    netip.Addr // source of the packet inside; zero: there is none
	device   int        // index of the interface from which it came; 0: unknown
	claims   bool       // to be from a pod of a peer, as a rule has found (claimPrefix)
}

// deviceName returns the name of the interface from which the packet came.
func (p sample) deviceName() string {
	if i, err := net.InterfaceByIndex(p.device); err == nil {
		return i.Name
	}
	return "unknown"
}

// sampler receives some of the packets that the rules find, by NFLOG, logs a few of them
// and remembers whether peers send them. The daemon's loop calls bind, set, put and reset,
// by methods of Guard, and close is called after the loop has ended. The goroutine of the
// Listener calls observe, and any goroutine may call ofPeer.
type sampler struct {
	log    *slog.Logger
	notify func()              // causes a pass, and does not block: another packet than before delays the trial, for which dropping waits
	source *rtnetlink.Listener // nil: never bound

	mu       sync.Mutex
	config   Config                                          // of the rules; says where the packet inside is
	paths    reconcile.CompactMap[*dataplane.Path, struct{}] // to the peers; an unchanged path keeps its pointer (dataplane.State)
	departed reconcile.CompactMap[netip.Addr, netip.Prefix]  // subnets of former peers, by address
	last     time.Time                                       // of the last packet that claims to be from a peer's pod; zero: none
	which    string                                          // a description of that packet
	notified time.Time                                       // when notify was called last
	logged   map[sample]time.Time                            // when such a packet was logged last
	lines    *rate.Limiter                                   // of the log
}

// claimPrefix is in front of the rule in samples of packets that claim to be from a pod of
// a peer.
const claimPrefix = "claimed-"

// Of linux/netfilter/nfnetlink_log.h.
const (
	nfulnlMsgPacket, nfulnlMsgConfig      = 0, 1
	nfulaDevice                           = 4 // NFULA_IFINDEX_INDEV
	nfulaPayload, nfulaPrefix             = 9, 10
	nfulaCfgCmd, nfulaCfgMode, nfulaQueue = 1, 2, 5 // the last is NFULA_CFG_QTHRESH
	nfulnlCfgCmdBind, nfulnlCopyPacket    = 1, 2
)

const (
	sampleBytes   = 128         // of each packet: outer and inner headers
	sampleRate    = 5           // per second and rule
	maxSampleLog  = 10          // lines in the log at once, then one in each sampleLogRate
	sampleLogRate = time.Minute // see above
	sampleRepeat  = time.Hour   // until the same packet is logged again
	maxDeparted   = 1000        // former peers that are remembered
)

// groupOf returns the NFLOG group, of 16 bits, of a table: not one of the small numbers, which people
// use. If two instances got the same group, the second could not bind: it would have no samples.
func groupOf(table string) uint16 { return uint16(crc32.ChecksumIEEE([]byte(table))) | 0x4000 }

// newSampler returns a sampler that receives nothing yet.
func newSampler(log *slog.Logger, notify func()) *sampler {
	return &sampler{log: log, notify: notify, logged: map[sample]time.Time{},
		lines: rate.NewLimiter(rate.Every(sampleLogRate), maxSampleLog)}
}

// bind starts receiving, unless that has started. Each Apply of a guard that is on calls bind, logs
// an error and goes on without samples. EPERM: another process has the group, or this one lacks CAP_NET_ADMIN.
func (s *sampler) bind(group uint16) error {
	if s.source != nil {
		return nil
	}
	mode := append(binary.BigEndian.AppendUint32(nil, sampleBytes), nfulnlCopyPacket, 0)
	request := rtnetlink.Message(nil).
		Begin(unix.NFNL_SUBSYS_ULOG<<8|nfulnlMsgConfig, 0, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(group >> 8), byte(group)}).
		Attr(nfulaCfgCmd, []byte{nfulnlCfgCmdBind}).
		Attr(nfulaCfgMode, mode).
		Attr(nfulaQueue, binary.BigEndian.AppendUint32(nil, 1)) // deliver each at once
	source, err := rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_NETFILTER, Request: request, Each: s.observe,
		Lost: func(error) {}, // lost samples do not matter: there are further ones, and the kernel counts all packets
		Log:  s.log.With("of", "samples of the guard")})
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("another process may have the group: %w", err)
	}
	if err != nil {
		return fmt.Errorf("bind to NFLOG group %d: %w", group, err)
	}
	s.source = source
	return nil
}

// close ends receiving. Guard.Close calls it, once.
func (s *sampler) close() error {
	if s.source == nil {
		return nil
	}
	return s.source.Close()
}

// observe passes a sample to add. The 4 bytes in front of the attributes are nfnetlink's own header.
func (s *sampler) observe(h rtnetlink.Header, body []byte) error {
	if h.Kind == unix.NFNL_SUBSYS_ULOG<<8|nfulnlMsgPacket && len(body) >= 4 {
		s.add(body[4:], time.Now())
	}
	return nil
}

// add records a packet, and logs it unless there were too many. attrs are NFLOG's attributes of a packet.
func (s *sampler) add(attrs []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.parse(attrs)
	if !ok {
		return
	}
	if peer, subnet, of := s.peerOf(found); of {
		former := s.which
		s.last = now
		s.which = fmt.Sprintf("%s sends from %s (rule %s), and the lease of %s is for %s", found.claimed(), found.from, found.rule, subnet, peer)
		if found.from == found.claimed() { // no packet inside (the rule spoofed): maybe a device of this host has the peer's addresses, too
			s.which = fmt.Sprintf("%s comes from device %s, which does not lead to its node %s (rule %s)", found.from, found.deviceName(), peer, found.rule)
		}
		if s.which != former && now.Sub(s.notified) > time.Second { // else the next look of the trial is soon enough
			s.notified = now
			s.notify()
		}
	}
	s.report(found, now)
}

// claimed is the pod that the packet seems to be from.
func (p sample) claimed() netip.Addr {
	if p.inner.IsValid() {
		return p.inner
	}
	return p.from
}

// peerOf returns the peer of which the packet claims to be. It looks at all paths: there are
// at most sampleRate samples a second for each rule, and an index of subnets would take more
// memory than s.paths, which takes 15 bytes for each path.
func (s *sampler) peerOf(p sample) (peer netip.Addr, subnet netip.Prefix, found bool) {
	if !p.claims {
		return peer, subnet, false
	}
	for path := range s.paths.All() { // plan leaves no two subnets that overlap, so the first one is the only one
		if path.Dst.Contains(p.claimed()) {
			return path.Via, path.Dst, true
		}
	}
	return peer, subnet, false
}

// report logs a packet, unless a similar one was logged lately, or too many others.
func (s *sampler) report(p sample, now time.Time) {
	if now.Sub(s.logged[p]) < sampleRepeat || !s.lines.AllowN(now, 1) {
		return
	}
	if len(s.logged) >= 100*maxSampleLog { // a limit of memory; forgetting costs at most repeated lines
		s.logged = map[sample]time.Time{}
	}
	s.logged[p] = now
	what, cause := "found a forged packet into the pod network", causeForged
	if s.isDeparted(p) {
		what, cause = "found a packet of a node that is no longer a peer, and still runs", causeDeparted
	}
	// Enforce is that of the rules, after the trial: Guard.update has passed what mayEnforce returned.
	s.log.Info(what, "cause", cause, "rule", p.rule, "from", p.from, "to", p.to, "inside_from", p.inner, "device", p.deviceName(), "dropped", s.config.Enforce)
}

// Causes in the log.
const (
	causeForged     = "forged-packet"
	causeDeparted   = "packet-of-departed-node"
	causeJoined     = "packets-of-joined-nodes"
	causeIncomplete = "guard-incomplete"
)

// isDeparted reports whether a packet is probably from a node that was a peer: the packet
// came to the port of the tunnel (the rule outsider) from that node's address, and the
// packet inside is from the node's subnet, or the node itself.
func (s *sampler) isDeparted(p sample) bool {
	subnet, was := s.departed.Get(p.from)
	return was && p.rule == outsider && (subnet.Contains(p.inner) || p.inner == p.from)
}

// set makes the sampler understand the packets of a configuration.
func (s *sampler) set(c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = c
}

// put adds or removes a path to a peer.
func (s *sampler) put(p *dataplane.Path, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case present:
		s.paths.Set(p, struct{}{})
		s.departed.Delete(p.Via)
	case s.paths.Has(p):
		if s.departed.Len() >= maxDeparted { // forgets all rather than the oldest: only the text of a line depends on them
			s.departed = reconcile.CompactMap[netip.Addr, netip.Prefix]{}
		}
		s.departed.Set(p.Via, p.Dst)
		s.paths.Delete(p)
	}
}

// reset forgets all paths, before those that still exist are put again. It therefore makes no peer a
// departed one, and last and which stay.
func (s *sampler) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = reconcile.CompactMap[*dataplane.Path, struct{}]{}
}

// ofPeer returns when a packet was found last that claims to be from a peer's pod, and its
// description.
func (s *sampler) ofPeer() (time.Time, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.which
}
