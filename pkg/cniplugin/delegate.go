package cniplugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// delegate is the configuration of the plugin that does the work.
type delegate struct {
	Type string
	conf object
}

func (d delegate) bytes() []byte { return encode(d.conf) }

// version is the version of CNI that the delegate is spoken to in.
func (d delegate) version() string { return cmp.Or(d.conf.text("cniVersion"), "0.1.0") }

// newDelegate derives the delegate's configuration for an operating system (runtime.GOOS).
func newDelegate(c *conf, s subnetInfo, system string) (delegate, error) {
	d := delegate{conf: object{}}
	for k, v := range c.Delegate {
		d.conf[k] = v
	}
	for _, key := range []string{"name", "ipam"} {
		if d.conf.has(key) {
			return delegate{}, cniError(types.ErrInvalidNetworkConfig, "the delegate must not have %q, which is made of the network's configuration", key)
		}
	}
	if d.conf.has("type") && d.conf.text("type") == "" {
		return delegate{}, cniError(types.ErrInvalidNetworkConfig, "the delegate's type must be the name of a plugin")
	}
	d.conf.set("name", c.Name)
	if c.CNIVersion != "" {
		d.conf.set("cniVersion", c.CNIVersion)
	}
	if isJSON(c.RuntimeConfig) {
		d.conf["runtimeConfig"] = c.RuntimeConfig
	}
	if system == "windows" {
		d.forWindows(s)
	} else if err := d.forLinux(c, s); err != nil {
		return delegate{}, err
	}
	d.Type = d.conf.text("type")
	if err := checkType(d.Type); err != nil {
		return delegate{}, cniError(types.ErrInvalidNetworkConfig, "the delegate's type: %w", err)
	}
	return d, nil
}

// checkType refuses what is not the name of a program, and ourselves: that would go on without end.
func checkType(name string) error {
	switch {
	case name == "":
		return errors.New("missing")
	case strings.ContainsAny(name, `/\:`):
		return errors.New("must be the name of a plugin, not a path")
	case name == "flannel":
		return errors.New("flannel cannot be its own delegate")
	}
	return nil
}

type ipRange struct {
	Subnet netip.Prefix `json:"subnet"`
}

type route struct {
	Dst netip.Prefix `json:"dst"`
}

func (d delegate) forLinux(c *conf, s subnetInfo) error {
	d.conf.setDefault("type", "bridge")
	d.conf.setDefault("ipMasq", !s.ipMasq) // one of the two masquerades
	d.conf.setDefault("mtu", s.mtu)
	if d.conf.text("type") == "bridge" {
		d.conf.setDefault("isGateway", true)
	}
	ipam := object{}
	for k, v := range c.IPAM {
		ipam[k] = v
	}
	ipam.setDefault("type", "host-local")
	var routes []json.RawMessage
	if key, given := ipam.key("routes"); given {
		if err := json.Unmarshal(ipam[key], &routes); err != nil {
			return cniError(types.ErrInvalidNetworkConfig, "ipam.routes: %w", err)
		}
		delete(ipam, key)
	}
	for _, f := range s.families {
		for _, n := range f.networks {
			routes = append(routes, encode(route{n}))
		}
	}
	if key, given := ipam.key("ranges"); given {
		delete(ipam, key)
	}
	ipam.set("ranges", ranges(s))
	ipam.set("routes", routes)
	d.conf.set("ipam", ipam)
	return nil
}

// ranges has one set of ranges for each family: host-local gives an address of each set.
func ranges(s subnetInfo) (all [][]ipRange) {
	for _, f := range s.families {
		all = append(all, []ipRange{{f.subnet}})
	}
	return all
}

func (d delegate) forWindows(s subnetInfo) {
	d.conf.setDefault("type", "win-bridge")
	d.conf.setDefault("cniVersion", "0.2.0")
	d.conf.setDefault("ipMasq", s.ipMasq)
	d.conf.setDefault("ipMasqNetwork", s.families[0].networks[0])
	ipam := object{}
	ipam.set("type", "host-local")
	// sdnbridge alone takes two addresses; the others take the first and would leave the second unused. It derives no
	// gateway of its own from ranges, so it gets these only where it has to.
	if len(s.families) > 1 && d.conf.text("type") == "sdnbridge" {
		ipam.set("ranges", ranges(s))
	} else {
		ipam.set("subnet", s.families[0].subnet)
	}
	d.conf.set("ipam", ipam)
}

// subnets are those that the delegate takes addresses from.
func (d delegate) subnets() (all []netip.Prefix) {
	var ipam struct {
		Subnet netip.Prefix
		Ranges [][]struct{ Subnet netip.Prefix }
	}
	if json.Unmarshal(d.conf["ipam"], &ipam) != nil {
		return nil
	}
	if ipam.Subnet.IsValid() {
		all = append(all, ipam.Subnet.Masked())
	}
	for _, set := range ipam.Ranges {
		for _, r := range set {
			all = append(all, r.Subnet.Masked())
		}
	}
	return all
}

// mtu is the MTU as it is written, "" for none.
func (d delegate) mtu() string {
	key, _ := d.conf.key("mtu")
	return string(d.conf[key])
}

// setPrevResult passes on what the runtime says of the result of ADD. It is in the version of the runtime's
// configuration, which may be another than that of ADD's time.
func (d delegate) setPrevResult(c *conf) {
	if isJSON(c.PrevResult) && d.version() == c.version() {
		d.conf["prevResult"] = c.PrevResult
	}
}
