package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// wgKey identifies a peer of a WireGuard device. It is a key of the table wireguard.peers.
type wgKey struct {
	Index int // of the device
	Key   dataplane.PublicKey
}

func (k wgKey) String() string {
	return fmt.Sprintf("PublicKey=%s on link %d", k.Key.Base64(), k.Index)
}

// wgPeer is the configuration of a peer.
type wgPeer struct {
	Endpoint  netip.AddrPort  // where packets to it are sent; zero: not known
	Allowed   [2]netip.Prefix // its subnets, sorted; zero: none
	PSK       conf.Secret
	Keepalive time.Duration
	Unmanaged bool // it has more allowed IPs than two, which we never set, so that it differs from any desired one
	// Lapsed: WireGuard may have learned the endpoint, which is to be the desired one now, and nothing else differs. Only
	// List sets it, and it is no repair (see Lapsed of reconcile.Table).
	Lapsed bool
}

// wgSubnet identifies an allowed IP, which one peer of a device has.
type wgSubnet struct {
	Index  int
	Subnet netip.Prefix
}

// wgStore is the kernel's side of the table of peers (reconcile.Store): those of our WireGuard
// devices. WireGuard changes the endpoint of a peer by itself to where its last authenticated
// packet came from (roaming), for example for a peer behind NAT. While the session lasts, such
// an endpoint is better than that of the lease, which is the desired one. So List then reports the
// endpoint that Set has set last (applied) as the actual one: the table calls Set only when the
// lease has another one.
//
//	endpoint in the kernel          session  List reports
//	as Set has set it               any      the kernel's
//	another                         lasts    as Set has set it; after a restart, as desired (adopt)
//	another, after a restart        lasts    the kernel's, if the peer does not answer there: Set then sets that of the lease
//	another                         over     the kernel's, likewise
//
// An endpoint that WireGuard has learned is not drift when its session is over. One that somebody sets during a session
// looks the same.
//
// The kernel does not notify of changes of peers, so poll makes the table list them.
//
// The loop, or the goroutine of Apply for which the loop waits (see Driver), has all fields to
// itself, except the atomic ones. The goroutine of poll uses active and interval, and ends with
// stop. Driver.Traffic, for any goroutine, reads traffic.
type wgStore struct {
	client  wgClient // connects with the first request
	log     *slog.Logger
	keyFile string    // path of the file with the private key
	private wgPrivate // loadKey sets it
	// replaced means that this run has replaced the private key, since another node has the same: Device.Readdress
	// asks for that in each pass, and it is done once. wireguard.loadKey sets it.
	replaced bool

	devices func() map[int]string      // names of our devices by index; newWireGuard sets it
	desired func(wgKey) (wgPeer, bool) // what the table wants of a peer; newWireGuard sets it
	states  map[wgKey]*wgState         // of all actual peers
	// owners are the peers by their allowed IPs, for wireguard.found. It may name deleted peers
	// until the next List, so found asks the table whether the peer exists.
	owners  map[wgSubnet]wgKey
	report  func(dataplane.TunnelSummary) // dataplane.Options.Tunnels; may be nil
	traffic atomic.Pointer[map[netip.Prefix]dataplane.TunnelReport]

	starts map[string]*reconcile.Backoff // of wireguard-go, by device; startUserspace makes it

	listed   bool           // a list has ended (see summarize): the counters of a peer that is new in the next one are growth
	active   atomic.Bool    // there are devices to poll
	interval atomic.Int64   // of polling, in nanoseconds; 0: not polling
	stop     chan struct{}  // closed by close
	done     sync.WaitGroup // of the goroutine of poll
}

// wgState is what the store knows about an actual peer.
type wgState struct {
	applied   netip.AddrPort // the endpoint that Set has set, or that was adopted; zero: none in this run
	adopted   bool           // applied is not what the kernel has, and the peer has not sent anything in this run
	asked     time.Time      // since when an adopted endpoint owes an answer (judgeAdopted); zero: it owes none
	learned   bool           // a session lasted when List read the endpoint of actual: WireGuard may have learned it
	actual    wgPeer         // as of the last List or Set
	at        time.Time      // when List read the peer
	handshake time.Time      // the time of the last handshake, by the wall clock
	changed   time.Time      // when this run first saw that handshake; if it is older than this run, the time of the handshake itself
	received  int64          // bytes
	sent      int64          // bytes
}

