package linux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// reqID connects policies with security associations: a policy uses only those with the same
// number. It is flannel's, and the same for all peers.
const reqID = 11

// policyKey identifies a policy of XFRM: the packets that it applies to.
type policyKey struct {
	Dir      netlink.Dir
	Src, Dst netip.Prefix
}

func (k policyKey) String() string { return fmt.Sprintf("%s src %s dst %s", k.Dir, k.Src, k.Dst) }

// Priorities of policies without ESP, by which they are recognized as ours: no other
// program is known to use them. The kernel applies the policy with the smallest number
// of those that match a packet. That of ours with ESP is 0, as flannel's.
const (
	localPriority = 70<<24 + iota // packets pass
	blockPriority                 // packets are dropped
)

// policy requires ESP in tunnel mode between two nodes, or has no ends and one of the
// priorities above.
type policy struct {
	Src, Dst netip.Addr
	Priority int // 0: with ESP
}

func (p policy) String() string {
	switch p.Priority {
	case localPriority:
		return "not encrypted"
	case blockPriority:
		return "dropped unless encrypted"
	}
	return fmt.Sprintf("esp from %s to %s", p.Src, p.Dst)
}

type policyEntry = reconcile.Entry[policyKey, policy]

// xfrmStore is the kernel's side of the table of policies: those of flannel's form, and those without ESP, between
// subnets of our networks. It belongs to the daemon's loop: the table of policies and ipsec call it.
type xfrmStore struct {
	handle *netlink.Handle // nil: not opened yet, or closed after an error
	tried  bool            // require has found, in this run, that the kernel has ESP
	scope  *scopePointer   // says which subnets are in our networks
}

func (*xfrmStore) Name() string { return "policies" }

// require opens the store and makes sure that the kernel has ESP. It makes the kernel
// load its modules, by adding a security association that no packet uses and deleting it
// again. ipsec.ensure calls it, so that its error is one of the device. The algorithm and the
// key, of 0, do not matter.
func (s *xfrmStore) require() error {
	if err := s.open(); err != nil || s.tried {
		return err
	}
	loopback := net.IPv4(127, 0, 0, 1)
	sa := &netlink.XfrmState{Src: loopback, Dst: loopback, Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Spi: 0x666c616e, // "flan"
		Reqid: reqID, Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128}}
	err := s.handle.XfrmStateAdd(sa)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return &noModuleError{Module: "esp4", err: err}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("try ESP: %w: the kernel refuses XFRM from this program, as a kernel of 64 bits without XFRM_USER_COMPAT "+
			"refuses it from a program of %d bits: install flanneld for the kernel's architecture, or use another backend", err, strconv.IntSize)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("try ESP: %w", err)
	}
	s.tried = true
	return gone(s.handle.XfrmStateDel(sa))
}

// open opens the netlink socket, unless it is open.
func (s *xfrmStore) open() error {
	if s.handle != nil {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_XFRM)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return &noModuleError{Module: "xfrm_user", err: err}
	}
	if err != nil {
		return reconcile.Unknown(fmt.Errorf("open a netlink socket for XFRM: %w", err))
	}
	if err := h.SetSocketTimeout(answerTimeout); err != nil {
		h.Close()
		return reconcile.Unknown(fmt.Errorf("prepare a netlink socket for XFRM: %w", err))
	}
	s.handle = h
	return nil
}

// close closes the connection to the kernel; open opens it again.
func (s *xfrmStore) close() {
	if s.handle != nil {
		s.handle.Close()
		s.handle = nil
	}
}

// readable opens the store and reports whether there can be policies: false, without an error, if
// the kernel does not have XFRM now. To open a socket would make the kernel load the module, which
// nodes with other backends do not need, so readable looks in /proc first.
func (s *xfrmStore) readable() (bool, error) {
	if s.handle == nil {
		sockets, err := os.ReadFile("/proc/net/netlink")
		if err == nil && !hasXFRM(sockets) {
			return false, nil
		}
		// Without the file (the mount option subset=pid of /proc, a security module), the kernel itself is asked.
	}
	err := s.open()
	if _, missing := errors.AsType[*noModuleError](err); missing {
		return false, nil
	}
	return err == nil, err
}

