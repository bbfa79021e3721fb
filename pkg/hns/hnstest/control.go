package hnstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/hns"
)

// control obeys an order and reports.
func (m *Machine) control(args [][]byte) [][]byte {
	var o Order
	var err error
	if len(args) != 1 {
		err = errors.New("no order")
	} else if err = json.Unmarshal(args[0], &o); err == nil {
		err = m.obey(o)
	}
	if err != nil {
		return [][]byte{pack(uint32(invalidArg)), nil, []byte(err.Error())}
	}
	return [][]byte{pack(uint32(0)), []byte(text(m.report())), nil}
}

func (m *Machine) obey(o Order) (err error) {
	if len(o.Turn) > 0 {
		m.Turn(func(k *Knobs) { err = json.Unmarshal(o.Turn, k) })
	}
	if o.Heal {
		m.Heal()
	}
	for _, f := range o.Fail {
		m.Fail(f)
	}
	if o.Restart {
		m.Restart()
	}
	if o.ForgetLog {
		m.ForgetLog()
	}
	return errors.Join(err, m.Hand().obeyNetworks(o), m.Hand().obeyStack(o))
}

func (h Hand) obeyNetworks(o Order) error {
	var all []error
	if o.DeleteNetwork != "" {
		all = append(all, h.DeleteNetwork(o.DeleteNetwork))
	}
	if o.DeleteEndpoint != "" {
		all = append(all, h.DeleteEndpoint(o.DeleteEndpoint))
	}
	if o.DeleteRemoteSubnet[0] != "" {
		p, err := netip.ParsePrefix(o.DeleteRemoteSubnet[1])
		all = append(all, err, h.DeleteRemoteSubnet(o.DeleteRemoteSubnet[0], p))
	}
	for _, pair := range o.Replace {
		h.replace(pair[0], pair[1])
	}
	return errors.Join(all...)
}

// replace changes the text of policies.
func (h Hand) replace(from, to string) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, n := range h.m.networks {
		before := n.policies
		n.policies = nil
		for _, p := range before {
			n.policies = append(n.policies, hns.Policy{Type: p.Type, Settings: json.RawMessage(strings.ReplaceAll(string(p.Settings), from, to))})
		}
		h.m.recarry(n, before)
	}
}

func (h Hand) obeyStack(o Order) error {
	var all []error
	if o.DeleteRoutes != "" {
		p, err := netip.ParsePrefix(o.DeleteRoutes)
		if all = append(all, err); err == nil {
			h.DeleteRoutes(p)
		}
	}
	if o.AddRoute != nil {
		all = append(all, h.AddRoute(*o.AddRoute))
	}
	if o.Rename[0] != "" {
		all = append(all, h.Rename(o.Rename[0], o.Rename[1]))
	}
	if len(o.Readdress) > 0 {
		var prefixes []netip.Prefix
		for _, s := range o.Readdress[1:] {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return fmt.Errorf("readdress %s: %w", o.Readdress[0], err)
			}
			prefixes = append(prefixes, p)
		}
		all = append(all, h.Readdress(o.Readdress[0], prefixes...))
	}
	if o.StopForwarding != "" {
		all = append(all, h.SetForwarding(o.StopForwarding, false, false), h.SetForwarding(o.StopForwarding, true, false))
	}
	return errors.Join(all...)
}

func (m *Machine) report() Report {
	h := m.Hand()
	r := Report{
		Log: m.Log(), Networks: h.Networks(), Endpoints: h.Endpoints(), Balancers: h.LoadBalancers(), Adapters: h.Adapters(), Routes: h.Routes(),
		OpenHandles: m.openObjects(),
	}
	for _, err := range m.Trouble() {
		r.Trouble = append(r.Trouble, err.Error())
	}
	return r
}