// sessionLasts is how long a session is valid after its handshake: REJECT_AFTER_TIME of
// WireGuard's paper, section 6.1.
const sessionLasts = 180 * time.Second

// answersWithin is the time in which a peer that this node sends data to answers, even if the first packets are
// lost or the peer has lost the session (section 6 of the paper). It answers data by a keepalive, if it has no data,
// within KEEPALIVE_TIMEOUT. WireGuard negotiates anew KEEPALIVE_TIMEOUT + REKEY_TIMEOUT (15 s) after data without an
// answer, and again REKEY_TIMEOUT (5 s) later, each with up to a third of a second of jitter: 20.7 s. The rest is
// for the answer to the second handshake.
const answersWithin = 22 * time.Second

// keepaliveSize is the size of a keepalive in bytes: a message without data (section 5.4.6). A peer does not
// answer a keepalive. Each other message is larger, and answered.
const keepaliveSize = 32

// live reports whether the peer had a handshake within sessionLasts. The age is measured
// from changed, because the time of a handshake is one of the wall clock, which may be set.
func (s *wgState) live() bool {
	return !s.handshake.IsZero() && time.Since(s.changed) < sessionLasts
}

// newWGStore returns the store of the peers of all WireGuard devices.
func newWGStore(log *slog.Logger, keyFile string, report func(dataplane.TunnelSummary)) *wgStore {
	if keyFile == "" {
		keyFile = usualKeyFile
	}
	return &wgStore{log: log, keyFile: keyFile, report: report, states: map[wgKey]*wgState{}, owners: map[wgSubnet]wgKey{}, stop: make(chan struct{})}
}

// withKey returns the link with this node's public key, which the lease publishes; the zero Link stays.
func (s *wgStore) withKey(l dataplane.Link) dataplane.Link {
	if l.Index != 0 {
		l.Key = s.private.public()
	}
	return l
}

func (*wgStore) Name() string { return "wireguard" }

func (s *wgStore) List(context.Context) (map[wgKey]wgPeer, error) {
	out, states, owners := map[wgKey]wgPeer{}, map[wgKey]*wgState{}, map[wgSubnet]wgKey{}
	began := time.Now()
	for index, name := range s.devices() {
		dev, err := s.client.device(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just deleted, and its notification leads to another list
		}
		if err != nil {
			return nil, err
		}
		for _, p := range dev.Peers {
			key := wgKey{index, dataplane.PublicKey(p.PublicKey)}
			state := s.observe(key, p)
			have := s.adoptAndReport(key, state)
			have.Lapsed = s.lapsed(key, state, have)
			states[key], out[key] = state, have
			for _, allowed := range state.actual.Allowed {
				if allowed.IsValid() {
					owners[wgSubnet{index, allowed}] = key
				}
			}
		}
	}
	s.summarize(states)
	s.states, s.owners = states, owners
	if s.interval.Load() != 0 { // it is polling (wgtraffic_linux.go has the limits)
		s.interval.Store(int64(min(max(pollInterval, pollShare*time.Since(began)), maxInterval)))
	}
	return out, nil
}

// observe returns the state of a peer that was read. It does not change s.states.
func (s *wgStore) observe(key wgKey, p wgtypes.Peer) *wgState {
	now := time.Now()
	state := &wgState{actual: peerOf(p), at: now, handshake: p.LastHandshakeTime, changed: now, received: p.ReceiveBytes, sent: p.TransmitBytes}
	before, known := s.states[key]
	switch {
	case !known: // the handshake may be an old one, of an earlier run
		state.changed = state.changed.Add(-max(0, time.Since(p.LastHandshakeTime)))
	case before.handshake.Equal(state.handshake):
		state.changed = before.changed
	}
	if known {
		state.applied = before.applied
		state.judgeAdopted(before)
	}
	state.learned = state.live() || known && before.learned && before.actual.Endpoint == state.actual.Endpoint
	return state
}