// hasXFRM reports whether a list of netlink sockets has one for XFRM, of the kernel or
// of others. The second column is the protocol.
func hasXFRM(sockets []byte) bool {
	for lines := bufio.NewScanner(bytes.NewReader(sockets)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[1] == fmt.Sprint(unix.NETLINK_XFRM) {
			return true
		}
	}
	return false
}

// read returns all policies for IPv4, the only family of the backend; nil: there are none.
func (s *xfrmStore) read() ([]netlink.XfrmPolicy, error) {
	if ok, err := s.readable(); !ok || err != nil {
		return nil, err
	}
	return xfrmDump(s, func() ([]netlink.XfrmPolicy, error) { return s.handle.XfrmPolicyList(netlink.FAMILY_V4) })
}

// xfrmDump calls read, which lists policies or security associations. A kernel that refuses
// XFRM to this program (see require) has none of ours: the result is nil. After any other error
// the socket is closed, because the rest of an answer may wait in it.
func xfrmDump[E any](s *xfrmStore, read func() ([]E, error)) ([]E, error) {
	all, err := readWhole(read)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		s.close()
	}
	return all, err
}

func (s *xfrmStore) List(context.Context) (map[policyKey]policy, error) {
	all, err := s.read()
	if err != nil || all == nil {
		return nil, err
	}
	out, scope := map[policyKey]policy{}, s.scope.Load()
	for _, p := range all {
		if key, value, ok := parsePolicy(p); ok && scope.has(key.Src) && scope.has(key.Dst) {
			out[key] = value
		}
	}
	return out, nil
}

// parsePolicy returns the entry of a policy that has flannel's form, or that of ours
// without ESP; ok is false for any other, such as one for a port or of a socket.
func parsePolicy(p netlink.XfrmPolicy) (key policyKey, value policy, ok bool) {
	if p.Dir > netlink.XFRM_DIR_FWD || p.Proto != 0 || p.SrcPort != 0 || p.DstPort != 0 || p.Ifindex != 0 || p.Mark != nil || p.Ifid != 0 {
		return key, value, false
	}
	key = policyKey{p.Dir, rtnetlink.PrefixOf(p.Src), rtnetlink.PrefixOf(p.Dst)}
	switch {
	case len(p.Tmpls) == 0:
		value.Priority = p.Priority
		ours := p.Priority == localPriority || p.Priority == blockPriority
		return key, value, ours && p.Action == value.action()
	case len(p.Tmpls) > 1 || p.Action != netlink.XFRM_POLICY_ALLOW:
		return key, value, false
	}
	t := p.Tmpls[0]
	value.Src, value.Dst = rtnetlink.AddrOf(t.Src), rtnetlink.AddrOf(t.Dst)
	return key, value, t.Proto == netlink.XFRM_PROTO_ESP && t.Mode == netlink.XFRM_MODE_TUNNEL && t.Reqid == reqID && t.Spi == 0 && t.Optional == 0
}

