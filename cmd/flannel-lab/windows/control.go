package windows

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/windows/hns"
)

// control is the name of the call that carries an Order.
const control = "Control"

// Serve makes a machine available to programs in Wine and to Dial, until the
// listener is closed. Each connection has a goroutine, so orders may be carried out at
// the same time as calls of the programs.
func Serve(l net.Listener, m *hnstest.Machine) error {
	s := wine.Server{Machine: m, More: map[string]func([][]byte) ([]byte, error){control: machine{m}.control}}
	return s.Serve(l)
}

// machine executes orders, on the goroutine of the connection that brought them. Each part
// of an order locks the machine by itself.
type machine struct{ *hnstest.Machine }

// control executes an order and returns the Report as JSON.
func (m machine) control(args [][]byte) ([]byte, error) {
	if len(args) != 1 {
		return nil, errors.New("want one argument, the order")
	}
	var o Order
	if err := json.Unmarshal(args[0], &o); err != nil {
		return nil, err
	}
	if err := m.execute(o); err != nil {
		return nil, err
	}
	return m.report()
}

// execute executes the parts of an order. All of them are tried; the error joins
// those of all.
func (m machine) execute(o Order) (err error) {
	if len(o.Turn) > 0 {
		m.Turn(func(k *hnstest.Knobs) { err = json.Unmarshal(o.Turn, k) }) // Turn calls it at once
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
	return errors.Join(err, m.executeNetworks(o), m.executeStack(o))
}

// executeNetworks executes the parts of an order that change HNS.
func (m machine) executeNetworks(o Order) error {
	var errs []error
	if o.DeleteNetwork != "" {
		errs = append(errs, m.Admin().DeleteNetwork(o.DeleteNetwork))
	}
	if o.DeleteEndpoint != "" {
		errs = append(errs, m.Admin().DeleteEndpoint(o.DeleteEndpoint))
	}
	if o.DeleteRemoteSubnet[0] != "" {
		p, err := netip.ParsePrefix(o.DeleteRemoteSubnet[1])
		errs = append(errs, err, m.Admin().DeleteRemoteSubnet(o.DeleteRemoteSubnet[0], p))
	}
	for _, pair := range o.Replace {
		errs = append(errs, m.replace(pair[0], pair[1]))
	}
	return errors.Join(errs...)
}

// replace replaces text in the settings of all policies of all networks.
func (m machine) replace(from, to string) error {
	var errs []error
	for _, doc := range m.Admin().Networks() {
		n, err := hns.DecodeNetwork(doc)
		errs = append(errs, err, m.Admin().Policies(n.Name, func(before []hns.Policy) (after []hns.Policy) {
			for _, p := range before {
				after = append(after, hns.Policy{Type: p.Type,
					Settings: json.RawMessage(strings.ReplaceAll(string(p.Settings), from, to))})
			}
			return after
		}))
	}
	return errors.Join(errs...)
}

// executeStack executes the parts of an order that change the IP stack.
func (m machine) executeStack(o Order) error {
	var errs []error
	if o.DeleteRoutes != "" {
		p, err := netip.ParsePrefix(o.DeleteRoutes)
		if errs = append(errs, err); err == nil {
			m.Admin().DeleteRoutes(p)
		}
	}
	if o.AddRoute != nil {
		errs = append(errs, m.Admin().AddRoute(*o.AddRoute))
	}
	if o.Rename[0] != "" {
		errs = append(errs, m.Admin().Rename(o.Rename[0], o.Rename[1]))
	}
	if len(o.Readdress) > 0 { // the name of the adapter, and its new addresses
		var prefixes []netip.Prefix
		for _, s := range o.Readdress[1:] {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return fmt.Errorf("readdress %s: %w", o.Readdress[0], err)
			}
			prefixes = append(prefixes, p)
		}
		errs = append(errs, m.Admin().Readdress(o.Readdress[0], prefixes...))
	}
	if o.StopForwarding != "" {
		errs = append(errs, m.Admin().SetForwarding(o.StopForwarding, false, false), // IPv4, off
			m.Admin().SetForwarding(o.StopForwarding, true, false)) // IPv6, off
	}
	return errors.Join(errs...)
}

// report returns a Report as JSON. Its parts are read one after the other, so the machine
// may change in between.
func (m machine) report() ([]byte, error) {
	h := m.Admin()
	r := Report{
		Log: m.Log(), Networks: h.Networks(), Endpoints: h.Endpoints(), Balancers: h.LoadBalancers(),
		Adapters: h.Adapters(), Routes: h.Routes(),
		OpenObjects: m.OpenObjects(),
	}
	for _, err := range m.Trouble() {
		r.Trouble = append(r.Trouble, err.Error())
	}
	return json.Marshal(r)
}