// lapsed returns Lapsed of the reported configuration of a peer.
func (s *wgStore) lapsed(key wgKey, state *wgState, have wgPeer) bool {
	want, ok := s.desired(key)
	if !ok || !state.learned || have.Endpoint == want.Endpoint {
		return false
	}
	have.Endpoint = want.Endpoint
	return have == want
}

// judgeAdopted decides, with each list, whether an adopted endpoint stays: for good once the peer
// has answered. If this node has sent more than keepalives and the peer does not answer within
// answersWithin, the endpoint counts as what Set has set, so that it differs from the desired one.
func (s *wgState) judgeAdopted(before *wgState) {
	if !before.adopted || s.received != before.received {
		return
	}
	s.adopted, s.asked = true, before.asked
	switch {
	case s.asked.IsZero() && s.sent-before.sent > keepalivesBetween(before, s):
		s.asked = s.at
	case !s.asked.IsZero() && time.Since(s.asked) >= answersWithin:
		s.adopted, s.applied = false, s.actual.Endpoint
	}
}

// keepalivesBetween returns the most bytes that keepalives to a peer can have between two lists: one
// keepalive for each full PersistentKeepaliveInterval and one for the rest, and one that confirms data which
// the peer sent before, or that a new interval begins with.
func keepalivesBetween(before, after *wgState) int64 {
	count := int64(2) // the one for the rest of the time, and the one that confirms data or begins an interval
	if every := after.actual.Keepalive; every > 0 {
		count += int64(after.at.Sub(before.at) / every)
	}
	return keepaliveSize * count
}