// action is what the kernel does with packets that the policy applies to; ESP comes in
// addition.
func (p policy) action() netlink.PolicyAction {
	if p.Priority == blockPriority {
		return netlink.XFRM_POLICY_BLOCK
	}
	return netlink.XFRM_POLICY_ALLOW
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Set replaces a policy in one step, whatever its content is. It sets what lets packets to
// this node's own pods pass, then what drops packets to others, then policies with ESP. So
// in between, no packet is dropped, or leaves unencrypted, unless that happens to it before
// or afterwards, too.
func (s *xfrmStore) Set(_ context.Context, entries []policyEntry) []error {
	return s.each(entries, []int{localPriority, blockPriority, 0}, func(e policyEntry) error {
		p := &netlink.XfrmPolicy{Dir: e.Key.Dir, Src: ipNet(e.Key.Src), Dst: ipNet(e.Key.Dst), Priority: e.Value.Priority, Action: e.Value.action()}
		if e.Value.Priority == 0 {
			p.Tmpls = []netlink.XfrmPolicyTmpl{{Src: e.Value.Src.AsSlice(), Dst: e.Value.Dst.AsSlice(),
				Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Reqid: reqID}}
		}
		return s.handle.XfrmPolicyUpdate(p)
	})
}

// each opens the store and calls do for each entry, in the order of these priorities, which are all
// that there are. Element i of the result is the error of entry i, or nil.
func (s *xfrmStore) each(entries []policyEntry, order []int, do func(policyEntry) error) []error {
	errs := make([]error, len(entries))
	for _, priority := range order {
		for i, e := range entries {
			if e.Value.Priority != priority {
				continue
			}
			if errs[i] = s.open(); errs[i] == nil {
				errs[i] = do(e)
			}
		}
	}
	return errs
}

// Delete also deletes the security associations of the policies, which a charon that
// was killed leaves behind, unless another policy uses them. What drops packets comes
// first: packets may have another way, by a device of another backend. There is at least one
// entry. The last entry's error includes that of the security associations.
func (s *xfrmStore) Delete(ctx context.Context, entries []policyEntry) []error {
	unused := map[policy]bool{}
	errs := s.each(entries, []int{blockPriority, 0, localPriority}, func(e policyEntry) error {
		unused[e.Value] = true
		return gone(s.handle.XfrmPolicyDel(&netlink.XfrmPolicy{Dir: e.Key.Dir, Src: ipNet(e.Key.Src), Dst: ipNet(e.Key.Dst)}))
	})
	if err := s.deleteStates(ctx, unused); err != nil {
		errs[len(errs)-1] = errors.Join(errs[len(errs)-1], fmt.Errorf("delete security associations: %w", err))
	}
	return errs
}

// deleteStates deletes our security associations between the ends of the unused policies,
// except those that a remaining policy has. (Policies without ESP have no ends.) It changes unused.
func (s *xfrmStore) deleteStates(ctx context.Context, unused map[policy]bool) error {
	remaining, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, p := range remaining {
		delete(unused, p)
	}
	states, err := s.states()
	if err != nil {
		return err
	}
	var errs []error
	for _, sa := range states {
		if unused[policy{Src: rtnetlink.AddrOf(sa.Src), Dst: rtnetlink.AddrOf(sa.Dst)}] {
			errs = append(errs, gone(s.handle.XfrmStateDel(&sa)))
		}
	}
	return errors.Join(errs...)
}

// states returns the security associations of all our policies.
func (s *xfrmStore) states() (ours []netlink.XfrmState, err error) {
	if ok, err := s.readable(); !ok || err != nil {
		return nil, err
	}
	all, err := xfrmDump(s, func() ([]netlink.XfrmState, error) { return s.handle.XfrmStateList(netlink.FAMILY_V4) })
	if err != nil {
		return nil, err
	}
	for _, sa := range all {
		if sa.Reqid == reqID && sa.Proto == netlink.XFRM_PROTO_ESP && sa.Mode == netlink.XFRM_MODE_TUNNEL {
			ours = append(ours, sa)
		}
	}
	return ours, nil
}

// spis returns the SPIs (security parameter indexes) of our security associations, so that
// ikeStore knows which of charon's the kernel still has.
func (s *xfrmStore) spis() (map[uint32]bool, error) {
	states, err := s.states()
	out := make(map[uint32]bool, len(states))
	for _, sa := range states {
		out[uint32(sa.Spi)] = true
	}
	return out, err
}

// gone returns the error of a deletion, except that there was nothing to delete.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