// peerOf returns the configuration of a peer.
func peerOf(p wgtypes.Peer) wgPeer {
	out := wgPeer{Keepalive: p.PersistentKeepaliveInterval, Unmanaged: len(p.AllowedIPs) > 2}
	if p.PresharedKey != (wgtypes.Key{}) { // zeros: none
		out.PSK = conf.NewSecret(string(p.PresharedKey[:]))
	}
	if p.Endpoint != nil {
		at := p.Endpoint.AddrPort()
		out.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	for i, n := range p.AllowedIPs[:min(2, len(p.AllowedIPs))] {
		out.Allowed[i] = rtnetlink.PrefixOf(&n)
	}
	if a := &out.Allowed; a[1].IsValid() && a[1].Addr().Less(a[0].Addr()) {
		a[0], a[1] = a[1], a[0]
	}
	return out
}

// adoptAndReport returns the configuration of a peer for reconcile.Table: with the endpoint that
// the comment at wgStore says. Before, it adopts the desired endpoint, if one is desired.
func (s *wgStore) adoptAndReport(key wgKey, state *wgState) wgPeer {
	if want, ok := s.desired(key); ok {
		state.adopt(want.Endpoint)
	}
	p := state.actual
	if state.applied.IsValid() && state.live() {
		p.Endpoint = state.applied
	}
	return p
}

// adopt records the first desired endpoint of this run as the applied one if the session
// lasts. If the kernel has another one, WireGuard has found a better one since an earlier run, which
// stays, or the lease has changed since: judgeAdopted tells them apart.
func (s *wgState) adopt(desired netip.AddrPort) {
	if !s.applied.IsValid() && s.live() {
		s.applied, s.adopted = desired, desired != s.actual.Endpoint
	}
}

type wgEntry = reconcile.Entry[wgKey, wgPeer]

// perMessage is the number of peers in one message: the most that wgctrl puts into one. With more,
// it makes one message of each peer.
const perMessage = 32

func (s *wgStore) Set(_ context.Context, entries []wgEntry) []error {
	errs := s.write(entries, s.configOf)
	for i, e := range entries {
		if errs[i] == nil {
			s.recordSet(e)
		}
	}
	return errs
}

func (s *wgStore) Delete(_ context.Context, entries []wgEntry) []error {
	errs := s.write(entries, func(e wgEntry) wgtypes.PeerConfig {
		return wgtypes.PeerConfig{PublicKey: wgtypes.Key(e.Key.Key), Remove: true, UpdateOnly: true} // UpdateOnly: do not create it
	})
	for i, e := range entries {
		if errors.Is(errs[i], fs.ErrNotExist) { // the device is gone
			errs[i] = nil
		}
		if errs[i] == nil {
			delete(s.states, e.Key)
		}
	}
	return errs
}

// write sends the configuration of peers, many in one message, and returns an error for each.
// If a message is refused, its peers are sent one by one, because the kernel does not say
// which peer it refuses. If there was no answer, all peers of the message have that error.
func (s *wgStore) write(entries []wgEntry, configOf func(wgEntry) wgtypes.PeerConfig) []error {
	names, errs := s.devices(), make([]error, len(entries))
	byDevice := map[int][]int{} // indexes of entries
	for i, e := range entries {
		byDevice[e.Key.Index] = append(byDevice[e.Key.Index], i)
	}
	for index, all := range byDevice {
		for part := range slices.Chunk(all, perMessage) {
			peers := make([]wgtypes.PeerConfig, 0, len(part))
			for _, i := range part {
				peers = append(peers, configOf(entries[i]))
			}
			err := s.client.configure(names[index], wgtypes.Config{Peers: peers})
			for j, i := range part {
				if errs[i] = err; err != nil && len(part) > 1 && !reconcile.IsUnknown(err) {
					errs[i] = s.client.configure(names[index], wgtypes.Config{Peers: peers[j : j+1]})
				}
			}
		}
	}
	return errs
}

// configOf returns what has to be changed of a peer; what is nil in the result stays. An endpoint
// that WireGuard has learned stays if the lease has not changed.
func (s *wgStore) configOf(e wgEntry) wgtypes.PeerConfig {
	state, exists := s.states[e.Key]
	if !exists {
		state = &wgState{}
	}
	// Driver.Found makes the table list the peers of an earlier run before they are desired, so that
	// List adopts no endpoint of theirs. That is done here.
	want, have := e.Value, s.adoptAndReport(e.Key, state)
	c := wgtypes.PeerConfig{PublicKey: wgtypes.Key(e.Key.Key)}
	if want.Endpoint != have.Endpoint {
		c.Endpoint = net.UDPAddrFromAddrPort(want.Endpoint)
	}
	if want.PSK != have.PSK {
		c.PresharedKey = new(wgtypes.Key) // zeros, for none, remove it
		copy(c.PresharedKey[:], want.PSK.Reveal())
	}
	if want.Keepalive != have.Keepalive {
		c.PersistentKeepaliveInterval = &want.Keepalive
	}
	if want.Allowed == have.Allowed && !have.Unmanaged {
		return c
	}
	// The list is replaced only if an allowed IP is to go: to replace it loses packets for those
	// that stay, for a moment.
	c.ReplaceAllowedIPs = have.Unmanaged || slices.ContainsFunc(have.Allowed[:], func(p netip.Prefix) bool { return p.IsValid() && !slices.Contains(want.Allowed[:], p) })
	for _, p := range want.Allowed {
		if p.IsValid() {
			c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
	}
	return c
}

// recordSet records an entry that was set. The kernel has the desired endpoint
// afterwards if configOf has sent it, and else the one that it had.
func (s *wgStore) recordSet(e wgEntry) {
	state, exists := s.states[e.Key]
	if !exists {
		state = &wgState{}
		s.states[e.Key] = state
	}
	endpoint := state.actual.Endpoint
	if s.adoptAndReport(e.Key, state).Endpoint != e.Value.Endpoint { // as in configOf
		endpoint, state.adopted = e.Value.Endpoint, false
	}
	state.applied, state.actual = e.Value.Endpoint, e.Value
	state.actual.Endpoint = endpoint
	for _, allowed := range e.Value.Allowed {
		if allowed.IsValid() {
			s.owners[wgSubnet{e.Key.Index, allowed}] = e.Key
		}
	}
}
